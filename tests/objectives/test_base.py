"""The objective protocol: splitting parameters, dividing sums by weights."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.objectives.base import (
    Optimizer,
    Stage,
    all_parameters,
    means,
    merge,
    select,
    total_loss,
)
from bert_jax.train.optimizer import AdamW

PARAMS = {"encoder": {"a": {"kernel": 1, "bias": 2}, "b": 3}, "head": {"bias": 4}}


def test_select_and_merge_are_inverse():
    for trains in (all_parameters, lambda p: p.startswith("encoder/a"), lambda p: "bias" in p):
        chosen, rest = select(PARAMS, trains)
        assert merge(chosen, rest) == PARAMS
        assert not set(jax.tree.leaves(chosen)) & set(jax.tree.leaves(rest))


def test_select_goes_by_path():
    chosen, rest = select(PARAMS, lambda path: path in ("encoder/a/bias", "head/bias"))
    assert chosen == {"encoder": {"a": {"bias": 2}}, "head": {"bias": 4}}
    assert rest == {"encoder": {"a": {"kernel": 1}, "b": 3}}
    assert select(PARAMS, all_parameters) == (PARAMS, {})


def test_total_loss_divides_by_global_weights():
    """2 x 10 / 4 + 0.5 x 3 / 6, whatever the local weights; other names are metrics."""
    sums = {name: (jnp.float32(s), jnp.float32(1.0)) for name, s in zip("abc", (10, 3, 99))}  # noqa: B905
    weights = {"a": jnp.float32(4), "b": jnp.float32(6), "c": jnp.float32(1)}
    value = total_loss(sums, {"a": 2.0, "b": 0.5}, weights)
    np.testing.assert_allclose(value, 5.25, rtol=1e-7)


def test_a_loss_without_weight_counts_as_zero():
    """And its gradient is 0, not NaN (P23); the other losses are as before."""

    def loss(x, weight):
        sums = {"a": (x * weight, weight), "b": (3 * x, jnp.float32(2))}
        return total_loss(sums, {"a": 1.0, "b": 1.0}, {"a": weight, "b": jnp.float32(2)})

    value, gradient = jax.value_and_grad(loss)(jnp.float32(5), jnp.float32(0))
    assert (value, gradient) == (7.5, 1.5)
    value, gradient = jax.value_and_grad(loss)(jnp.float32(5), jnp.float32(4))
    assert (value, gradient) == (12.5, 2.5)


def test_means_divide_once():
    sums = {"loss": (np.float32(7), np.float32(2)), "nothing": (np.float32(0), np.float32(0))}
    assert means(sums) == {"loss": 3.5, "nothing": 0.0}
    assert all(type(value) is float for value in means(sums).values())


def test_a_stage_minimises_something():
    with pytest.raises(ValueError) as caught:
        Stage("empty", lambda *_: {}, coefficients={})
    message = "stage 'empty' minimises nothing; name a loss and its factor."
    assert str(caught.value) == message


def test_adamw_is_an_optimizer():
    assert isinstance(AdamW(), Optimizer)

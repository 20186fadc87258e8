"""The slow optimizers against closed forms: they are what the fast ones are held against."""

import numpy as np
import pytest

from bert_jax.recipes.checks import reference_optimizers as slow

P = {"w": np.array([3.0, 4.0]), "b": np.array([1.0])}
ONES = {"w": np.ones(2), "b": np.ones(1)}
COMMON = {"b1": 0.9, "b2": 0.999, "eps": 0.0, "weight_decay": 0.0}


@pytest.mark.parametrize(
    ("rule", "size"),
    # One step of a constant gradient: lr; without correction lr (1 - b1) / sqrt(1 - b2).
    [(slow.adamw, 1.0), (slow.fairseq_adam, 1.0), (slow.bert_adam, 0.1 / np.sqrt(0.001))],
)
def test_the_first_update(rule, size):
    after = rule(P, [ONES], [0.01], (), **COMMON)
    np.testing.assert_allclose(P["w"] - after["w"], 0.01 * size, rtol=1e-12)


@pytest.mark.parametrize("rule", [slow.adamw, slow.fairseq_adam, slow.bert_adam])
def test_decay_is_the_rate_times_the_value(rule):
    after = rule(P, [ONES], [0.01], ("w",), **{**COMMON, "weight_decay": 0.5})
    plain = rule(P, [ONES], [0.01], (), **COMMON)
    np.testing.assert_allclose(plain["w"] - after["w"], 0.01 * 0.5 * P["w"], rtol=1e-12)
    np.testing.assert_array_equal(plain["b"], after["b"])


def test_where_epsilon_stands():
    """Beside a second moment that is corrected (torch), or before the correction (fairseq)."""
    numbers = {**COMMON, "eps": 0.5}
    torch = slow.adamw(P, [ONES], [1.0], (), **numbers)
    np.testing.assert_allclose(P["w"] - torch["w"], 1 / (1 + 0.5), rtol=1e-12)
    fairseq = slow.fairseq_adam(P, [ONES], [1.0], (), **numbers)
    root = np.sqrt(0.001)
    np.testing.assert_allclose(P["w"] - fairseq["w"], root / (root + 0.5), rtol=1e-12)


def test_lamb_moves_a_variable_by_the_rate_times_its_norm():
    after = slow.lamb(P, [ONES], [0.01], ("w",), **COMMON)
    np.testing.assert_allclose(np.linalg.norm(P["w"] - after["w"]), 0.01 * 5, rtol=1e-12)
    # What is not decayed has no trust ratio.
    np.testing.assert_allclose(P["b"] - after["b"], 0.01 * 0.1 / np.sqrt(0.001), rtol=1e-12)


def test_stable_adamw_divides_a_surprising_step():
    numbers = {**COMMON, "max_rate": 0.02}
    after = slow.stable_adamw(P, [ONES], [0.01], (), **numbers)
    np.testing.assert_allclose(P["w"] - after["w"], 0.01, rtol=1e-12)  # g^2 = v at first
    # Then a gradient ten times as large: v is an average of 1 and 100.
    share = 1 - 0.999 * (1 - 0.999) / (1 - 0.999**2)
    v = (1 - share) + share * 100
    spread = max(1.0, np.sqrt(100 / v))
    first = 1 - 0.9 * (1 - 0.9) / (1 - 0.9**2)
    m = (1 - first) + first * 10
    ten = {name: 10 * one for name, one in ONES.items()}
    twice = slow.stable_adamw(P, [ONES, ten], [0.01, 0.01], (), **numbers)
    np.testing.assert_allclose(after["w"] - twice["w"], 0.01 / spread * m / np.sqrt(v), rtol=1e-9)
    decayed = slow.stable_adamw(P, [ONES], [0.01], ("w",), **{**numbers, "weight_decay": 0.5})
    np.testing.assert_allclose(after["w"] - decayed["w"], 0.01 / 0.02 * 0.5 * P["w"], rtol=1e-9)


def test_clipping():
    big = {"w": np.array([3.0, 0.0]), "b": np.array([4.0])}
    clipped = slow.clip_by_global_norm(big, 1.0)
    np.testing.assert_allclose(clipped["w"], [0.6, 0.0], rtol=1e-12)
    assert slow.clip_by_global_norm(big, 6.0)["b"] == 4.0
    assert slow.clip_by_global_norm(big, None)["b"] == 4.0

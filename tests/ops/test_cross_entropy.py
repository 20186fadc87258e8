"""cross_entropy: against float64, in bfloat16, in blocks, with padded vocabulary rows."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxprs_in_params

from bert_jax.ops.cross_entropy import (
    MASKED_LOGIT,
    cross_entropy,
    linear_cross_entropy,
    project,
    token_losses,
)
from bert_jax.parallel import specs
from bert_jax.parallel.mesh import MeshShape, make_mesh

cross_entropy = jax.jit(cross_entropy)
token_losses = jax.jit(token_losses)


def reference(logits, targets):
    """(nll, correct) in float64, one target at a time."""
    logits = np.asarray(logits, np.float64)
    nll, correct = [], []
    for row, target in zip(logits, targets, strict=True):
        peak = row.max()
        nll.append(peak + np.log(np.exp(row - peak).sum()) - row[target])
        correct.append(row[target] == peak)
    return np.array(nll), np.array(correct)


# ---------------------------------------------------------------------------- cross_entropy


def test_equals_float64():
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 3, (3, 5, 301)).astype(np.float32)
    targets = rng.integers(0, 301, (3, 5))
    weights = rng.random((3, 5)).astype(np.float32) * (rng.random((3, 5)) < 0.7)
    total, weight = cross_entropy(jnp.asarray(logits), jnp.asarray(targets), jnp.asarray(weights))
    nll, _ = reference(logits.reshape(15, 301), targets.reshape(15))
    assert total.dtype == weight.dtype == jnp.float32
    np.testing.assert_allclose(total, (nll * weights.reshape(15)).sum(), rtol=1e-6)
    np.testing.assert_allclose(weight, weights.sum(), rtol=1e-6)


def test_bfloat16_logits_give_a_float32_loss():
    """The rounded logits are the only error: 1e-3 of what float32 logits give (P21)."""
    logits = jax.random.normal(jax.random.key(1), (64, 2000), jnp.float32)
    targets = jnp.arange(64)
    weights = jnp.ones(64)
    exact, count = cross_entropy(logits, targets, weights)
    rounded, _ = cross_entropy(logits.astype(jnp.bfloat16), targets, weights)
    assert rounded.dtype == jnp.float32
    assert abs(rounded - exact) / count < 1e-3
    same, _ = cross_entropy(logits.astype(jnp.bfloat16).astype(jnp.float32), targets, weights)
    np.testing.assert_allclose(rounded, same, rtol=1e-7)


def test_bfloat16_weights_are_added_in_float32():
    """300 ones: a bfloat16 sum would stop at 256."""
    weights = jnp.ones(300, jnp.bfloat16)
    _, weight = cross_entropy(jnp.zeros((300, 4)), jnp.zeros(300, jnp.int32), weights)
    assert weight == 300


def test_no_weight_gives_zero_and_no_gradient():
    logits = jnp.asarray(np.random.default_rng(0).normal(0, 1, (4, 10)), jnp.float32)
    targets, weights = jnp.zeros(4, jnp.int32), jnp.zeros(4)
    loss = jax.value_and_grad(lambda x: cross_entropy(x, targets, weights), has_aux=True)
    (value, weight), gradient = jax.jit(loss)(logits)
    assert value == 0 and weight == 0
    np.testing.assert_array_equal(gradient, 0)


def test_correct_means_no_greater_logit():
    logits = jnp.asarray([[1.0, 2.0, 2.0], [3.0, 2.0, 2.0], [0.0, 0.0, 0.0]])
    _, correct = token_losses(logits, jnp.asarray([2, 1, 0]))
    np.testing.assert_array_equal(correct, [True, False, True])


def test_huge_logits_stay_finite():
    logits = jnp.asarray([[3e30, -3e30, 0.0], [MASKED_LOGIT, MASKED_LOGIT, 5.0]])
    nll, _ = token_losses(logits, jnp.asarray([0, 2]))
    np.testing.assert_allclose(nll, 0, atol=1e-6)


# ---------------------------------------------------------------------- linear_cross_entropy

COUNT, WIDTH = 37, 12


@functools.cache
def arrays(vocab_size: int, rows: int):
    """Hidden states, table, bias, targets and the weight of each loss in the total."""
    rng = np.random.default_rng(vocab_size)
    draws = {
        "hidden": rng.normal(0, 1, (COUNT, WIDTH)),
        "table": rng.normal(0, 1, (rows, WIDTH)),
        "bias": rng.normal(0, 1, rows),
    }
    targets = rng.integers(0, vocab_size, COUNT)
    targets[:2] = 0, vocab_size - 1
    weights = rng.random(COUNT) * (rng.random(COUNT) < 0.8)
    floats = {name: jnp.asarray(x, jnp.float32) for name, x in draws.items()}
    return floats, jnp.asarray(targets), jnp.asarray(weights, jnp.float32)


@functools.partial(jax.jit, static_argnames=("vocab_size", "block"))
def losses_and_gradients(floats, targets, weights, *, vocab_size, block):
    def total(floats):
        nll, correct = linear_cross_entropy(
            floats["hidden"], floats["table"], floats["bias"], targets,
            vocab_size=vocab_size, block=block,
        )  # fmt: skip
        return jnp.sum(nll * weights), (nll, correct)

    (_, losses), gradients = jax.value_and_grad(total, has_aux=True)(floats)
    return losses, gradients


def reference_gradients(floats, targets, weights, vocab_size):
    """By hand in float64: the gradient of nll by the logits is softmax - one-hot."""
    hidden, table, bias = (np.asarray(floats[n], np.float64) for n in ("hidden", "table", "bias"))
    logits = hidden @ table[:vocab_size].T + bias[:vocab_size]
    shares = np.exp(logits - logits.max(1, keepdims=True))
    shares /= shares.sum(1, keepdims=True)
    shares[np.arange(COUNT), targets] -= 1
    shares *= np.asarray(weights, np.float64)[:, None]
    d_table, d_bias = np.zeros_like(table), np.zeros_like(bias)
    d_table[:vocab_size], d_bias[:vocab_size] = shares.T @ hidden, shares.sum(0)
    d_hidden = shares @ table[:vocab_size]
    return logits, {"hidden": d_hidden, "table": d_table, "bias": d_bias}


@pytest.mark.parametrize(
    "vocab_size, rows, block",
    [
        (300, 384, None),
        (300, 384, 128),  # divides the rows, not the vocabulary
        (300, 384, 100),  # divides the vocabulary, not the rows
        (300, 384, 1000),  # exceeds both
        (129, 256, 70),  # divides neither
        (128, 128, 128),  # nothing is padded
    ],
)
def test_every_block_gives_the_same_as_float64(vocab_size, rows, block):
    floats, targets, weights = arrays(vocab_size, rows)
    (nll, correct), gradients = losses_and_gradients(
        floats, targets, weights, vocab_size=vocab_size, block=block
    )
    logits, expected = reference_gradients(floats, targets, weights, vocab_size)
    right_nll, right_correct = reference(logits, targets)
    assert nll.dtype == jnp.float32 and correct.dtype == jnp.bool_
    np.testing.assert_allclose(nll, right_nll, rtol=2e-6, atol=2e-6)
    np.testing.assert_array_equal(correct, right_correct)
    for name, gradient in gradients.items():
        # Float32 sums of up to 384 terms of order 1.
        np.testing.assert_allclose(gradient, expected[name], rtol=1e-5, atol=5e-6, err_msg=name)


@pytest.mark.parametrize("block", [None, 100])
def test_padded_rows_are_invisible(block):
    """Values of rows past the vocabulary change no loss, and they get no gradient (P31)."""
    floats, targets, weights = arrays(300, 384)
    changed = {
        **floats,
        "table": floats["table"].at[300:].set(50.0),
        "bias": floats["bias"].at[300:].set(1e6),
    }
    before = losses_and_gradients(floats, targets, weights, vocab_size=300, block=block)
    after = losses_and_gradients(changed, targets, weights, vocab_size=300, block=block)
    jax.tree.map(np.testing.assert_array_equal, before, after)
    np.testing.assert_array_equal(after[1]["table"][300:], 0)
    np.testing.assert_array_equal(after[1]["bias"][300:], 0)
    logits = project(changed["hidden"], changed["table"], changed["bias"], 300)
    np.testing.assert_array_equal(logits[:, 300:], jnp.float32(MASKED_LOGIT))
    np.testing.assert_array_equal(jax.nn.softmax(logits)[:, 300:], 0)


@pytest.mark.parametrize("block", [None, 100])
def test_bfloat16_products_leave_float32_sums(block):
    """The loss is within bfloat16's rounding; the table's gradient is not rounded to bfloat16."""
    floats, targets, weights = arrays(300, 384)
    (exact, _), right = losses_and_gradients(floats, targets, weights, vocab_size=300, block=None)
    narrow = {**floats, "hidden": floats["hidden"].astype(jnp.bfloat16)}
    (nll, _), gradients = losses_and_gradients(
        narrow, targets, weights, vocab_size=300, block=block
    )
    assert nll.dtype == jnp.float32
    # Logits of size |h||E| ~ 12, operands rounded by 2**-9.
    np.testing.assert_allclose(nll, exact, atol=12 * 2**-8)
    assert gradients["hidden"].dtype == jnp.bfloat16
    assert gradients["table"].dtype == gradients["bias"].dtype == jnp.float32
    for name in ("hidden", "table", "bias"):
        difference = np.linalg.norm(np.asarray(gradients[name], np.float32) - right[name])
        assert difference < 0.02 * np.linalg.norm(right[name]), name
    rounded = gradients["table"].astype(jnp.bfloat16).astype(jnp.float32)
    assert (rounded != gradients["table"]).mean() > 0.5


@pytest.mark.parametrize("block", [None, 128])
def test_great_logits_and_zero_weights_give_finite_gradients(block):
    floats, targets, _ = arrays(300, 384)
    floats = {**floats, "hidden": floats["hidden"] * 1e4}
    (nll, _), gradients = losses_and_gradients(
        floats, targets, jnp.zeros(COUNT), vocab_size=300, block=block
    )
    assert np.isfinite(nll).all() and (nll >= 0).all()
    jax.tree.map(lambda g: np.testing.assert_array_equal(g, 0), gradients)


def test_blocks_never_hold_all_logits():
    """No array of (targets x vocabulary), forward or backward."""
    largest = {block: max(sizes_with_targets(make_jaxpr(block).jaxpr)) for block in (None, 64)}
    assert largest[64] < COUNT * 300 <= largest[None]


def make_jaxpr(block):
    step = functools.partial(losses_and_gradients, vocab_size=300, block=block)
    return jax.make_jaxpr(step)(*arrays(300, 384))


def sizes_with_targets(jaxpr):
    """Sizes of the arrays with an axis over the targets that a program makes."""
    for equation in jaxpr.eqns:
        for inner in jaxprs_in_params(equation.params):
            yield from sizes_with_targets(inner)
        for out in equation.outvars:
            if COUNT in out.aval.shape:
                yield out.aval.size


@pytest.mark.parametrize("shape", [MeshShape(1), MeshShape(2, 2, 2)])
def test_meshes_give_the_same(shape):
    """With the vocabulary split over ``tensor``, and in blocks where nothing is split."""
    floats, targets, weights = arrays(300, 384)
    floats = {**floats, "hidden": floats["hidden"][:32]}
    targets, weights = targets[:32], weights[:32]
    right = losses_and_gradients(floats, targets, weights, vocab_size=300, block=None)
    devices = shape.data * shape.fsdp * shape.tensor
    with jax.set_mesh(make_mesh(shape, jax.devices()[:devices])):
        batch = specs.spec(specs.BATCH)
        placed = {
            "hidden": jax.device_put(floats["hidden"], batch),
            "table": jax.device_put(floats["table"], specs.spec(specs.TENSOR, None)),
            "bias": jax.device_put(floats["bias"], specs.spec(specs.TENSOR)),
        }
        got = losses_and_gradients(
            placed, jax.device_put(targets, batch), jax.device_put(weights, batch),
            vocab_size=300, block=100 if devices == 1 else None,
        )  # fmt: skip
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=5e-6), got, right)

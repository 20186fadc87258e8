"""AdamW against torch's arithmetic in float64, its decay mask, its clip."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.train.optimizer import AdamW, decay_table

PARAMS = {
    "encoder": {
        "word": {"embedding": (5, 3)},
        "layers": {"query": {"kernel": (3, 4), "bias": (4,)}, "norm": {"scale": (3,)}},
    },
    "head_bias": (5,),
}


def draw(seed: int, size: float = 1.0) -> dict:
    rng = np.random.default_rng(seed)
    return jax.tree.map(
        lambda shape: rng.normal(0, size, shape).astype(np.float32),
        PARAMS,
        is_leaf=lambda x: isinstance(x, tuple),
    )


@functools.partial(jax.jit, static_argnums=0)
def update(optimizer, params, state, gradients, rate):
    direction, state = optimizer.direction().update(gradients, state, params)
    return jax.tree.map(lambda p, d: p - rate * d, params, direction), state


def run(optimizer: AdamW, steps: int = 6, size: float = 1.0):
    """(parameters after each step, their gradients); the rate falls as a schedule's would."""
    params, history = draw(0), []
    state = optimizer.direction().init(params)
    for step in range(steps):
        gradients = draw(step + 1, size)
        rate = optimizer.learning_rate * (1 - step / 10)
        params, state = update(optimizer, params, state, gradients, rate)
        history.append((params, gradients))
    return history


def torch_adamw(optimizer: AdamW, p, gradients, *, decayed: bool):
    """One parameter in float64, in the order of torch.optim.AdamW's documentation."""
    m = v = np.zeros_like(p)
    for step, gradient in enumerate(gradients):
        rate = optimizer.learning_rate * (1 - step / 10)
        p = p - rate * optimizer.weight_decay * p * decayed
        m = optimizer.b1 * m + (1 - optimizer.b1) * gradient
        v = optimizer.b2 * v + (1 - optimizer.b2) * gradient**2
        m_hat = m / (1 - optimizer.b1 ** (step + 1))
        v_hat = v / (1 - optimizer.b2 ** (step + 1))
        p = p - rate * m_hat / (np.sqrt(v_hat) + optimizer.eps)
    return p


def leaves(tree):
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): np.asarray(leaf, np.float64)
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


@pytest.mark.parametrize(
    "optimizer",
    [
        AdamW(0.1, weight_decay=0.3, clip_norm=None),
        AdamW(0.1, 0.9, 0.98, 1e-2, weight_decay=0.3, decay="all", clip_norm=None),
    ],
    ids=["matrices", "all"],
)
def test_steps_are_torchs(optimizer):
    history = run(optimizer)
    final = leaves(history[-1][0])
    gradients = [leaves(g) for _, g in history]
    for path, start in leaves(draw(0)).items():
        decayed = optimizer.decay == "all" or path.endswith(("kernel", "embedding"))
        right = torch_adamw(optimizer, start, [g[path] for g in gradients], decayed=decayed)
        # 1 - .999 in float32 is off by 6e-5, its root by 3e-5: 3e-6 a step of size .1.
        np.testing.assert_allclose(final[path], right, atol=1e-5, err_msg=path)


def test_first_step_has_the_size_of_the_rate():
    """Bias correction: 1 x lr for a constant gradient, not 3.16 or .707 (P45)."""
    optimizer = AdamW(0.01, 0.9, 0.98, weight_decay=0.0, clip_norm=None)
    ((params, _),) = run(optimizer, steps=1)
    moved = jax.tree.map(lambda a, b: np.abs(a - b), params, draw(0))
    jax.tree.map(lambda m: np.testing.assert_allclose(m, 0.01, rtol=1e-4), moved)


@pytest.mark.parametrize("clip", [0.5, 1.0])
def test_clipping_scales_all_gradients_by_the_global_norm(clip):
    clipped = AdamW(0.1, eps=1.0, clip_norm=clip)  # a large eps, so that sizes matter
    free = AdamW(0.1, eps=1.0, clip_norm=None)
    gradients = draw(1)
    norm = np.sqrt(sum((g**2).sum() for g in jax.tree.leaves(gradients)))
    assert norm > 2
    scaled = jax.tree.map(lambda g: np.float32(g * clip / norm), gradients)
    params = draw(0)
    state = free.direction().init(params)
    right, _ = update(free, params, state, scaled, 0.1)
    got, _ = update(clipped, params, clipped.direction().init(params), gradients, 0.1)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), got, right)


def test_small_gradients_are_not_clipped():
    clipped, free = AdamW(0.1, eps=1.0), AdamW(0.1, eps=1.0, clip_norm=None)
    for (a, _), (b, _) in zip(run(clipped, 2, 1e-3), run(free, 2, 1e-3), strict=True):
        jax.tree.map(np.testing.assert_array_equal, a, b)


def test_no_clip_means_none():
    """A gradient of any size goes through: the moments hold it."""
    params = draw(0)
    gradients = jax.tree.map(lambda p: p * 1e6, params)
    optimizer = AdamW(clip_norm=None)
    _, state = update(optimizer, params, optimizer.direction().init(params), gradients, 0.1)
    moments = state[1].mu
    jax.tree.map(lambda m, g: np.testing.assert_allclose(m, 0.1 * g, rtol=1e-5), moments, gradients)


def test_state_is_float32():
    state = AdamW().direction().init(draw(0))
    dtypes = {leaf.dtype for leaf in jax.tree.leaves(state)}
    assert dtypes == {jnp.dtype(jnp.float32), jnp.dtype(jnp.int32)}  # moments and the count


def test_decay_goes_by_role():
    mask = leaves(AdamW().decay_mask(draw(0)))
    assert {path for path, decayed in mask.items() if decayed} == {
        "encoder/word/embedding",
        "encoder/layers/query/kernel",
    }
    assert all(leaves(AdamW(decay="all").decay_mask(draw(0))).values())


def test_decay_table():
    lines = decay_table(AdamW(), draw(0)).splitlines()
    assert lines[0].split() == ["parameter", "shape", "count", "decay"]
    rows = {line.split()[0]: line.split()[1:] for line in lines[1:-1]}
    assert rows["encoder/layers/query/kernel"] == ["3x4", "12", "yes"]
    assert rows["encoder/layers/query/bias"] == ["4", "4", "no"]
    assert rows["head_bias"] == ["5", "5", "no"]
    assert lines[-1] == "decayed 27, not decayed 12"
    assert decay_table(AdamW(decay="all"), draw(0)).endswith("decayed 39, not decayed 0")


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"learning_rate": 0.0}, "optimizer.learning_rate is 0.0; it must be positive."),
        ({"eps": -1e-8}, "optimizer.eps is -1e-08; it must be positive."),
        ({"b1": 1.0}, "optimizer.b1 is 1.0; it lies in [0, 1)."),
        ({"b2": -0.1}, "optimizer.b2 is -0.1; it lies in [0, 1)."),
        ({"weight_decay": -1.0}, "optimizer.weight_decay is -1.0; it is 0 or more."),
        (
            {"clip_norm": 0.0},
            "optimizer.clip_norm is 0.0; it must be positive, or None.",
        ),
    ],
)
def test_errors_name_the_value_and_its_range(fields, message):
    with pytest.raises(ValueError) as caught:
        AdamW(**fields)
    assert str(caught.value) == message

"""LAMB and StableAdamW in float64, tensor by tensor, and the cases that set them apart."""

import jax
import numpy as np
import pytest

from bert_jax.train.optimizer import Lamb, StableAdamW

# Rounding to float32 (6e-8 of values near 1), and relative errors of some 1e-6 of norms and of
# updates of at most about .3, over 24 updates.
ROUNDED = 1e-5


def test_lamb_is_alberts(run, reference, close):
    optimizer = Lamb(0.1, 0.9, 0.98, 1e-2, 0.3, clip_norm=None)

    def albert(p, gradients, rates, decayed):
        m = v = np.zeros_like(p)
        history = []
        for gradient, rate in zip(gradients, rates, strict=True):
            m = 0.9 * m + 0.1 * gradient
            v = 0.98 * v + 0.02 * gradient**2
            update = m / (np.sqrt(v) + 1e-2)
            ratio = 1.0
            if decayed:  # what is not decayed has no trust ratio
                update = update + 0.3 * p
                ratio = np.linalg.norm(p.ravel()) / np.linalg.norm(update.ravel())
            p = p - rate * ratio * update
            history.append(p)
        return history

    close(run(optimizer), reference(optimizer, albert), ROUNDED)


def test_lamb_has_no_ratio_where_a_norm_is_zero(trajectory):
    """Zero weights move by the plain update; without gradient and decay nothing moves."""
    start = {
        "zero": {"kernel": np.zeros((2, 2), np.float32)},
        "still": {"kernel": np.ones((2, 2), np.float32)},
        "layers": {"kernel": np.stack([np.zeros((2, 2)), np.full((2, 2), 3.0)]).astype(np.float32)},
    }
    gradient = jax.tree.map(np.ones_like, start)
    gradient["still"]["kernel"] = np.zeros((2, 2), np.float32)
    optimizer = Lamb(1.0, 0.9, 0.99, 1e-12, weight_decay=0.0, clip_norm=None)
    (moved,) = trajectory(optimizer, start, [gradient], [1.0])
    # m = .1, sqrt(v) = .1: the plain update is 1. All limits are float32's.
    np.testing.assert_allclose(moved["zero"]["kernel"], -1.0, rtol=1e-5)
    np.testing.assert_array_equal(moved["still"]["kernel"], 1.0)
    # Each layer by itself: the first has no ratio, the second moves by its own size, 3.
    np.testing.assert_allclose(moved["layers"]["kernel"][0], -1.0, rtol=1e-5)
    np.testing.assert_allclose(moved["layers"]["kernel"][1], 0.0, atol=1e-5)


def test_clips(clip_of):
    for optimizer, factor in (
        (Lamb(), 1 / 5),
        (Lamb(clip="replica"), 1),
        (Lamb(clip_norm=None), 1),
        (StableAdamW(), 10),  # its first debiased beta is 0
        (StableAdamW(clip_norm=2.0), 10 * 2 / 5),
    ):
        assert clip_of(optimizer) == pytest.approx(factor, rel=1e-5)  # float32


GROUPS = {"query": "qkv", "key": "qkv", "value": "qkv", "mlp_in": "wi", "mlp_gate": "wi"}


def modernbert(optimizer, params, gradients, rates, *, fused):
    """StableAdamW over a flat dict in float64; tensors are lists of (path, layer)."""
    tensors: dict[tuple, list] = {}
    for path, value in params.items():
        *parents, module, role = ["", *path.split("/")]
        module = GROUPS.get(module, module) if fused else module
        for layer in range(len(value)) if "layers" in path else [...]:
            tensors.setdefault((*parents, module, role, layer), []).append((path, layer))
    params = {path: value.copy() for path, value in params.items()}
    m = {path: np.zeros_like(value) for path, value in params.items()}
    v = {path: np.zeros_like(value) for path, value in params.items()}
    b1, b2, eps = optimizer.b1, optimizer.b2, optimizer.eps
    maximum = optimizer.max_learning_rate or optimizer.learning_rate
    history = []
    for t, (gradient, rate) in enumerate(zip(gradients, rates, strict=True), 1):
        hat1 = b1 * (1 - b1 ** (t - 1)) / (1 - b1**t)
        hat2 = b2 * (1 - b2 ** (t - 1)) / (1 - b2**t)
        for places in tensors.values():
            ratios = []
            for path, layer in places:
                g = gradient[path][layer]
                m[path][layer] = hat1 * m[path][layer] + (1 - hat1) * g
                v[path][layer] = hat2 * v[path][layer] + (1 - hat2) * g**2
                ratios.append((g**2 / np.maximum(v[path][layer], eps**2)).ravel())
            own = rate / max(1.0, np.sqrt(np.concatenate(ratios).mean()))
            for path, layer in places:
                p = params[path][layer]
                if p.ndim > 1:
                    scale = own / maximum if optimizer.decay_scale == "relative" else own
                    p = p * (1 - scale * optimizer.weight_decay)
                params[path][layer] = p - own * m[path][layer] / (np.sqrt(v[path][layer]) + eps)
        history.append({path: value.copy() for path, value in params.items()})
    return history


@pytest.mark.parametrize(
    "optimizer",
    [
        StableAdamW(0.1, 0.9, 0.98, 1e-2, 0.02),
        StableAdamW(0.1, 0.9, 0.98, 1e-6, 0.02, max_learning_rate=0.4),
        StableAdamW(0.1, 0.9, 0.9, 1e-6, 0.3, decay_scale="rate"),
        StableAdamW(0.1, 0.9, 0.9, 1e-6, 0.02, tensors="separate"),
    ],
    ids=["base", "phase-2", "rate", "separate"],
)
def test_stable_adamw_is_modernberts(optimizer, trees, factors, run, close):
    start, gradients = trees
    flat = lambda tree: {  # noqa: E731
        jax.tree_util.keystr(path, simple=True, separator="/"): np.asarray(leaf, np.float64)
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }
    rates = [optimizer.learning_rate * factor for factor in factors]
    right = modernbert(
        optimizer, flat(start), [flat(g) for g in gradients], rates,
        fused=optimizer.tensors == "fused",
    )  # fmt: skip
    close(run(optimizer), right, ROUNDED)


def second_update(optimizer, trajectory, surprise: float):
    """How far each tensor moves in the second update; key's gradient is ``surprise`` times 1."""
    layers = {name: {"kernel": np.ones((2, 2, 2), np.float32)} for name in ("query", "key")}
    start = {"layers": layers}
    one = jax.tree.map(np.ones_like, start)
    more = jax.tree.map(np.copy, one)
    more["layers"]["key"]["kernel"][1] *= surprise  # in the second layer only
    before, after = trajectory(optimizer, start, [one, more], [1.0, 1.0])
    entry = lambda tree, name: np.asarray(tree["layers"][name]["kernel"])[:, 0, 0]  # noqa: E731
    return {name: entry(before, name) - entry(after, name) for name in layers}


def test_a_surprise_slows_the_whole_fused_tensor_of_its_layer(trajectory):
    """With b1 = 0 and b2 = .5 the update is g / sqrt(v) over max(1, sqrt(mean(g^2 / v)))."""
    v = 1 / 3 * 1 + 2 / 3 * 100  # of the surprise: debiased .5 is 1/3 at the second update
    plain = {"b1": 0.0, "b2": 0.5, "weight_decay": 0.0, "eps": 1e-8}
    for tensors, mean in (("fused", (1 + 100 / v) / 2), ("separate", 100 / v)):
        optimizer = StableAdamW(1.0, **plain, tensors=tensors)
        moved = second_update(optimizer, trajectory, 10.0)
        own = max(1.0, np.sqrt(mean))
        shared = own if tensors == "fused" else 1.0
        # float32 throughout.
        np.testing.assert_allclose(moved["key"], [1.0, 10 / np.sqrt(v) / own], rtol=1e-5)
        np.testing.assert_allclose(moved["query"], [1.0, 1 / shared], rtol=1e-5)


def test_stable_adamw_starts_like_adam(trajectory):
    """The first debiased beta is 0: the moments are the gradient, the update its sign."""
    start = {"w": np.asarray([1.0, -2.0], np.float32)}
    gradient = {"w": np.asarray([0.5, -3.0], np.float32)}
    optimizer = StableAdamW(0.1, weight_decay=0.0, eps=1e-12)
    (moved,) = trajectory(optimizer, start, [gradient], [0.1])
    np.testing.assert_allclose(moved["w"], [0.9, -1.9], rtol=1e-6)

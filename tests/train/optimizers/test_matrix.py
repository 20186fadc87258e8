"""Adafactor and Muon: torch's own trajectories, layers of a stack, which parameter goes where."""

import jax
import numpy as np
import pytest

from bert_jax.train.optimizer import Adafactor, AdamW, Muon

# Rounding to float32 (6e-8 of values near 1), and relative errors of some 1e-6 of updates of at
# most about .3, over 24 updates.
ROUNDED = 1e-5


def test_adafactor_follows_torchs_own_trajectory(torch_run, trajectory, close):
    start, gradients, rates, right = torch_run("adafactor")
    optimizer = Adafactor(0.1, min_size_to_factor=2, weight_decay=0.2, decay="all")
    # optax takes t^-.8 in float32, which is some 1e-7 off; torch adds no 1e-30, which is nothing.
    close(trajectory(optimizer, start, gradients, rates), right, ROUNDED)


def shazeer(optimizer):
    """Adafactor in float64, as in T5; the second moment factored in its two axes."""

    def update(p, gradients, rates, decayed):
        assert not decayed or optimizer.weight_decay == 0
        v = rows = columns = 0.0
        history = []
        for t, (gradient, rate) in enumerate(zip(gradients, rates, strict=True), 1):
            keep = 1 - t**-optimizer.second_moment_power
            square = gradient**2 + optimizer.eps
            if p.ndim == 2 and min(p.shape) >= optimizer.min_size_to_factor:
                rows = keep * rows + (1 - keep) * square.mean(1, keepdims=True)
                columns = keep * columns + (1 - keep) * square.mean(0, keepdims=True)
                second = rows * columns / rows.mean()
            else:
                v = keep * v + (1 - keep) * square
                second = v
            step = gradient / np.sqrt(second)
            step = step / max(1.0, np.sqrt((step**2).mean()) / optimizer.clip_rms)
            scale = max(optimizer.min_scale, np.sqrt((p**2).mean()))
            p = p - rate * scale * step
            history.append(p)
        return history

    return update


@pytest.mark.parametrize("least", [4, 128])
def test_adafactor_takes_each_layer_by_itself(least, run, reference, close):
    """With 4 the wider kernels are factored, with 128 nothing is."""
    optimizer = Adafactor(0.3, clip_rms=0.7, min_size_to_factor=least)
    close(run(optimizer), reference(optimizer, shazeer(optimizer)), ROUNDED)


def test_adafactor_lets_a_zero_leave_zero(trajectory):
    """A tensor of zeros has the least scale: its first update is rate * 1e-3."""
    start = {"w": np.zeros((2, 2), np.float32)}
    gradient = {"w": np.full((2, 2), 5.0, np.float32)}
    (moved,) = trajectory(Adafactor(), start, [gradient], [0.01])
    np.testing.assert_allclose(moved["w"], -0.01 * 1e-3, rtol=1e-5)  # float32


@pytest.mark.parametrize(
    ("name", "optimizer"),
    [
        ("muon", Muon(0.05, 0.9, weight_decay=0.2)),
        ("muon_rms", Muon(0.05, 0.95, rms=0.2, weight_decay=0.2)),
    ],
)
def test_muon_follows_torchs_own_trajectory(name, optimizer, torch_run, trajectory, close):
    """torch's iterations were made in float64, not in bfloat16 (tools/torch_trajectories.py).

    torch's matrices are (out, in), ours (in, out), in a stack of one.
    """
    start, gradients, rates, right = torch_run(name)
    ours = lambda tree: {"layers": {"kernel": tree["matrix"].T[None]}}  # noqa: E731
    history = trajectory(optimizer, ours(start), [ours(g) for g in gradients], rates)
    theirs = [{"matrix": np.asarray(p["layers"]["kernel"])[0].T} for p in history]
    # Each of five iterations multiplies rounding in the small singular values by up to 3.4: 500
    # times 1e-7 of updates of .05, at worst, in each of 24.
    close(theirs, right, 6e-5)


def jordan(optimizer):
    """Muon in float64, a matrix at a time."""

    def update(p, gradients, rates, decayed):
        assert decayed
        average = np.zeros_like(p)
        history = []
        for gradient, rate in zip(gradients, rates, strict=True):
            average = optimizer.momentum * average + (1 - optimizer.momentum) * gradient
            x = optimizer.momentum * average + (1 - optimizer.momentum) * gradient
            x = x / np.linalg.norm(x)
            for _ in range(5):
                gram = x @ x.T
                x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
            scale = np.sqrt(max(1.0, p.shape[1] / p.shape[0]))
            p = p - rate * (scale * x + optimizer.weight_decay * p)
            history.append(p)
        return history

    return update


def adam(optimizer):
    def update(p, gradients, rates, decayed):
        m = v = np.zeros_like(p)
        history = []
        for t, (gradient, rate) in enumerate(zip(gradients, rates, strict=True), 1):
            m = optimizer.rest_b1 * m + (1 - optimizer.rest_b1) * gradient
            v = optimizer.rest_b2 * v + (1 - optimizer.rest_b2) * gradient**2
            own = rate * optimizer.rest_learning_rate / optimizer.learning_rate
            m_hat, v_hat = m / (1 - optimizer.rest_b1**t), v / (1 - optimizer.rest_b2**t)
            decay = optimizer.weight_decay * p if decayed else 0.0
            p = p - own * (m_hat / (np.sqrt(v_hat) + optimizer.eps) + decay)
            history.append(p)
        return history

    return update


def test_muon_is_for_kernels_of_layers_and_adam_for_the_rest(run, reference, close):
    optimizer = Muon(0.05, weight_decay=0.1, rest_learning_rate=0.02, eps=1e-3)
    orthogonal = reference(optimizer, lambda p, *rest: (
        jordan(optimizer)(p, *rest) if p.ndim == 2 else adam(optimizer)(p, *rest)
    ))  # fmt: skip
    plain = reference(optimizer, adam(optimizer))
    matrices = {f"encoder/layers/{n}/kernel" for n in
                ("query", "key", "value", "mlp_in", "mlp_gate", "mlp_out")}  # fmt: skip
    right = [
        {path: (a if path in matrices else b)[path] for path in a}
        for a, b in zip(orthogonal, plain, strict=True)
    ]
    close(run(optimizer), right, 6e-5)  # as for torch's


def test_muons_update_is_nearly_orthogonal(trajectory):
    """Singular values of the update lie in about [.7, 1.2], or that times .2 sqrt(32) with rms."""
    rng = np.random.default_rng(0)
    start = {"layers": {"kernel": np.zeros((2, 8, 32), np.float32)}}
    gradient = {"layers": {"kernel": rng.normal(size=(2, 8, 32)).astype(np.float32)}}
    for optimizer, size in ((Muon(1.0), np.sqrt(32 / 8)), (Muon(1.0, rms=0.2), 0.2 * np.sqrt(32))):
        (moved,) = trajectory(optimizer, start, [gradient], [1.0])
        values = np.linalg.svd(moved["layers"]["kernel"], compute_uv=False) / size
        assert values.min() > 0.65 and values.max() < 1.25


@pytest.mark.parametrize("optimizer", [Adafactor(clip_norm=2.0), Muon(clip_norm=2.0)])
def test_clips_by_the_global_norm(optimizer):
    """Adafactor's row means and Muon's momentum show a gradient of norm 5 scaled by 2 / 5."""
    params = {"layers": {"kernel": np.ones((1, 128, 128), np.float32)}}
    gradients = jax.tree.map(lambda p: p * np.float32(5 / 128), params)
    direction = optimizer.direction()
    _, state = jax.jit(direction.update)(gradients, direction.init(params), params)
    seen = {leaf.shape: float(leaf.ravel()[0]) for leaf in jax.tree.leaves(state) if leaf.ndim > 1}
    if isinstance(optimizer, Muon):
        assert seen[(1, 128, 128)] == pytest.approx(0.05 * 2 / 128, rel=1e-5)  # float32
    else:
        assert seen[(1, 128)] == pytest.approx((2 / 128) ** 2, rel=1e-5)  # float32


def test_the_rest_has_the_matrices_rate_by_default(trajectory):
    start, gradient = {"bias": np.ones(3, np.float32)}, {"bias": np.ones(3, np.float32)}
    for optimizer, size in ((Muon(0.5), 1.0), (Muon(0.5, rest_learning_rate=0.1), 0.2)):
        (moved,) = trajectory(optimizer, start, [gradient], [0.5])
        adam = AdamW(0.5, b2=0.95, clip_norm=None)
        (right,) = trajectory(adam, start, [gradient], [0.5 * size])
        np.testing.assert_allclose(moved["bias"], right["bias"], rtol=1e-6)  # float32

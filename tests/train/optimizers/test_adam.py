"""The four arithmetics of Adam: torch's own trajectory, the others in float64, closed forms."""

import jax
import numpy as np
import pytest

from bert_jax.train.optimizer import AdamW, BertAdam, FairseqAdam

# Rounding to float32 (6e-8 of values near 1) and relative errors near 1e-6 of updates of at most
# about .3, over 24 updates.
ROUNDED = 1e-5


@pytest.mark.parametrize(
    ("name", "optimizer"),
    [
        ("adamw", AdamW(0.1, 0.9, 0.98, 1e-3, 0.3, decay="all", clip_norm=None)),
        ("adamw_linear", AdamW(0.05, 0.8, 0.999, 1e-8, 0.1, decay="all", clip_norm=None)),
    ],
)
def test_adamw_follows_torchs_own_trajectory(name, optimizer, torch_run, trajectory, close):
    start, gradients, rates, right = torch_run(name)
    # 1 - .999 in float32 is off by 6e-5, its root by 3e-5, which adds 1.5e-6 in the first updates.
    close(trajectory(optimizer, start, gradients, rates), right, ROUNDED)


def moments(gradients, b1, b2):
    """Plain averages of gradients and squares, update by update."""
    m = v = np.zeros_like(gradients[0])
    for gradient in gradients:
        m = b1 * m + (1 - b1) * gradient
        v = b2 * v + (1 - b2) * gradient * gradient
        yield m, v


def test_relative_decay_is_composers(run, reference, close):
    """DecoupledAdamW: the parameters lose lr / initial_lr * weight_decay of themselves."""
    optimizer = AdamW(
        0.05, 0.9, 0.95, 1e-6, 0.02, "all", None, decay_scale="relative", max_learning_rate=0.1
    )

    def decoupled(p, gradients, rates, decayed):
        assert decayed
        history = []
        for t, (m, v) in enumerate(moments(gradients, 0.9, 0.95), 1):
            p = p * (1 - rates[t - 1] / 0.1 * 0.02)
            denominator = np.sqrt(v) / np.sqrt(1 - 0.95**t) + 1e-6
            p = p - rates[t - 1] / (1 - 0.9**t) * m / denominator
            history.append(p)
        return history

    # As for torch's, with 1 - .95 in float32 off by less.
    close(run(optimizer), reference(optimizer, decoupled), ROUNDED)


def test_relative_decay_is_relative_to_the_peak(run):
    """Without another maximum it is the optimizer's own: decay at the peak is weight_decay."""
    own = AdamW(0.05, weight_decay=0.02, clip_norm=None, decay_scale="relative")
    same = AdamW(0.05, weight_decay=0.02 / 0.05, clip_norm=None)
    for a, b in zip(run(own), run(same), strict=True):
        for path in a:
            np.testing.assert_array_equal(a[path], b[path])


def test_bert_adam_is_googles(run, reference, close):
    optimizer = BertAdam(0.1, 0.9, 0.98, 1e-2, 0.3, clip_norm=None)

    def google(p, gradients, rates, decayed):
        history = []
        for (m, v), rate in zip(moments(gradients, 0.9, 0.98), rates, strict=True):
            update = m / (np.sqrt(v) + 1e-2)
            if decayed:
                update = update + 0.3 * p
            p = p - rate * update
            history.append(p)
        return history

    close(run(optimizer), reference(optimizer, google), ROUNDED)


def test_fairseq_adam_adds_epsilon_before_it_corrects(run, reference, close):
    optimizer = FairseqAdam(0.1, 0.9, 0.98, 1e-2, 0.3)

    def fairseq(p, gradients, rates, decayed):
        assert decayed
        history = []
        for t, (m, v) in enumerate(moments(gradients, 0.9, 0.98), 1):
            size = rates[t - 1] * np.sqrt(1 - 0.98**t) / (1 - 0.9**t)
            p = p - 0.3 * rates[t - 1] * p - size * m / (np.sqrt(v) + 1e-2)
            history.append(p)
        return history

    close(run(optimizer), reference(optimizer, fairseq), ROUNDED)


@pytest.mark.parametrize(
    ("optimizer", "size"),
    [
        (AdamW(0.01, b2=0.98, weight_decay=0.0, clip_norm=None), 1.0),
        (AdamW(0.01, b2=0.999, weight_decay=0.0, clip_norm=None), 1.0),
        (FairseqAdam(0.01, b2=0.98), 1.0),
        (FairseqAdam(0.01, b2=0.999), 1.0),
        (BertAdam(0.01, b2=0.999, eps=1e-12, weight_decay=0.0, clip_norm=None), 3.162278),
        (BertAdam(0.01, b2=0.98, eps=1e-12, weight_decay=0.0, clip_norm=None), 0.7071068),
    ],
)
def test_first_updates_size_shows_the_bias_correction(optimizer, size, trees, trajectory):
    """P45: lr * (1 - b1) / sqrt(1 - b2) without correction, lr with it."""
    start, _ = trees
    constant = jax.tree.map(np.ones_like, start)
    (moved,) = trajectory(optimizer, start, [constant], [0.01])
    jax.tree.map(
        # Parameters near 1 are rounded to 6e-8, updates of .01 to 6e-6 of themselves or so; optax's
        # bias correction of .999 adds 3e-5.
        lambda a, b: np.testing.assert_allclose(np.abs(a - b), 0.01 * size, rtol=2e-4),
        moved,
        start,
    )


def test_epsilon_counts_more_before_the_correction(trajectory):
    """A first gradient g gives g / (g + eps) in AdamW, g / (g + eps / sqrt(1 - b2)) in fairseq."""
    start, gradient = {"w": np.zeros(3, np.float32)}, {"w": np.full(3, 0.5, np.float32)}
    torch = AdamW(1.0, b2=0.98, eps=0.1, weight_decay=0.0, clip_norm=None)
    fairseq = FairseqAdam(1.0, b2=0.98, eps=0.1)
    (a,), (b,) = (trajectory(o, start, [gradient], [1.0]) for o in (torch, fairseq))
    np.testing.assert_allclose(a["w"], -0.5 / (0.5 + 0.1), rtol=1e-5)  # float32
    np.testing.assert_allclose(b["w"], -0.5 / (0.5 + 0.1 / np.sqrt(0.02)), rtol=1e-5)  # float32


def test_a_replicas_clip_is_left_to_the_step(clip_of):
    """With ``clip`` replica the moments hold the gradient as it came, else the clipped one."""
    for optimizer, factor in (
        (BertAdam(), 1 / 5),
        (BertAdam(clip_norm=2.0), 2 / 5),
        (BertAdam(clip_norm=6.0), 1),
        (BertAdam(clip_norm=None), 1),
        (BertAdam(clip="replica"), 1),
        (AdamW(), 1 / 5),
        (FairseqAdam(), 1),
        (FairseqAdam(clip_norm=2.0), 2 / 5),
    ):
        assert clip_of(optimizer) == pytest.approx(factor, rel=1e-5)  # float32

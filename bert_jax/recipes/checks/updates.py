"""Checks of optimizers: a few updates of a small model against the source's own arithmetic."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from bert_jax.experiment import Experiment
from bert_jax.models.model import EncoderModel
from bert_jax.models.paths import by_path, from_paths
from bert_jax.recipes.checks import reference_optimizers
from bert_jax.recipes.checks.expectation import Arithmetic
from bert_jax.recipes.checks.findings import Finding, equal, within
from bert_jax.recipes.checks.quick import narrowed, quickly

_FACTORS = (0.0, 0.5, 1.0, 0.8, 0.3)  # of the peak, a step each
# Sizes of the gradients. Small ones show where epsilon stands, large ones are clipped.
_SMALL = (1e-5, 3e-5, 1e-5, 2e-5, 1e-5)
_LARGE = (0.3, 0.01, 0.5, 0.02, 0.1)
_TOLERANCE = 5e-4  # of the longest way a variable goes: float32 against float64
# Modules that ModernBERT keeps as one tensor.
_FUSED = {"query": "qkv", "key": "qkv", "value": "qkv", "mlp_in": "wi", "mlp_gate": "wi"}


def check_updates(phase: Experiment, wanted: Arithmetic, name: str) -> list[Finding]:
    """Runs the phase's optimizer and the reference side by side."""
    clip = getattr(phase.optimizer, "clip", "global")
    found = [
        equal(f"{name}: whose gradient is clipped", wanted.clipped, _WHOSE[clip]),
        equal(f"{name}: bound of the gradient", wanted.clip, phase.optimizer.clip_norm),
    ]
    model = EncoderModel(narrowed(phase.model, 16, 2))
    variables: Any = jax.eval_shape(model.init, jax.random.key(0))
    shapes = tuple((path, leaf.shape) for path, leaf in by_path(variables["params"]).items())
    errors = _errors(phase.optimizer, shapes, wanted)
    for label, error in zip(("small", "large"), errors, strict=True):
        found.append(within(f"{name}: updates, {label} gradients", 0.0, error, _TOLERANCE))
    return found


_WHOSE = {"global": "batch", "replica": "replica"}


@functools.cache  # sizes of a family are one when narrowed
def _errors(
    optimizer: Any, shapes: tuple[tuple[str, tuple[int, ...]], ...], wanted: Arithmetic
) -> tuple[float, float]:
    """Largest deviations from the reference, as a share of how far that variable goes.

    After small gradients, and after large ones.
    """
    rng = np.random.default_rng(3)
    start = {path: _filled(shape, rng) for path, shape in shapes}
    fused = wanted.kind == "stable_adamw"
    begun = _variables(start, fused)
    run = _runner(optimizer)
    worst = []
    for sizes in (_SMALL, _LARGE):
        gradients = [
            {p: (size * rng.standard_normal(x.shape)).astype(np.float32) for p, x in start.items()}
            for size in sizes
        ]
        ours = _variables(run(start, gradients), fused)
        theirs = _theirs(wanted, begun, [_variables(g, fused) for g in gradients])
        worst.append(max(_deviation(ours[n], theirs[n], begun[n]) for n in theirs))
    return worst[0], worst[1]


def _deviation(ours: np.ndarray, theirs: np.ndarray, begun: np.ndarray) -> float:
    """Largest difference as a share of the way, beyond what float32 rounds each value by."""
    rounding = len(_FACTORS) * 2.0**-24 * np.abs(theirs).max()
    excess = max(0.0, np.abs(ours - theirs).max() - rounding)
    return float(excess / np.abs(theirs - begun).max())


def _filled(shape: tuple[int, ...], rng) -> np.ndarray:
    """A parameter's values of about .1, so that its decay is seen; biases are not 0 either."""
    return (0.1 * rng.standard_normal(shape) + 0.05).astype(np.float32)


def _runner(optimizer: Any):
    """Runs an optimizer of `bert_jax.train.optimizer` as the train step does."""
    transform = optimizer.direction()
    if getattr(optimizer, "clip", "global") == "replica" and optimizer.clip_norm is not None:
        # The train step does it, for each replica; here there is one.
        transform = optax.chain(optax.clip_by_global_norm(optimizer.clip_norm), transform)

    @quickly
    def update(params, state, gradient, rate):
        direction, state = transform.update(gradient, state, params)
        return jax.tree.map(lambda p, d: p - rate * d, params, direction), state

    def run(start, gradients) -> dict[str, np.ndarray]:
        params: Any = from_paths({p: jnp.asarray(x) for p, x in start.items()})
        state = transform.init(params)
        for factor, gradient in zip(_FACTORS, gradients, strict=True):
            rate = jnp.float32(factor * optimizer.learning_rate)
            params, state = update(params, state, from_paths(gradient), rate)
        return {p: np.asarray(x) for p, x in by_path(params).items()}

    return run


def _theirs(wanted: Arithmetic, start, gradients) -> dict[str, np.ndarray]:
    rule = getattr(reference_optimizers, wanted.kind)
    if wanted.kind == "stable_adamw":
        rule = functools.partial(rule, max_rate=wanted.max_rate)
    decay = wanted.weight_decay
    if wanted.kind == "adamw" and wanted.max_rate is not None:
        decay /= wanted.max_rate  # rate / max_rate * decay, as rate times this
    return rule(
        start,
        [reference_optimizers.clip_by_global_norm(g, wanted.clip) for g in gradients],
        [factor * wanted.peak for factor in _FACTORS],
        {n for n in start if wanted.decays == "all" or not n.endswith(("bias", "scale"))},
        b1=wanted.b1,
        b2=wanted.b2,
        eps=wanted.eps,
        weight_decay=decay,
    )


def _variables(tree, fused: bool) -> dict[str, np.ndarray]:
    """The tensors of the original code: a layer's slice each, fused where it fuses them."""
    parts: dict[str, list[np.ndarray]] = {}
    for path, value in tree.items():
        words = path.split("/")
        if fused and len(words) > 1:
            words[-2] = _FUSED.get(words[-2], words[-2])
        slices = {f"{n}/": x for n, x in enumerate(value)} if "layers" in words else {"": value}
        for prefix, part in slices.items():
            parts.setdefault(prefix + "/".join(words), []).append(
                np.asarray(part, np.float64).reshape(-1)
            )
    return {name: np.concatenate(found) for name, found in parts.items()}

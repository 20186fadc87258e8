"""Arrays of a checkpoint as parameters of a model: each checked, turned, stacked by layer."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.interop.keys import Entry
from bert_jax.interop.read import Weights
from bert_jax.models.config import EncoderConfig
from bert_jax.models.model import EncoderModel
from bert_jax.models.paths import by_path

Shapes = Mapping[str, tuple[int, ...]]


def parameter_shapes(module: EncoderModel) -> dict[str, tuple[int, ...]]:
    """Shape of every parameter of a model, by path; nothing is computed."""
    shapes = jax.eval_shape(module.init, jax.random.key(0))["params"]
    return {path: leaf.shape for path, leaf in by_path(shapes).items()}


def convert(
    weights: Weights,
    entries: Iterable[Entry],
    config: EncoderConfig,
    shapes: Shapes,
    optional: Collection[str] = (),
) -> tuple[dict[str, jax.Array], set[str]]:
    """Parameters by path, float32, and the keys they were made of.

    Args:
        weights: By key.
        entries: Key map of the model.
        config: Of the encoder.
        shapes: Of all parameters, by path.
        optional: Paths that may be missing; they are left out then.

    Raises:
        ValueError: Naming what is missing, has another shape, or does not hold real numbers.
    """
    flat: dict[str, jax.Array] = {}
    used: set[str] = set()
    missing: list[str] = []
    for entry in entries:
        keys = entry.keys(config)
        absent = [key for key in keys if key not in weights]
        if absent:
            missing += [] if entry.ours in optional else absent
            continue
        used |= set(keys)
        values = [_converted(entry, key, weights[key], config, shapes) for key in keys]
        if entry.per_layer:
            rows = np.stack(values) if values else np.zeros(shapes[entry.ours], np.float32)
            flat[entry.ours] = jnp.asarray(rows)
        else:
            flat[entry.ours] = jnp.asarray(values[0])
    if missing:
        once = list(dict.fromkeys(missing))
        raise ValueError(f"the checkpoint lacks {len(once)} parameters: {', '.join(once)}.")
    return flat, used


def draw(module: EncoderModel, paths: Collection[str], seed: int) -> dict[str, jax.Array]:
    """The named parameters as the model starts with them; no others are made."""
    if not paths:
        return {}

    def start(key: jax.Array) -> dict[str, jax.Array]:
        everything = by_path(module.init(key)["params"])
        return {path: everything[path] for path in paths}

    return jax.jit(start)(jax.random.key(seed, impl="threefry2x32"))


def _converted(
    entry: Entry, key: str, value: np.ndarray, config: EncoderConfig, shapes: Shapes
) -> np.ndarray:
    if not jnp.issubdtype(value.dtype, jnp.floating):
        raise ValueError(
            f"{key} holds {value.dtype}; parameters are floating-point numbers: export the "
            f"checkpoint without quantisation."
        )
    ours = shapes[entry.ours][1:] if entry.per_layer else shapes[entry.ours]
    expected = _their_shape(entry, ours, config)
    if value.shape != expected:
        raise ValueError(
            f"{key} has the shape {value.shape}; config.json asks for {expected} "
            f"({entry.ours}, here {ours})."
        )
    return entry.to_ours(value, config)


def _their_shape(entry: Entry, ours: tuple[int, ...], config: EncoderConfig) -> tuple[int, ...]:
    """Shape of their array, from that of one layer of ours."""
    if entry.kind == "transpose":
        ours = ours[::-1]
    elif entry.kind == "vocabulary":
        ours = (config.vocab_size, *ours[1:])
    elif entry.kind == "convolution":
        ours = (ours[1], config.hidden_size, ours[0] // config.hidden_size)
    shares = 1 if entry.part is None else entry.part.count
    return (ours[0] * shares, *ours[1:])

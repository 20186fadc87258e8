"""Larger models from smaller ones: width, depth, vocabulary and context of trained parameters.

All functions take and give a config and a plain tree of parameters (of any model class), on the
host; none of them trains. They name what they cannot map instead of drawing it at random.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from bert_jax.models.config import (
    DisentangledPositions,
    EncoderConfig,
    LearnedPositions,
    LocalAttention,
    RotaryPositions,
)
from bert_jax.models.embeddings import has_position_table
from bert_jax.models.paths import by_path, from_paths
from bert_jax.models.sizes import VOCABULARY_PATHS
from bert_jax.models.stack import layer_kinds

Params = Mapping[str, Any]
Index = Int[np.ndarray, "new"]

# What each axis of a parameter counts, by the end of its path; a stored layer's axis comes first.
_AXES: dict[str, tuple[str, ...]] = {
    "embeddings/word/embedding": ("vocabulary", "table"),
    "embeddings/position/embedding": ("position", "table"),
    "embeddings/position/scale": ("factor",),
    "embeddings/type/embedding": ("type", "table"),
    "embeddings/norm/scale": ("embedded",),
    "embeddings/norm/bias": ("embedded",),
    "embeddings/projection/kernel": ("table", "hidden"),
    "embeddings/projection/bias": ("hidden",),
    "relative/embedding": ("relative", "hidden"),
    "relative_norm/scale": ("hidden",),
    "relative_norm/bias": ("hidden",),
    "convolution/taps/kernel": ("taps", "hidden"),
    "convolution/taps/bias": ("hidden",),
    "convolution/norm/scale": ("hidden",),
    "convolution/norm/bias": ("hidden",),
    "final_norm/scale": ("hidden",),
    "final_norm/bias": ("hidden",),
    **{
        f"layers/{name}/{word}": axes
        for name in ("query", "key", "value", "position_key", "position_query")
        for word, axes in (("kernel", ("hidden", "heads")), ("bias", ("heads",)))
    },
    "layers/attention_out/kernel": ("heads", "hidden"),
    "layers/attention_out/bias": ("hidden",),
    **{
        f"layers/{name}/{word}": axes
        for name in ("mlp_in", "mlp_gate")
        for word, axes in (("kernel", ("hidden", "inner")), ("bias", ("inner",)))
    },
    "layers/mlp_out/kernel": ("inner", "hidden"),
    "layers/mlp_out/bias": ("hidden",),
    **{
        f"layers/{name}/{word}": ("hidden",)
        for name in ("attention_norm", "mlp_norm")
        for word in ("scale", "bias")
    },
    "head_dense/kernel": ("hidden", "table"),
    "head_dense/bias": ("table",),
    "head_norm/scale": ("table",),
    "head_norm/bias": ("table",),
    "head_bias": ("vocabulary",),
    "decoder/embedding": ("vocabulary", "decoded"),
    **{
        f"{name}/{word}": axes
        for name in ("pooler", "detector_dense")
        for word, axes in (("kernel", ("hidden", "hidden")), ("bias", ("hidden",)))
    },
    **{
        f"{name}/{word}": ("hidden",)
        for name in ("pooler_norm", "detector_norm")
        for word in ("scale", "bias")
    },
    **{
        f"{name}/{word}": axes
        for name in ("classifier", "pair", "span", "detector")
        for word, axes in (("kernel", ("hidden", "label")), ("bias", ("label",)))
    },
}


# ------------------------------------------------------------------------------ width and depth


def grow(
    config: EncoderConfig,
    params: Params,
    larger: EncoderConfig,
    *,
    layers: Sequence[int] | None = None,
) -> dict[str, Any]:
    """Parameters of a wider and deeper encoder, tiled from a trained smaller one.

    Along every axis the old weights stand in the middle and are repeated outwards, wrapping around
    (ModernBERT's ``tile_weights_from_middle``); attention heads are moved whole. The output is not
    that of the smaller model; it is a start that trains faster than a random one.

    Args:
        config: Of ``params``.
        params: Of any model class.
        larger: The config to grow to; the same vocabulary, type table and positions, the same head
            size or a multiple of it.
        layers: Old layer of every new one; by default `layer_map`.

    Returns:
        Parameters for ``larger``.

    Raises:
        ValueError: If an axis shrinks, or the families differ.
    """
    for name in ("hidden_size", "num_layers", "num_heads", "intermediate_size", "table_size"):
        old, new = getattr(config, name), getattr(larger, name)
        if new < old:
            raise ValueError(f"{name} would shrink from {old} to {new}; `grow` only enlarges.")
    _check_same_family(config, larger)
    if layers is None:
        layers = layer_map(config, larger)
    if len(layers) != larger.stored_layers or not all(
        0 <= layer < config.stored_layers for layer in layers
    ):
        raise ValueError(
            f"layers is {list(layers)}; give one of the {config.stored_layers} old layers for each "
            f"of the {larger.stored_layers} new ones."
        )
    maps = {
        "hidden": _centred(config.hidden_size, larger.hidden_size),
        "table": _centred(config.table_size, larger.table_size),
        "inner": _centred(config.intermediate_size, larger.intermediate_size),
        "heads": _heads(config, larger),
    }
    return _mapped(config, params, larger, maps, layers)


def layer_map(config: EncoderConfig, larger: EncoderConfig) -> tuple[int, ...]:
    """Old layer for every new layer: the nearest one of its kind.

    New layer i of L stands where old layer ``i * old_layers / L`` stood. ModernBERT's released map
    rounds that number, and so gives 12 of 28 layers the weights of a layer of the other kind
    (global for local); here only old layers of the new one's kind are considered.
    """
    if config.sharing is not None:
        return tuple(range(config.stored_layers))
    old_kinds, new_kinds = layer_kinds(config), layer_kinds(larger)
    chosen = []
    for index, kind in enumerate(new_kinds):
        place = index * len(old_kinds) / len(new_kinds)
        same = [old for old, other in enumerate(old_kinds) if other.local == kind.local]
        if not same:
            raise ValueError(
                "the larger encoder has layers of local attention and the smaller has none, or the "
                "reverse; give `layers` by hand."
            )
        chosen.append(min(same, key=lambda old: (abs(old - place), old)))
    return tuple(chosen)


def select_layers(
    config: EncoderConfig, params: Params, layers: Sequence[int]
) -> tuple[EncoderConfig, dict[str, Any]]:
    """A shallower model of some layers (DistilBERT starts from a teacher's 0, 2, 4, 7, 9, 11).

    Args:
        config: Of ``params``.
        params: Of any model class.
        layers: Layers to keep, in their new order.

    Raises:
        ValueError: For a layer that is not there, or if layers are shared or would change kind.
    """
    if config.sharing is not None:
        raise ValueError("the layers are shared; lower num_layers instead, parameters stay.")
    for layer in layers:
        if not 0 <= layer < config.num_layers:
            raise ValueError(f"layer {layer} is not one of the {config.num_layers} layers.")
    if not layers:
        raise ValueError("no layers were given; name at least one.")
    smaller = dataclasses.replace(config, num_layers=len(layers))
    old, new = layer_kinds(config), layer_kinds(smaller)
    for index, layer in enumerate(layers):
        if old[layer].local != new[index].local:
            kinds = ["local" if kind.local else "global" for kind in (old[layer], new[index])]
            raise ValueError(
                f"layer {layer} has {kinds[0]} attention and would become layer {index} with "
                f"{kinds[1]} attention; choose layers whose kinds follow the pattern."
            )
    return smaller, _mapped(config, params, smaller, {}, layers)


def _check_same_family(config: EncoderConfig, larger: EncoderConfig) -> None:
    resized = dataclasses.replace(
        config,
        hidden_size=larger.hidden_size,
        num_layers=larger.num_layers,
        num_heads=larger.num_heads,
        intermediate_size=larger.intermediate_size,
        embedding_size=larger.embedding_size,
        dropout=larger.dropout,
        initializer=larger.initializer,
        compute_dtype=larger.compute_dtype,
        execution=larger.execution,
    )
    if resized != larger:
        differing = [
            field.name
            for field in dataclasses.fields(EncoderConfig)
            if getattr(resized, field.name) != getattr(larger, field.name)
        ]
        raise ValueError(
            f"the larger encoder differs in {', '.join(differing)} too; `grow` changes sizes only "
            f"(`resize_vocabulary` and `extend_context` change those)."
        )


def _centred(old: int, new: int) -> Index:
    """Old index of every new one: the old stretch in the middle, wrapping outwards."""
    return (np.arange(new) - (new - old) // 2) % old


def _heads(config: EncoderConfig, larger: EncoderConfig) -> Index:
    """The same along heads times their size, each head moved as a whole."""
    heads = _centred(config.num_heads, larger.num_heads)
    inside = _centred(config.head_dim, larger.head_dim)
    return (heads[:, None] * config.head_dim + inside).reshape(-1)


def _mapped(
    config: EncoderConfig,
    params: Params,
    target: EncoderConfig,
    maps: Mapping[str, Index],
    layers: Sequence[int],
) -> dict[str, Any]:
    """Every parameter read along its axes through the maps."""
    sizes = {
        "hidden": config.hidden_size,
        "heads": config.hidden_size,
        "inner": config.intermediate_size,
        "table": config.table_size,
        "vocabulary": config.padded_vocab_size,
    }
    maps = dict(maps)
    if "hidden" in maps:
        before = config.embedding_projection == "before_norm"
        maps["embedded"] = maps["hidden" if before else "table"]
        plain = config.heads.vocabulary.transform == "none"
        maps["decoded"] = maps["hidden" if plain else "table"]
        if config.convolution is not None:
            taps = np.arange(config.convolution.kernel_size)[:, None] * config.hidden_size
            maps["taps"] = (taps + maps["hidden"]).reshape(-1)
    out = {}
    for path, leaf in by_path(params).items():
        axes = _axes_of(path)
        value = np.asarray(leaf)
        for name, size in zip(axes[::-1], value.shape[::-1], strict=False):
            if size != sizes.get(name, size):
                raise ValueError(
                    f"{path} has the shape {value.shape}, and config says {name} {sizes[name]}; "
                    f"give the config of these parameters."
                )
        if "layers" in path.split("/"):
            value = _layers_of(path, value, config, target, layers)
            axes = ("layer", *axes)
        for axis, name in enumerate(axes):
            if name in maps:
                value = np.take(value, maps[name], axis=axis)
        out[path] = jnp.asarray(value)
    return from_paths(out)


def _axes_of(path: str) -> tuple[str, ...]:
    key = path.removeprefix("encoder/")
    if key not in _AXES:
        raise ValueError(f"the parameter {path} is of no model here; its axes are not known.")
    return _AXES[key]


def _layers_of(path, value, config: EncoderConfig, target: EncoderConfig, layers):
    """Stored layers in their new order; a norm that a layer lacked starts as no norm would."""
    chosen = list(layers)
    if "/attention_norm/" not in path or not config.norm.skip_first:
        return value[chosen]
    fresh = np.ones_like if path.endswith("scale") else np.zeros_like
    # Row r is layer r + 1; the first layer has none.
    rows = [value[old - 1] if old > 0 else fresh(value[0]) for old in chosen[1:]]
    return np.stack(rows) if rows else value[:0]


# ----------------------------------------------------------------------------------- vocabulary


def resize_vocabulary(
    config: EncoderConfig,
    params: Params,
    vocab_size: int,
    *,
    rows: Float[np.ndarray, "new width"] | None = None,
) -> tuple[EncoderConfig, dict[str, Any]]:
    """More (or fewer) vocabulary entries: the token table, an untied decoder, the output bias.

    New entries come after the old ones. Their embedding is the mean of all old ones, so that none
    is likelier than an average word, and so is their output bias (Hewitt 2021, "Initializing new
    word embeddings for pretrained language models").

    Args:
        config: Of ``params``.
        params: Of any model class.
        vocab_size: Entries afterwards. Fewer than before cuts the last ones off.
        rows: Embeddings of the new entries, instead of the mean.

    Returns:
        The config with the new size, and its parameters.

    Raises:
        ValueError: If ``rows`` does not fit, or the padding id would be cut off.
    """
    resized = dataclasses.replace(config, vocab_size=vocab_size)
    added = max(vocab_size - config.vocab_size, 0)
    if rows is not None and rows.shape != (added, config.table_size):
        raise ValueError(
            f"rows has the shape {rows.shape}; {added} new entries of width {config.table_size} "
            f"need ({added}, {config.table_size})."
        )
    out = dict(by_path(params))
    for path in VOCABULARY_PATHS:
        if path not in out:
            continue
        old = np.asarray(out[path])[: config.vocab_size]
        given = rows if path == VOCABULARY_PATHS[0] else None
        new = np.broadcast_to(old.mean(axis=0), (added, *old.shape[1:])) if given is None else given
        kept = np.concatenate([old[:vocab_size], np.asarray(new, old.dtype)])
        padding = resized.padded_vocab_size - len(kept)
        out[path] = jnp.asarray(np.pad(kept, [(0, padding)] + [(0, 0)] * (kept.ndim - 1)))
    return resized, from_paths(out)


# -------------------------------------------------------------------------------------- context


def extend_context(
    config: EncoderConfig,
    params: Params,
    max_length: int,
    *,
    theta: float | None = None,
    local_theta: float | None = None,
) -> tuple[EncoderConfig, dict[str, Any]]:
    """Longer sequences, to be trained on further.

    A table of positions is repeated (Longformer, arXiv:2004.05150 section 5: copying keeps the
    local structure that attention has learned); rotary positions get another base (ModernBERT:
    10,000 at 1,024 tokens, 160,000 in global layers at 8,192); relative ones need nothing.

    Args:
        config: Of ``params``.
        params: Of any model class.
        max_length: Positions afterwards.
        theta: New base of rotary positions in global layers; the old one if None.
        local_theta: The same in layers of local attention.

    Returns:
        The config for the new length, and its parameters.

    Raises:
        ValueError: If the length shrinks, or a theta is given where positions are not rotary.
    """
    old = config.positions
    if max_length < old.max_length:
        raise ValueError(
            f"max_length {max_length} is below the {old.max_length} positions there are; "
            f"shorter sequences need no change."
        )
    if isinstance(old, RotaryPositions):
        local = local_theta if local_theta is not None else old.local_theta
        windows = isinstance(config.attention, LocalAttention)
        if windows and local is None and theta not in (None, old.theta):
            local = old.theta  # windows stay as short as they were
        new = dataclasses.replace(
            old,
            max_length=max_length,
            theta=old.theta if theta is None else theta,
            local_theta=local,
        )
        return dataclasses.replace(config, positions=new), dict(params)
    if theta is not None or local_theta is not None:
        raise ValueError(
            f"theta belongs to rotary positions; this encoder has {type(old).__name__}."
        )
    positions = dataclasses.replace(old, max_length=max_length)
    longer = dataclasses.replace(config, positions=positions)
    if not has_position_table(config):
        return longer, dict(params)
    assert isinstance(old, LearnedPositions | DisentangledPositions)
    offset = old.offset if isinstance(old, LearnedPositions) else 0
    out = dict(by_path(params))
    path = next(p for p in out if p.endswith("embeddings/position/embedding"))
    table = np.asarray(out[path])
    usable = table[offset:]
    tiled = usable[np.arange(max_length) % len(usable)]
    out[path] = jnp.asarray(np.concatenate([table[:offset], tiled]))
    return longer, from_paths(out)

"""A key map: where each parameter of ours stands in a Hugging Face checkpoint, and how it lies.

A family is a list of `Entry`: our path, their key, and the orientation. Linear kernels are
(in, out) here and (out, in) there. Both directions read the same entries.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Literal

import numpy as np

from bert_jax.models.config import EncoderConfig

Kind = Literal["copy", "transpose", "vocabulary", "convolution"]


@dataclass(frozen=True)
class Part:
    """A share of one of their arrays, cut along its first axis.

    Attributes:
        index: Which share.
        count: How many equal shares there are (3 of query, key and value; 2 of a gated map).
        layout: ``blocks``: the shares follow each other (ModernBERT); ``heads``: every head has
            its rows of all shares together (DeBERTa v1).
    """

    index: int
    count: int
    layout: Literal["blocks", "heads"] = "blocks"


@dataclass(frozen=True)
class Entry:
    """One parameter's place in both worlds.

    Attributes:
        ours: Path in our parameter tree, words joined by ``/``.
        theirs: Key in the checkpoint. ``{layer}`` stands for the number of a stored layer, or
            ``{group}`` and ``{inner}`` for those of a shared one.
        kind: ``copy``; ``transpose`` for kernels; ``vocabulary`` for arrays whose first axis is the
            vocabulary, padded here; ``convolution``: (out, in, taps) there, (taps * in, out) here.
        part: If only a share of their array is ours.
        first_layer: Number of the first layer that has the parameter.
    """

    ours: str
    theirs: str
    kind: Kind = "copy"
    part: Part | None = None
    first_layer: int = 0

    @property
    def per_layer(self) -> bool:
        """Whether every layer has one; ours is stacked along a leading axis."""
        return "{layer}" in self.theirs or "{group}" in self.theirs

    def keys(self, config: EncoderConfig) -> list[str]:
        """Their keys, in the order of our leading axis."""
        if not self.per_layer:
            return [self.theirs]
        inner = 1 if config.sharing is None else config.sharing.inner
        return [
            self.theirs.format(layer=layer, group=layer // inner, inner=layer % inner)
            for layer in range(self.first_layer, config.stored_layers)
        ]

    def to_ours(self, value: np.ndarray, config: EncoderConfig) -> np.ndarray:
        """Their array in our orientation, float32; ValueError if its vocabulary is not config's."""
        value = np.asarray(value, np.float32)
        if self.part is not None:
            value = _share(value, self.part, config)
        if self.kind == "transpose":
            return np.ascontiguousarray(value.T)
        if self.kind == "convolution":
            out, width, taps = value.shape
            return np.ascontiguousarray(value.transpose(2, 1, 0).reshape(taps * width, out))
        if self.kind == "vocabulary":
            if len(value) != config.vocab_size:
                raise ValueError(
                    f"{self.theirs} has {len(value)} rows; config.json asks for a vocabulary of "
                    f"{config.vocab_size}."
                )
            padding = [(0, config.padded_vocab_size - len(value))] + [(0, 0)] * (value.ndim - 1)
            return np.pad(value, padding)
        return value

    def to_theirs(self, value: np.ndarray, config: EncoderConfig) -> np.ndarray:
        """Our array (of one layer) in their orientation: the inverse of `to_ours`.

        Of an entry with a ``part`` it is that share only; `joined` puts shares together.
        """
        value = np.asarray(value)
        if self.kind == "transpose":
            return np.ascontiguousarray(value.T)
        if self.kind == "convolution":
            width = config.hidden_size
            taps = value.shape[0] // width
            return np.ascontiguousarray(value.reshape(taps, width, -1).transpose(2, 1, 0))
        if self.kind == "vocabulary":
            return np.ascontiguousarray(value[: config.vocab_size])
        return value


def joined(shares: list[np.ndarray], layout: str, config: EncoderConfig) -> np.ndarray:
    """Shares of one array put together again, in the order of their `Part.index`."""
    if layout == "blocks":
        return np.concatenate(shares)
    by_head = [share.reshape(config.num_heads, -1, *share.shape[1:]) for share in shares]
    together = np.concatenate(by_head, axis=1)
    return together.reshape(-1, *shares[0].shape[1:])


def _share(value: np.ndarray, part: Part, config: EncoderConfig) -> np.ndarray:
    if part.layout == "blocks":
        return np.split(value, part.count)[part.index]
    by_head = value.reshape(config.num_heads, part.count, -1, *value.shape[1:])
    return np.ascontiguousarray(by_head[:, part.index].reshape(-1, *value.shape[1:]))


def linear(ours: str, theirs: str, *, bias: bool = True, first_layer: int = 0) -> list[Entry]:
    """Kernel and bias of a linear map."""
    make = functools.partial(Entry, first_layer=first_layer)
    entries = [make(f"{ours}/kernel", f"{theirs}.weight", "transpose")]
    return [*entries, make(f"{ours}/bias", f"{theirs}.bias")] if bias else entries


def norm(ours: str, theirs: str, *, bias: bool = True, first_layer: int = 0) -> list[Entry]:
    """Scale and bias of a norm."""
    make = functools.partial(Entry, first_layer=first_layer)
    entries = [make(f"{ours}/scale", f"{theirs}.weight")]
    return [*entries, make(f"{ours}/bias", f"{theirs}.bias")] if bias else entries

"""A key map: where each parameter of ours stands in a Hugging Face checkpoint, and how it lies.

A family is a list of `Entry`: our path, their key (``{layer}`` for the layer's number), and the
orientation. Linear kernels are (in, out) here and (out, in) there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from bert_jax.models.config import EncoderConfig

Kind = Literal["copy", "transpose", "vocabulary"]


@dataclass(frozen=True)
class Entry:
    """One parameter's place in both worlds.

    Attributes:
        ours: Path in our parameter tree, words joined by ``/``.
        theirs: Key in the checkpoint.
        kind: ``copy``; ``transpose`` for kernels; ``vocabulary`` for arrays whose first axis is the
            vocabulary, padded here.
    """

    ours: str
    theirs: str
    kind: Kind = "copy"

    @property
    def per_layer(self) -> bool:
        """Whether every layer has one; ours is stacked along a leading axis."""
        return "{layer}" in self.theirs

    def to_ours(self, value: np.ndarray, config: EncoderConfig) -> np.ndarray:
        """Their array in our orientation, float32; ValueError if its vocabulary is not config's."""
        value = np.asarray(value, np.float32)
        if self.kind == "transpose":
            return np.ascontiguousarray(value.T)
        if self.kind == "vocabulary":
            if len(value) != config.vocab_size:
                raise ValueError(
                    f"{self.theirs} has {len(value)} rows; config.json asks for a vocabulary of "
                    f"{config.vocab_size}."
                )
            padding = [(0, config.padded_vocab_size - len(value))] + [(0, 0)] * (value.ndim - 1)
            return np.pad(value, padding)
        return value


def linear(ours: str, theirs: str) -> list[Entry]:
    """Kernel and bias of a linear map."""
    return [
        Entry(f"{ours}/kernel", f"{theirs}.weight", "transpose"),
        Entry(f"{ours}/bias", f"{theirs}.bias"),
    ]


def norm(ours: str, theirs: str) -> list[Entry]:
    """Scale and bias of a layer norm."""
    return [
        Entry(f"{ours}/scale", f"{theirs}.weight"),
        Entry(f"{ours}/bias", f"{theirs}.bias"),
    ]


def transformer(prefix: str, *, type_table: bool) -> list[Entry]:
    """Embeddings and layers as BERT and RoBERTa name them.

    Args:
        prefix: ``bert.`` or ``roberta.``.
        type_table: Whether the model has segment types.
    """
    tables = f"{prefix}embeddings."
    entries = [
        Entry("encoder/embeddings/word/embedding", f"{tables}word_embeddings.weight", "vocabulary"),
        Entry("encoder/embeddings/position/embedding", f"{tables}position_embeddings.weight"),
        *norm("encoder/embeddings/norm", f"{tables}LayerNorm"),
    ]
    if type_table:
        entries.append(
            Entry("encoder/embeddings/type/embedding", f"{tables}token_type_embeddings.weight")
        )
    ours, theirs = "encoder/layers", f"{prefix}encoder.layer.{{layer}}"
    for name in ("query", "key", "value"):
        entries += linear(f"{ours}/{name}", f"{theirs}.attention.self.{name}")
    entries += linear(f"{ours}/attention_out", f"{theirs}.attention.output.dense")
    entries += norm(f"{ours}/attention_norm", f"{theirs}.attention.output.LayerNorm")
    entries += linear(f"{ours}/mlp_in", f"{theirs}.intermediate.dense")
    entries += linear(f"{ours}/mlp_out", f"{theirs}.output.dense")
    entries += norm(f"{ours}/mlp_norm", f"{theirs}.output.LayerNorm")
    return entries

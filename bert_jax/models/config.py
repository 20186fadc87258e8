"""The shape of an encoder, as data: one nested frozen config; a family is a point of it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal

Activation = Literal["gelu", "gelu_tanh"]
ComputeDtype = Literal["float32", "bfloat16"]
VOCAB_MULTIPLE = 128  # lanes of a TPU tile; the padded rows never leave the model


@dataclass(frozen=True)
class LearnedPositions:
    """A table of absolute positions (BERT, RoBERTa).

    Attributes:
        max_length: Usable positions; the table has ``max_length + offset`` rows.
        offset: Row of position 0. RoBERTa's is ``pad_id + 1``: padding reads row ``offset - 1``
            and, unless ``position_ids`` are given, only real tokens are counted (fairseq
            ``make_positions``).
    """

    max_length: int = 512
    offset: int = 0

    def __post_init__(self) -> None:
        _at_least("positions.max_length", self.max_length, 1)
        _at_least("positions.offset", self.offset, 0)


@dataclass(frozen=True)
class RotaryPositions:
    """Rotary position embeddings, rotate-half form (Su et al. 2021, arXiv:2104.09864).

    Attributes:
        max_length: Longest sequence the model is meant for; a bound for inputs, not a table size.
        theta: Base of the geometric series of wavelengths.
    """

    max_length: int = 512
    theta: float = 10_000.0

    def __post_init__(self) -> None:
        _at_least("positions.max_length", self.max_length, 1)
        if self.theta <= 1:
            raise ValueError(f"positions.theta is {self.theta}; it must be greater than 1.")


Positions = LearnedPositions | RotaryPositions


@dataclass(frozen=True)
class Norm:
    """Layer normalisation: where it stands and its epsilon (inside the square root).

    ``post``: after each residual sum and after the embeddings (BERT, RoBERTa). ``pre``: before
    each sub-layer and once at the end; the embeddings are left as they are.
    """

    placement: Literal["post", "pre"] = "post"
    eps: float = 1e-12

    def __post_init__(self) -> None:
        if not 0 < self.eps < 1:
            raise ValueError(f"norm.eps is {self.eps}; it must lie between 0 and 1.")


@dataclass(frozen=True)
class Dropout:
    """Dropout rates: ``hidden`` after embeddings and sub-layers, ``attention`` on probabilities."""

    hidden: float = 0.1
    attention: float = 0.1

    def __post_init__(self) -> None:
        for name, rate in (("hidden", self.hidden), ("attention", self.attention)):
            if not 0 <= rate < 1:
                raise ValueError(f"dropout.{name} is {rate}; a rate lies in [0, 1).")


@dataclass(frozen=True)
class TruncatedNormal:
    """Normal draws cut at two standard deviations, not rescaled (Google BERT).

    The cut leaves a standard deviation of .88 ``std`` (recipes: .0176 for .02).
    """

    std: float = 0.02


@dataclass(frozen=True)
class Normal:
    """Plain normal draws (fairseq RoBERTa)."""

    std: float = 0.02


Initializer = TruncatedNormal | Normal


@dataclass(frozen=True)
class Execution:
    """How the stack of layers runs; changes speed and memory, never a value.

    Attributes:
        loop: ``scan`` compiles one layer, ``unroll`` all; ``auto`` unrolls on CPU, scans elsewhere.
        remat: What the backward pass recomputes: ``none``; ``dots`` keeps the outputs of linear
            maps and recomputes attention and the rest; ``full`` keeps only each layer's input;
            ``auto`` is ``none`` on CPU, ``dots`` elsewhere.
    """

    loop: Literal["auto", "scan", "unroll"] = "auto"
    remat: Literal["auto", "none", "dots", "full"] = "auto"


@dataclass(frozen=True)
class EncoderConfig:
    """One encoder. Every family of the project is a point of this config.

    Attributes:
        vocab_size: Real vocabulary entries V; inside, tables hold ``padded_vocab_size`` rows.
        hidden_size: Width d of the residual stream.
        num_layers: Layers.
        num_heads: Attention heads; must divide ``hidden_size``.
        intermediate_size: Width of the feed-forward layer.
        embedding_size: Width of the embedding tables; None means ``hidden_size``, another number
            adds a projection (factorised embeddings, ALBERT).
        type_vocab_size: Rows of the segment-type table; 0 means none.
        positions: Position scheme.
        norm: Norm placement and epsilon.
        activation: ``gelu`` (erf) or ``gelu_tanh`` (Google BERT's approximation).
        dropout: Rates; all zero at evaluation.
        initializer: Distribution of kernels and tables; biases start at 0, scales at 1.
        pad_id: Id of the padding token.
        compute_dtype: Type of matrix products; parameters, norms, softmax, losses are float32.
        execution: Loop and rematerialisation.
    """

    vocab_size: int
    hidden_size: int = 768
    num_layers: int = 12
    num_heads: int = 12
    intermediate_size: int = 3072
    embedding_size: int | None = None
    type_vocab_size: int = 0
    positions: Positions = dataclasses.field(default_factory=LearnedPositions)
    norm: Norm = dataclasses.field(default_factory=Norm)
    activation: Activation = "gelu"
    dropout: Dropout = dataclasses.field(default_factory=Dropout)
    initializer: Initializer = dataclasses.field(default_factory=TruncatedNormal)
    pad_id: int = 0
    compute_dtype: ComputeDtype = "float32"
    execution: Execution = dataclasses.field(default_factory=Execution)

    def __post_init__(self) -> None:
        for name in ("vocab_size", "hidden_size", "num_layers", "num_heads", "intermediate_size"):
            _at_least(name, getattr(self, name), 1)
        _at_least("type_vocab_size", self.type_vocab_size, 0)
        if self.embedding_size is not None:
            _at_least("embedding_size", self.embedding_size, 1)
        if self.hidden_size % self.num_heads:
            raise ValueError(
                f"hidden_size {self.hidden_size} is not divisible by num_heads {self.num_heads}; "
                f"choose a multiple."
            )
        if isinstance(self.positions, RotaryPositions) and self.head_dim % 2:
            raise ValueError(
                f"rotary positions need an even head size; hidden_size {self.hidden_size} / "
                f"num_heads {self.num_heads} gives {self.head_dim}."
            )
        if not 0 <= self.pad_id < self.vocab_size:
            raise ValueError(
                f"pad_id {self.pad_id} is outside the vocabulary of {self.vocab_size} entries."
            )

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.hidden_size // self.num_heads

    @property
    def table_size(self) -> int:
        """Width of the embedding tables."""
        return self.hidden_size if self.embedding_size is None else self.embedding_size

    @property
    def padded_vocab_size(self) -> int:
        """Rows of the token table: ``vocab_size`` rounded up to a multiple of 128."""
        return -(-self.vocab_size // VOCAB_MULTIPLE) * VOCAB_MULTIPLE


def _at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise ValueError(f"{name} is {value}; it must be at least {least}.")

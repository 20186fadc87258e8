"""The shape of an encoder, as data: one nested frozen config; a family is a point of it."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Literal

from bert_jax.models.axes import (
    Activation,
    AlibiPositions,
    AttentionPattern,
    Biases,
    Convolution,
    Direction,
    DisentangledPositions,
    Dropout,
    GlobalAttention,
    Heads,
    Initializer,
    LayerSharing,
    LearnedPositions,
    LocalAttention,
    NoPositions,
    Norm,
    Normal,
    Pooler,
    Positions,
    RotaryPositions,
    SinusoidalPositions,
    TruncatedNormal,
    Uniform,
    VocabularyHead,
    at_least,
)

__all__ = [
    "Activation",
    "AlibiPositions",
    "AttentionPattern",
    "Biases",
    "ComputeDtype",
    "Convolution",
    "Direction",
    "DisentangledPositions",
    "Dropout",
    "EncoderConfig",
    "Execution",
    "GlobalAttention",
    "Heads",
    "Initializer",
    "LayerSharing",
    "LearnedPositions",
    "LocalAttention",
    "NoPositions",
    "Norm",
    "Normal",
    "Pooler",
    "Positions",
    "RotaryPositions",
    "SinusoidalPositions",
    "TruncatedNormal",
    "Uniform",
    "VocabularyHead",
]

ComputeDtype = Literal["float32", "bfloat16"]
VOCAB_MULTIPLE = 128  # lanes of a TPU tile; the padded rows never leave the model


@dataclass(frozen=True)
class Execution:
    """How the stack of layers runs; changes speed and memory, never a value.

    Attributes:
        loop: ``scan`` compiles one layer (of each kind), ``unroll`` all; ``auto`` unrolls on CPU,
            scans elsewhere.
        remat: What the backward pass recomputes: ``none``; ``dots`` keeps the outputs of linear
            maps and recomputes attention and the rest; ``full`` keeps only each layer's input;
            ``auto`` is ``none`` on CPU, ``dots`` elsewhere.
        attention: ``reference``: masks over all pairs, relative positions by gathers; ``fast``:
            windows in blocks, relative positions by one-hot products; ``auto``: windows in blocks
            everywhere, gathers on CPU and one-hot products elsewhere
            (docs/design-notes/attention-forms.md).
    """

    loop: Literal["auto", "scan", "unroll"] = "auto"
    remat: Literal["auto", "none", "dots", "full"] = "auto"
    attention: Literal["auto", "reference", "fast"] = "auto"


@dataclass(frozen=True)
class EncoderConfig:
    """One encoder. Every family of the project is a point of this config.

    Attributes:
        vocab_size: Real vocabulary entries V; inside, tables hold ``padded_vocab_size`` rows.
        hidden_size: Width d of the residual stream.
        num_layers: Layers.
        num_heads: Attention heads; must divide ``hidden_size``.
        intermediate_size: Width of the feed-forward layer.
        embedding_size: Width of the embedding tables, with a projection to ``hidden_size``
            (factorised embeddings, ALBERT); None means ``hidden_size`` and no projection.
        embedding_projection: Where that projection stands: ``after_norm``, with a bias (ALBERT,
            ELECTRA), or ``before_norm``, without (DeBERTa).
        type_vocab_size: Rows of the segment-type table; 0 means none.
        positions: Position scheme.
        attention: Attention pattern.
        norm: Norm kind, placement and epsilon.
        activation: ``gelu`` (erf), ``gelu_tanh`` (Google BERT's approximation), or others.
        mlp: ``plain``, or ``gated``: ``activation(x @ in) * (x @ gate)`` (with gelu GeGLU, with
            silu SwiGLU; Shazeer 2020, arXiv:2002.05202).
        biases: Which linear maps have one.
        sharing: Layers that share parameters; None means each has its own.
        convolution: Beside the first layer; None means none.
        dropout: Rates; all zero at evaluation.
        initializer: Distribution of kernels and tables; biases start at 0, scales at 1.
        heads: Shapes of the family's heads.
        pad_id: Id of the padding token.
        compute_dtype: Type of matrix products; parameters, norms, softmax, losses are float32.
        execution: Loop, rematerialisation, forms of attention.
    """

    vocab_size: int
    hidden_size: int = 768
    num_layers: int = 12
    num_heads: int = 12
    intermediate_size: int = 3072
    embedding_size: int | None = None
    embedding_projection: Literal["after_norm", "before_norm"] = "after_norm"
    type_vocab_size: int = 0
    positions: Positions = dataclasses.field(default_factory=LearnedPositions)
    attention: AttentionPattern = dataclasses.field(default_factory=GlobalAttention)
    norm: Norm = dataclasses.field(default_factory=Norm)
    activation: Activation = "gelu"
    mlp: Literal["plain", "gated"] = "plain"
    biases: Biases = dataclasses.field(default_factory=Biases)
    sharing: LayerSharing | None = None
    convolution: Convolution | None = None
    dropout: Dropout = dataclasses.field(default_factory=Dropout)
    initializer: Initializer = dataclasses.field(default_factory=TruncatedNormal)
    heads: Heads = dataclasses.field(default_factory=Heads)
    pad_id: int = 0
    compute_dtype: ComputeDtype = "float32"
    execution: Execution = dataclasses.field(default_factory=Execution)

    def __post_init__(self) -> None:
        for name in ("vocab_size", "hidden_size", "num_layers", "num_heads", "intermediate_size"):
            at_least(name, getattr(self, name), 1)
        at_least("type_vocab_size", self.type_vocab_size, 0)
        if self.embedding_size is not None:
            at_least("embedding_size", self.embedding_size, 1)
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
        self._check_combinations()

    def _check_combinations(self) -> None:
        """What no published encoder combines and the stack of layers therefore does not offer."""
        local = isinstance(self.attention, LocalAttention)
        disentangled = isinstance(self.positions, DisentangledPositions)
        if local and disentangled:
            raise ValueError(
                "local attention does not go with disentangled positions; use rotary ones."
            )
        if local and isinstance(self.positions, AlibiPositions):
            raise ValueError(
                "local attention does not go with ALiBi positions, whose bias its blocks do not "
                "take; use rotary ones, or global attention."
            )
        if self.attention.direction == "left" and self.convolution is not None:
            raise ValueError(
                "attention.direction 'left' does not go with the convolution, which also reads "
                "the tokens that follow; leave the convolution out."
            )
        if self.sharing is not None:
            if local or self.norm.skip_first or self.convolution is not None:
                raise ValueError(
                    "shared layers are all of one kind; leave out local attention, "
                    "norm.skip_first and the convolution."
                )
            if self.sharing.groups > self.num_layers:
                raise ValueError(
                    f"sharing.groups {self.sharing.groups} exceeds num_layers {self.num_layers}."
                )
        if self.heads.vocabulary.mask_decoder == "enhanced" and not (
            isinstance(self.positions, DisentangledPositions)
            and self.positions.at_input == "none"
            and self.num_layers >= 2
            and self.sharing is None
            and self.norm.placement == "post"
        ):
            raise ValueError(
                "heads.vocabulary.mask_decoder 'enhanced' needs disentangled positions without "
                "absolute ones at the input, norm placement 'post', and two layers of their own "
                "or more."
            )
        vocabulary = self.heads.vocabulary
        plain = vocabulary.decoder == "tied" and vocabulary.transform == "none"
        if plain and self.table_size != self.hidden_size:
            raise ValueError(
                f"a tied decoder without a transform needs embedding_size "
                f"{self.table_size} = hidden_size {self.hidden_size}."
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

    @property
    def residual_initializer(self) -> Initializer:
        """Distribution of the maps that lead back to the residual stream."""
        start = self.initializer
        if isinstance(start, TruncatedNormal) and start.residual == "by_depth":
            return TruncatedNormal(start.std * (2 * self.num_layers) ** -0.5)
        return start

    def outer_initializer(self, inputs: int, outputs: int) -> Initializer:
        """Distribution of a map outside the layers that stands at TensorFlow's default in ELECTRA.

        Args:
            inputs: Input width of the map.
            outputs: Its output width.
        """
        start = self.initializer
        if isinstance(start, TruncatedNormal) and start.outer == "glorot":
            return Uniform(math.sqrt(6 / (inputs + outputs)))
        return start

    @property
    def stored_layers(self) -> int:
        """Layers with parameters of their own."""
        if self.sharing is None:
            return self.num_layers
        return self.sharing.groups * self.sharing.inner

    @property
    def applied_layers(self) -> int:
        """Layers a token goes through."""
        return self.num_layers * (1 if self.sharing is None else self.sharing.inner)

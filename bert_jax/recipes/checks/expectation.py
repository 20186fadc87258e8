"""What a recipe is held against: numbers written out by hand, not computed from the recipe."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from bert_jax.models.config import AttentionPattern, GlobalAttention, Positions
from bert_jax.recipes.checks.expectation_parts import (
    Distilled,
    Generator,
    Packed,
    Paired,
    Selected,
    Stage,
)

__all__ = [
    "Arithmetic",
    "Count",
    "Counted",
    "Distilled",
    "Expectation",
    "Generator",
    "Packed",
    "Paired",
    "Phase",
    "Rate",
    "Selected",
    "Shape",
    "Stage",
]

Counted = Literal["body", "pooled", "masked lm", "pre-training", "detector"]
"""What is counted: the encoder, with its pooler, or with the heads of an objective."""

Position = Literal["post", "pre"]


class Count(NamedTuple):
    """Parameters of a model; tied weights once, rows that pad the vocabulary not at all.

    Attributes:
        counted: Of what.
        number: How many.
    """

    counted: Counted
    number: int


class Rate(NamedTuple):
    """A learning rate at a moment.

    Attributes:
        now: What the clock shows: steps, tokens or seconds, as the phase counts.
        rate: The learning rate of the update made then.
    """

    now: float
    rate: float


@dataclass(frozen=True)
class Arithmetic:
    """The optimizer.

    Attributes:
        kind: Name of the function in `bert_jax.recipes.checks.reference_optimizers`.
        peak: Peak learning rate.
        b1: Decay of the first moment.
        b2: Decay of the second moment.
        eps: Epsilon.
        weight_decay: Decay, as the source states it.
        decays: ``all`` parameters, or not ``biases and norms``.
        clip: Bound of the gradient's norm; None: none.
        clipped: Whose gradient: that of the whole batch, or each replica's own.
        max_rate: Learning rate at which the decay is ``weight_decay`` as stated, where it is
            in proportion to the rate over that; None: it is the rate times ``weight_decay``.
    """

    kind: Literal["adamw", "fairseq_adam", "bert_adam", "lamb", "stable_adamw"]
    peak: float
    b1: float
    b2: float
    eps: float
    weight_decay: float
    decays: Literal["all", "biases and norms"]
    clip: float | None
    clipped: Literal["batch", "replica"] = "batch"
    max_rate: float | None = None


@dataclass(frozen=True)
class Phase:
    """One phase.

    Attributes:
        steps: Steps of the whole run when the phase ends.
        batch_size: Rows of a full batch.
        seq_length: Positions of a row.
        rates: Learning rates at named moments.
        masking: What masking does.
        optimizer: The arithmetic.
        batches: Rows of the batch at steps, where they grow: (step, rows).
        carries: What is kept from the phase before: moments, clock; None in the first.
        theta: Bases of rotary positions in global and in local layers; None where there are none.
    """

    steps: int
    batch_size: int
    seq_length: int
    rates: tuple[Rate, ...]
    masking: Selected
    optimizer: Arithmetic
    batches: tuple[tuple[int, int], ...] = ()
    carries: tuple[Literal["kept", "fresh"], Literal["kept", "reset"]] | None = None
    theta: tuple[float, float] | None = None


@dataclass(frozen=True)
class Shape:
    """The model.

    Attributes:
        counts: Parameters, of one or more parts; the first is the model that is kept.
        decayed: Of the first of ``counts``, how many the optimizer decays.
        heads: Attention heads.
        positions: Positions of the first phase.
        norm: Where norms stand.
        eps: Their epsilon.
        embedding_norm: Whether the embeddings have one of their own.
        first_norm: Whether the first layer's attention has one.
        activation: Value of the activation at 2.69, where tanh and erf differ most.
        matrix_std: Standard deviation of matrices and tables at the beginning.
        residual_std: That of the maps back to the residual stream.
        dropout: After the embeddings, on attention probabilities, after attention; inside the
            feed-forward layer, after it.
        projection_limit: Bound of the uniform draws of the map from factorised embeddings; None:
            it starts like the others, or there is none.
        detector_limit: That of a detector's last map; None: it starts like the others.
        zero_padding: Whether the padding token's embedding starts at 0.
        attention: Who sees whom.
        pooler: Where there are pairs: what is pooled, and the activation that follows.
    """

    counts: tuple[Count, ...]
    decayed: int
    heads: int
    positions: Positions
    norm: Position
    eps: float
    embedding_norm: bool
    first_norm: bool
    activation: float
    matrix_std: float
    residual_std: float
    dropout: tuple[float, float, float, float, float]
    projection_limit: float | None = None
    detector_limit: float | None = None
    zero_padding: bool = False
    attention: AttentionPattern = field(default_factory=GlobalAttention)
    pooler: tuple[str, str] | None = None


@dataclass(frozen=True)
class Expectation:
    """A recipe as its sources have it.

    Attributes:
        shape: The model.
        phases: The phases.
        tokens: Positions of all phases.
        rows: How documents become rows.
        stages: What a step minimises.
        held_out: What masking does at evaluation; None: the same as in training.
        generator: The generator, in replaced-token detection.
        distilled: What is taken from a teacher, in distillation.
    """

    shape: Shape
    phases: tuple[Phase, ...]
    tokens: float
    rows: Packed | Paired
    stages: tuple[Stage, ...] = (Stage(),)
    held_out: Selected | None = None
    generator: Generator | None = None
    distilled: Distilled | None = None

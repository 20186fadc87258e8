"""What a recipe is held against: numbers written out by hand, not computed from the recipe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

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
class Selected:
    """What masking does to full rows of text.

    Attributes:
        share: Share of a row's positions that are predicted, special ones among its positions.
        exact: Predictions of a full row, where the number is fixed; None: it varies.
        mask: Of the predicted, the share that becomes the mask token.
        random: The share that becomes a random token.
        specials: Whether [CLS] and [SEP] are ever predicted.
        random_ids: Range of random replacements, the end excluded; None where there are none.
        positions: Share of a full row's selected positions that are different ones: below 1 where
            they are drawn with replacement.
        last: Last position of a full row that is ever predicted; None: any may be.
    """

    share: float
    mask: float
    random: float
    specials: bool
    random_ids: tuple[int, int] | None
    exact: int | None = None
    positions: float = 1.0
    last: int | None = None


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
        counts: Parameters, of one or more parts.
        decayed: Of the first of ``counts``, how many the optimizer decays.
        norm: Where norms stand.
        eps: Their epsilon.
        embedding_norm: Whether the embeddings have one of their own.
        first_norm: Whether the first layer's attention has one.
        activation: Value of the activation at 2.69, where tanh and erf differ most.
        matrix_std: Standard deviation of most matrices at the beginning.
        residual_std: That of the maps back to the residual stream.
        dropout: After the embeddings, on attention probabilities, after attention.
        detector_limit: Bound of the uniform draws of a detector's last map; None: it starts like
            the others.
    """

    counts: tuple[Count, ...]
    decayed: int
    norm: Position
    eps: float
    embedding_norm: bool
    first_norm: bool
    activation: float
    matrix_std: float
    residual_std: float
    dropout: tuple[float, float, float]
    detector_limit: float | None = None


@dataclass(frozen=True)
class Expectation:
    """A recipe as its sources have it.

    Attributes:
        shape: The model.
        phases: The phases.
        tokens: Positions of all phases.
        generator: Width, layers and heads of the generator, and the weight of the discriminator's
            loss, in replaced-token detection.
        teacher_layers: The teacher's layers that a distilled model starts from.
    """

    shape: Shape
    phases: tuple[Phase, ...]
    tokens: float
    generator: tuple[int, int, int, float] | None = None
    teacher_layers: tuple[int, ...] = ()

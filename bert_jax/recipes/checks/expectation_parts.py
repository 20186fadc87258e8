"""Parts of an expectation: masking, rows, what is minimised, what objectives add to the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Second = Literal["behind", "before", "other", "none"]
"""The second segment of a row follows the first in the text, precedes it, is of another document,
or is not there."""


@dataclass(frozen=True)
class Selected:
    """What masking does to rows of text.

    Attributes:
        share: Share of a full row's positions that are predicted, special ones among its positions.
        mask: Of the predicted, the share that becomes the mask token.
        random: The share that becomes a random token.
        specials: Whether [CLS] and [SEP] are ever predicted.
        unknown: Whether [UNK] is ever predicted.
        masks: Whether a [MASK] that stands in the text is ever predicted; None: no source says.
        short: Predictions of rows of 24 and of 28 tokens with padding behind them: [CLS], [SEP],
            4 [UNK], where ``masks`` says something a [MASK], and text. A mean where they vary.
        random_ids: Range of random replacements, the end excluded; None: there are none, or all
            that are not special.
        exact: Predictions of a full row, where the number is fixed; None: it varies.
        positions: Share of a full row's selected positions that are different ones: below 1 where
            they are drawn with replacement.
        last: Last position of a full row that is ever predicted; None: any may be.
        rare: How much likelier a token is predicted that the training data has once than one that
            it has 100 times.
        words: Most words that are predicted together, each of them whole: 1 where words are
            selected, 3 where n-grams are; 0: tokens are, whatever their words.
    """

    share: float
    mask: float
    random: float
    specials: bool
    unknown: bool
    masks: bool | None
    short: tuple[float, float]
    random_ids: tuple[int, int] | None
    exact: int | None = None
    positions: float = 1.0
    last: int | None = None
    rare: float = 1.0
    words: Literal[0, 1, 3] = 0


@dataclass(frozen=True)
class Packed:
    """Rows of running text.

    Attributes:
        several: Whether a row may hold several documents.
        crossed: Whether attention reaches from one document of a row to another.
        cut: Where a row may end: ``anywhere``, or only ``between sentences``.
        lost: Whether what does not fit in a document's first row is dropped.
    """

    several: bool
    crossed: bool
    cut: Literal["anywhere", "between sentences"]
    lost: bool = False


@dataclass(frozen=True)
class Paired:
    """Rows of two segments.

    Shares are of rows out of documents of many sentences, and away from the documents' ends.

    Attributes:
        seconds: For each kind of second segment its share of the rows.
        labels: For each kind of second segment that has one its label.
        of_one: What the second segment is where a document has one sentence only.
        short: Share of documents whose first row does not fill the row's length.
        copies: How many times the corpus is cut into pairs.
        masks: ``fixed``: a pair is masked alike each time it comes; ``fresh``: each time anew.
    """

    seconds: Mapping[Second, float]
    labels: Mapping[Second, int]
    of_one: Second
    short: float
    copies: int
    masks: Literal["fixed", "fresh"]


@dataclass(frozen=True)
class Stage:
    """One update of parameters, of which a step has one or more.

    Attributes:
        losses: What it minimises, with factors: ``loss`` (of masked tokens), ``pair_loss``,
            ``detection_loss``, ``soft_loss`` (a teacher's distribution), ``cosine_loss``.
        trains: The models that it changes, where there are several; empty: all there is.
    """

    losses: Mapping[str, float] = field(default_factory=lambda: {"loss": 1.0})
    trains: tuple[str, ...] = ()


@dataclass(frozen=True)
class Generator:
    """The generator of replaced-token detection.

    Attributes:
        size: Width, layers, heads.
        parameters: How many, with its vocabulary head and all embeddings that it reads.
        decayed: Of these, how many the optimizer decays.
        embeddings: ``shared``: it has those of the discriminator; ``lent``: it has its own, and the
            discriminator reads them and adds differences, at first 0.
        decoder: ``enhanced``: its predictions come from DeBERTa's enhanced mask decoder.
        samples: Share of its samples of a token to which it gives 3/4.
        projection_limit: Bound of the uniform draws of the map from its factorised embeddings;
            None: that map starts like the others, or there is none.
    """

    size: tuple[int, int, int]
    parameters: int
    decayed: int
    embeddings: Literal["shared", "lent"]
    decoder: Literal["none", "enhanced"] = "none"
    samples: float = 0.75  # at temperature 1; at 2 it would be .634
    projection_limit: float | None = None


@dataclass(frozen=True)
class Distilled:
    """What a student takes from its teacher.

    Attributes:
        layers: The teacher's layers that the student starts from.
        frozen: Parameters of the student that are not trained.
        soft_loss: Of a student that gives 1/2 and 1/2 where its teacher gives 3/4 and 1/4.
    """

    layers: tuple[int, ...]
    frozen: tuple[str, ...]
    soft_loss: float

"""Heads of tasks: classes of a text, of every token, spans, choices, vectors."""

from __future__ import annotations

from typing import Literal

import jax
from jaxtyping import Array

from bert_jax.models.encoder import Encoded
from bert_jax.models.heads import CLASSIFIER_SITE, classify, head_transform, pool_and_transform
from bert_jax.models.layer import Padding
from bert_jax.models.model import EncoderModel
from bert_jax.models.pooling import Pooling, normalise, pool
from bert_jax.ops.dropout import DropoutSeed, dropout
from bert_jax.parallel import specs


class SequenceClassifier(EncoderModel):
    """A text's class, or with ``num_labels=1`` its score, by the family's own pooler.

    Attributes:
        num_labels: Columns of ``logits``.

    Head outputs:
        ``logits`` float32 (batch, num_labels).
    """

    num_labels: int = 2

    def _head(self, encoded: Encoded, segment_ids, seed) -> dict[str, Array]:
        pooled = pool_and_transform(self, encoded.hidden, segment_ids, seed)
        return {
            "logits": classify(self, _before(self, pooled, seed), self.num_labels, "classifier")
        }


class TokenClassifier(EncoderModel):
    """A class for every token (tagging).

    Attributes:
        num_labels: Columns of ``logits``.

    Head outputs:
        ``logits`` float32 (batch, length, num_labels).
    """

    num_labels: int = 2

    def _head(self, encoded: Encoded, segment_ids, seed) -> dict[str, Array]:
        del segment_ids
        x = _tokens(self, encoded, seed)
        return {"logits": classify(self, _before(self, x, seed), self.num_labels, "classifier")}


class SpanExtractor(EncoderModel):
    """Where an answer starts and ends (extractive question answering).

    Attributes:
        padding: ``transformers``: the loss of transformers normalises over whole rows, so padding
            has the states that it has there. ``blind``: padding sees nothing, for losses that leave
            it out; only so do windows of local attention cost what a window costs.

    Head outputs:
        ``start_logits`` and ``end_logits``, float32 (batch, length).
    """

    padding: Padding = "transformers"

    def _head(self, encoded: Encoded, segment_ids, seed) -> dict[str, Array]:
        del segment_ids
        logits = classify(self, _tokens(self, encoded, seed), 2, "span")
        start, end = (jax.lax.index_in_dim(logits, i, axis=2, keepdims=False) for i in (0, 1))
        return {"start_logits": start, "end_logits": end}

    def _padding(self) -> Padding:
        return self.padding


class MultipleChoice(EncoderModel):
    """Which of several texts is right; the texts of one question stand in consecutive rows.

    Attributes:
        num_choices: Texts a question; the batch is a multiple of it.

    Head outputs:
        ``logits`` float32 (questions, num_choices).
    """

    num_choices: int = 2

    def _head(self, encoded: Encoded, segment_ids, seed) -> dict[str, Array]:
        rows = encoded.hidden.shape[0]
        if self.num_choices < 1 or rows % self.num_choices:
            raise ValueError(
                f"a batch of {rows} rows does not hold whole questions of {self.num_choices} "
                f"choices; give the choices of a question in consecutive rows."
            )
        pooled = pool_and_transform(self, encoded.hidden, segment_ids, seed)
        scores = classify(self, _before(self, pooled, seed), 1, "classifier")
        shape = (rows // self.num_choices, self.num_choices)
        return {"logits": specs.reshape(scores, shape, specs.BATCH, None)}

    def _rows_at_init(self) -> int:
        return self.num_choices


class SentenceEncoder(EncoderModel):
    """One vector a text.

    Attributes:
        pooling: How tokens become a vector (`bert_jax.models.pooling.pool`).
        normalisation: ``unit``: vectors have length 1 (zero stays zero); ``none``.

    Head outputs:
        ``embedding`` float32 (batch, d).
    """

    pooling: Pooling = "mean"
    normalisation: Literal["none", "unit"] = "none"

    def _head(self, encoded: Encoded, segment_ids, seed) -> dict[str, Array]:
        del seed
        vectors = pool(self.pooling, encoded.hidden, segment_ids)
        return {"embedding": normalise(vectors) if self.normalisation == "unit" else vectors}


def _before(model: EncoderModel, x: Array, seed: DropoutSeed | None) -> Array:
    """Dropout before a classifier."""
    rate = model.config.heads.pooler.output_dropout
    rate = model.config.dropout.hidden if rate is None else rate
    return dropout(x, rate, seed, CLASSIFIER_SITE)


def _tokens(model: EncoderModel, encoded: Encoded, seed: DropoutSeed | None) -> Array:
    """What token heads read: hidden states, transformed where the family does so."""
    if model.config.heads.pooler.token_heads == "transform":
        return head_transform(model, encoded.hidden, seed)
    return encoded.hidden

"""Masked language modelling and a judgement on a pair of texts: BERT's NSP, ALBERT's SOP.

How pairs are made, and what their label means, is the data's affair (`bert_jax.data.pairs.Pairs`).
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from bert_jax.models.flops import pooler_flops
from bert_jax.models.heads import PreTraining
from bert_jax.objectives.base import Apply, Batch, Params, Setting, Stage, Sums, Task, merge
from bert_jax.objectives.masked_lm import (
    MaskedLanguageModel,
    initializer,
    masked_lm_flops,
    masked_lm_sums,
    predict,
)
from bert_jax.ops.cross_entropy import token_losses


@dataclass(frozen=True)
class SentencePairsObjective:
    """Masked language modelling plus next-sentence or sentence-order prediction.

    Attributes:
        pair_weight: Factor of the pair's loss (1 in BERT and ALBERT: the mean over targets and the
            mean over rows are added).
    """

    pair_weight: float = 1.0

    def __post_init__(self) -> None:
        if self.pair_weight < 0:
            raise ValueError(f"objective.pair_weight is {self.pair_weight}; it is 0 or more.")

    def task(self, setting: Setting) -> Task:
        """The objective with a `PreTraining` model."""
        model = PreTraining(setting.model)
        objective = SentencePairs(MaskedLanguageModel.of(setting), self.pair_weight)
        masked = masked_lm_flops(setting)

        def flops(rows: int, length: int) -> float:
            return masked(rows, length) + 3.0 * rows * pooler_flops(setting.model, labels=2)

        return Task(objective, model, initializer(model), model.apply, flops)


@dataclass(frozen=True)
class SentencePairs:
    """The objective.

    Attributes:
        masked: Of the tokens.
        pair_weight: Factor of the pair's loss.
    """

    masked: MaskedLanguageModel
    pair_weight: float = 1.0

    @property
    def stages(self) -> tuple[Stage, ...]:
        """One stage over all parameters."""
        return (
            Stage("pre_training", pre_training_loss, {"loss": 1.0, "pair_loss": self.pair_weight}),
        )

    def corrupt(self, key: jax.Array, step: jax.Array, batch: Batch) -> Batch:
        """Masks a batch; pairs are what the data made them."""
        if "pair_labels" not in batch:
            raise ValueError(
                "objective sentence-pairs needs rows of pairs; set packing to "
                "Pairs(...) (--packing pairs)."
            )
        return self.masked.corrupt(key, step, batch)


def pre_training_loss(
    apply: Apply, params: Params, batch: Batch, key: jax.Array | None, frozen: Params
) -> Sums:
    """Losses of tokens and of pairs, in nats.

    Returns:
        For every row what `bert_jax.objectives.masked_lm.masked_lm_loss` gives, and ``pair_loss``,
        ``pair_accuracy`` and ``pair_label``, of rows that have a label (-1 is none) and are not all
        padding.
    """
    output = predict(apply, merge(params, frozen), batch, key)
    filled = jnp.any(batch["segment_ids"] != 0, axis=-1)
    labels = jnp.where(filled, batch["pair_labels"], -1)
    return masked_lm_sums(output, batch) | pair_sums(output["pair_logits"], labels)


def pair_sums(logits: Float[Array, "rows 2"], labels: Int[Array, "rows"]) -> Sums:
    """Cross-entropy and hits of the pairs' labels, and the labels; one of -1 has no weight.

    The mean label is the share of random or swapped pairs: who always says the more frequent of the
    two is right in the greater of it and one minus it.
    """
    nll, correct = token_losses(logits, jnp.maximum(labels, 0))
    labelled = (labels >= 0).astype(jnp.float32)
    return {
        "pair_loss": (nll * labelled, labelled),
        "pair_accuracy": (correct * labelled, labelled),
        "pair_label": (labels * labelled, labelled),
    }

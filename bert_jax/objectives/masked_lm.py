"""Masked language modelling: mask on the device, predict the selected tokens."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from bert_jax.objectives.base import Apply, Batch, Params, Stage, Sums, merge
from bert_jax.objectives.masking import Masking, SpecialIds, mask_tokens, maskable_tokens


@dataclass(frozen=True)
class MaskedLanguageModel:
    """Masked LM objective.

    Attributes:
        masking: The policy.
        special: Special ids of the vocabulary.
        vocab_size: Real vocabulary entries.
    """

    masking: Masking
    special: SpecialIds
    vocab_size: int

    @property
    def stages(self) -> tuple[Stage, ...]:
        """One stage over all parameters."""
        return (Stage("masked_lm", masked_lm_loss),)

    def corrupt(self, key: jax.Array, step: jax.Array, batch: Batch) -> Batch:
        """Masks a batch. The key of a row is ``key`` folded with its global example index.

        Args:
            key: threefry key of the run's masks (its values do not depend on the mesh).
            step: Unused: the policy is the same at every step.
            batch: ``input_ids``, ``segment_ids``, ``example_ids``, and ``word_ids`` for words.

        Returns:
            The batch with ``input_ids`` corrupted, and ``positions``, ``targets``, ``weights``,
            ``dropped``.
        """
        del step
        ids, real = batch["input_ids"], batch["segment_ids"] != 0
        keys = jax.vmap(lambda example: jax.random.fold_in(key, example))(batch["example_ids"])
        masked = mask_tokens(
            keys,
            ids,
            maskable_tokens(ids, real, self.masking, self.special),
            self.masking,
            special=self.special,
            vocab_size=self.vocab_size,
            word_ids=batch.get("word_ids"),
        )
        return {**batch, **masked._asdict()}


def masked_lm_loss(
    apply: Apply, params: Params, batch: Batch, key: jax.Array | None, frozen: Params
) -> Sums:
    """Cross-entropy at the selected positions, in nats.

    Returns:
        ``loss``: sum of negative log-likelihoods over selected tokens; ``accuracy``: predictions
        with no greater logit than the right one; ``dropped``: tokens without a slot, of those
        selected.
    """
    output = apply(
        {"params": merge(params, frozen)},
        batch["input_ids"],
        segment_ids=batch["segment_ids"],
        position_ids=batch["position_ids"],
        positions=batch["positions"],
        targets=batch["targets"],
        example_ids=batch["example_ids"],
        deterministic=key is None,
        rngs=None if key is None else {"dropout": key},
    )
    weights = batch["weights"]
    total = jnp.sum(weights)
    dropped = jnp.sum(batch["dropped"]).astype(jnp.float32)
    return {
        "loss": (jnp.sum(output["nll"] * weights), total),
        "accuracy": (jnp.sum(output["correct"] * weights), total),
        "dropped": (dropped, total + dropped),
    }

"""Masked language modelling: mask on the device, predict the selected tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int

from bert_jax.models.flops import forward_flops, head_flops
from bert_jax.models.heads import MaskedLM
from bert_jax.objectives.base import (
    Apply,
    Batch,
    Params,
    Setting,
    Stage,
    Sums,
    Task,
    merge,
    row_keys,
    row_sums,
)
from bert_jax.objectives.masking import (
    Masking,
    SpecialIds,
    mask_tokens,
    maskable_tokens,
    selection_table,
)


@dataclass(frozen=True)
class MaskedLmObjective:
    """Masked language modelling alone (RoBERTa, ModernBERT and most others)."""

    def task(self, setting: Setting) -> Task:
        """The objective with a `MaskedLM`."""
        model = MaskedLM(setting.model)
        objective = MaskedLanguageModel.of(setting)
        return Task(objective, model, initializer(model), model.apply, masked_lm_flops(setting))


@dataclass(frozen=True)
class MaskedLanguageModel:
    """The objective of masked language modelling; others are built around its corruption.

    Attributes:
        masking: The policy.
        special: Special ids of the vocabulary.
        vocab_size: Real vocabulary entries.
        total_steps: Steps of the run, over which a policy may change.
        token_counts: Frequency of every id, for policies that select by it.
    """

    masking: Masking
    special: SpecialIds
    vocab_size: int
    total_steps: int = 1
    token_counts: Int[np.ndarray, "vocab"] | None = None

    @classmethod
    def of(cls, setting: Setting) -> MaskedLanguageModel:
        """The objective for a setting."""
        s = setting
        return cls(s.masking, s.special, s.vocab_size, s.total_steps, s.token_counts)

    @property
    def stages(self) -> tuple[Stage, ...]:
        """One stage over all parameters."""
        return (Stage("masked_lm", masked_lm_loss),)

    def corrupt(self, key: jax.Array, step: jax.Array, batch: Batch) -> Batch:
        """Masks a batch. The key of a row is ``key`` folded with its index (`row_keys`).

        Args:
            key: threefry key of the run's masks (its values do not depend on the mesh).
            step: For policies whose rate changes over the run.
            batch: ``input_ids``, ``segment_ids``, ``example_ids``, and ``word_ids`` for words.

        Returns:
            The batch with ``input_ids`` corrupted, and ``positions``, ``targets``, ``weights``,
            ``dropped``.
        """
        ids, real = batch["input_ids"], batch["segment_ids"] != 0
        masked = mask_tokens(
            row_keys(key, batch),
            ids,
            maskable_tokens(ids, real, self.masking, self.special),
            self.masking,
            special=self.special,
            vocab_size=self.vocab_size,
            word_ids=batch.get("word_ids"),
            selection_weights=self._chances(ids),
            rate=self.masking.rate_at(step, self.total_steps),
        )
        return {**batch, **masked._asdict()}

    def _chances(self, ids):
        """Relative chance of selection of every token; None where all are equal."""
        if not self.masking.frequency_power:
            return None
        if self.token_counts is None:
            raise ValueError(
                f"masking.frequency_power is {self.masking.frequency_power}, which needs the "
                f"frequencies of a store's tokens; synthetic data has none: set it to 0."
            )
        table = selection_table(self.token_counts, self.masking.frequency_power, self.special)
        return jax.vmap(lambda row: jnp.asarray(table).at[row].get())(ids)


def masked_lm_loss(
    apply: Apply, params: Params, batch: Batch, key: jax.Array | None, frozen: Params
) -> Sums:
    """Cross-entropy at the selected positions, in nats.

    Returns:
        For every row: ``loss``: sum of negative log-likelihoods over selected tokens; ``accuracy``:
        predictions with no greater logit than the right one; ``dropped``: tokens without a slot, of
        those selected.
    """
    output = predict(apply, merge(params, frozen), batch, key)
    return masked_lm_sums(output, batch)


def predict(apply: Apply, params: Params, batch: Batch, key: jax.Array | None, **more: Any) -> Any:
    """A model's outputs and losses at the selected positions of a corrupted batch.

    Args:
        apply: Of a `MaskedLM` or a model with its head.
        params: Its parameters.
        batch: Of `MaskedLanguageModel.corrupt`.
        key: Dropout key; None at evaluation.
        **more: Further arguments of ``apply``; ``targets=None`` asks for logits.
    """
    arguments = {
        "segment_ids": batch["segment_ids"],
        "position_ids": batch["position_ids"],
        "token_type_ids": batch.get("token_type_ids"),
        "positions": batch["positions"],
        "targets": batch["targets"],
        **noise(batch, key),
    }
    return apply({"params": params}, batch["input_ids"], **{**arguments, **more})


def noise(batch: Batch, key: jax.Array | None) -> dict[str, Any]:
    """Arguments of ``apply`` for dropout."""
    return {
        "example_ids": batch["example_ids"],
        "deterministic": key is None,
        "rngs": None if key is None else {"dropout": key},
    }


def masked_lm_sums(output: Any, batch: Batch) -> Sums:
    """Sums of `masked_lm_loss` from a model's outputs."""
    weights = batch["weights"]
    dropped = batch["dropped"].astype(jnp.float32)
    return {
        "loss": row_sums(output["nll"], weights),
        "accuracy": row_sums(output["correct"].astype(jnp.float32), weights),
        "dropped": (dropped, jnp.sum(weights, axis=-1) + dropped),
    }


def initializer(model: nn.Module) -> Callable[[jax.Array], dict[str, Any]]:
    """``init(key)`` of a task whose parameters are one model's."""

    def init(key: jax.Array) -> dict[str, Any]:
        variables: Any = model.init(key)
        return variables["params"]

    return init


def masked_lm_flops(setting: Setting) -> Callable[[int, int], float]:
    """``flops(rows, length)`` of a step of masked language modelling."""

    def flops(rows: int, length: int) -> float:
        slots = setting.masking.slots(length)
        head = head_flops(setting.model)
        return 3.0 * rows * (forward_flops(setting.model, length) + slots * head)

    return flops

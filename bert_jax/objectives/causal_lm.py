"""Causal language modelling: every token predicts the next. A warm-up for masked modelling.

The two-phase recipe (causal first, then masked, on the same parameters) is one switch of the
encoder's attention, ``model.attention.direction``; arXiv:2507.00994 found it the best use of a
fixed budget.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from bert_jax.models.flops import forward_flops, head_flops
from bert_jax.models.heads import MaskedLM
from bert_jax.objectives.base import Batch, Setting, Stage, Task
from bert_jax.objectives.masked_lm import initializer, masked_lm_loss


@dataclass(frozen=True)
class CausalLmObjective:
    """Next-token prediction; the masking policy is not used."""

    def task(self, setting: Setting) -> Task:
        """The objective with a `MaskedLM`, whose head predicts next tokens here.

        Raises:
            ValueError: If the encoder sees to the right.
        """
        if setting.model.attention.direction != "left":
            raise ValueError(
                "objective causal-lm with model.attention.direction "
                f"{setting.model.attention.direction!r}: a token would see the one it predicts; "
                "set --model.attention.direction left."
            )
        model = MaskedLM(setting.model)
        return Task(CausalLanguageModel(), model, initializer(model), model.apply, _flops(setting))


@dataclass(frozen=True)
class CausalLanguageModel:
    """The objective."""

    @property
    def stages(self) -> tuple[Stage, ...]:
        """One stage over all parameters."""
        return (Stage("causal_lm", masked_lm_loss),)

    def corrupt(self, key: jax.Array, step: jax.Array, batch: Batch) -> Batch:
        """Nothing is changed: each position's target is the next token of its segment."""
        del key, step
        ids, segments = batch["input_ids"], batch["segment_ids"]
        same = (segments[:, :-1] == segments[:, 1:]) & (segments[:, 1:] != 0)
        here = jnp.zeros_like(ids[:, 1:]) + jnp.arange(ids.shape[1] - 1, dtype=ids.dtype)
        return {
            **batch,
            "positions": here,
            "targets": ids[:, 1:],
            "weights": same.astype(jnp.float32),
            "dropped": jnp.zeros_like(ids[:, 0]),
        }


def _flops(setting: Setting) -> Callable[[int, int], float]:
    def flops(rows: int, length: int) -> float:
        head = (length - 1) * head_flops(setting.model)
        return 3.0 * rows * (forward_flops(setting.model, length) + head)

    return flops

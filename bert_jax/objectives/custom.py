"""An objective of one's own, from a Python file: docs/how-to/add-an-objective.md."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array

from bert_jax.models.config import EncoderConfig
from bert_jax.models.model import EncoderModel
from bert_jax.objectives.base import (
    Apply,
    Batch,
    ObjectiveConfig,
    Params,
    Setting,
    Stage,
    Sums,
    Task,
    merge,
    row_keys,
    simple_task,
)
from bert_jax.objectives.masked_lm import noise
from bert_jax.python_file import run_file

Row = Mapping[str, Array]


@dataclass(frozen=True)
class CustomObjective:
    """The objective that a Python file defines under the name ``objective``.

    Attributes:
        file: Path of the file. ``objective`` there has a method ``task(setting)``.
    """

    file: str

    def task(self, setting: Setting) -> Task:
        """The file's objective for a setting.

        Raises:
            FileNotFoundError: There is no such file.
            ValueError: It fails, or defines no objective.
        """
        found = run_file(self.file, "objective file").get("objective")
        if not isinstance(found, ObjectiveConfig):
            raise ValueError(
                f"{self.file} defines no `objective` with a method task(setting); end it with "
                f"objective = RowObjective(model, corrupt, loss) or an objective of your own."
            )
        return found.task(setting)


@dataclass(frozen=True)
class RowObjective:
    """An objective in two functions: what happens to a row, and what the model's outputs cost.

    It trains one model in one stage. Several of either need the protocol itself
    (`bert_jax.objectives.base`).

    Attributes:
        model: Makes the model of an encoder's config; one of `bert_jax.models.heads`, say.
        corrupt: ``corrupt(key, row, setting)`` gives the arrays of the row that it replaces or
            adds. ``row`` has ``input_ids``, ``segment_ids`` (0 is padding), ``position_ids``, all
            of shape (length,), whatever else the batch holds, and ``maskable``: True where a
            token is neither padding nor special. It runs on the device, under `jax.vmap`.
        loss: ``loss(output, batch)`` gives ``{name: (sum, weight)}``, one number a row each
            (`row_sums`); ``loss`` is minimised. ``output`` is the model's, ``batch`` the
            corrupted rows.
    """

    model: Callable[[EncoderConfig], EncoderModel]
    corrupt: Callable[[jax.Array, Row, Setting], Row]
    loss: Callable[[Row, Batch], Sums]

    def task(self, setting: Setting) -> Task:
        """The objective for a setting."""
        return simple_task(self.model(setting.model), _RowWise(self, setting))


@dataclass(frozen=True)
class _RowWise:
    parts: RowObjective
    setting: Setting

    @property
    def stages(self) -> tuple[Stage, ...]:
        """One stage over all parameters."""
        return (Stage("custom", self._loss),)

    def corrupt(self, key: jax.Array, step: jax.Array, batch: Batch) -> Batch:
        """Every row by a key of its own."""
        del step
        special = jnp.asarray(self.setting.special.ids)

        def one(key: jax.Array, row: dict[str, Array]) -> Row:
            ordinary = (row["segment_ids"] != 0) & ~jnp.isin(row["input_ids"], special)
            return self.parts.corrupt(key, row | {"maskable": ordinary}, self.setting)

        return {**batch, **jax.vmap(one)(row_keys(key, batch), dict(batch))}

    def _loss(
        self, apply: Apply, params: Params, batch: Batch, key: jax.Array | None, frozen: Params
    ) -> Sums:
        output = apply(
            {"params": merge(params, frozen)},
            batch["input_ids"],
            segment_ids=batch["segment_ids"],
            position_ids=batch["position_ids"],
            token_type_ids=batch.get("token_type_ids"),
            **noise(batch, key),
        )
        return self.parts.loss(output, batch)

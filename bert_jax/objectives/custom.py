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
    Batch,
    ObjectiveConfig,
    Setting,
    Stage,
    Sums,
    Task,
    merge,
    row_keys,
    simple_task,
)
from bert_jax.objectives.contract import check_contract, example_batch
from bert_jax.objectives.masked_lm import noise
from bert_jax.python_file import named_errors, run_file

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
            ValueError: It fails, defines no objective, or one that does not keep the protocol.
        """
        found = run_file(self.file, "objective file").get("objective")
        if isinstance(found, type) or not isinstance(found, ObjectiveConfig):
            raise ValueError(
                f"{self.file} defines no `objective` with a method task(setting); end it with "
                f"objective = RowObjective(model, corrupt, loss) or an objective of your own."
            )
        with named_errors(self.file):
            task = found.task(setting)
            check_contract(task, example_batch(setting))
        return task


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

    def __post_init__(self) -> None:
        for name in ("model", "corrupt", "loss"):
            if not callable(getattr(self, name)):
                raise ValueError(
                    f"{name} of RowObjective is {getattr(self, name)!r}; it is a function."
                )

    def task(self, setting: Setting) -> Task:
        """The objective for a setting.

        Raises:
            ValueError: ``model`` makes no model.
        """
        model = self.model(setting.model)
        if not isinstance(model, EncoderModel):
            raise ValueError(
                f"model of RowObjective gives a {type(model).__name__}; it gives a model over the "
                f"config, as bert_jax.models.heads.MaskedLM does."
            )
        return simple_task(model, _RowWise(self, setting))


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

        def one(key, row):  # unannotated: what a user's function gives is checked by hand
            ordinary = (row["segment_ids"] != 0) & ~jnp.isin(row["input_ids"], special)
            return self.parts.corrupt(key, row | {"maskable": ordinary}, self.setting)

        new = jax.vmap(one)(row_keys(key, batch), dict(batch))
        if not isinstance(new, Mapping):
            given = "None" if new is None else "no dictionary"
            raise ValueError(f"corrupt gives {given}; it gives a dictionary of arrays.")
        return {**batch, **new}

    def _loss(self, apply, params, batch, key, frozen):
        output = apply(
            {"params": merge(params, frozen)},
            batch["input_ids"],
            segment_ids=batch["segment_ids"],
            position_ids=batch["position_ids"],
            token_type_ids=batch.get("token_type_ids"),
            **noise(batch, key),
        )
        return self.parts.loss(output, batch)

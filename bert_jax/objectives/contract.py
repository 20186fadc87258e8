"""Whether an objective keeps the protocol, tried on shapes alone: before anything is trained."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from bert_jax.objectives.base import Passed, Setting, Stage, Task, select

_ROWS, _LENGTH = 2, 16
_KEPT = ("input_ids", "segment_ids", "position_ids")  # corrupt may change values, not shapes


def check_contract(task: Task, batch: Mapping[str, Any]) -> None:
    """Traces corruption and losses of a task, and looks at what they give.

    Args:
        task: Of the objective.
        batch: Rows as the data give them, or their shapes.

    Raises:
        ValueError: What is wrong, in one sentence; and whatever the objective raises.
    """
    with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), ())):
        key = jax.eval_shape(lambda: jax.random.key(0))
        step = jax.ShapeDtypeStruct((), jnp.int32)
        corrupted = jax.eval_shape(task.objective.corrupt, key, step, dict(batch))
        _check_batch(corrupted, batch)
        params = jax.eval_shape(task.init, key)
        for stage in task.objective.stages:
            chosen, rest = select(params, stage.trains)
            result = jax.eval_shape(
                lambda p, b, f, loss=stage.loss: loss(task.apply, p, b, None, f),
                chosen,
                corrupted,
                rest,
            )
            sums, passed = result if isinstance(result, Passed) else (result, {})
            _check_sums(stage, sums, rows=_rows(batch))
            corrupted = {**corrupted, **passed}


def example_batch(setting: Setting) -> dict[str, jax.ShapeDtypeStruct]:
    """Shapes of a small batch, with all that any data give."""
    length = min(_LENGTH, setting.model.positions.max_length)
    names = ["input_ids", "segment_ids", "position_ids", "word_ids"]
    if setting.model.type_vocab_size:
        names.append("token_type_ids")
    return {
        **{name: jax.ShapeDtypeStruct((_ROWS, length), jnp.int32) for name in names},
        "pair_labels": jax.ShapeDtypeStruct((_ROWS,), jnp.int32),
        "example_ids": jax.ShapeDtypeStruct((_ROWS,), jnp.uint32),
    }


def _rows(batch: Mapping[str, Any]) -> int:
    return batch["input_ids"].shape[0]


def _check_batch(corrupted: Any, batch: Mapping[str, Any]) -> None:
    if not isinstance(corrupted, Mapping):
        raise ValueError(f"corrupt gives {_said(corrupted)}; it gives a dictionary of arrays.")
    for name, array in corrupted.items():
        if jnp.shape(array)[:1] != (_rows(batch),):
            raise ValueError(
                f"corrupt gives {name!r} of shape {jnp.shape(array)}; its first axis is the "
                f"{_rows(batch)} rows of the batch."
            )
    for name in _KEPT:
        old, new = batch[name], corrupted.get(name)
        if new is None or new.shape != old.shape or not jnp.issubdtype(new.dtype, jnp.integer):
            raise ValueError(
                f"corrupt gives {name!r} as {_said(new)}; it stays an array of integers of shape "
                f"{old.shape}."
            )


def _check_sums(stage: Stage, sums: Any, *, rows: int) -> None:
    if not isinstance(sums, Mapping):
        raise ValueError(f"the loss gives {_said(sums)}; it gives {{name: (sum, weight)}}.")
    for name, pair in sums.items():
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise ValueError(
                f"the loss gives {name!r} as {_said(pair)}; it gives a pair (sum, weight), such as "
                f"row_sums makes."
            )
        shapes = tuple(jnp.shape(part) for part in pair)
        if shapes != ((rows,), (rows,)):
            raise ValueError(
                f"the loss gives {name!r} as a sum of shape {shapes[0]} and a weight of shape "
                f"{shapes[1]}; both have one number a row, ({rows},), as row_sums makes them."
            )
    missing = [name for name in stage.coefficients if name not in sums]
    if missing:
        raise ValueError(
            f"the loss gives {', '.join(map(repr, sums)) or 'nothing'}, and stage {stage.name!r} "
            f"minimises {missing[0]!r}: give it, or name another in the stage's coefficients."
        )


def _said(value: Any) -> str:
    """A value in a message: arrays by type and shape."""
    if hasattr(value, "shape"):
        return f"an array of {value.dtype} and shape {tuple(value.shape)}"
    return f"a {type(value).__name__}" if value is not None else "None"

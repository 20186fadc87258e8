"""Checks of a model's inputs on the host, where a bad index can still be named.

jax clamps, wraps or blanks an index out of range without a word; so ids, types and positions are
checked here before they reach it.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.core import Tracer
from jaxtyping import Integer

from bert_jax.models.config import EncoderConfig, LearnedPositions


def validate_inputs(
    config: EncoderConfig,
    input_ids: Integer[np.ndarray, "batch length"],
    *,
    attention_mask: Integer[np.ndarray, "batch length"] | None = None,
    segment_ids: Integer[np.ndarray, "batch length"] | None = None,
    position_ids: Integer[np.ndarray, "batch length"] | None = None,
    token_type_ids: Integer[np.ndarray, "batch length"] | None = None,
    positions: Integer[np.ndarray, "batch slots"] | None = None,
    targets: Integer[np.ndarray, "batch slots"] | None = None,
) -> None:
    """Refuses what the model's tables cannot hold.

    Args:
        config: Of the model.
        input_ids: Token ids; below ``vocab_size``, at most ``positions.max_length`` a row.
        attention_mask: 1 and 0, as large as ``input_ids``.
        segment_ids: 0 and up, as large as ``input_ids``.
        position_ids: Positions from 0; below ``positions.max_length``.
        token_type_ids: Segment types; below ``type_vocab_size``.
        positions: Places the head looks at; below the length.
        targets: Ids to predict; below ``vocab_size``.

    Raises:
        ValueError: Naming the value, the limit and the fix.
    """
    check_inputs(
        config,
        input_ids,
        attention_mask=attention_mask,
        segment_ids=segment_ids,
        position_ids=position_ids,
        token_type_ids=token_type_ids,
        positions=positions,
        targets=targets,
    )


def check_inputs(config: EncoderConfig, input_ids: Any, **others: Any) -> None:
    """`validate_inputs` for arrays of any kind: shapes always, values where they are known.

    Args:
        config: Of the model.
        input_ids: Token ids of numpy or jax, or None (nothing is checked).
        **others: The other inputs by name; unknown names are left alone.
    """
    if input_ids is None:
        return
    given = {name: x for name, x in others.items() if x is not None}
    for name, x in ({"input_ids": input_ids} | given).items():
        _check_kind(name, x)
    _check_shapes(config, input_ids, given)
    known = {name: _values(x) for name, x in ({"input_ids": input_ids} | given).items()}
    types, length = config.type_vocab_size, input_ids.shape[1]
    limits = {
        "input_ids": (config.vocab_size, "encode with the model's own tokenizer"),
        "attention_mask": (2, "1 is a real token, 0 padding"),
        "segment_ids": (2**31 - 1, "documents are numbered from 1, 0 is padding"),
        "position_ids": (config.positions.max_length, f"{_usable(config)} count from 0"),
        "token_type_ids": (
            max(types, 1),
            "leave token_type_ids out" if types < 2 else "types are 0 and 1 for pairs",
        ),
        "positions": (length, "positions index the tokens of a row"),
        "targets": (config.vocab_size, "targets are token ids"),
    }
    for name, (limit, hint) in limits.items():
        values = known.get(name)
        if values is not None:
            _in_range(name, values, limit, hint)


def _check_kind(name: str, x: Any) -> None:
    """Arrays of integers; a mask may be of booleans."""
    if not isinstance(x, np.ndarray | jax.Array):
        raise ValueError(f"{name} is a {type(x).__name__}; give an array of integers.")
    mask = name == "attention_mask" and x.dtype == np.bool_
    if not (mask or np.issubdtype(x.dtype, np.integer)):
        raise ValueError(f"{name} is of {x.dtype}; give integers.")


def _check_shapes(config: EncoderConfig, input_ids: Any, given: dict[str, Any]) -> None:
    if input_ids.ndim != 2 or 0 in input_ids.shape:
        raise ValueError(
            f"input_ids has the shape {input_ids.shape}; give rows of tokens (batch, length), at "
            f"least one token."
        )
    length, longest = input_ids.shape[1], config.positions.max_length
    if "position_ids" not in given and length > longest:
        raise ValueError(
            f"input_ids has rows of {length} tokens; the model has {longest} {_usable(config)}; "
            f"truncate or split the text."
        )
    for name in ("attention_mask", "segment_ids", "position_ids", "token_type_ids"):
        if name in given and given[name].shape != input_ids.shape:
            raise ValueError(
                f"{name} has the shape {given[name].shape}, input_ids {input_ids.shape}; give one "
                f"value a token."
            )
    slots = given.get("positions")
    if "targets" in given:
        expected = input_ids.shape if slots is None else slots.shape
        if given["targets"].shape != expected:
            raise ValueError(
                f"targets has the shape {given['targets'].shape}; give one a place the head looks "
                f"at, {expected}."
            )
    if slots is not None and (slots.ndim != 2 or slots.shape[0] != input_ids.shape[0]):
        raise ValueError(
            f"positions has the shape {slots.shape}; give (batch, slots) with the batch of "
            f"input_ids, {input_ids.shape[0]}."
        )


def _usable(config: EncoderConfig) -> str:
    """What the limit of positions is called: with an offset, fewer than the table has rows."""
    positions = config.positions
    if isinstance(positions, LearnedPositions) and positions.offset:
        rows = positions.max_length + positions.offset
        return f"usable positions (of {rows} rows, the first {positions.offset} are padding's)"
    return "positions"


def _values(x: Any) -> np.ndarray | None:
    """The array on the host, or None where its values are not known here."""
    if isinstance(x, np.ndarray):
        return x
    if isinstance(x, Tracer) or not isinstance(x, jax.Array):
        return None
    return np.asarray(x) if x.is_fully_addressable else None


def _in_range(name: str, values: Integer[np.ndarray, "..."], limit: int, hint: str) -> None:
    if values.size == 0:
        raise ValueError(f"{name} is empty (shape {values.shape}); give at least one token.")
    low, high = int(values.min()), int(values.max())
    if low < 0 or high >= limit:
        wrong = low if low < 0 else high
        raise ValueError(f"{name} holds {wrong}; it must lie in [0, {limit}); {hint}.")

"""Checks of a model's inputs on the host, where a bad index can still be named.

jax clamps, wraps or blanks an index out of range without a word; so ids, types and positions are
checked here before they reach it.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Integer

from bert_jax.models.config import EncoderConfig


def validate_inputs(
    config: EncoderConfig,
    input_ids: Integer[np.ndarray, "batch length"],
    *,
    position_ids: Integer[np.ndarray, "batch length"] | None = None,
    token_type_ids: Integer[np.ndarray, "batch length"] | None = None,
    positions: Integer[np.ndarray, "batch slots"] | None = None,
    targets: Integer[np.ndarray, "batch slots"] | None = None,
) -> None:
    """Refuses what the model's tables cannot hold.

    Args:
        config: Of the model.
        input_ids: Token ids; below ``vocab_size``, at most ``positions.max_length`` a row.
        position_ids: Positions from 0; below ``positions.max_length``.
        token_type_ids: Segment types; below ``type_vocab_size``.
        positions: Places the head looks at; below the length.
        targets: Ids to predict; below ``vocab_size``.

    Raises:
        ValueError: Naming the value, the limit and the fix.
    """
    longest = config.positions.max_length
    length = input_ids.shape[-1]
    _in_range("input_ids", input_ids, config.vocab_size, "encode with the model's own tokenizer")
    if position_ids is None and length > longest:
        raise ValueError(
            f"input_ids has rows of {length} tokens; the model has {longest} positions; truncate "
            f"or split the text."
        )
    if position_ids is not None:
        _in_range("position_ids", position_ids, longest, "positions count from 0")
    if token_type_ids is not None:
        types = config.type_vocab_size
        hint = "leave token_type_ids out" if types < 2 else "types are 0 and 1 for pairs"
        _in_range("token_type_ids", token_type_ids, max(types, 1), hint)
    if positions is not None:
        _in_range("positions", positions, length, "positions index the tokens of a row")
    if targets is not None:
        _in_range("targets", targets, config.vocab_size, "targets are token ids")


def _in_range(name: str, values: Integer[np.ndarray, "..."], limit: int, hint: str) -> None:
    if values.size == 0:
        raise ValueError(f"{name} is empty (shape {values.shape}); give at least one token.")
    low, high = int(values.min()), int(values.max())
    if low < 0 or high >= limit:
        wrong = low if low < 0 else high
        raise ValueError(f"{name} holds {wrong}; it must lie in [0, {limit}); {hint}.")

"""Our parameters as the arrays of a Hugging Face checkpoint."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from bert_jax.interop.family import Family
from bert_jax.interop.keys import Entry, joined
from bert_jax.models.config import EncoderConfig
from bert_jax.models.paths import by_path


def whole_entries(family: Family, architecture: str, config: EncoderConfig) -> list[Entry]:
    """Key map of one class of transformers: body and head, with whole keys.

    Args:
        family: Of the class.
        architecture: Its name; that of the family's base class has no head and no prefix.
        config: Of the encoder.
    """
    body = family.body(config)
    if architecture == family.base:
        return body
    prefixed = [dataclasses.replace(e, theirs=family.prefix + e.theirs) for e in body]
    return [*prefixed, *family.heads[architecture].entries(config)]


def to_checkpoint(
    params: Mapping[str, Any], entries: Iterable[Entry], config: EncoderConfig
) -> dict[str, np.ndarray]:
    """Arrays by their key, float32, as they lie in a checkpoint.

    Stacked layers are taken apart, kernels turned, shares of one array joined, and the rows that
    pad the vocabulary are left out.

    Args:
        params: Our tree: parameters, or whatever has their shapes (gradients).
        entries: Key map; every path in it must be in ``params``.
        config: Of the encoder.

    Raises:
        KeyError: A path of the key map is not in ``params``.
    """
    leaves = {path: np.asarray(leaf, np.float32) for path, leaf in by_path(params).items()}
    arrays: dict[str, np.ndarray] = {}
    shares: dict[str, dict[int, np.ndarray]] = {}
    layouts: dict[str, str] = {}
    for entry in entries:
        keys = entry.keys(config)
        values = leaves[entry.ours] if entry.per_layer else leaves[entry.ours][None]
        for key, value in zip(keys, values, strict=True):
            array = entry.to_theirs(value, config)
            if entry.part is None:
                arrays[key] = array
            else:
                shares.setdefault(key, {})[entry.part.index] = array
                layouts[key] = entry.part.layout
    for key, parts in shares.items():
        arrays[key] = joined([parts[index] for index in sorted(parts)], layouts[key], config)
    return arrays

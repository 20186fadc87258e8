"""Keys of a checkpoint brought to the names of a key map; what was changed is told."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

import numpy as np

from bert_jax.interop.family import Family

Weights = dict[str, np.ndarray]


def modern(weights: Weights) -> tuple[Weights, list[str]]:
    """LayerNorm.gamma and .beta of TensorFlow days under today's names; nothing else is renamed.

    Returns:
        The weights, and the old names.
    """
    out, renamed = {}, []
    for key, value in weights.items():
        new = re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", key)
        new = re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", new)
        if new != key:
            renamed.append(key)
            if new in weights:
                raise ValueError(f"the checkpoint holds both {key} and {new}; remove one.")
        out[new] = value
    return out, renamed


def with_prefix(weights: Weights, family: Family, known: Collection[str]) -> Weights:
    """The family's prefix put before keys of the body that lack it.

    transformers saves a bare encoder without the prefix, and loads either.

    Args:
        weights: By key.
        family: Of the checkpoint.
        known: All keys of the family's key maps, with the prefix where they have it.
    """
    buffers = tuple(family.prefix + beginning for beginning in family.unused)

    def full(key: str) -> str:
        longer = family.prefix + key
        if key in known or longer in weights:
            return key
        return longer if longer in known or longer.startswith(buffers) else key

    return {full(key): value for key, value in weights.items()}


def respelled(
    weights: Weights, spellings: Mapping[str, str], prefer: bool
) -> tuple[Weights, list[str]]:
    """Keys with another beginning under that of the key map.

    Args:
        weights: By key.
        spellings: Other beginning -> that of the key map.
        prefer: Whether the other spelling is taken where both are there.

    Returns:
        The weights, and the keys that were read under another name.
    """
    out, renamed = dict(weights), []
    for key in weights:
        for other, ours in spellings.items():
            new = ours + key.removeprefix(other)
            if key.startswith(other) and (new not in weights or prefer):
                out[new] = out.pop(key)
                renamed.append(key)
    return out, renamed


def settled(
    weights: Weights, pairs: Mapping[str, str], wanted: Collection[str], tied: bool
) -> tuple[Weights, list[str]]:
    """Copies of tied arrays dropped, or put where the original is missing.

    Args:
        weights: By key.
        pairs: Key of a copy -> key of its original.
        wanted: Keys of the key map.
        tied: Whether config.json says that copies are equal.

    Returns:
        The weights, and notes on copies that differ where they may.

    Raises:
        ValueError: A copy differs from an original it is tied to.
    """
    out, notes = dict(weights), []
    for pair in pairs.items():
        copy, original = pair
        if {copy, original} <= set(wanted):
            continue  # untied: two arrays of their own
        target, other = (copy, original) if copy in wanted else (original, copy)
        if other not in out:
            continue
        if target not in out:
            out[target] = out.pop(other)
        elif np.array_equal(out[target], out[other]):
            del out[other]
        elif tied:
            raise ValueError(
                f"{copy} differs from {original}, though config.json says they are tied "
                f"(tie_word_embeddings true)."
            )
        else:
            notes.append(f"{other} differs from {target}, which is the one that counts.")
    return out, notes

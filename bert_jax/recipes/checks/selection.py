"""Checks of masking: what is predicted in full rows of text, and what stands there instead."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int

from bert_jax.data.tokenizer_parts import SpecialTokens
from bert_jax.experiment import Experiment
from bert_jax.objectives.masking import (
    Masking,
    mask_tokens,
    maskable_tokens,
    selection_table,
    selection_weights,
)
from bert_jax.recipes.checks.expectation import Selected
from bert_jax.recipes.checks.findings import Finding, equal, within

_POSITIONS = 1 << 19  # masked in all; a share of 15 % is then known to .0005
_POSITIONS_OF_WORDS = 1 << 17  # which are chosen one after the other
_TOKENS_PER_WORD = 1.4

# Special tokens of the published vocabularies, by their size.
_SPECIALS = {
    30_522: SpecialTokens(pad=0, unk=100, cls=101, sep=102, mask=103),
    50_265: SpecialTokens(pad=1, unk=3, cls=0, sep=2, mask=50_264, family="roberta"),
    30_000: SpecialTokens(pad=0, unk=1, cls=2, sep=3, mask=4),
    128_100: SpecialTokens(pad=0, unk=3, cls=1, sep=2, mask=128_000),
    50_368: SpecialTokens(pad=50_283, unk=50_280, cls=50_281, sep=50_282, mask=50_284),
    32_768: SpecialTokens(pad=0, unk=1, cls=2, sep=3, mask=4),  # of one's own making
}


def check_masking(phase: Experiment, wanted: Selected, name: str) -> list[Finding]:
    """Masks full rows of a phase's length under its policy and counts what happened.

    The rows are [CLS], ordinary tokens, [SEP]. Nothing is random from call to call.
    """
    policy, vocab_size = phase.masking, phase.model.vocab_size
    special = _SPECIALS[vocab_size]
    length = phase.packing.seq_length
    rows = max(16, (_POSITIONS_OF_WORDS if policy.needs_words else _POSITIONS) // length)
    _, words = _rows(special, vocab_size, rows, length)
    masked = _masked(policy, special, vocab_size, rows, length)
    chosen = masked.weights > 0
    new = np.take_along_axis(masked.input_ids, masked.positions, axis=1)
    old = masked.targets
    drawn = chosen & (new != old) & (new != special.mask)
    counts = chosen.sum(axis=1)
    found = [
        within(f"{name}: share predicted", wanted.share, counts.mean() / length, 0.004),
        _specials(chosen & np.isin(old, (special.cls, special.sep)), wanted, name),
        within(f"{name}: to [MASK]", wanted.mask, (new == special.mask)[chosen].mean(), 0.006),
    ]
    if wanted.exact is not None:
        found.append(equal(f"{name}: predictions a row", {wanted.exact}, set(counts.tolist())))
    if wanted.positions < 1:
        different = np.mean([len(set(p[c])) / max(1, c.sum()) for p, c in _pairs(masked, chosen)])
        found.append(
            within(f"{name}: different positions", wanted.positions, float(different), 0.004)
        )
    if wanted.last is not None:
        last = int(masked.positions[chosen].max())
        found.append(equal(f"{name}: last position", wanted.last, last))
    if policy.needs_words:
        found.append(equal(f"{name}: words in part", 0, _cut_words(masked, chosen, words)))
    if policy.frequency_power:
        found.append(_rarity(policy, special))
    return found + _randoms(policy, wanted, new[drawn], drawn[chosen].mean(), vocab_size, name)


def _pairs(masked, chosen):
    return zip(masked.positions, chosen, strict=True)


def _specials(hits, wanted: Selected, name: str) -> Finding:
    return equal(f"{name}: [CLS] or [SEP] predicted", wanted.specials, bool(hits.any()))


def _randoms(
    policy: Masking, wanted: Selected, drawn, share: float, vocab_size: int, name: str
) -> list[Finding]:
    """Random replacements: how many, and from which range."""
    # One of V replacements is the token itself, and looks unchanged.
    found = [within(f"{name}: to a random token", wanted.random, float(share), 0.005)]
    if wanted.random_ids is None:
        return found
    low, high = wanted.random_ids
    found.append(equal(f"{name}: range of random tokens", (low, high), policy.random_ids))
    inside = bool(((drawn >= low) & (drawn < high)).all())
    found.append(equal(f"{name}: random tokens inside it", True, inside))
    edge = (high - low) // 50
    filled = bool((drawn < low + edge).any() and (drawn >= high - edge).any())
    found.append(equal(f"{name}: random tokens up to its ends", True, filled))
    return found


@functools.cache
def _rows(
    special: SpecialTokens, vocab_size: int, rows: int, length: int
) -> tuple[Int[np.ndarray, "rows length"], Int[np.ndarray, "rows length"]]:
    """Full rows and the numbers of their words."""
    rng = np.random.default_rng(0)
    ordinary = np.setdiff1d(np.arange(vocab_size), special.ids)
    ids = rng.choice(ordinary, (rows, length)).astype(np.int32)
    ids[:, 0], ids[:, -1] = special.cls, special.sep
    begins = rng.random((rows, length)) < 1 / _TOKENS_PER_WORD
    begins[:, 1] = True
    words = np.cumsum(begins, axis=1).astype(np.int32)
    words[:, 0] = words[:, -1] = -1
    return ids, words


@functools.cache  # phases and sizes of a family mask alike
def _masked(policy: Masking, special: SpecialTokens, vocab_size: int, rows: int, length: int):
    ids, words = _rows(special, vocab_size, rows, length)
    weights = None
    if policy.frequency_power:
        counts = np.full(vocab_size, 100)
        table = selection_table(counts, policy.frequency_power, special)
        weights = selection_weights(table, jnp.asarray(ids))

    def run(key, ids, words):
        maskable = maskable_tokens(ids, ids != special.pad, policy, special)
        return mask_tokens(
            key,
            ids,
            maskable,
            policy,
            special=special,
            vocab_size=vocab_size,
            word_ids=words if policy.needs_words else None,
            selection_weights=weights,
        )

    return jax.device_get(jax.jit(run)(jax.random.key(0, impl="threefry2x32"), ids, words))


def _cut_words(masked, chosen, words) -> int:
    """Words of which some tokens are predicted and others are not."""
    cut = 0
    for positions, valid, word in zip(masked.positions, chosen, words, strict=True):
        selected = np.zeros(len(word), bool)
        selected[positions[valid]] = True
        in_words = word >= 0
        whole = np.bincount(word[in_words])
        part = np.bincount(word[in_words], weights=selected[in_words], minlength=len(whole))
        cut += int(((part > 0) & (part < whole)).sum())
    return cut


def _rarity(policy: Masking, special: SpecialTokens) -> Finding:
    """How much likelier a token seen once is predicted than one seen 100 times: 100 ** .7."""
    counts = np.ones(200, np.int64)
    counts[150] = 100
    table = selection_table(counts, policy.frequency_power, special)
    return within("chance of a rare token", 25.118864, float(table[151] / table[150]), 1e-3)

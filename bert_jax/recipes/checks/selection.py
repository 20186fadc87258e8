"""Checks of masking: what is predicted in rows of text, and what stands there instead."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Int

from bert_jax.data.tokenizer_parts import SpecialTokens
from bert_jax.experiment import Experiment
from bert_jax.objectives.masked_lm import MaskedLanguageModel
from bert_jax.objectives.masking import Masking, selection_table
from bert_jax.recipes.checks.expectation import Selected
from bert_jax.recipes.checks.findings import Finding, equal, within
from bert_jax.recipes.checks.quick import quickly

_POSITIONS = 1 << 19  # masked in all; a share of 15 % is then known to .0005
_POSITIONS_OF_WORDS = 1 << 17  # which are chosen one after the other
_TOKENS_PER_WORD = 1.4
_SHORT_ROWS, _SHORT_LENGTH = 2048, 32
_UNKNOWN = 4  # [UNK] of a short row

# Special tokens of the published vocabularies, by their size.
SPECIALS = {
    30_522: SpecialTokens(pad=0, unk=100, cls=101, sep=102, mask=103),
    50_265: SpecialTokens(pad=1, unk=3, cls=0, sep=2, mask=50_264, family="roberta"),
    30_000: SpecialTokens(pad=0, unk=1, cls=2, sep=3, mask=4),
    128_100: SpecialTokens(pad=0, unk=3, cls=1, sep=2, mask=128_000),
    50_368: SpecialTokens(pad=50_283, unk=50_280, cls=50_281, sep=50_282, mask=50_284),
    32_768: SpecialTokens(pad=0, unk=1, cls=2, sep=3, mask=4),  # of one's own making
}
# One token is predicted in each window of 6: the next one is too where it is the first of the next
# window (1/6), and predicted there (1/6).
_ACROSS = 1 / 36
# Of the words behind which a word stands that is selected in one go with them: none where words
# are; with n-grams of n <= 3 words as 1/n, chances 6/11, 3/11, 2/11, it is (3 + 2 * 2) of
# (6 + 2 * 3 + 3 * 2).
_FOLLOWED = {1: 0.0, 3: 7 / 18}


class _Text(NamedTuple):
    """Rows of text."""

    ids: Int[np.ndarray, "rows length"]
    words: Int[np.ndarray, "rows length"]


def check_masking(policy: Masking, phase: Experiment, wanted: Selected, name: str) -> list[Finding]:
    """Masks rows under a policy and counts what happened.

    First full rows of the phase's length: [CLS], ordinary tokens, [SEP]. Then short ones, which
    have unknown tokens and padding. Nothing is random from call to call.

    Args:
        policy: Of the phase's training, or of its evaluation.
        phase: Its model says the vocabulary.
        wanted: What is expected.
        name: Begins the findings' names.
    """
    vocab_size, length = phase.model.vocab_size, phase.packing.seq_length
    special = SPECIALS[vocab_size]
    positions = _POSITIONS_OF_WORDS if policy.needs_words or wanted.words else _POSITIONS
    rows = max(16, positions // length)
    masked = _masked(policy, vocab_size, rows, length)
    chosen = masked["weights"] > 0
    old, new = masked["targets"], _at(masked, "input_ids")
    drawn = chosen & (new != old) & (new != special.mask)
    counts = chosen.sum(axis=1)
    specials = bool((chosen & np.isin(old, (special.cls, special.sep))).any())
    found = [
        within(f"{name}: share predicted", wanted.share, counts.mean() / length, 0.004),
        equal(f"{name}: [CLS] or [SEP] predicted", wanted.specials, specials),
        within(f"{name}: to [MASK]", wanted.mask, (new == special.mask)[chosen].mean(), 0.006),
    ]
    if wanted.exact is not None:
        found.append(equal(f"{name}: predictions a row", {wanted.exact}, set(counts.tolist())))
    if wanted.positions < 1:
        pairs = zip(masked["positions"], chosen, strict=True)
        different = np.mean([len(set(p[c])) / max(1, c.sum()) for p, c in pairs])
        found.append(
            within(f"{name}: different positions", wanted.positions, float(different), 0.004)
        )
    if wanted.last is not None:
        last = int(masked["positions"][chosen].max())
        found.append(equal(f"{name}: last position", wanted.last, last))
    found += _words(masked, chosen, wanted, name)
    if policy.frequency_power or wanted.rare > 1:
        found.append(_rarity(policy, wanted, special))
    found += _randoms(policy, wanted, new[drawn], drawn[chosen].mean(), vocab_size, name)
    return found + _short(policy, vocab_size, wanted, name)


def check_held_out(phase: Experiment, wanted: Selected | None, name: str) -> list[Finding]:
    """What masking does to held-out rows; None: the same as to those of training."""
    policy = phase.masking if phase.eval_masking is None else phase.eval_masking
    if wanted is not None:
        return check_masking(policy, phase, wanted, f"{name}, held out")
    same = "as in training" if policy == phase.masking else str(policy)
    return [equal(f"{name}, held out: masking", "as in training", same)]


def _at(masked: Mapping[str, np.ndarray], what: str) -> np.ndarray:
    """What stands at the selected positions."""
    return np.take_along_axis(masked[what], masked["positions"], axis=1)


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


def _short(policy: Masking, vocab_size: int, wanted: Selected, name: str) -> list[Finding]:
    """Predictions of short rows: how many, and of which special tokens."""
    special = SPECIALS[vocab_size]
    masked = _masked(policy, vocab_size, _SHORT_ROWS, _SHORT_LENGTH, wanted.masks is not None)
    chosen, old = masked["weights"] > 0, masked["targets"]
    counts = chosen.sum(axis=1)
    found = []
    for which, (size, number) in enumerate(zip(_SIZES, wanted.short, strict=True)):
        label = f"{name}: predictions in {size} tokens"
        # Of 1,024 rows; a Bernoulli selection has a standard deviation of 2.4 in each.
        found.append(within(label, number, float(counts[which::2].mean()), 0.25))
    for label, token, expected in (
        ("[UNK]", special.unk, wanted.unknown),
        ("[MASK]", special.mask, wanted.masks),
        ("padding", special.pad, False),
    ):
        if expected is not None:
            seen = bool((old[chosen] == token).any())
            found.append(equal(f"{name}: {label} predicted", expected, seen))
    return found


_SIZES = (24, 28)  # tokens of short rows, in turns


@functools.cache
def _rows(vocab_size: int, rows: int, length: int) -> _Text:
    """Full rows and the numbers of their words."""
    special = SPECIALS[vocab_size]
    rng = np.random.default_rng(0)
    ordinary = np.setdiff1d(np.arange(vocab_size), special.ids)
    ids = rng.choice(ordinary, (rows, length)).astype(np.int32)
    ids[:, 0], ids[:, -1] = special.cls, special.sep
    begins = rng.random((rows, length)) < 1 / _TOKENS_PER_WORD
    begins[:, 1] = True
    words = np.cumsum(begins, axis=1).astype(np.int32)
    words[:, 0] = words[:, -1] = -1
    return _Text(ids, words)


def _shortened(text: _Text, special: SpecialTokens, *, with_mask: bool) -> _Text:
    """The same rows, ending early, with unknown tokens (words of their own) and padding."""
    ids, words = text.ids.copy(), text.words.copy()
    rng = np.random.default_rng(1)
    for row, size in zip(range(len(ids)), _SIZES * len(ids), strict=False):
        ids[row, size - 1], ids[row, size:] = special.sep, special.pad
        words[row, size - 1 :] = -1
        where = rng.permutation(np.arange(1, size - 1))[: _UNKNOWN + with_mask]
        ids[row, where] = special.unk
        words[row, where] = -1
        if with_mask:
            ids[row, where[-1]] = special.mask
    return _Text(ids, words)


@functools.cache  # phases and sizes of a family mask alike
def _masked(
    policy: Masking, vocab_size: int, rows: int, length: int, with_mask: bool | None = None
) -> Mapping[str, np.ndarray]:
    """What the objective makes of rows: full ones, or short ones with or without a [MASK]."""
    special = SPECIALS[vocab_size]
    text = _rows(vocab_size, rows, length)
    if with_mask is not None:
        text = _shortened(text, special, with_mask=with_mask)
    counts = np.full(vocab_size, 100)
    objective = MaskedLanguageModel(policy, special, vocab_size, 2, counts)
    batch = {
        "input_ids": jnp.asarray(text.ids),
        "original_ids": jnp.asarray(text.ids),
        "segment_ids": jnp.asarray(text.ids != special.pad, jnp.int32),
        "position_ids": jnp.broadcast_to(jnp.arange(length), text.ids.shape),
        "example_ids": jnp.arange(rows),
        "word_ids": jnp.asarray(text.words),
    }
    key = jax.random.key(0, impl="threefry2x32")
    # Step 1 of 2: halfway, where a rate that changes over the run would show.
    return jax.device_get(quickly(objective.corrupt)(key, jnp.int32(1), batch))


def short_rows(policy: Masking, vocab_size: int) -> Mapping[str, np.ndarray]:
    """Short rows with a [MASK], and what the policy makes of them."""
    return _masked(policy, vocab_size, _SHORT_ROWS, _SHORT_LENGTH, True)


def _words(masked, chosen, wanted: Selected, name: str) -> list[Finding]:
    """Whether words are predicted whole, and how often they, or tokens, are with the next one."""
    words = masked["word_ids"]
    selected = np.zeros(words.shape, bool)
    for row, positions, valid in zip(selected, masked["positions"], chosen, strict=True):
        row[positions[valid]] = True
    cut, followed, whole = 0, 0, 0
    for row, word in zip(selected, words, strict=True):
        part, sizes = _counted(row, word)
        cut += int(((part > 0) & (part < sizes)).sum())
        taken = part[1:] > 0  # words are numbered from 1
        followed += int((taken[:-1] & taken[1:]).sum())
        whole += int(taken[:-1].sum())
    found = [equal(f"{name}: words predicted whole", wanted.words > 0, cut == 0)]
    text = selected[:, 1:-1]
    share = float(text.mean())
    if not wanted.words:
        expected = share if wanted.last is None else _ACROSS
        followed = float(text[:, 1:][text[:, :-1]].mean())
        found.append(within(f"{name}: tokens with the next one", expected, followed, 0.02))
    else:
        together = _FOLLOWED[wanted.words]
        expected = together + (1 - together) * share  # the others by chance
        label = f"{name}: words with the next one"
        found.append(within(label, expected, followed / max(1, whole), 0.04))
    return found


def _counted(
    selected: Bool[np.ndarray, " length"], words: Int[np.ndarray, " length"]
) -> tuple[np.ndarray, np.ndarray]:
    """Selected tokens of each word of a row, and all of its tokens."""
    inside = words >= 0
    sizes = np.bincount(words[inside])
    return np.bincount(words[inside & selected], minlength=len(sizes)), sizes


def _rarity(policy: Masking, wanted: Selected, special: SpecialTokens) -> Finding:
    """How much likelier a token seen once is predicted than one seen 100 times."""
    counts = np.ones(200, np.int64)
    counts[150] = 100
    table = selection_table(counts, policy.frequency_power, special)
    return within("chance of a rare token", wanted.rare, float(table[151] / table[150]), 1e-3)

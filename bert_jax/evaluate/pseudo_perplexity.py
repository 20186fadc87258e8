"""Pseudo-perplexity: how surprised a masked model is by a sentence, one token at a time.

The pseudo-log-likelihood of a sentence is the sum over its tokens of the log-probability of the
token when it alone is masked (Salazar et al. 2020, arXiv:1910.14659). ``within_word_l2r`` masks the
rest of the token's word too, so that a word's later pieces do not give it away (Kauf & Ivanova
2023, arXiv:2305.10588). Special tokens and padding are neither scored nor counted.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import jax
import numpy as np

from bert_jax.data.tokenizer import Tokenizer
from bert_jax.evaluate.rows import encode_text, pad_rows, tokenizer_of
from bert_jax.evaluate.run import LanguageModel

Method = Literal["original", "within_word_l2r"]


@dataclass(frozen=True)
class PseudoPerplexity:
    """Scores of a list of texts.

    Attributes:
        perplexity: ``exp(-sum of log-likelihoods / tokens)`` over all texts together.
        log_likelihoods: Pseudo-log-likelihood of each text, in nats.
        tokens: Tokens scored of each text.
        method: How words were masked.
    """

    perplexity: float
    log_likelihoods: tuple[float, ...]
    tokens: tuple[int, ...]
    method: Method


def pseudo_perplexity(
    texts: Sequence[str],
    source: LanguageModel,
    *,
    method: Method = "original",
    batch_size: int = 64,
) -> PseudoPerplexity:
    """Pseudo-perplexity of texts; does not depend on ``batch_size`` but for float32 rounding.

    Args:
        texts: Sentences; each must fit the model.
        source: A run (`load_run`) or an imported model (`import_hf`).
        method: Masking of multi-token words.
        batch_size: Masked copies the model sees at a time.

    Raises:
        ValueError: For no texts, a text without tokens, or one too long for the model.
    """
    if not texts:
        raise ValueError("there are no texts to score; give at least one.")
    if batch_size < 1:
        raise ValueError(f"batch_size is {batch_size}; it must be at least 1.")
    tokenizer, config = tokenizer_of(source), source.model.config
    copies = [_masked_copies(text, tokenizer, config, method) for text in texts]
    for text, made in zip(texts, copies, strict=True):
        if not made:
            raise ValueError(f"the text {text!r} has no tokens to score.")
    flat = [(index, *copy) for index, made in enumerate(copies) for copy in made]
    flat.sort(key=lambda copy: len(copy[1]))  # rows of like length together: little padding
    apply = jax.jit(source.model.apply)
    scores = np.zeros(len(texts))
    for start in range(0, len(flat), batch_size):
        part = flat[start : start + batch_size]
        rows, segments = pad_rows([copy[1] for copy in part], tokenizer.special.pad, config)
        fill = batch_size - len(part)  # one shape a length
        rows, segments = (np.pad(x, ((0, fill), (0, 0)), mode="edge") for x in (rows, segments))
        places, targets = (
            np.pad(np.asarray([[copy[i]] for copy in part], np.int32), ((0, fill), (0, 0)))
            for i in (2, 3)
        )
        output = apply(
            {"params": source.params},
            rows,
            segment_ids=segments,
            positions=places,
            targets=targets,
        )
        nll = np.asarray(output["nll"], np.float64)[: len(part), 0]
        np.subtract.at(scores, [copy[0] for copy in part], nll)
    counts = tuple(len(made) for made in copies)
    perplexity = math.exp(-scores.sum() / sum(counts))
    return PseudoPerplexity(perplexity, tuple(scores.tolist()), counts, method)


def _masked_copies(
    text: str, tokenizer: Tokenizer, config, method: Method
) -> list[tuple[list[int], int, int]]:
    """(row with masks, place, right id) for every token that is not special."""
    encode_text(text, tokenizer, config)
    encoding = tokenizer.encode(text)
    ids, words = list(encoding.ids), encoding.word_ids
    copies = []
    for place, special in enumerate(encoding.special_mask):
        if special:
            continue
        masked = list(ids)
        for other in _masked_with(place, words, method):
            masked[other] = tokenizer.special.mask
        copies.append((masked, place, ids[place]))
    return copies


def _masked_with(place: int, words, method: Method) -> Iterator[int]:
    """Places masked to score ``place``: itself, and perhaps the rest of its word."""
    yield place
    if method == "within_word_l2r":
        later = place + 1
        while later < len(words) and words[later] is not None and words[later] == words[place]:
            yield later
            later += 1

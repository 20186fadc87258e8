"""The masking policy as data: how many tokens are predicted, which, and what stands there.

`bert_jax.objectives.masking` carries it out; docs/reference/masking.md has the policy of each
published recipe.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Int32

Count = Literal["fixed", "ceil", "stochastic", "bernoulli"]

MAX_SPAN = 10
"""Longest span in words (SpanBERT's --span-upper)."""

_SLACK = 4.0  # standard deviations of room in the slots of a Bernoulli selection
_OVERRUN = 8  # slots for the last word of a windowed selection, which may exceed the budget


@runtime_checkable
class SpecialIds(Protocol):
    """Ids that masking must know; `bert_jax.data.tokenizer.SpecialTokens` has them."""

    @property
    def pad(self) -> int:
        """Padding."""
        ...

    @property
    def unk(self) -> int:
        """The unknown token."""
        ...

    @property
    def mask(self) -> int:
        """The mask token."""
        ...

    @property
    def ids(self) -> tuple[int, ...]:
        """Every special id, sorted."""
        ...


@dataclass(frozen=True)
class Masking:
    """Masking policy. The defaults are BERT's rates with an exact count.

    Attributes:
        rate: Share of tokens selected for prediction.
        mask_prob: Of the selected, the share replaced by the mask token.
        random_prob: Of the selected, the share replaced by a random token; the rest,
            ``1 - mask_prob - random_prob``, stays as it is (and is predicted all the same). What
            happens is decided for each token; with unit ``span`` for each run of selected tokens.
        unit: What is selected: single tokens; whole words; n-grams of up to ``max_ngram`` words,
            n with a chance proportional to 1/n (ALBERT); spans of words whose lengths are
            geometric, at most 10 (SpanBERT). All but tokens need ``word_ids``.
        count: ``fixed``: ``round(rate * base)`` a row, at least 1 (Google BERT); ``ceil``:
            ``ceil(rate * base)`` (SpanBERT, XLM); ``stochastic``: ``floor(rate * base + u)`` with
            u uniform in [0, 1) (fairseq); ``bernoulli``: each unit by itself.
        count_base: What the count is taken of: the maskable tokens, or all real ones (Google BERT
            counts [CLS] and [SEP], though it never masks them).
        candidates: ``text``: special tokens are never selected; ``text_and_unk``: but the unknown
            one may be (Google BERT, ALBERT and ELECTRA); ``all``: every real token may be
            (fairseq's RoBERTa masks <s> and </s>; ModernBERT masks [CLS] and [SEP]).
        max_predictions: Most predictions a row; None leaves room for what the policy can ask.
        random_ids: Range ``(low, high)``, high excluded, of random replacements; None means every
            id of the vocabulary that is not special.
        max_ngram: Longest n-gram in words, for unit ``ngram``.
        span_mean: Unit ``span``: a span has k words with a chance proportional to
            ``(1 - 1 / span_mean) ** (k - 1)``, for k = 1 to 10. So it is the mean of the geometric
            law before the cut at 10: 5 is SpanBERT's p = 0.2, whose spans have 3.8 words.
        with_replacement: Positions are drawn independently (ELECTRA): one that is drawn twice is
            predicted twice, and masked if either draw says so. With unit ``token``.
        windowed: One unit is selected in each window of ``n * int(1 / rate)`` candidates, n the
            number of its words; where the budget ends, from left to right, selection ends
            (DeBERTa's NGramMaskGenerator). The last word is taken whole: it may exceed the budget.
        final_rate: The rate changes linearly from ``rate`` at step 0 to this at the last step
            (`rate_at`); None keeps it.
        frequency_power: Chance of a token proportional to its count in the training data to the
            minus this power (XLM and DistilBERT: 0.7; see `selection_table`); 0: all the same.
    """

    rate: float = 0.15
    mask_prob: float = 0.8
    random_prob: float = 0.1
    unit: Literal["token", "word", "ngram", "span"] = "token"
    count: Count = "fixed"
    count_base: Literal["maskable", "tokens"] = "maskable"
    candidates: Literal["text", "text_and_unk", "all"] = "text"
    max_predictions: int | None = None
    random_ids: tuple[int, int] | None = None
    max_ngram: int = 3
    span_mean: float = 5.0
    with_replacement: bool = False
    windowed: bool = False
    final_rate: float | None = None
    frequency_power: float = 0.0

    def __post_init__(self) -> None:
        self._check_numbers()
        if self.count == "bernoulli":
            self._check_bernoulli()
        if self.with_replacement:
            self._check_with_replacement()
        if self.windowed:
            self._check_windowed()
        if self.frequency_power > 0 and (self.unit != "token" or self.windowed):
            raise ValueError(
                f"masking.frequency_power is {self.frequency_power}; chances by frequency are "
                f"those of single tokens, so set unit 'token' and windowed False (the unit is "
                f"{self.unit!r}, windowed is {self.windowed})."
            )

    def _check_numbers(self) -> None:
        if not 0 < self.rate < 1:
            raise ValueError(f"masking.rate is {self.rate}; it must lie between 0 and 1.")
        if self.final_rate is not None and not 0 < self.final_rate < 1:
            raise ValueError(
                f"masking.final_rate is {self.final_rate}; it must lie between 0 and 1, or be None."
            )
        for name in ("mask_prob", "random_prob"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"masking.{name} is {getattr(self, name)}; it is a probability.")
        if self.mask_prob + self.random_prob > 1 + 1e-9:
            raise ValueError(
                f"masking.mask_prob {self.mask_prob} + random_prob {self.random_prob} exceeds 1; "
                f"the rest is the share left unchanged."
            )
        for name in ("max_predictions", "max_ngram", "span_mean"):
            value = getattr(self, name)
            if value is not None and not 1 <= value < math.inf:
                raise ValueError(f"masking.{name} is {value}; it must be at least 1.")
        if self.random_ids is not None and not 0 <= self.random_ids[0] < self.random_ids[1]:
            raise ValueError(
                f"masking.random_ids is {self.random_ids}; it must be (low, high) with "
                f"0 <= low < high."
            )
        if not 0 <= self.frequency_power < math.inf:
            raise ValueError(
                f"masking.frequency_power is {self.frequency_power}; it must be 0 or positive."
            )

    def _check_bernoulli(self) -> None:
        if self.count_base == "tokens":
            raise ValueError(
                "masking.count_base 'tokens' has no meaning with count 'bernoulli', which decides "
                "token by token; use 'fixed' or 'stochastic'."
            )
        if self.unit in ("ngram", "span"):
            raise ValueError(
                f"masking.unit {self.unit!r} fills a budget, which count 'bernoulli' does not "
                "have; use 'fixed', 'ceil' or 'stochastic'."
            )
        if self.frequency_power > 0:
            raise ValueError(
                f"masking.frequency_power {self.frequency_power} shares out a budget, which count "
                "'bernoulli' does not have; use 'fixed', 'ceil' or 'stochastic'."
            )

    def _check_with_replacement(self) -> None:
        if self.unit != "token" or self.windowed or self.count == "bernoulli":
            raise ValueError(
                "masking.with_replacement draws a number of single tokens, so set unit 'token', "
                f"windowed False and a count other than 'bernoulli' (they are {self.unit!r}, "
                f"{self.windowed} and {self.count!r})."
            )
        if self.random_prob > 0:
            raise ValueError(
                f"masking.random_prob is {self.random_prob}; with_replacement, where draws of one "
                "position may differ, has only mask tokens and unchanged ones: set it to 0."
            )

    def _check_windowed(self) -> None:
        if self.unit == "span" or self.count != "fixed":
            raise ValueError(
                "masking.windowed goes with units 'token', 'word' and 'ngram' and count 'fixed'; "
                f"the policy has unit {self.unit!r} and count {self.count!r}."
            )
        if self.final_rate is not None:
            raise ValueError(
                f"masking.final_rate is {self.final_rate}; with windowed, whose windows have one "
                "length, the rate cannot change: set it to None."
            )

    @property
    def needs_words(self) -> bool:
        """Whether batches must hold ``word_ids``."""
        return self.unit != "token"

    def slots(self, length: int) -> int:
        """Predictions a row of ``length`` tokens has room for, at the largest rate of the run."""
        rate = max(self.rate, self.final_rate or 0.0)
        if self.count == "stochastic":
            room = math.floor(rate * length) + 1
        elif self.count == "bernoulli":
            mean = rate * length
            room = math.ceil(mean + _SLACK * math.sqrt(mean * (1 - rate)))
        else:
            room = int(count_table(self.count, rate, length)[-1])
        if self.windowed and self.unit != "token":
            room += _OVERRUN
        if self.max_predictions is not None:
            room = min(room, self.max_predictions)
        return min(room, length)

    def rate_at(self, step: Int[Array, ""] | int, total_steps: int) -> Float[Array, ""] | None:
        """The rate of a step, for `mask_tokens`.

        Args:
            step: From 0; may be traced.
            total_steps: Steps after which the rate is ``final_rate``, and stays.

        Returns:
            ``rate + (final_rate - rate) * step / total_steps`` in float32; None where the rate
            does not change.

        Raises:
            ValueError: ``total_steps`` is not positive.
        """
        if total_steps < 1:
            raise ValueError(f"total_steps is {total_steps}; it must be at least 1.")
        if self.final_rate is None:
            return None
        part = jnp.clip(jnp.asarray(step).astype(jnp.float32) / total_steps, 0.0, 1.0)
        return self.rate + (self.final_rate - self.rate) * part


def count_table(count: Count, rate: float, length: int) -> Int32[np.ndarray, " sizes"]:
    """Predictions of rows of 0 to ``length`` tokens, for counts that are ``fixed`` or ``ceil``.

    ``fixed`` is ``max(1, round(rate * n))`` with Python's rounding (google-research/bert,
    create_pretraining_data.py), 0 for n = 0.
    """
    if count == "ceil":
        counts = [math.ceil(rate * n) for n in range(length + 1)]
    else:
        counts = [max(1, round(rate * n)) if n else 0 for n in range(length + 1)]
    return np.asarray(counts, np.int32)


def ngram_shares(max_ngram: int) -> Float[np.ndarray, " lengths"]:
    """Chances of n-grams of 1 to ``max_ngram`` words: proportional to 1/n (ALBERT, DeBERTa)."""
    shares = 1.0 / np.arange(1, max_ngram + 1)
    return shares / shares.sum()


def span_shares(span_mean: float) -> Float[np.ndarray, " lengths"]:
    """Chances of spans of 1 to 10 words: geometric with p = 1 / ``span_mean``, cut and rescaled."""
    shares = (1.0 - 1.0 / span_mean) ** np.arange(MAX_SPAN)
    return shares / shares.sum()

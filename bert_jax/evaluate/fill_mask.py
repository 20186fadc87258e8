"""What stands at the mask? The most probable tokens, with their probabilities."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.data.tokenizer import Tokenizer
from bert_jax.evaluate.rows import encode_text, pad_rows, tokenizer_of
from bert_jax.evaluate.run import LanguageModel, open_model


@dataclass(frozen=True)
class Prediction:
    """One guess.

    Attributes:
        token: The token as the vocabulary writes it.
        probability: Of the whole vocabulary.
        text: The input with this guess in the mask's place.
    """

    token: str
    probability: float
    text: str


def fill_mask(text: str, source: LanguageModel, *, top_k: int = 5) -> list[list[Prediction]]:
    """The ``top_k`` most probable tokens at every mask of ``text``.

    Several masks are predicted at the same time, each without knowing the others.

    Args:
        text: Holds the tokenizer's mask token at least once.
        source: A run (`load_run`) or an imported model (`import_hf`).
        top_k: Guesses a mask, at most the vocabulary.

    Raises:
        ValueError: If there is no mask, or the text is too long for the model.
    """
    tokenizer = tokenizer_of(source)
    config = source.model.config
    words = tokenizer.vocab_size  # a model may have more entries, which no text has
    if not 1 <= top_k <= words:
        raise ValueError(f"top_k is {top_k}; it must lie in [1, {words}].")
    ids = encode_text(text, tokenizer, config)
    places = np.flatnonzero(np.asarray(ids) == tokenizer.special.mask)
    if not len(places):
        raise ValueError(
            f"the text {text!r} holds no {tokenizer.special.mask_token}; put it where a word is "
            f"to be guessed."
        )
    rows, segments = pad_rows([ids], tokenizer.special.pad, config)
    output: Any = source.model.apply(
        {"params": source.params}, rows, segment_ids=segments, positions=places[None]
    )
    probabilities = jax.nn.softmax(output["logits"][0, :, :words].astype(jnp.float32), axis=-1)
    best, tokens = jax.lax.top_k(probabilities, top_k)
    return [
        [
            Prediction(
                tokenizer.id_to_token(int(token)), float(p), _filled(text, tokenizer, i, int(token))
            )
            for token, p in zip(tokens[i], best[i], strict=True)
        ]
        for i in range(len(places))
    ]


def fill_mask_run(path: str | os.PathLike[str], texts: Sequence[str], *, top_k: int = 5) -> str:
    """`fill_mask` of a run directory or a Hugging Face directory, as text to print."""
    run = open_model(path)
    return "\n\n".join(
        format_predictions(text, fill_mask(text, run, top_k=top_k)) for text in texts
    )


def format_predictions(text: str, predictions: Sequence[Sequence[Prediction]]) -> str:
    """A text and the guesses at each of its masks."""
    lines = [text]
    for number, guesses in enumerate(predictions, 1):
        if len(predictions) > 1:
            lines.append(f" mask {number}")
        lines += [f"  {g.probability:.3f}  {g.token:<16} {g.text}" for g in guesses]
    return "\n".join(lines)


def _filled(text: str, tokenizer: Tokenizer, mask: int, token: int) -> str:
    """``text`` with the guess at its ``mask``-th mask; other masks stay."""
    pieces = text.split(tokenizer.special.mask_token)
    word = tokenizer.decode([token], skip_special_tokens=False).strip()
    before = tokenizer.special.mask_token.join(pieces[: mask + 1])
    after = tokenizer.special.mask_token.join(pieces[mask + 1 :])
    continues = tokenizer.id_to_token(token).startswith("##")
    return (before.rstrip() if continues else before) + word.removeprefix("##") + after

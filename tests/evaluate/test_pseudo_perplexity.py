"""Pseudo-perplexity against one forward pass a token, written out."""

import math

import jax
import numpy as np
import pytest

from bert_jax.evaluate.pseudo_perplexity import pseudo_perplexity

SENTENCES = ["the congress met", "unbelievable people", "a"]


def _slow(model, text, method):
    """Log-likelihood and count: one unpadded forward pass for every token."""
    tokenizer = model.tokenizer
    encoding = tokenizer.encode(text)
    total, count = 0.0, 0
    for place, token in enumerate(encoding.ids):
        if encoding.special_mask[place]:
            continue
        ids = list(encoding.ids)
        ids[place] = tokenizer.special.mask
        if method == "within_word_l2r":
            for later in range(place + 1, len(ids)):
                if encoding.word_ids[later] == encoding.word_ids[place]:
                    ids[later] = tokenizer.special.mask
        logits = model.model.apply({"params": model.params}, np.asarray([ids], np.int32))["logits"]
        total += float(jax.nn.log_softmax(logits[0, place])[token])
        count += 1
    return total, count


@pytest.mark.parametrize("method", ["original", "within_word_l2r"])
def test_equals_one_forward_pass_a_token(model, method):
    result = pseudo_perplexity(SENTENCES, model, method=method)
    slow = [_slow(model, text, method) for text in SENTENCES]
    # float32 in rows of another length
    np.testing.assert_allclose(result.log_likelihoods, [s for s, _ in slow], rtol=1e-5)
    assert result.tokens == tuple(n for _, n in slow)
    total, count = (sum(x) for x in zip(*slow, strict=True))
    assert result.perplexity == pytest.approx(math.exp(-total / count), rel=1e-5)


def test_does_not_depend_on_the_batch_size(model):
    scores = [
        pseudo_perplexity(SENTENCES, model, batch_size=size).log_likelihoods for size in (1, 5, 64)
    ]
    np.testing.assert_allclose(scores[0], scores[1], rtol=1e-5)  # float32 rounding
    np.testing.assert_allclose(scores[0], scores[2], rtol=1e-5)


def test_methods_agree_on_words_of_one_token_and_differ_on_others(model):
    whole = [w for w in ("the", "congress", "people") if len(model.tokenizer.encode(w).ids) == 3]
    assert whole
    broken = "unbelievable"
    assert len(model.tokenizer.encode(broken).ids) > 3
    a, b = (
        pseudo_perplexity([*whole, broken], model, method=m)
        for m in ("original", "within_word_l2r")
    )
    assert a.log_likelihoods[:-1] == b.log_likelihoods[:-1]
    assert a.log_likelihoods[-1] != b.log_likelihoods[-1]


@pytest.mark.parametrize(
    ("texts", "options", "message"),
    [
        ([], {}, "no texts"),
        (["  "], {}, "no tokens to score"),
        (["the people " * 60], {}, "the model has 64 positions"),
        (["the"], {"batch_size": 0}, "batch_size is 0"),
    ],
)
def test_what_cannot_be_scored_is_one_sentence(model, texts, options, message):
    with pytest.raises(ValueError, match=message):
        pseudo_perplexity(texts, model, **options)

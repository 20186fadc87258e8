"""The record of a masking policy: what it refuses."""

import pytest

from bert_jax.objectives.masking import Masking


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"rate": 0.0}, "masking.rate is 0.0; it must lie between 0 and 1."),
        ({"rate": 1.0}, "masking.rate is 1.0; it must lie between 0 and 1."),
        ({"mask_prob": -0.1}, "masking.mask_prob is -0.1; it is a probability."),
        ({"random_prob": 1.5}, "masking.random_prob is 1.5; it is a probability."),
        (
            {"mask_prob": 0.7, "random_prob": 0.4},
            "masking.mask_prob 0.7 + random_prob 0.4 exceeds 1; the rest is the share left "
            "unchanged.",
        ),
        ({"max_predictions": 0}, "masking.max_predictions is 0; it must be at least 1."),
        (
            {"random_ids": (5, 5)},
            "masking.random_ids is (5, 5); it must be (low, high) with 0 <= low < high.",
        ),
        (
            {"random_ids": (-1, 5)},
            "masking.random_ids is (-1, 5); it must be (low, high) with 0 <= low < high.",
        ),
        (
            {"count": "bernoulli", "count_base": "tokens"},
            "masking.count_base 'tokens' has no meaning with count 'bernoulli', which decides "
            "token by token; use 'fixed' or 'stochastic'.",
        ),
        (
            {"final_rate": 0.0},
            "masking.final_rate is 0.0; it must lie between 0 and 1, or be None.",
        ),
        ({"max_ngram": 0}, "masking.max_ngram is 0; it must be at least 1."),
        ({"span_mean": 0.5}, "masking.span_mean is 0.5; it must be at least 1."),
        (
            {"frequency_power": -0.7},
            "masking.frequency_power is -0.7; it must be 0 or positive.",
        ),
        (
            {"unit": "span", "count": "bernoulli"},
            "masking.unit 'span' fills a budget, which count 'bernoulli' does not have; use "
            "'fixed', 'ceil' or 'stochastic'.",
        ),
        (
            {"frequency_power": 0.7, "count": "bernoulli"},
            "masking.frequency_power 0.7 shares out a budget, which count 'bernoulli' does not "
            "have; use 'fixed', 'ceil' or 'stochastic'.",
        ),
        (
            {"frequency_power": 0.7, "unit": "word"},
            "masking.frequency_power is 0.7; chances by frequency are those of single tokens, so "
            "set unit 'token' and windowed False (the unit is 'word', windowed is False).",
        ),
        (
            {"with_replacement": True, "unit": "ngram"},
            "masking.with_replacement draws a number of single tokens, so set unit 'token', "
            "windowed False and a count other than 'bernoulli' (they are 'ngram', False and "
            "'fixed').",
        ),
        (
            {"with_replacement": True},
            "masking.random_prob is 0.1; with_replacement, where draws of one position may "
            "differ, has only mask tokens and unchanged ones: set it to 0.",
        ),
        (
            {"windowed": True, "unit": "span"},
            "masking.windowed goes with units 'token', 'word' and 'ngram' and count 'fixed'; the "
            "policy has unit 'span' and count 'fixed'.",
        ),
        (
            {"windowed": True, "final_rate": 0.1},
            "masking.final_rate is 0.1; with windowed, whose windows have one length, the rate "
            "cannot change: set it to None.",
        ),
    ],
    ids=str,
)
def test_a_contradictory_policy_is_refused(fields, message):
    with pytest.raises(ValueError) as caught:
        Masking(**fields)
    assert str(caught.value) == message


def test_probabilities_may_add_up_to_one_in_floating_point():
    assert Masking(mask_prob=0.9, random_prob=0.1 + 1e-12).random_prob > 0.1

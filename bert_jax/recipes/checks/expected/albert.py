"""ALBERT: google-research/albert. Sources of the numbers: `bert_jax.recipes.albert`."""

from __future__ import annotations

from bert_jax.models.config import LearnedPositions
from bert_jax.recipes.checks.expectation import (
    Arithmetic,
    Count,
    Expectation,
    Paired,
    Phase,
    Rate,
    Selected,
    Shape,
    Stage,
)

# size: body with pooler, pre-training, decayed of the latter; heads, by the releases' config.json.
_COUNTS = {
    "base": (11_683_584, 11_813_810, 11_771_648, 12),
    "large": (17_683_968, 17_847_474, 17_801_472, 16),
    "xlarge": (58_724_864, 59_021_490, 58_960_128, 16),
    "xxlarge": (222_595_584, 223_158_450, 223_066_368, 64),
}
_MASKING = Selected(
    share=20 / 512,  # 20 predictions at most: 4 %, as the README's command has it
    mask=0.8,
    random=0.1,
    specials=False,
    unknown=True,  # create_pretraining_data.py: all but [CLS] and [SEP]
    masks=None,
    short=(4, 4),  # round(.15 * 24) and round(.15 * 28); [CLS] and [SEP] are counted
    random_ids=(0, 30_000),
    words=3,  # create_pretraining_data.py: do_whole_word_mask, ngram
)
_ROWS = Paired(
    # create_pretraining_data.py without random_next_sentence: half of the pairs are swapped ...
    seconds={"behind": 0.5, "before": 0.5},
    labels={"behind": 0, "before": 1, "other": 1},
    of_one="other",  # ... and one sentence gets a random second segment, labelled like them
    short=0.0983,  # short_seq_prob .1, but for the shortened length that is the full one
    copies=40,  # dupe_factor
    masks="fixed",  # written with the data
)


def _shape(size: str, dropout: float) -> Shape:
    pooled, whole, decayed, heads = _COUNTS[size]
    return Shape(
        counts=(Count("pre-training", whole), Count("pooled", pooled)),
        decayed=decayed,
        heads=heads,
        positions=LearnedPositions(512),
        pooler=("cls", "tanh"),
        norm="post",
        eps=1e-12,
        embedding_norm=True,
        first_norm=True,
        activation=2.680863,  # tanh
        matrix_std=0.017593,
        residual_std=0.017593,
        dropout=(dropout, dropout, dropout, 0.0, dropout),
    )


def _phase(steps: int, peak: float, rates: tuple[Rate, ...], *, later: bool = False) -> Phase:
    return Phase(
        steps=steps,
        batch_size=4096,
        seq_length=512,
        rates=rates,
        masking=_MASKING,
        optimizer=Arithmetic(
            kind="lamb",
            peak=peak,
            b1=0.9,
            b2=0.999,
            eps=1e-6,
            weight_decay=0.01,
            decays="biases and norms",
            clip=1.0,
            clipped="replica",
        ),
        carries=("kept", "reset") if later else None,
    )


_SHORT = (
    _phase(
        125_000,
        1.76e-3,
        (
            Rate(0, 0.0),
            Rate(1_600, 9.0112e-4),
            Rate(3_124, 1.7594368e-3),
            Rate(3_125, 1.716e-3),  # the fall at the end of the warm-up
            Rate(62_500, 8.8e-4),
            Rate(124_999, 1.408e-8),
        ),
    ),
)
# 1.5M steps in two pieces.
_LONG = (
    _phase(
        750_000, 1.76e-3, (Rate(0, 0.0), Rate(3_125, 1.756333333e-3), Rate(749_999, 8.80001e-4))
    ),
    _phase(
        750_000,
        8.8e-4,
        (Rate(0, 8.8e-4), Rate(375_000, 4.4e-4), Rate(749_999, 1.173333e-9)),
        later=True,
    ),
)
# 3M steps in three.
_THREE = (
    _phase(
        1_000_000,
        1.76e-3,
        (Rate(0, 0.0), Rate(3_125, 1.758166667e-3), Rate(999_999, 1.17333392e-3)),
    ),
    _phase(
        1_000_000,
        1.173333333e-3,
        (Rate(0, 1.173333333e-3), Rate(500_000, 8.8e-4), Rate(999_999, 5.866672533e-4)),
        later=True,
    ),
    _phase(
        1_000_000,
        5.866666667e-4,
        (Rate(0, 5.866666667e-4), Rate(500_000, 2.933333333e-4), Rate(999_999, 5.866666667e-10)),
        later=True,
    ),
)


def _ten() -> tuple[Phase, ...]:
    """10M steps in ten: the line falls by 1.76e-4 in each."""
    first = _phase(
        1_000_000,
        1.76e-3,
        (Rate(0, 0.0), Rate(3_125, 1.75945e-3), Rate(999_999, 1.584000176e-3)),
    )
    starts = (1.584e-3, 1.408e-3, 1.232e-3, 1.056e-3, 8.8e-4, 7.04e-4, 5.28e-4, 3.52e-4, 1.76e-4)
    later = tuple(
        _phase(1_000_000, start, (Rate(0, start), Rate(500_000, start - 8.8e-5)), later=True)
        for start in starts
    )
    return (first, *later)


def _albert(size: str, dropout: float, phases: tuple[Phase, ...], tokens: float) -> Expectation:
    return Expectation(
        shape=_shape(size, dropout),
        phases=phases,
        tokens=tokens,
        rows=_ROWS,
        # run_pretraining.py: the two losses are added
        stages=(Stage({"loss": 1.0, "pair_loss": 1.0}),),
    )


EXPECTED = {
    "albert-base-v1": _albert("base", 0.1, _SHORT, 262_144_000_000),
    "albert-large-v1": _albert("large", 0.1, _SHORT, 262_144_000_000),
    "albert-xlarge-v1": _albert("xlarge", 0.1, _SHORT, 262_144_000_000),
    "albert-xxlarge-v1": _albert("xxlarge", 0.0, _LONG, 3_145_728_000_000),
    "albert-base-v2": _albert("base", 0.0, _ten(), 20_971_520_000_000),
    "albert-large-v2": _albert("large", 0.0, _THREE, 6_291_456_000_000),
    "albert-xlarge-v2": _albert("xlarge", 0.0, _THREE, 6_291_456_000_000),
    "albert-xxlarge-v2": _albert("xxlarge", 0.0, _THREE, 6_291_456_000_000),
}

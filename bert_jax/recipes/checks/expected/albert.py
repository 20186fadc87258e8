"""ALBERT: google-research/albert. Sources of the numbers: `bert_jax.recipes.albert`."""

from __future__ import annotations

from bert_jax.recipes.checks.expectation import (
    Arithmetic,
    Count,
    Expectation,
    Phase,
    Rate,
    Selected,
    Shape,
)

# size: body with pooler, pre-training, decayed of the latter.
_COUNTS = {
    "base": (11_683_584, 11_813_810, 11_771_648),
    "large": (17_683_968, 17_847_474, 17_801_472),
    "xlarge": (58_724_864, 59_021_490, 58_960_128),
    "xxlarge": (222_595_584, 223_158_450, 223_066_368),
}
_MASKING = Selected(
    share=20 / 512,  # 20 predictions at most: 4 %, as the README's command has it
    mask=0.8,
    random=0.1,
    specials=False,
    random_ids=(0, 30_000),
)


def _shape(size: str, dropout: float) -> Shape:
    pooled, whole, decayed = _COUNTS[size]
    return Shape(
        counts=(Count("pre-training", whole), Count("pooled", pooled)),
        decayed=decayed,
        norm="post",
        eps=1e-12,
        embedding_norm=True,
        first_norm=True,
        activation=2.680863,  # tanh
        matrix_std=0.017593,
        residual_std=0.017593,
        dropout=(dropout, dropout, dropout),
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
    return Expectation(shape=_shape(size, dropout), phases=phases, tokens=tokens)


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

"""ELECTRA and DeBERTa v3. Sources: `bert_jax.recipes.electra` and `bert_jax.recipes.deberta`."""

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


def _adam(peak: float, clipped: str) -> Arithmetic:
    return Arithmetic(
        kind="bert_adam",
        peak=peak,
        b1=0.9,
        b2=0.999,
        eps=1e-6,
        weight_decay=0.01,
        decays="biases and norms",
        clip=1.0,
        clipped="replica" if clipped == "replica" else "batch",
    )


# ------------------------------------------------------------------------------------- ELECTRA


def _electra_shape(number: int, decayed: int, limit: float) -> Shape:
    return Shape(
        counts=(Count("detector", number),),
        decayed=decayed,
        norm="post",
        eps=1e-12,
        embedding_norm=True,
        first_norm=True,
        activation=2.680390,  # erf
        matrix_std=0.017593,
        residual_std=0.017593,
        dropout=(0.1, 0.1, 0.1),
        detector_limit=limit,
    )


def _electra_masking(exact: int, length: int, distinct: float, masked: float) -> Selected:
    """``masked`` exceeds .85: a position drawn twice is masked if either draw says so."""
    return Selected(
        share=exact / length,
        exact=exact,
        mask=masked,
        random=0.0,
        specials=False,
        random_ids=None,
        positions=distinct,
    )


_SMALL = Expectation(
    # Glorot: sqrt(6 / (256 + 1))
    shape=_electra_shape(13_549_057, 13_508_352, 0.152795),
    phases=(
        Phase(
            steps=1_000_000,
            batch_size=128,
            seq_length=128,
            rates=(
                Rate(0, 0.0),
                Rate(5_000, 2.4875e-4),
                Rate(10_000, 4.95e-4),  # never the peak: the product
                Rate(500_000, 2.5e-4),
                Rate(999_999, 5e-10),
            ),
            # 19 draws with replacement from 126: 126 (1 - (125/126)^19) / 19 different ones
            masking=_electra_masking(19, 128, 0.931684, 0.867206),
            optimizer=_adam(5e-4, "replica"),
        ),
    ),
    tokens=16_384_000_000,
    generator=(64, 12, 1, 50.0),
)
_ELECTRA = {
    "electra-small": _SMALL,
    "electra-small-owt": _SMALL,
    "electra-base": Expectation(
        shape=_electra_shape(109_483_009, 109_360_896, 0.088331),
        phases=(
            Phase(
                steps=766_000,
                batch_size=256,
                seq_length=512,
                rates=(
                    Rate(0, 0.0),
                    Rate(5_000, 9.934725849e-5),
                    Rate(10_000, 1.973890339e-4),
                    Rate(383_000, 1e-4),
                    Rate(765_999, 2.610966057e-10),
                ),
                masking=_electra_masking(77, 512, 0.929014, 0.867860),
                optimizer=_adam(2e-4, "replica"),
            ),
        ),
        tokens=100_401_152_000,
        generator=(256, 12, 4, 50.0),
    ),
    "electra-large": Expectation(
        shape=_electra_shape(335_142_913, 334_820_352, 0.076509),
        phases=(
            Phase(
                steps=1_750_000,
                batch_size=2048,
                seq_length=512,
                rates=(
                    Rate(0, 0.0),
                    Rate(5_000, 9.971428571e-5),
                    Rate(10_000, 1.988571429e-4),
                    Rate(875_000, 1e-4),
                    Rate(1_749_999, 1.142857143e-10),
                ),
                masking=_electra_masking(128, 512, 0.885145, 0.878636),
                optimizer=_adam(2e-4, "replica"),
            ),
        ),
        tokens=1_835_008_000_000,
        generator=(256, 24, 4, 50.0),
    ),
}


# ---------------------------------------------------------------------------------- DeBERTa v3

# size: body, detector, decayed of the latter; peak, rows, tokens; generator's width, layers, heads.
_DEBERTA = {
    "xsmall": (
        (70_682_112, 70_831_105, 70_768_512),
        (3e-4, 64, 32_768_000_000),
        (384, 6, 6),
    ),
    "small": (
        (141_304_320, 141_897_217, 141_831_936),
        (1e-4, 256, 131_072_000_000),
        (768, 3, 12),
    ),
    "base": (
        (183_831_552, 184_424_449, 184_299_264),
        (1e-4, 256, 131_072_000_000),
        (768, 6, 12),
    ),
    "large": (
        (434_012_160, 435_064_833, 434_738_176),
        (1e-4, 256, 131_072_000_000),
        (1024, 12, 16),
    ),
}


def _deberta(size: str, weight: float) -> Expectation:
    (body, detector, decayed), (peak, rows, tokens), generator = _DEBERTA[size]
    return Expectation(
        shape=Shape(
            counts=(Count("detector", detector), Count("body", body)),
            decayed=decayed,
            norm="post",
            eps=1e-7,
            embedding_norm=True,
            first_norm=True,
            activation=2.680390,  # erf
            matrix_std=0.02,
            residual_std=0.02,
            dropout=(0.1, 0.1, 0.1),
        ),
        phases=(
            Phase(
                steps=1_000_000,
                batch_size=rows,
                seq_length=512,
                rates=(
                    Rate(0, 0.0),
                    Rate(5_000, peak / 2),
                    Rate(9_999, 0.9999 * peak),
                    Rate(10_000, 0.99 * peak),  # the fall at the end of the warm-up
                    Rate(500_000, peak / 2),
                ),
                masking=Selected(
                    share=77 / 512,
                    exact=77,
                    mask=1.0,
                    random=0.0,
                    specials=False,
                    random_ids=None,
                    last=462,  # 77 windows of 6 behind [CLS]: the last 48 are never masked
                ),
                optimizer=_adam(peak, "batch"),
            ),
        ),
        tokens=tokens,
        generator=(*generator, weight),
    )


EXPECTED = {
    **_ELECTRA,
    **{f"deberta-v3-{size}": _deberta(size, 10.0) for size in _DEBERTA},
    **{f"deberta-v3-{size}-paper": _deberta(size, 50.0) for size in ("small", "base", "large")},
}

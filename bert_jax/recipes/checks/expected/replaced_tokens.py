"""ELECTRA and DeBERTa v3. Sources: `bert_jax.recipes.electra` and `bert_jax.recipes.deberta`."""

from __future__ import annotations

from bert_jax.models.config import DisentangledPositions, LearnedPositions
from bert_jax.recipes.checks.expectation import (
    Arithmetic,
    Count,
    Expectation,
    Generator,
    Packed,
    Paired,
    Phase,
    Rate,
    Selected,
    Shape,
    Stage,
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


def _electra_shape(
    number: int, decayed: int, heads: int, limit: float, projection: float | None = None
) -> Shape:
    return Shape(
        counts=(Count("detector", number),),
        decayed=decayed,
        heads=heads,
        positions=LearnedPositions(512),
        norm="post",
        eps=1e-12,
        embedding_norm=True,
        first_norm=True,
        activation=2.680390,  # erf
        matrix_std=0.017593,
        residual_std=0.017593,
        dropout=(0.1, 0.1, 0.1, 0.0, 0.1),
        projection_limit=projection,
        detector_limit=limit,
    )


_ROWS = Paired(
    seconds={"behind": 0.9, "none": 0.1},  # build_pretraining_dataset.py: a tenth has one segment
    labels={},
    of_one="none",
    short=0.0467,  # build_pretraining_dataset.py: .05, but for 61 to 64 of 5 to 64 tokens
    copies=1,  # build_pretraining_dataset.py
    masks="fresh",  # pretrain_helpers.mask runs in training
)
# configure_pretraining.py: gen_weight, disc_weight; run_pretraining.py trains both on their sum
_BOTH = (Stage({"loss": 1.0, "detection_loss": 50.0}),)


def _electra_masking(
    exact: int, length: int, distinct: float, masked: float, short: tuple[int, int]
) -> Selected:
    """``masked`` exceeds .85: a position drawn twice is masked if either draw says so."""
    return Selected(
        share=exact / length,
        exact=exact,
        mask=masked,
        random=0.0,
        specials=False,
        unknown=True,  # pretrain_helpers.mask: all but [CLS], [SEP], [MASK]
        masks=False,
        short=short,
        random_ids=None,
        positions=distinct,
    )


def _electra_generator(
    size: tuple[int, int, int], parameters: int, decayed: int, projection: float
) -> Generator:
    """Counts by the modules of modeling.py; ``projection`` is sqrt(6 / (embeddings + width))."""
    return Generator(
        size=size,
        parameters=parameters,
        decayed=decayed,
        embeddings="shared",  # configure_pretraining.py: untied_generator_embeddings False
        projection_limit=projection,
    )


_SMALL = Expectation(
    # Glorot: sqrt(6 / (256 + 1)), and of embeddings_project sqrt(6 / (128 + 256))
    shape=_electra_shape(13_549_057, 13_508_352, 4, 0.152795, 0.125),
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
            # of the short rows round(.15 * 24) and round(.15 * 28); [CLS] and [SEP] are counted
            masking=_electra_masking(19, 128, 0.931684, 0.867206, (4, 4)),
            optimizer=_adam(5e-4, "replica"),
        ),
    ),
    tokens=16_384_000_000,
    rows=_ROWS,
    stages=_BOTH,
    generator=_electra_generator((64, 12, 1), 4_620_026, 4_578_816, 0.176777),
)
_ELECTRA = {
    "electra-small": _SMALL,
    "electra-small-owt": _SMALL,
    "electra-base": Expectation(
        shape=_electra_shape(109_483_009, 109_360_896, 12, 0.088331),
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
                masking=_electra_masking(77, 512, 0.929014, 0.867860, (4, 4)),
                optimizer=_adam(2e-4, "replica"),
            ),
        ),
        tokens=100_401_152_000,
        rows=_ROWS,
        stages=_BOTH,
        generator=_electra_generator((256, 12, 4), 33_740_602, 33_666_048, 0.076547),
    ),
    "electra-large": Expectation(
        shape=_electra_shape(335_142_913, 334_820_352, 16, 0.076509),
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
                # round(.25 * 24) and round(.25 * 28)
                masking=_electra_masking(128, 512, 0.885145, 0.878636, (6, 7)),
                optimizer=_adam(2e-4, "replica"),
            ),
        ),
        tokens=1_835_008_000_000,
        rows=_ROWS,
        stages=_BOTH,
        generator=_electra_generator((256, 24, 4), 51_295_290, 51_179_520, 0.068465),
    ),
}


# ---------------------------------------------------------------------------------- DeBERTa v3

# size: body, detector, decayed of the latter, heads; peak, rows, tokens; generator's width, layers,
# heads, its parameters (by the modules of bert.py and masked_language_model.py, with a table of
# absolute positions, and the output table tied), decayed of these.
_DEBERTA = {
    "xsmall": (
        (70_682_112, 70_831_105, 70_768_512, 6),
        (3e-4, 64, 32_768_000_000),
        ((384, 6, 6), 60_508_644, 60_347_904),
    ),
    "small": (
        (141_304_320, 141_897_217, 141_831_936, 12),
        (1e-4, 256, 131_072_000_000),
        ((768, 3, 12), 121_154_148, 120_990_720),
    ),
    "base": (
        (183_831_552, 184_424_449, 184_299_264, 12),
        (1e-4, 256, 131_072_000_000),
        ((768, 6, 12), 142_417_764, 142_224_384),
    ),
    "large": (
        (434_012_160, 435_064_833, 434_738_176, 16),
        (1e-4, 256, 131_072_000_000),
        ((1024, 12, 16), 284_561_508, 284_266_496),
    ),
}


def _deberta(size: str, weight: float) -> Expectation:
    (body, detector, decayed, heads), (peak, rows, tokens), generator = _DEBERTA[size]
    return Expectation(
        shape=Shape(
            counts=(Count("detector", detector), Count("body", body)),
            decayed=decayed,
            heads=heads,
            # version 3: position_buckets 256, linear up to 128, over 512 distances
            positions=DisentangledPositions(512, buckets=256, max_distance=512),
            norm="post",
            eps=1e-7,
            embedding_norm=True,
            first_norm=True,
            activation=2.680390,  # erf
            matrix_std=0.02,
            residual_std=0.02,
            dropout=(0.1, 0.1, 0.1, 0.0, 0.1),
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
                    # mlm_task.py: neither [MASK], [CLS], [SEP], [PAD] nor [UNK]
                    unknown=False,
                    masks=False,
                    short=(3, 4),  # windows of 6 of 17 and of 21; round(.15 * 24) is not reached
                    random_ids=None,
                    last=462,  # 77 windows of 6 behind [CLS]: the last 48 are never masked
                ),
                optimizer=_adam(peak, "batch"),
            ),
        ),
        tokens=tokens,
        # prepare_data.py: one stream, cut at 510 tokens
        rows=Packed(several=True, crossed=True, cut="anywhere"),
        stages=(  # rtd_task.py: two optimizers, the generator's update first
            Stage({"loss": 1.0}, trains=("generator",)),
            Stage({"detection_loss": weight}, trains=("discriminator",)),
        ),
        generator=Generator(
            *generator,
            embeddings="lent",  # rtd_*.json: embedding_sharing gdes
            decoder="enhanced",  # masked_language_model.py
        ),
    )


EXPECTED = {
    **_ELECTRA,
    **{f"deberta-v3-{size}": _deberta(size, 10.0) for size in _DEBERTA},
    **{f"deberta-v3-{size}-paper": _deberta(size, 50.0) for size in ("small", "base", "large")},
}

"""DistilBERT, MosaicBERT, NeoBERT and crammed BERT. Sources: their files in `bert_jax.recipes`."""

from __future__ import annotations

import dataclasses

from bert_jax.models.config import (
    AlibiPositions,
    LearnedPositions,
    RotaryPositions,
    SinusoidalPositions,
)
from bert_jax.recipes.checks.expectation import (
    Arithmetic,
    Count,
    Distilled,
    Expectation,
    Packed,
    Phase,
    Rate,
    Selected,
    Shape,
    Stage,
)


def _collated(
    share: float, short: tuple[float, float], random_ids: tuple[int, int] | None
) -> Selected:
    """Masking of transformers' collator: special tokens never, 80/10/10."""
    return Selected(
        share=share,
        mask=0.8,
        random=0.1,
        specials=False,
        unknown=False,
        masks=False,
        short=short,
        random_ids=random_ids,
    )


_DISTILBERT = Expectation(
    shape=Shape(
        counts=(Count("masked lm", 66_985_530),),
        decayed=66_891_264,
        heads=12,
        positions=LearnedPositions(512),
        norm="post",
        eps=1e-12,
        embedding_norm=True,
        first_norm=True,
        activation=2.680390,  # erf
        matrix_std=0.02,
        residual_std=0.02,
        dropout=(0.1, 0.1, 0.0, 0.0, 0.1),
    ),
    phases=(
        Phase(
            steps=19_336,
            batch_size=1000,
            seq_length=512,
            rates=(
                Rate(0, 0.0),
                Rate(967, 5e-4),
                Rate(10_000, 2.541237955e-4),
                Rate(19_335, 2.721977244e-8),
            ),
            # ceil(.15 * 512) = 77
            masking=Selected(
                share=77 / 512,
                exact=77,
                mask=0.8,
                random=0.1,
                specials=False,
                unknown=False,  # train.py: token_probs 0 for every special token
                masks=False,
                short=(4, 5),  # ceil(.15 * 24) and ceil(.15 * 28)
                rare=25.118864,  # train.py: mlm_smoothing .7, 100 ** .7
                random_ids=(0, 30_522),
            ),
            optimizer=Arithmetic(
                kind="adamw",
                peak=5e-4,
                b1=0.9,
                b2=0.98,
                eps=1e-6,
                weight_decay=0.0,
                decays="biases and norms",
                clip=5.0,
            ),
        ),
    ),
    tokens=9_900_032_000,
    # lm_seqs_dataset.py: a sequence a row; a longer one is cut into several
    rows=Packed(several=False, crossed=False, cut="anywhere"),
    # README: alpha_mlm, alpha_ce, alpha_cos
    stages=(Stage({"loss": 2.0, "soft_loss": 5.0, "cosine_loss": 1.0}, trains=("student",)),),
    distilled=Distilled(
        layers=(0, 2, 4, 7, 9, 11),  # extract_distilbert.py
        frozen=("encoder/embeddings/position/embedding",),  # sinusoidal_pos_embds
        # distiller.py, temperature 2: 4 KL(p, 1/2), p = sqrt(3) / (1 + sqrt(3)) = .634; at
        # temperature 1 it would be .130812
        soft_loss=0.145363,
    ),
)
_MOSAICBERT = Expectation(
    shape=Shape(
        counts=(Count("masked lm", 137_395_770),),
        decayed=137_395_770,  # everything
        heads=12,
        positions=AlibiPositions(512),
        norm="post",
        eps=1e-12,
        embedding_norm=True,
        first_norm=True,
        activation=2.680390,  # erf
        matrix_std=0.02,
        residual_std=0.02,
        dropout=(0.1, 0.0, 0.1, 0.1, 0.0),
    ),
    phases=(
        Phase(
            steps=70_000,
            batch_size=4096,
            seq_length=128,
            rates=(
                Rate(0, 0.0),
                Rate(2_100, 2.5e-4),
                Rate(4_200, 5e-4),
                Rate(37_100, 2.55e-4),
                Rate(69_999, 1.000744681e-5),
            ),
            # yaml: mlm_probability .3; of the short rows 17 and 21 tokens are not special
            masking=_collated(0.3 * 126 / 128, (5.1, 6.3), (0, 30_522)),
            optimizer=Arithmetic(
                kind="adamw",
                peak=5e-4,
                b1=0.9,
                b2=0.98,
                eps=1e-6,
                weight_decay=1e-5,
                decays="all",
                clip=None,
                max_rate=5e-4,
            ),
        ),
    ),
    tokens=36_700_160_000,
    # yaml: one document a row, cut at 128 tokens, without concatenation
    rows=Packed(several=False, crossed=False, cut="anywhere", lost=True),
    held_out=_collated(0.15 * 126 / 128, (2.55, 3.15), (0, 30_522)),  # yaml: evaluation at 15 %
)


def _neobert(
    peak: float, weight_decay: float, first: tuple[Rate, ...], second: tuple[Rate, ...]
) -> Expectation:
    optimizer = Arithmetic(
        kind="adamw",
        peak=peak,
        b1=0.9,
        b2=0.95,
        eps=1e-8,
        weight_decay=weight_decay,
        decays="all",
        clip=1.0,
    )
    # All predicted tokens become [MASK]; special ones are never predicted (collator.py:
    # get_special_tokens_mask), so .2 of 17 and of 21 of the short rows.
    masking = Selected(
        share=0.2,
        mask=1.0,
        random=0.0,
        specials=False,
        unknown=False,
        masks=False,
        short=(3.4, 4.2),
        random_ids=None,
    )
    return Expectation(
        shape=Shape(
            counts=(Count("masked lm", 245_136_954),),  # an output table of its own
            decayed=245_136_954,  # everything
            heads=12,
            positions=RotaryPositions(4096, 1e4),
            norm="pre",
            eps=1e-5,
            embedding_norm=False,
            first_norm=True,
            activation=2.519007,  # silu
            matrix_std=0.011547,  # uniform in +-.02: .02 / sqrt(3)
            residual_std=0.011547,
            dropout=(0.0, 0.0, 0.0, 0.0, 0.0),
        ),
        phases=(
            Phase(
                steps=1_000_000,
                batch_size=2048,
                seq_length=1024,
                rates=first,
                masking=masking,
                optimizer=optimizer,
                theta=(1e4, 1e4),
            ),
            Phase(
                steps=50_000,
                batch_size=512,
                seq_length=4096,
                rates=second,
                masking=masking,
                optimizer=optimizer,
                carries=("fresh", "reset"),
                theta=(1e4, 1e4),
            ),
        ),
        tokens=2_202_009_600_000,
        # tokenizer.py: a document a row, truncated
        rows=Packed(several=False, crossed=False, cut="anywhere", lost=True),
        # no source: 15 % as elsewhere, always [MASK] as in training
        held_out=dataclasses.replace(_collated(0.15, (2.55, 3.15), None), mask=1.0, random=0.0),
    )


_CRAMMED = Expectation(
    shape=Shape(
        counts=(Count("masked lm", 119_589_889),),
        decayed=119_537_664,
        heads=12,
        positions=SinusoidalPositions(128, scale="learned"),  # scaled-sinusoidal
        norm="pre",
        eps=1e-12,
        embedding_norm=True,
        first_norm=True,
        activation=2.680390,  # erf
        matrix_std=0.02,
        residual_std=0.02,
        dropout=(0.0, 0.0, 0.0, 0.0, 0.0),
    ),
    phases=(
        Phase(
            steps=22_502,
            batch_size=8192,
            seq_length=128,
            rates=(  # by seconds of a day
                Rate(0, 2.5e-4),
                Rate(32_400, 6.25e-4),
                Rate(64_800, 1e-3),
                Rate(75_600, 5e-4),
                Rate(86_400, 0.0),
            ),
            masking=Selected(
                share=0.25,
                exact=32,
                mask=0.8,
                random=0.1,
                specials=True,
                unknown=True,  # backend/utils.py: special_tokens_mask is disregarded
                masks=True,
                short=(6, 7),  # round(.25 * 24) and round(.25 * 28)
                random_ids=(0, 32_768),
            ),
            optimizer=Arithmetic(
                kind="adamw",
                peak=1e-3,
                b1=0.9,
                b2=0.98,
                eps=1e-12,
                weight_decay=0.01,
                decays="biases and norms",
                clip=0.5,
            ),
            batches=((0, 128), (268, 256), (536, 384), (16_877, 8192)),
        ),
    ),
    tokens=14_745_600_000,
    # running text in which documents are not kept apart
    rows=Packed(several=True, crossed=True, cut="anywhere"),
    held_out=Selected(  # no source: 15 % as elsewhere, selected as in training
        share=0.15,
        exact=19,
        mask=0.8,
        random=0.1,
        specials=True,
        unknown=True,
        masks=True,
        short=(4, 4),
        random_ids=None,
    ),
)

EXPECTED = {
    "distilbert-base": _DISTILBERT,
    "mosaicbert-base": _MOSAICBERT,
    "neobert": _neobert(
        1e-4,
        0.01,
        (
            Rate(0, 1e-8),
            Rate(1_000, 5.0005e-5),
            Rate(2_000, 1e-4),
            Rate(451_000, 5.5e-5),
            Rate(900_000, 1e-5),
            Rate(999_999, 1e-5),
        ),
        (Rate(0, 1e-8), Rate(1_000, 5.0005e-5), Rate(2_000, 1e-4), Rate(49_999, 1e-4)),
    ),
    "neobert-paper": _neobert(
        6e-4,
        0.1,
        (
            Rate(0, 6e-8),
            Rate(1_000, 3.0003e-4),
            Rate(2_000, 6e-4),
            Rate(451_000, 3.3e-4),
            Rate(900_000, 6e-5),
            Rate(999_999, 6e-5),
        ),
        (Rate(0, 6e-8), Rate(1_000, 3.0003e-4), Rate(2_000, 6e-4), Rate(49_999, 6e-4)),
    ),
    "crammed-bert": _CRAMMED,
}

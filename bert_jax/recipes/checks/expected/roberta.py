"""RoBERTa and the 40 % recipe: fairseq. Sources: `bert_jax.recipes.roberta` and ``wettig``."""

from __future__ import annotations

from bert_jax.models.config import LearnedPositions
from bert_jax.recipes.checks.expectation import (
    Arithmetic,
    Count,
    Expectation,
    Packed,
    Phase,
    Rate,
    Selected,
    Shape,
)

_MASKING = Selected(
    share=0.15,  # int(.15 * 512 + U[0, 1)), of all 512
    mask=0.8,
    random=0.1,
    specials=True,
    unknown=True,  # mask_tokens_dataset.py leaves nothing out
    masks=None,
    short=(3.6, 4.2),  # .15 of all
    random_ids=(4, 50_265),
)
# FULL-SENTENCES: attention crosses documents; base.yaml: sample_break_mode complete
_ROWS = Packed(several=True, crossed=True, cut="between sentences")


def _shape(size: str) -> Shape:
    number = {"base": 124_697_433, "large": 355_412_057}[size]
    return Shape(
        counts=(Count("masked lm", number),),
        decayed=number,  # fairseq excludes nothing
        heads={"base": 12, "large": 16}[size],
        positions=LearnedPositions(512, offset=2),  # make_positions
        norm="post",
        eps=1e-5,
        embedding_norm=True,
        first_norm=True,
        activation=2.680390,  # erf
        matrix_std=0.02,  # not cut
        residual_std=0.02,
        dropout=(0.1, 0.1, 0.1, 0.0, 0.1),
        zero_padding=True,  # torch.nn.Embedding with padding_idx
    )


def _adam(peak: float) -> Arithmetic:
    return Arithmetic(
        kind="fairseq_adam",
        peak=peak,
        b1=0.9,
        b2=0.98,
        eps=1e-6,
        weight_decay=0.01,
        decays="all",
        clip=None,
    )


EXPECTED = {
    "roberta-base": Expectation(
        shape=_shape("base"),
        phases=(
            Phase(
                steps=500_000,
                batch_size=8192,
                seq_length=512,
                rates=(
                    Rate(0, 0.0),
                    Rate(12_000, 3e-4),
                    Rate(24_000, 6e-4),
                    Rate(262_000, 3e-4),
                    Rate(499_999, 1.260504202e-9),
                ),
                masking=_MASKING,
                optimizer=_adam(6e-4),
            ),
        ),
        tokens=2_097_152_000_000,
        rows=_ROWS,
    ),
    "roberta-large": Expectation(
        shape=_shape("large"),
        phases=(
            Phase(
                steps=500_000,
                batch_size=8192,
                seq_length=512,
                rates=(
                    Rate(0, 0.0),
                    Rate(15_000, 2e-4),
                    Rate(30_000, 4e-4),
                    Rate(265_000, 2e-4),
                    Rate(499_999, 8.510638298e-10),
                ),
                masking=_MASKING,
                optimizer=_adam(4e-4),
            ),
        ),
        tokens=2_097_152_000_000,
        rows=_ROWS,
    ),
    "roberta-base-fairseq": Expectation(
        shape=_shape("base"),
        phases=(
            Phase(
                steps=125_000,
                batch_size=2048,
                seq_length=512,
                rates=(
                    Rate(0, 0.0),
                    Rate(5_000, 2.5e-4),
                    Rate(10_000, 5e-4),
                    Rate(67_500, 2.5e-4),
                    Rate(124_999, 4.347826087e-9),
                ),
                masking=_MASKING,
                optimizer=_adam(5e-4),
            ),
        ),
        tokens=131_072_000_000,
        rows=_ROWS,
    ),
    "wettig-40": Expectation(
        shape=Shape(
            # RoBERTa-large without types, with a last norm
            counts=(Count("masked lm", 355_413_081),),
            decayed=355_413_081,
            heads=16,
            positions=LearnedPositions(512, offset=2),
            norm="pre",
            eps=1e-5,
            embedding_norm=True,
            first_norm=True,
            activation=2.680390,
            matrix_std=0.02,
            residual_std=0.02,
            dropout=(0.1, 0.1, 0.1, 0.0, 0.1),
            zero_padding=True,  # torch.nn.Embedding with padding_idx
        ),
        phases=(
            Phase(
                steps=23_000,
                batch_size=4096,
                seq_length=128,
                rates=(
                    Rate(0, 0.0),
                    Rate(690, 1e-3),
                    Rate(1_380, 2e-3),
                    Rate(12_190, 1e-3),
                    Rate(22_999, 9.250693802e-8),
                ),
                masking=Selected(
                    share=0.4,
                    mask=1.0,
                    random=0.0,
                    specials=True,
                    unknown=True,
                    masks=None,
                    short=(9.6, 11.2),  # .4 of all
                    random_ids=None,
                ),
                optimizer=_adam(2e-3),
            ),
        ),
        tokens=12_058_624_000,
        # script: sample-break-mode none
        rows=Packed(several=True, crossed=True, cut="anywhere"),
        held_out=Selected(  # no source: 15 % as elsewhere, selected as in training
            share=0.15,
            mask=1.0,
            random=0.0,
            specials=True,
            unknown=True,
            masks=None,
            short=(3.6, 4.2),
            random_ids=None,
        ),
    ),
}

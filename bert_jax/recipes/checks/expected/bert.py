"""BERT: google-research/bert. Sources of the numbers: `bert_jax.recipes.bert`."""

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

# size: body with pooler, masked LM, pre-training (with pooler and pairs), decayed of the last;
# heads.
_COUNTS = {
    "tiny": (4_385_920, 4_416_698, 4_433_468, 4_398_848, 2),
    "mini": (11_170_560, 11_201_594, 11_267_900, 11_222_528, 4),
    "small": (28_763_648, 28_795_194, 29_058_876, 28_998_656, 8),
    "medium": (41_373_184, 41_404_730, 41_668_412, 41_581_568, 8),
    "base": (109_482_240, 109_514_298, 110_106_428, 109_951_488, 12),
    "large": (335_141_888, 335_174_458, 336_226_108, 335_869_952, 16),
}
_OPTIMIZER = Arithmetic(
    kind="bert_adam",
    peak=1e-4,
    b1=0.9,
    b2=0.999,
    eps=1e-6,
    weight_decay=0.01,
    decays="biases and norms",
    clip=1.0,
    clipped="replica",
)
_ROWS = Paired(
    # create_pretraining_data.py: half of the second segments are of a random document ...
    seconds={"behind": 0.5, "other": 0.5},
    labels={"behind": 0, "other": 1},
    of_one="other",  # ... and all where there is only one sentence
    short=0.0983,  # short_seq_prob .1, but for the shortened length that is the full one
    copies=10,  # dupe_factor
    masks="fixed",  # written with the data
)


def _bert(size: str, *, words: bool) -> Expectation:
    pooled, masked, whole, decayed, heads = _COUNTS[size]
    return Expectation(
        shape=Shape(
            counts=(
                Count("pre-training", whole),
                Count("masked lm", masked),
                Count("pooled", pooled),
            ),
            decayed=decayed,
            heads=heads,
            positions=LearnedPositions(512),
            pooler=("cls", "tanh"),  # modeling.py: dense and tanh on [CLS]
            norm="post",
            eps=1e-12,
            embedding_norm=True,
            first_norm=True,
            activation=2.680863,  # tanh; erf would be 2.680390
            matrix_std=0.017593,  # .02 cut at two standard deviations
            residual_std=0.017593,
            dropout=(0.1, 0.1, 0.1, 0.0, 0.1),
        ),
        phases=(
            Phase(
                steps=900_000,
                batch_size=256,
                seq_length=128,
                rates=(
                    Rate(0, 0.0),
                    Rate(5_000, 5e-5),
                    Rate(9_999, 9.999e-5),
                    Rate(10_000, 9.9e-5),  # the fall at the end of the warm-up
                    Rate(500_000, 5e-5),
                    Rate(899_999, 1.00001e-5),
                ),
                # round(.15 * 128) = 19 of 128, of the 126 that are not special
                masking=_selected(19, 19 / 128, words=words),
                optimizer=_OPTIMIZER,
            ),
            Phase(
                steps=1_000_000,
                batch_size=256,
                seq_length=512,
                rates=(Rate(900_000, 1e-5), Rate(950_000, 5e-6), Rate(999_999, 1e-10)),
                masking=_selected(77, 77 / 512, words=words),
                optimizer=_OPTIMIZER,
                carries=("kept", "kept"),
            ),
        ),
        tokens=42_598_400_000,
        rows=_ROWS,
        # run_pretraining.py: the two losses are added
        stages=(Stage({"loss": 1.0, "pair_loss": 1.0}),),
    )


def _selected(exact: int, share: float, *, words: bool) -> Selected:
    return Selected(
        share=share,
        exact=None if words else exact,  # a word that does not fit is passed over
        mask=0.8,
        random=0.1,
        specials=False,
        unknown=True,  # create_pretraining_data.py: all but [CLS] and [SEP]
        masks=None,
        short=(4, 4),  # round(.15 * 24) and round(.15 * 28); [CLS] and [SEP] are counted
        random_ids=(0, 30_522),
        words=1 if words else 0,
    )


EXPECTED = {
    **{f"bert-{size}": _bert(size, words=False) for size in _COUNTS},
    "bert-base-wwm": _bert("base", words=True),
    "bert-large-wwm": _bert("large", words=True),
}

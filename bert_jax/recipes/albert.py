"""ALBERT (Lan et al. 2020, arXiv:1909.11942): one layer's parameters for all, narrow embeddings.

The numbers are those of google-research/albert: ``create``, ``run`` and ``lamb`` below are the
flags and code of create_pretraining_data.py, run_pretraining.py and lamb_optimizer.py, ``README``
its README.md.
"""

from __future__ import annotations

import dataclasses

from bert_jax.data.pairs import Pairs
from bert_jax.experiment import MAX_EXAMPLES, Carry, Evaluation, Experiment
from bert_jax.models.config import (
    Dropout,
    EncoderConfig,
    LayerSharing,
    LearnedPositions,
    Norm,
    TruncatedNormal,
)
from bert_jax.objectives.masking import Masking
from bert_jax.objectives.sentence_pairs import SentencePairsObjective
from bert_jax.recipes.record import Recipe, Score
from bert_jax.recipes.sentences import OTHER_DRAWS, REPLICAS, TEN_TRIES, TYPE_NOT_STATED
from bert_jax.train.optimizer import Lamb
from bert_jax.train.schedule import BertLinear, Linear

VOCAB_SIZE = 30_000  # SentencePiece unigram; README of google-research/albert
# (layers, width, heads). Layers and widths: paper, table 1; heads: google-research/albert for
# xxlarge, the others see _HEADS.
SIZES = {
    "base": (12, 768, 12),
    "large": (24, 1024, 16),
    "xlarge": (24, 2048, 16),
    "xxlarge": (12, 4096, 64),
}
_BATCH = 4096  # run: train_batch_size
# README: 125k is the command's num_train_steps, 1.5M version 1 of xxlarge; version 2 was trained
# for 10M steps (base) and 3M (the others).
_STEPS = {
    ("base", 1): 125_000,
    ("large", 1): 125_000,
    ("xlarge", 1): 125_000,
    ("xxlarge", 1): 1_500_000,
    ("base", 2): 10_000_000,
    ("large", 2): 3_000_000,
    ("xlarge", 2): 3_000_000,
    ("xxlarge", 2): 3_000_000,
}
_PEAK = 1.76e-3  # run: learning_rate
_README = "README of google-research/albert, dev"
_SOURCES = (
    "google-research/albert: modeling.py, lamb_optimizer.py, optimization.py, "
    "create_pretraining_data.py, run_pretraining.py, README.md",
    "Lan et al. 2020, arXiv:1909.11942",
)
_DEVIATIONS = (
    REPLICAS,
    OTHER_DRAWS,
    TEN_TRIES,
    "Letters behind a punctuation mark are a word of their own; there they belong to the mark "
    "(create_pretraining_data.py, _is_start_piece_sp).",
)
_TRAP = (
    "At most 20 predictions a row of 512 tokens are 4 % of it, not 15 %: so say both scripts' "
    "defaults and the README's command. Whether the released models were made so is stated "
    "nowhere; --masking.max-predictions 77 gives the 15 %."
)
_HEADS = (
    "The numbers of heads are remembered from the releases' config.json, not read in a source at "
    "hand: 12 of base, 16 of large and xlarge."
)
_PIECE = (
    "Kept: parameters, both moments, and the line of the learning rate, which goes on. Reset: the "
    "clock and the count of examples; the data are read from their beginning, and another seed "
    "gives other pairs, masks and order. One run of the original: here a run numbers fewer than "
    "2**32 examples."
)


def albert_encoder(size: str, version: int) -> EncoderConfig:
    """ALBERT version 1 or 2; they differ in dropout (and in data and steps)."""
    layers, width, heads = SIZES[size]
    # README: "no dropout" in all of version 2, and in xxlarge.
    rate = 0.1 if version == 1 and size != "xxlarge" else 0.0
    return EncoderConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=width,
        num_layers=layers,
        num_heads=heads,
        intermediate_size=4 * width,
        embedding_size=128,  # paper, section 3.2
        type_vocab_size=2,
        positions=LearnedPositions(max_length=512),
        norm=Norm("post", eps=1e-12),  # modeling.py through tf.contrib
        activation="gelu_tanh",  # modeling.py, gelu()
        sharing=LayerSharing(groups=1, inner=1),
        dropout=Dropout(hidden=rate, attention=rate),
        initializer=TruncatedNormal(0.02),
    )


def albert_recipe(size: str, version: int) -> Recipe:
    """ALBERT of a size and version, in as many pieces as its examples need."""
    name, steps = f"albert-{size}-v{version}", _STEPS[size, version]
    pieces = -(-steps * _BATCH // MAX_EXAMPLES)
    phases = tuple(
        _piece(_experiment(name, size, version), piece, pieces, steps) for piece in range(pieces)
    )
    return Recipe(
        name=name,
        phases=phases,
        sources=_SOURCES,
        hardware="Cloud TPU (run_pretraining.py); chips and time are not stated with the code",
        tokens=steps * _BATCH * 512.0,
        scores=_scores(size, version),
        deviations=_DEVIATIONS,
        unsourced=_unsourced(size, version),
        carries=(_PIECE,) * (pieces - 1),
    )


def _experiment(name: str, size: str, version: int) -> Experiment:
    return Experiment(
        name=name,
        model=dataclasses.replace(albert_encoder(size, version), compute_dtype="bfloat16"),
        objective=SentencePairsObjective(pair_weight=1.0),  # run: the two losses are added
        masking=Masking(
            rate=0.15,  # create: masked_lm_prob
            mask_prob=0.8,  # create
            random_prob=0.1,  # create
            unit="ngram",  # create: do_whole_word_mask, favor_shorter_ngram
            max_ngram=3,  # create: ngram
            count="fixed",  # create: max(1, round(len(tokens) * .15))
            count_base="tokens",  # create: len(tokens) includes [CLS] and [SEP]
            candidates="text_and_unk",  # create: all but [CLS] and [SEP]
            max_predictions=20,  # create, run, README: see _TRAP
            random_ids=(0, VOCAB_SIZE),  # create: any entry, special or not
        ),
        packing=Pairs(
            seq_length=512,  # create: max_seq_length
            kind="order_or_next",  # create: random_next_sentence False; one segment: random B
            short_prob=0.1,  # create: short_seq_prob
            copies=40,  # create: dupe_factor
            masks="fixed",  # create: written with the data
        ),
        batch_size=_BATCH,
        microbatches=8,
        optimizer=Lamb(
            learning_rate=_PEAK,
            b1=0.9,  # optimization.py
            b2=0.999,  # optimization.py
            eps=1e-6,  # optimization.py
            weight_decay=0.01,  # optimization.py
            decay="matrices",  # optimization.py; the others have no trust ratio either (lamb)
            clip_norm=1.0,  # optimization.py: before CrossShardOptimizer averages
            clip="replica",
        ),
        schedule=BertLinear(warmup=3125),  # run: num_warmup_steps; poly_power 1
        evaluation=Evaluation(every=5_000, max_rows=4096),
    )


def _piece(whole: Experiment, piece: int, pieces: int, steps: int) -> Experiment:
    """One of equally long pieces of a run whose learning rate falls along one line."""
    first = dataclasses.replace(whole, steps=steps // pieces, total=float(steps))
    if piece == 0:
        return first
    left = 1 - piece / pieces  # factor of the line where the piece begins
    return dataclasses.replace(
        first,
        name=f"{whole.name}-{piece + 1}",
        carry=Carry(optimizer="kept", clock="reset"),
        seed=piece,
        total=None,
        optimizer=dataclasses.replace(whole.optimizer, learning_rate=_PEAK * left),
        schedule=Linear(final=(1 - (piece + 1) / pieces) / left),
    )


# README, tables "V1" and "V2": MNLI, SST-2, RACE, SQuAD 1.1 EM and F1, SQuAD 2.0 EM and F1.
_TABLE = {
    ("base", 1): (81.6, 90.3, 64.0, 82.3, 89.3, 77.1, 80.0),
    ("large", 1): (83.5, 91.7, 68.5, 83.9, 90.6, 79.4, 82.3),
    ("xlarge", 1): (86.4, 92.4, 74.8, 86.1, 92.5, 83.1, 86.1),
    ("xxlarge", 1): (90.8, 96.9, 86.5, 89.3, 94.8, 87.4, 90.2),
    ("base", 2): (84.6, 92.9, 66.8, 83.2, 90.2, 79.3, 82.1),
    ("large", 2): (86.5, 94.9, 75.2, 85.2, 91.8, 81.8, 84.9),
    ("xlarge", 2): (87.9, 95.4, 80.7, 86.4, 92.9, 84.1, 87.9),
    ("xxlarge", 2): (90.6, 96.8, 86.8, 89.1, 94.6, 86.9, 89.8),
}
_BENCHMARKS = (
    "MNLI",
    "SST-2",
    "RACE",
    "SQuAD 1.1 EM",
    "SQuAD 1.1 F1",
    "SQuAD 2.0 EM",
    "SQuAD 2.0 F1",
)


def _scores(size: str, version: int) -> tuple[Score, ...]:
    values = _TABLE[size, version]
    return tuple(Score(b, v, _README) for b, v in zip(_BENCHMARKS, values, strict=True))


def _unsourced(size: str, version: int) -> tuple[str, ...]:
    found = [_TRAP]
    if version == 2:
        found.append(
            "No source states the batch, the learning rate and the warm-up of version 2: they are "
            "those of the README's command, which is version 1's. Version 2's additional data is "
            "not stated either."
        )
    elif size == "xxlarge":
        found.append(
            "The warm-up of the run of 1.5M steps is not stated: it is the command's 3,125 steps."
        )
    if version == 1:
        found.append(
            "The dropout of version 1 is not stated with its code: .1, and 0 for xxlarge, is what "
            "the README's 'no dropout' for version 2 and its remark on xxlarge imply."
        )
    if size != "xxlarge":
        found.append(_HEADS)
    return (*found, TYPE_NOT_STATED)

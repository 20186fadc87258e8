"""BERT (Devlin et al. 2019, arXiv:1810.04805), as google-research/bert trains it.

The numbers are those of the code, which made the released models: ``optimization``,
``create``, ``run`` and ``modeling`` below are optimization.py, create_pretraining_data.py,
run_pretraining.py and modeling.py there; ``paper`` is appendix A.2.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

from bert_jax.data.pairs import Pairs
from bert_jax.experiment import Carry, Evaluation, Experiment
from bert_jax.models.config import (
    Dropout,
    EncoderConfig,
    LearnedPositions,
    Norm,
    TruncatedNormal,
)
from bert_jax.objectives.masking import Masking
from bert_jax.objectives.sentence_pairs import SentencePairsObjective
from bert_jax.recipes.record import Recipe, Score
from bert_jax.recipes.sentences import OTHER_DRAWS, REPLICAS, TEN_TRIES, TYPE_NOT_STATED
from bert_jax.train.optimizer import BertAdam
from bert_jax.train.schedule import BertLinear

VOCAB_SIZE = 30522  # uncased WordPiece of the release

# (layers, width, heads). Base, large: paper, section 3. The others: README of google-research/bert,
# "smaller BERT models" (Turc et al. 2019, arXiv:1908.08962).
SIZES = {
    "tiny": (2, 128, 2),
    "mini": (4, 256, 4),
    "small": (4, 512, 8),
    "medium": (8, 512, 8),
    "base": (12, 768, 12),
    "large": (24, 1024, 16),
}
_README = "README of google-research/bert"
_LADDER = f"{_README}, GLUE test of {{}}"
# GLUE test score of the small ones.
_SMALL = {"tiny": 64.2, "mini": 65.8, "small": 71.2, "medium": 73.5}
_DISTILLATION = "README of transformers' research_projects/distillation, GLUE dev"
_ALBERT = "README of google-research/albert, GLUE and SQuAD dev of BERT-large"
_SOURCES = (
    "google-research/bert: modeling.py, optimization.py, create_pretraining_data.py, "
    "run_pretraining.py, README.md",
    "Devlin et al. 2019, arXiv:1810.04805, appendix A.2",
)
_DEVIATIONS = (REPLICAS, OTHER_DRAWS, TEN_TRIES)
_CARRY = (
    "Kept: parameters, both moments, the clock (the learning rate goes on along one line to step "
    "1,000,000, without a second warm-up) and the count of examples, with which reading of the "
    "data goes on. Changed: the corpus is cut into rows of 512 tokens. This is run_pretraining.py "
    "with the same output_dir. Its other reading, init_checkpoint, keeps the parameters only and "
    "has a schedule of its own, with a warm-up; after bert-base:1 that is `bert-jax train "
    "bert-base:2 RUN --init-from RUN_OF_PHASE_1 --carry.optimizer fresh --carry.clock reset "
    "--steps 100000 --total none --seed 1 --data STORE`."
)
# Positions: 900,000 steps of 256 rows of 128, then 100,000 of 512.
_TOKENS = 900_000 * 256 * 128 + 100_000 * 256 * 512


def bert_encoder(size: str) -> EncoderConfig:
    """BERT, uncased; ``size`` is one of `SIZES`."""
    layers, width, heads = SIZES[size]
    return EncoderConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=width,
        num_layers=layers,
        num_heads=heads,
        intermediate_size=4 * width,
        type_vocab_size=2,  # bert_config.json of the release
        positions=LearnedPositions(max_length=512),
        norm=Norm("post", eps=1e-12),  # tf.contrib.layers.layer_norm
        activation="gelu_tanh",  # modeling, gelu()
        dropout=Dropout(hidden=0.1, attention=0.1),
        initializer=TruncatedNormal(0.02),  # modeling, create_initializer()
    )


def bert_recipe(size: str, unit: Literal["token", "word"] = "token") -> Recipe:
    """BERT of a size in its two phases; ``unit`` word is whole-word masking."""
    name = f"bert-{size}" + ("-wwm" if unit == "word" else "")
    first = Experiment(
        name=name,
        model=dataclasses.replace(bert_encoder(size), compute_dtype="bfloat16"),
        objective=SentencePairsObjective(pair_weight=1.0),  # run: the two losses are added
        masking=_masking(20, unit),  # README: 20 at 128 tokens
        packing=Pairs(
            seq_length=128,
            kind="next",
            short_prob=0.1,  # create: short_seq_prob
            copies=10,  # create: dupe_factor
            masks="fixed",  # create: written with the data
        ),
        batch_size=256,  # paper
        steps=900_000,  # paper: 90 % of the steps at 128 tokens
        total=1_000_000.0,  # paper; run: num_train_steps, where the learning rate is 0
        optimizer=BertAdam(
            learning_rate=1e-4,  # paper
            b1=0.9,  # optimization
            b2=0.999,  # optimization
            eps=1e-6,  # optimization
            weight_decay=0.01,  # optimization
            decay="matrices",  # optimization: all but LayerNorm, layer_norm, bias
            clip_norm=1.0,  # optimization: before CrossShardOptimizer averages
            clip="replica",
        ),
        schedule=BertLinear(warmup=10_000),  # paper; optimization: decay counts from step 0
        evaluation=Evaluation(every=10_000, max_rows=4096),
    )
    second = dataclasses.replace(
        first,
        name=f"{name}-512",
        carry=Carry(optimizer="kept", clock="kept"),
        masking=_masking(77, unit),  # round(.15 * 512); README: about length * .15
        packing=dataclasses.replace(first.packing, seq_length=512),
        steps=1_000_000,  # the first phase's included
    )
    return Recipe(
        name=name,
        phases=(first, second),
        sources=_SOURCES,
        hardware=_hardware(size),
        tokens=_TOKENS,
        scores=_scores(size, unit),
        deviations=_DEVIATIONS,
        unsourced=_unsourced(size, unit),
        carries=(_CARRY,),
    )


def _masking(most: int, unit: Literal["token", "word"]) -> Masking:
    return Masking(
        rate=0.15,  # create: masked_lm_prob
        mask_prob=0.8,  # create
        random_prob=0.1,  # create
        unit=unit,  # create: do_whole_word_mask
        count="fixed",  # create: max(1, round(len(tokens) * .15))
        count_base="tokens",  # create: len(tokens) includes [CLS] and [SEP]
        candidates="text_and_unk",  # create: all but [CLS] and [SEP]
        max_predictions=most,
        random_ids=(0, VOCAB_SIZE),  # create: any entry, special or not
    )


def _hardware(size: str) -> str:
    # README: "four days on 4 to 16 Cloud TPUs".
    if size == "base":
        return "4 Cloud TPUs (16 chips), 4 days (README)"
    if size == "large":
        return "16 Cloud TPUs (64 chips), 4 days (README)"
    return "not stated"


def _scores(size: str, unit: str) -> tuple[Score, ...]:
    if size in _SMALL:
        return (Score("GLUE", _SMALL[size], _LADDER.format(f"BERT-{size}")),)
    if (size, unit) == ("base", "token"):
        return (
            Score("MNLI", 84.7, _DISTILLATION),
            Score("QNLI", 91.8, _DISTILLATION),
            Score("QQP", 89.6, _DISTILLATION),
            Score("RTE", 69.3, _DISTILLATION),
            Score("SST-2", 92.7, _DISTILLATION),
            Score("MRPC", 88.6, _DISTILLATION),
            Score("CoLA", 56.3, _DISTILLATION),
            Score("STS-B", 89.0, _DISTILLATION),
            Score("SQuAD 1.1 EM", 81.25, f"{_README}, dev"),
            Score("SQuAD 1.1 F1", 88.41, f"{_README}, dev"),
        )
    if (size, unit) == ("large", "token"):
        return (
            Score("MNLI", 86.6, _ALBERT),
            Score("QNLI", 92.3, _ALBERT),
            Score("QQP", 91.3, _ALBERT),
            Score("RTE", 70.4, _ALBERT),
            Score("SST-2", 93.2, _ALBERT),
            Score("MRPC", 88.0, _ALBERT),
            Score("CoLA", 60.6, _ALBERT),
            Score("STS-B", 90.0, _ALBERT),
            Score("SQuAD 1.1 EM", 84.1, _ALBERT),
            Score("SQuAD 1.1 F1", 90.9, _ALBERT),
        )
    if (size, unit) == ("large", "word"):
        return (
            Score("MNLI", 87.07, f"{_README}, dev, uncased"),
            Score("SQuAD 1.1 EM", 86.7, f"{_README}, dev, uncased"),
            Score("SQuAD 1.1 F1", 92.8, f"{_README}, dev, uncased"),
        )
    return ()


def _unsourced(size: str, unit: str) -> tuple[str, ...]:
    found = []
    if size in _SMALL:
        found.append(
            "No source states how the small models were trained: batch, steps, learning rate, "
            "warm-up, dropout and phases are BERT-base's."
        )
    if (size, unit) == ("base", "word"):
        found.append(
            "Google has released whole-word masking at size large only; this is its flag "
            "do_whole_word_mask on BERT-base, so nobody has published a score."
        )
    return (*found, TYPE_NOT_STATED)

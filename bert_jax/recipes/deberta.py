"""DeBERTa v1 (arXiv:2006.03654), v2 and v3 (arXiv:2111.09543): disentangled relative positions.

The encoders that are pre-trained as masked language models (v1, v2, and v3's generator) have the
enhanced mask decoder; v3's discriminator has none. Numbers of the v2 sizes are those of the
releases' config.json as remembered; all others are read from microsoft/DeBERTa.
"""

from __future__ import annotations

import dataclasses
from typing import Literal, NamedTuple

from bert_jax.data.packing import Packing
from bert_jax.experiment import Evaluation, Experiment
from bert_jax.models.config import (
    Biases,
    Convolution,
    DisentangledPositions,
    Dropout,
    EncoderConfig,
    Heads,
    Norm,
    Normal,
    Pooler,
    VocabularyHead,
)
from bert_jax.objectives.masking import Masking
from bert_jax.objectives.replaced_tokens import ReplacedTokensObjective
from bert_jax.recipes.record import Recipe, Score
from bert_jax.recipes.sentences import other_type
from bert_jax.train.optimizer import BertAdam
from bert_jax.train.schedule import BertLinear

# (layers, width, heads)
V1_SIZES = {"base": (12, 768, 12), "large": (24, 1024, 16)}
V2_SIZES = {"xlarge": (24, 1536, 24), "xxlarge": (48, 1536, 24)}
V3_SIZES = {
    "xsmall": (12, 384, 6),
    "small": (6, 768, 12),
    "base": (12, 768, 12),
    "large": (24, 1024, 16),
}
_HEADS = Heads(
    vocabulary=VocabularyHead(mask_decoder="enhanced"),
    pooler=Pooler(activation="gelu"),  # ContextPooler, pooler_dropout 0
    detector="token_and_context",  # rtd_task.py: the first token's state is added
)


def _encoder(layers: int, width: int, heads: int) -> EncoderConfig:
    return EncoderConfig(
        vocab_size=128_100,  # SentencePiece of v2 and v3
        hidden_size=width,
        num_layers=layers,
        num_heads=heads,
        intermediate_size=4 * width,
        type_vocab_size=0,
        positions=DisentangledPositions(max_length=512, buckets=256, max_distance=512),
        norm=Norm("post", eps=1e-7),
        activation="gelu",
        dropout=Dropout(0.1, 0.1),
        initializer=Normal(0.02),
        heads=_HEADS,
    )


def deberta_v1_encoder(size: str) -> EncoderConfig:
    """Version 1: clipped distances, position maps of their own, no key biases, RoBERTa's BPE."""
    positions = DisentangledPositions(
        max_length=512, buckets=0, max_distance=512, projections="own", norm="none"
    )
    return dataclasses.replace(
        _encoder(*V1_SIZES[size]),
        vocab_size=50265,
        positions=positions,
        biases=Biases(attention="query_value"),
    )


def deberta_v2_encoder(size: str) -> EncoderConfig:
    """Version 2: log buckets, shared maps, a convolution beside the first layer."""
    return dataclasses.replace(
        _encoder(*V2_SIZES[size]), convolution=Convolution(kernel_size=3, activation="gelu")
    )


def deberta_v3_encoder(size: str) -> EncoderConfig:
    """Version 3: the discriminator of replaced-token detection."""
    plain = dataclasses.replace(_HEADS, vocabulary=VocabularyHead())
    return dataclasses.replace(_encoder(*V3_SIZES[size]), heads=plain)


def deberta_v3_generator(size: str) -> EncoderConfig:
    """Version 3's generator: as wide, half as deep."""
    layers, width, heads = V3_SIZES[size]
    return _encoder(layers // 2, width, heads)


class _Script(NamedTuple):
    """What experiments/language_model/rtd.sh gives each size."""

    learning_rate: float
    batch_size: int


_SCRIPTS = {
    "xsmall": _Script(3e-4, 64),  # deberta-v3-xsmall
    "small": _Script(1e-4, 256),  # none from scratch: those of base
    "base": _Script(1e-4, 256),  # deberta-v3-base
    "large": _Script(1e-4, 256),  # deberta-v3-large
}
_SOURCES = (
    "microsoft/DeBERTa: experiments/language_model/{rtd.sh,rtd_base.json,rtd_small.json}, "
    "DeBERTa/apps/tasks/{rtd_task,mlm_task}.py, DeBERTa/optims/{args,xadam,lr_schedulers}.py, "
    "DeBERTa/deberta/bert.py",
    "He et al. 2021, arXiv:2111.09543",
)
_DEVIATIONS = (
    "The discriminator has no table of absolute positions; the original holds one and never reads "
    "it.",
    "There a row is 510 tokens of one stream without marks between documents; here each document "
    "in a row ends in a separator.",
    "The generator's and the discriminator's rates follow one schedule, as in rtd.sh, where "
    "discriminator_learning_rate is not given.",
    "[PAD]'s row of the token tables gets no gradient where it is read there (bert.py: "
    "padding_idx); here it gets one where the generator has sampled [PAD]. Padding gives it none "
    "here either, since no real token attends to it.",
    other_type("float16", "rtd.sh: --fp16 True"),
)
_PAPER = (
    "Of the paper's own run no source at hand states batch, steps, learning rate, warm-up or b2 "
    "(8,192 rows, 500,000 steps, 6e-4 for base and 3e-4 for large, b2 .98 are remembered, not "
    "read): here they are rtd.sh's, and only the weight 50 of the discriminator is the paper's."
)


def deberta_v3_recipe(size: str, variant: Literal["script", "paper"] = "script") -> Recipe:
    """DeBERTa v3 as rtd.sh trains it, or with what is known of the paper's run."""
    script, name = _SCRIPTS[size], f"deberta-v3-{size}" + "-paper" * (variant == "paper")
    experiment = Experiment(
        name=name,
        model=dataclasses.replace(deberta_v3_encoder(size), compute_dtype="bfloat16"),
        objective=ReplacedTokensObjective(
            generator_width=1.0,  # rtd_*.json: hidden_size of both
            generator_depth=0.5,  # rtd_*.json: num_hidden_layers
            generator_head_size=64,  # rtd_*.json: attention_head_size
            generator_decoder="enhanced",  # masked_language_model.py
            sharing="disentangled",  # rtd_*.json: embedding_sharing gdes
            temperature=1.0,  # rtd_task.py: make_electra_data
            generator_weight=1.0,
            # rtd_task.py: rtd_lambda, 10 by default; paper: 50.
            discriminator_weight=50.0 if variant == "paper" else 10.0,
        ),
        masking=Masking(
            rate=0.15,  # mlm_task.py: mask_lm_prob
            mask_prob=1.0,  # rtd_task.py
            random_prob=0.0,  # rtd_task.py: keep_prob 0 too
            unit="token",  # rtd_task.py: max_gram 1, which joins no words
            count="fixed",  # mlm_task.py: max(1, round(len(tokens) * .15))
            count_base="tokens",  # mlm_task.py: len(tokens) includes [CLS] and [SEP]
            candidates="text",  # mlm_task.py: not [MASK], [CLS], [SEP], [PAD], [UNK]
            max_predictions=80,  # mlm_task.py: ceil(512 * .15 / 10) * 10
            windowed=True,  # mlm_task.py: one of every int(1 / .15) = 6, from left to right
        ),
        packing=Packing(seq_length=512, mode="fill", attend="row"),  # prepare_data.py
        batch_size=script.batch_size,
        steps=1_000_000,  # rtd.sh: num_training_steps
        optimizer=BertAdam(
            learning_rate=script.learning_rate,
            b1=0.9,  # args.py
            b2=0.999,  # args.py
            eps=1e-6,  # args.py
            weight_decay=0.01,  # args.py
            decay="matrices",  # all but bias and LayerNorm.weight
            clip_norm=1.0,  # args.py: max_grad_norm, each of the two optimizers its own
            clip="global",
        ),
        schedule=BertLinear(warmup=10_000),  # rtd.sh; lr_schedulers.py: warmup_linear
        evaluation=Evaluation(every=10_000, max_rows=4096),
    )
    return Recipe(
        name=name,
        phases=(experiment,),
        sources=_SOURCES,
        hardware="not stated",
        tokens=float(1_000_000 * script.batch_size * 512),
        scores=_scores(size),
        deviations=_DEVIATIONS,
        unsourced=_unsourced(size, variant),
    )


def _unsourced(size: str, variant: str) -> tuple[str, ...]:
    found = ["The released models' own runs are not described by rtd.sh, which trains on wiki103."]
    if variant == "paper":
        found.append(_PAPER)
    if size == "small":
        found.append(
            "rtd.sh only continues the small model (deberta-v3-small-continue: 5e-5, 100,000 "
            "steps); learning rate, batch and steps from scratch are those it gives base."
        )
    return tuple(found)


def _scores(size: str) -> tuple[Score, ...]:
    card = f"model card of microsoft/deberta-v3-{size}, dev"
    readme = "README of microsoft/DeBERTa, dev"
    tables = {
        "xsmall": ((88.1, "MNLI"), (82.0, "SQuAD 2.0 EM"), (84.8, "SQuAD 2.0 F1")),
        "small": ((88.3, "MNLI"), (80.4, "SQuAD 2.0 EM"), (82.8, "SQuAD 2.0 F1")),
        "base": ((90.6, "MNLI"), (85.4, "SQuAD 2.0 EM"), (88.4, "SQuAD 2.0 F1")),
        "large": (
            (91.8, "MNLI"),
            (96.0, "QNLI"),
            (93.0, "QQP"),
            (92.7, "RTE"),
            (96.9, "SST-2"),
            (92.2, "MRPC"),
            (75.3, "CoLA"),
            (93.0, "STS-B"),
            (89.0, "SQuAD 2.0 EM"),
            (91.5, "SQuAD 2.0 F1"),
        ),
    }
    source = readme if size == "large" else card
    # Of runs that rtd.sh does not describe (see _unsourced).
    return tuple(
        Score(f"{benchmark} (of the released model)", value, source)
        for value, benchmark in tables[size]
    )

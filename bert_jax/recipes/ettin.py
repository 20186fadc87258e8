"""Ettin (Weller et al. 2025, arXiv:2507.11412): ModernBERT's recipe on open data, in six sizes.

The numbers are those of JHU-CLSP/ettin-encoder-vs-decoder, pretraining/configs/standard: for each
size encoder_*.yaml (``yaml``), de_decay/encoder_*.yaml (``extension``) and
prolong_decay/encoder_*.yaml (``decay``). Their names for the sizes: very_tiny, tiny, mini, base,
large, huge.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from bert_jax.data.batch_size import BatchSizes
from bert_jax.data.packing import Packing
from bert_jax.experiment import Carry, Evaluation, Experiment
from bert_jax.models.config import EncoderConfig, RotaryPositions
from bert_jax.recipes.modernbert import (
    BILLION,
    EVAL_MASKING,
    MASKING,
    PADDED_ROWS,
    SHORT,
    VOCAB_SIZE,
    gated_encoder,
)
from bert_jax.recipes.record import Recipe, Score
from bert_jax.train.optimizer import StableAdamW
from bert_jax.train.schedule import Trapezoid

# (layers, width, heads, feed-forward width)
SIZES = {
    "17m": (7, 256, 4, 384),
    "32m": (10, 384, 6, 576),
    "68m": (19, 512, 8, 768),
    "150m": (22, 768, 12, 1152),
    "400m": (28, 1024, 16, 2624),
    "1b": (28, 1792, 28, 3840),
}
_ROWS = 4608  # global_train_batch_size of all phases
_LENGTH = 7999  # max_seq_len of extension and decay
_FINAL = RotaryPositions(max_length=_LENGTH, theta=160_000.0, local_theta=160_000.0)


class _Run(NamedTuple):
    """What differs between the sizes.

    Attributes:
        peak: lr of yaml and extension; that of decay is half of it.
        weight_decay: Of all phases.
        rise: t_warmup of yaml, in billions of tokens.
        local_theta: local_attn_rotary_emb_base of extension; where it is left out, that of all.
        hours: pretraining/README.md: time of the whole, on 4 H100.
        glue: README.md, figure.
    """

    peak: float
    weight_decay: float
    rise: int
    local_theta: float
    hours: int
    glue: float


_RUNS = {
    "17m": _Run(3e-3, 3e-4, 4, 10_000.0, 141, 79.2),
    "32m": _Run(3e-3, 3e-4, 4, 160_000.0, 212, 83.5),
    "68m": _Run(3e-3, 3e-4, 3, 160_000.0, 300, 87.2),
    "150m": _Run(8e-4, 1e-5, 3, 160_000.0, 470, 88.9),
    "400m": _Run(5e-4, 1e-5, 2, 160_000.0, 950, 90.8),
}
_SOURCES = (
    "JHU-CLSP/ettin-encoder-vs-decoder: pretraining/configs/standard, pretraining/README.md, "
    "README.md; orionw/bert24: src/text_data.py",
    "Weller et al. 2025, arXiv:2507.11412",
)
_DEVIATIONS = (
    "Tokens are positions of the rows, padding included; there they are counted without padding "
    "(count_padding_tokens false), so with short documents a phase here has fewer real tokens.",
    "A document longer than a row goes on in rows of its own; there it comes already cut.",
    "The loss is divided by the targets of the whole batch; there each micro-batch is averaged by "
    "itself.",
    PADDED_ROWS,
)
_UNSOURCED = (
    "pretraining/README.md speaks of 6e-4, of rows of 2,048 tokens and of 100 B tokens of decay; "
    "the yamls, which made the models, do not, and are followed.",
)
_EXTEND = (
    "Kept: parameters, both moments, the rate that the decay relates to (the optimizer's max_lr). "
    "Reset: the clock (reset_time). Changed: rows of 7,999 tokens, theta 160,000; the rate falls "
    "by 1 - sqrt from its peak to half of it. The data are others (sample_250B: the store is "
    "yours), read from their beginning, in another order."
)
_DECAY = (
    "Kept: parameters, both moments, the rate that the decay relates to (max_lr of the restored "
    "optimizer). Reset: the clock. Changed (restart_override): the peak is half of it, and falls "
    "by 1 - sqrt to 4 %; 15 % of the tokens are masked; theta 160,000 in all layers. The data are "
    "others (ProLong: the store is yours), read from their beginning, in another order."
)


def ettin_encoder(size: str) -> EncoderConfig:
    """Ettin as released, after its last phase: 7,999 tokens, theta 160,000 in all layers."""
    return gated_encoder(*SIZES[size], positions=_FINAL)


def ettin_recipe(size: str) -> Recipe:
    """Ettin's encoder of a size: 1.7 T tokens at 1,024, 250 B at 7,999, 50 B of decay."""
    run = _RUNS[size]
    first = _first(size, run)
    extension = dataclasses.replace(_FINAL, local_theta=run.local_theta)
    second = _later(first, "extension", 250, extension, peak=run.peak, final=0.5)
    third = _later(first, "decay", 50, _FINAL, peak=run.peak / 2, final=0.04)
    return Recipe(
        name=f"ettin-{size}",
        phases=(
            first,
            second,
            # decay: mlm_probability .15
            dataclasses.replace(third, masking=dataclasses.replace(_MASKING, rate=0.15), seed=2),
        ),
        sources=_SOURCES,
        hardware=f"4 H100, {run.hours} hours for all phases (pretraining/README.md)",
        tokens=2_000e9,
        scores=(Score("GLUE", run.glue, "README of JHU-CLSP/ettin-encoder-vs-decoder, figure"),),
        deviations=_DEVIATIONS,
        unsourced=_UNSOURCED,
        carries=(_EXTEND, _DECAY),
    )


# Without packing transformers' collator masks (orionw/bert24, src/text_data.py): unlike in
# ModernBERT, special tokens never, and random replacements are any of the 50,368 entries.
_MASKING = dataclasses.replace(MASKING, candidates="text", random_ids=(0, VOCAB_SIZE))


def _first(size: str, run: _Run) -> Experiment:
    tokens = 1_700 * BILLION  # yaml: max_duration
    model = gated_encoder(*SIZES[size], positions=SHORT)
    return Experiment(
        name=f"ettin-{size}",
        model=dataclasses.replace(model, compute_dtype="bfloat16"),  # yaml: precision amp_bf16
        masking=_MASKING,
        eval_masking=EVAL_MASKING,
        packing=Packing(seq_length=1024, mode="document"),  # yaml: sequence_packing false
        batch_size=_ROWS,  # batch_size_warmup is written in yaml, but read only when packing
        microbatches=12,
        steps=BatchSizes(_ROWS, 1024).steps_for_tokens(tokens),
        clock="tokens",
        total=float(tokens),
        optimizer=StableAdamW(
            learning_rate=run.peak,
            b1=0.9,  # yaml
            b2=0.98,  # yaml
            eps=1e-6,  # yaml
            weight_decay=run.weight_decay,
            decay="not_vectors",  # yaml: filter_bias_norm_wd
            clip_norm=None,
            decay_scale="relative",
            max_learning_rate=run.peak,
        ),
        schedule=Trapezoid(warmup=float(run.rise * BILLION), decay_length=0.0),  # yaml: t_decay 0
        evaluation=Evaluation(every=4_000, max_rows=4096),
    )


def _later(
    first: Experiment,
    suffix: str,
    billions: int,
    positions: RotaryPositions,
    *,
    peak: float,
    final: float,
) -> Experiment:
    tokens = billions * BILLION
    return dataclasses.replace(
        first,
        name=f"{first.name}-{suffix}",
        carry=Carry(optimizer="kept", clock="reset"),
        seed=1,
        model=dataclasses.replace(first.model, positions=positions),
        packing=Packing(seq_length=_LENGTH, mode="document"),
        microbatches=96,
        steps=BatchSizes(_ROWS, _LENGTH).steps_for_tokens(tokens),
        total=float(tokens),
        optimizer=dataclasses.replace(first.optimizer, learning_rate=peak),
        # one_minus_sqrt, t_decay and t_max of the whole phase
        schedule=Trapezoid(decay_length=float(tokens), decay="1-sqrt", final=final),
    )

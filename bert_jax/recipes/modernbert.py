"""ModernBERT (Warner et al. 2024, arXiv:2412.13663), in three phases; the large model in four.

The numbers are those of the trainings' yamls in AnswerDotAI/ModernBERT, yamls/modernbert:
modernbert-base-pretrain.yaml (``yaml``), -context-extension.yaml (``extension``) and
-learning-rate-decay.yaml (``decay``), the same of modernbert-large (``large yaml`` and so on), and
of the paper's table 3. All but the first were read in a copy, qkchambers/ModernBERT-Diffusion.
Ettin, its ladder of sizes, is in `bert_jax.recipes.ettin`.
"""

from __future__ import annotations

import dataclasses
import functools

from bert_jax.data.batch_size import BatchSizes, BatchWarmup
from bert_jax.data.packing import Packing
from bert_jax.experiment import Carry, Evaluation, Experiment
from bert_jax.models.config import (
    Biases,
    Dropout,
    EncoderConfig,
    Heads,
    LocalAttention,
    Norm,
    Pooler,
    RotaryPositions,
    TruncatedNormal,
    VocabularyHead,
)
from bert_jax.objectives.masking import Masking
from bert_jax.recipes.record import Recipe, Score
from bert_jax.train.optimizer import StableAdamW
from bert_jax.train.schedule import Constant, Trapezoid

VOCAB_SIZE = 50368  # 50,280 of OLMo's BPE, special tokens, 83 unused: a multiple of 64
TEXT_IDS = 50285  # [MASK] is 50,284; behind it are the unused entries
# (layers, width, heads, feed-forward width); config.json of the releases.
SIZES = {"base": (22, 768, 12, 1152), "large": (28, 1024, 16, 2624)}
# Theta 10,000 everywhere in the first phase (yaml: rotary_emb_base); extension, decay: 160,000 in
# global layers (local_attn_rotary_emb_base 10,000).
SHORT = RotaryPositions(max_length=1024, theta=10_000.0, local_theta=10_000.0)
LONG = RotaryPositions(max_length=8192, theta=160_000.0, local_theta=10_000.0)
BILLION = 1_000_000_000


def modernbert_encoder(size: str) -> EncoderConfig:
    """ModernBERT as released: 8,192 tokens, theta 160,000 in global layers."""
    return gated_encoder(*SIZES[size], positions=LONG)


def gated_encoder(
    layers: int, width: int, heads: int, inner: int, *, positions: RotaryPositions
) -> EncoderConfig:
    """The shape of ModernBERT in any size.

    Args:
        layers: Layers.
        width: Width of the residual stream.
        heads: Attention heads.
        inner: Width of the gated feed-forward layer.
        positions: Longest row and the two bases of the rotary positions.
    """
    return EncoderConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=width,
        num_layers=layers,
        num_heads=heads,
        intermediate_size=inner,
        positions=positions,
        attention=LocalAttention(window=128, global_every=3),
        norm=Norm("pre", eps=1e-5, bias=False, after_embeddings=True, skip_first=True),
        activation="gelu",
        mlp="gated",
        biases=Biases("none", "none"),
        # yaml: attn_out_dropout_prob
        dropout=Dropout(hidden=0.0, attention=0.0, attention_out=0.1),
        initializer=TruncatedNormal(0.02, residual="by_depth"),  # init_method full_megatron
        heads=Heads(
            vocabulary=VocabularyHead(bias=False),
            pooler=Pooler(
                pooling="cls",
                activation="gelu",
                bias=False,
                norm="encoder",
                output_dropout=0.0,
                token_heads="transform",
            ),
        ),
        pad_id=50283,
    )


MASKING = Masking(
    rate=0.3,  # yaml: mlm_probability
    mask_prob=0.8,  # src/sequence_packer.py, mlm_masking
    random_prob=0.1,
    count="bernoulli",  # one uniform number a token
    candidates="all",  # only padding is left out: [CLS] and [SEP] are masked too
    random_ids=(0, TEXT_IDS),  # up to the greatest id in the masked batch, special or not
)
# yaml: "We always evaluate at 15% masking", with transformers' collator: no special tokens.
EVAL_MASKING = Masking(rate=0.15, count="bernoulli", candidates="text", random_ids=(0, VOCAB_SIZE))
_SOURCES = (
    "AnswerDotAI/ModernBERT: yamls/modernbert/modernbert-base-pretrain.yaml, src/optimizer.py, "
    "src/scheduler.py, src/sequence_packer.py, src/bert_layers/initialization.py",
    "qkchambers/ModernBERT-Diffusion, a copy: yamls/modernbert/modernbert-{base,large}-"
    "{context-extension,learning-rate-decay}.yaml, modernbert-large-pretrain.yaml",
    "Warner et al. 2024, arXiv:2412.13663, table 3",
)
PADDED_ROWS = (
    "The token table is padded to a multiple of 128 rows; the 64 that are added to 50,368 count as "
    "zeros in StableAdamW's mean over the table, which is .13 % lower for it."
)
_DEVIATIONS = (
    "The loss is divided by the targets of the whole batch; there each micro-batch is averaged by "
    "itself, and these means are weighted by their number of packed sequences.",
    "Rows are filled with running text, documents cut where a row ends: a row is a stretch of the "
    "stream of all tokens, found without the rows before it. There a buffer of documents is packed "
    "by greedy best fit, and one of up to a row's length is never cut.",
    "Tokens are positions of the rows; there those that are not padding, under 1 % fewer.",
    "Random replacements reach up to [MASK]; there up to the greatest id of the masked batch, "
    "which is [MASK] unless a batch has none.",
    PADDED_ROWS,
)
_EXTEND = (
    "Kept: parameters, both moments of the optimizer and the rate 8e-4 to which it relates the "
    "decay (the restored optimizer's max_lr). Reset: the clock, so the schedule begins anew, "
    "without a warm-up. Changed: learning rate 3e-4, rows of 8,192 tokens, theta 160,000 in global "
    "layers. The data are read from their beginning, in another order."
)
_DECAY = (
    "Kept: parameters, both moments and the rate 8e-4 that the decay relates to (max_lr). Reset: "
    "the clock. Changed: the learning rate falls by 1 - sqrt to a thousandth. The data are read "
    "from their beginning, in another order."
)
_ROLL_BACK = (
    "Kept: parameters and both moments, those of the checkpoint that was rolled back to, and the "
    "rate 5e-4 that the decay relates to (max_lr). Reset: the clock, without a warm-up. Changed: "
    "learning rate 5e-5, decay 1e-6, full batches from the first step. The data are read from "
    "their beginning, in another order."
)
_GROWTH = (
    "It starts from random numbers, since a recipe names no run of yours; the original from the "
    "first phase of ModernBERT-base (modernbert-large-pretrain.yaml: init_from_checkpoint), its "
    "weights put in the middle of the wider ones and wrapped around, its 22 layers spread over 28. "
    "Export what bert_jax.models.growth.grow makes of your modernbert-base:1 "
    "(docs/how-to/continue-and-grow.md) and start with `bert-jax train modernbert-large:1 RUN "
    "--init-from models/grown --data STORE`; the other phases then follow by number, each with "
    "the run before it as --init-from."
)


def _first(size: str, rows: int, warmup: BatchWarmup, tokens: int) -> Experiment:
    # yaml and large yaml: optimizer.lr and, in billions of tokens, scheduler.t_warmup. The pieces
    # of a batch are ours.
    peak, rise, pieces = {"base": (8e-4, 3, 12), "large": (5e-4, 2, 22)}[size]
    name = f"modernbert-{size}"
    model = gated_encoder(*SIZES[size], positions=SHORT)
    return Experiment(
        name=name,
        model=dataclasses.replace(model, compute_dtype="bfloat16"),  # yaml: precision amp_bf16
        masking=MASKING,
        eval_masking=EVAL_MASKING,
        packing=Packing(seq_length=1024, mode="fill"),  # yaml: max_seq_len, sequence_packing
        batch_size=rows,
        batch_warmup=warmup,
        microbatches=pieces,
        steps=BatchSizes(rows, 1024, warmup).steps_for_tokens(tokens),
        clock="tokens",
        total=float(tokens),
        optimizer=StableAdamW(
            learning_rate=peak,
            b1=0.9,  # yaml
            b2=0.98,  # yaml
            eps=1e-6,  # yaml
            weight_decay=1e-5,  # yaml
            decay="not_vectors",  # yaml: filter_bias_norm_wd
            clip_norm=None,  # none in the trainings' yamls
            decay_scale="relative",
            max_learning_rate=peak,
        ),
        # yaml: warmup_stable_decay with t_decay 0
        schedule=Trapezoid(warmup=float(rise * BILLION), decay_length=0.0),
        evaluation=Evaluation(every=4_000, max_rows=4096),
    )


def _later(
    before: Experiment,
    suffix: str,
    rows: int,
    tokens: int,
    *,
    rate: float,
    decay: float,
    pieces: int,
) -> Experiment:
    """A phase of constant rate from the end of the one before, in rows of its own length."""
    long = suffix != "restart"
    model = dataclasses.replace(before.model, positions=LONG) if long else before.model
    length = 8192 if long else 1024
    return dataclasses.replace(
        before,
        name=f"modernbert-{before.name.split('-')[1]}-{suffix}",
        carry=Carry(optimizer="kept", clock="reset"),
        seed=before.seed + 1,
        model=model,
        packing=Packing(seq_length=length, mode="fill"),
        batch_size=rows,
        batch_warmup=None,
        microbatches=pieces,
        steps=BatchSizes(rows, length).steps_for_tokens(tokens),
        total=float(tokens),
        optimizer=dataclasses.replace(before.optimizer, learning_rate=rate, weight_decay=decay),
        schedule=Constant(),  # extension: constant_with_warmup, t_warmup 0
    )


def _annealed(
    before: Experiment, rows: int, *, rate: float, decay: float, pieces: int
) -> Experiment:
    """The last phase: 50 billion tokens of 1 - sqrt decay (decay: one_minus_sqrt, alpha_f .001)."""
    tokens = 50 * BILLION
    last = _later(before, "decay", rows, tokens, rate=rate, decay=decay, pieces=pieces)
    schedule = Trapezoid(decay_length=float(tokens), decay="1-sqrt", final=0.001)
    return dataclasses.replace(last, schedule=schedule)


def modernbert_base() -> Recipe:
    """ModernBERT-base: 1.719 T tokens at 1,024, 250 B at 8,192, 50 B of decay."""
    # yaml: batch_size_warmup_tokens, from device_train_microbatch_size 96 on 8 GPUs;
    # global_train_batch_size, max_duration
    warmup = BatchWarmup(start=768, increment=768, tokens=50 * BILLION)
    first = _first("base", 4608, warmup, 1_719 * BILLION)
    # extension and decay: global_train_batch_size, max_duration, lr, weight_decay
    second = _later(first, "extension", 576, 250 * BILLION, rate=3e-4, decay=1e-5, pieces=12)
    third = _annealed(second, 576, rate=3e-4, decay=1e-5, pieces=12)
    source = "Warner et al. 2024, GLUE dev"
    return Recipe(
        name="modernbert-base",
        phases=(first, second, third),
        sources=_SOURCES,
        hardware="8 H100: 191.1 + 36.3 + 7.5 hours (paper)",
        tokens=2_019e9,
        scores=(
            Score("GLUE", 88.4, source),
            Score("MNLI", 89.1, source),
            Score("QNLI", 93.9, source),
            Score("QQP", 92.1, source),
            Score("RTE", 87.4, source),
            Score("SST-2", 96.0, source),
            Score("MRPC", 92.2, source),
            Score("STS-B", 91.8, source),
        ),
        deviations=_DEVIATIONS,
        carries=(_EXTEND, _DECAY),
    )


def modernbert_large() -> Recipe:
    """ModernBERT-large: 900 B tokens, restarted at a tenth of the rate for 800 B, 250 B, 50 B."""
    # large yaml: batch_size_warmup_tokens, from device_train_microbatch_size 56 on 8 GPUs;
    # global_train_batch_size. 900 B, 800 B: paper, table 3 (see unsourced)
    warmup = BatchWarmup(start=448, increment=448, tokens=10 * BILLION)
    first = _first("large", 4928, warmup, 900 * BILLION)
    # large extension: lr, weight_decay "after the pretraining LR reduction", so also the restart's
    later = functools.partial(_later, rate=5e-5, decay=1e-6)
    restart = later(first, "restart", 4928, 800 * BILLION, pieces=22)
    # large extension and large decay: global_train_batch_size, max_duration, lr, weight_decay
    third = later(restart, "extension", 616, 250 * BILLION, pieces=77)
    last = _annealed(third, 624, rate=5e-5, decay=1e-6, pieces=39)
    source = "Warner et al. 2024, GLUE dev"
    return Recipe(
        name="modernbert-large",
        phases=(first, restart, third, last),
        sources=_SOURCES,
        hardware="8 H100: 420.4 + 75.1 + 15.3 hours (paper)",
        tokens=2_000e9,
        scores=(
            Score("GLUE", 90.4, source),
            Score("MNLI", 90.8, source),
            Score("QNLI", 95.2, source),
            Score("QQP", 92.7, source),
            Score("RTE", 92.1, source),
            Score("SST-2", 97.1, source),
            Score("MRPC", 91.7, source),
            Score("STS-B", 92.8, source),
        ),
        deviations=(*_DEVIATIONS, _GROWTH),
        unsourced=(
            "The split of the first phase into 900 B tokens and, after a roll-back, 800 B more is "
            "read in copies of the paper's table 3; modernbert-large-pretrain.yaml has one phase "
            "of 1,719 B and says of its rate that it 'was too high and required a restart'. To "
            "which checkpoint the run was rolled back is not stated: here the last.",
        ),
        carries=(
            _ROLL_BACK,
            _EXTEND.replace("8e-4", "5e-4").replace("learning rate 3e-4, ", ""),
            _DECAY.replace("8e-4", "5e-4"),
        ),
    )

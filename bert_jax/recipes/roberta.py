"""RoBERTa (Liu et al. 2019, arXiv:1907.11692), as fairseq trains it.

Known deviations: fairseq's Adam adds epsilon before the bias correction; its rows are sorted by
length before they are shuffled; the type table of one row (transformers has it, fairseq does not)
adds a constant vector; every document, not every input line, ends in a separator.
"""

from __future__ import annotations

import dataclasses

from bert_jax.data.packing import Packing
from bert_jax.experiment import Evaluation, Experiment
from bert_jax.models.config import (
    Dropout,
    EncoderConfig,
    Heads,
    LearnedPositions,
    Norm,
    Normal,
    Pooler,
)
from bert_jax.objectives.masking import Masking
from bert_jax.train.optimizer import AdamW
from bert_jax.train.schedule import Linear

VOCAB_SIZE = 50265  # GPT-2's byte-level BPE plus special tokens

SIZES = {"base": (12, 768, 12), "large": (24, 1024, 16)}  # (layers, width, heads); paper, table 9


def roberta_encoder(size: str) -> EncoderConfig:
    """RoBERTa; ``size`` is ``base`` or ``large``."""
    layers, width, heads = SIZES[size]
    return EncoderConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=width,
        num_layers=layers,
        num_heads=heads,
        intermediate_size=4 * width,
        type_vocab_size=1,  # transformers' constant row
        positions=LearnedPositions(max_length=512, offset=2),  # fairseq make_positions
        norm=Norm("post", eps=1e-5),  # torch.nn.LayerNorm
        activation="gelu",  # erf, fairseq modules/gelu.py
        dropout=Dropout(hidden=0.1, attention=0.1),
        initializer=Normal(0.02),  # fairseq init_bert_params: not truncated
        heads=Heads(pooler=Pooler(activation="tanh", output_dropout=0.0)),  # pooler_dropout 0
        pad_id=1,
    )


def roberta_base() -> Experiment:
    """RoBERTa-base, the paper's longest run: 500k steps of 8,192 rows of 512 tokens."""
    return Experiment(
        name="roberta-base",
        model=dataclasses.replace(roberta_encoder("base"), compute_dtype="bfloat16"),
        masking=Masking(
            rate=0.15,
            mask_prob=0.8,
            random_prob=0.1,
            count="stochastic",  # fairseq mask_tokens_dataset.py: int(p * size + random())
            count_base="tokens",
            candidates="all",  # <s> and </s> are added before masking
            random_ids=(4, VOCAB_SIZE),  # the first nspecial ids are left out; <mask> is not
        ),
        packing=Packing(seq_length=512, mode="complete", attend="row"),  # FULL-SENTENCES
        batch_size=8192,  # paper, section 5
        microbatches=16,  # 32 rows a chip on 16 chips
        steps=500_000,
        optimizer=AdamW(
            learning_rate=6e-4,  # paper, table 9
            b1=0.9,
            b2=0.98,
            eps=1e-6,
            weight_decay=0.01,
            decay="all",  # fairseq excludes nothing
            clip_norm=None,  # clip_norm 0 in fairseq
        ),
        schedule=Linear(warmup_steps=24_000),  # paper, table 9
        evaluation=Evaluation(every=5_000, max_rows=4096),
    )

"""MosaicBERT (Portes et al. 2023, arXiv:2312.17482): BERT with ALiBi and gated layers.

Numbers from mosaicml/examples, examples/benchmarks/bert: ``yaml`` is
yamls/main/mosaic-bert-base-uncased.yaml, ``layers`` src/bert_layers.py, ``default`` transformers'
``BertConfig``, which the yaml starts from.

Known deviations: the padding token's row starts at zero there and gets no gradient as an input;
6 of its 30,528 rows stand for no token and take part in the softmax there.
"""

from __future__ import annotations

import dataclasses

from bert_jax.data.packing import Packing
from bert_jax.experiment import Evaluation, Experiment
from bert_jax.models.config import (
    AlibiPositions,
    Biases,
    Dropout,
    EncoderConfig,
    Norm,
    Normal,
)
from bert_jax.objectives.masking import Masking
from bert_jax.recipes.record import Recipe, Score
from bert_jax.recipes.sentences import MICROBATCH_MEANS
from bert_jax.train.optimizer import AdamW
from bert_jax.train.schedule import Linear


def mosaicbert_encoder() -> EncoderConfig:
    """MosaicBERT-base, uncased, for rows of 128 tokens; longer ones need no further parameters."""
    return EncoderConfig(
        vocab_size=30522,  # of bert-base-uncased; padded to 30,528 there, to a multiple of 128 here
        hidden_size=768,  # default
        num_layers=12,  # yaml
        num_heads=12,  # yaml
        intermediate_size=3072,  # default; kept although the layer is gated (layers)
        type_vocab_size=2,  # default
        positions=AlibiPositions(max_length=512),  # alibi_starting_size; grows with the input there
        norm=Norm("post", eps=1e-12),  # default
        activation="gelu",  # default; layers: GELU(approximate='none')
        mlp="gated",  # layers, BertGatedLinearUnitMLP
        biases=Biases(mlp="out"),  # layers: gated_layers without a bias, wo with one
        dropout=Dropout(
            hidden=0.1,  # default
            attention=0.0,  # yaml
            # layers: after activation times gate, and not after wo.
            mlp_inner=0.1,
            mlp_out=0.0,
        ),
        initializer=Normal(0.02),  # default; transformers' _init_weights does not cut it
    )


def mosaicbert_recipe() -> Recipe:
    """MosaicBERT-base: 70,000 steps of 4,096 rows of 128 tokens."""
    experiment = Experiment(
        name="mosaicbert-base",
        model=dataclasses.replace(mosaicbert_encoder(), compute_dtype="bfloat16"),  # amp_bf16
        masking=Masking(
            rate=0.3,  # yaml: mlm_probability
            mask_prob=0.8,  # transformers' DataCollatorForLanguageModeling, as all of these
            random_prob=0.1,
            count="bernoulli",
            candidates="text",
            random_ids=(0, 30522),
        ),
        eval_masking=Masking(  # yaml: "We always evaluate at 15% masking"
            rate=0.15, count="bernoulli", candidates="text", random_ids=(0, 30522)
        ),
        packing=Packing(seq_length=128, mode="truncate"),  # yaml: max_seq_len; no concatenation
        batch_size=4096,  # yaml: global_train_batch_size
        microbatches=2,
        steps=70_000,  # yaml: max_duration 286,720,000 samples
        seed=17,  # yaml
        optimizer=AdamW(
            learning_rate=5e-4,  # yaml
            b1=0.9,  # yaml
            b2=0.98,  # yaml
            eps=1e-6,  # yaml
            weight_decay=1e-5,  # yaml
            decay="all",  # main.py: build_optimizer gives model.parameters()
            clip_norm=None,  # yaml: none
            decay_scale="relative",  # composer's DecoupledAdamW
        ),
        schedule=Linear(warmup=4_200, final=0.02),  # yaml: t_warmup .06dur, alpha_f
        evaluation=Evaluation(every=2_000, max_rows=4096),  # yaml: eval_interval 2000ba
    )
    source = "Warner et al. 2024 (arXiv:2412.13663), GLUE dev, as MosaicBERT-128"
    return Recipe(
        name="mosaicbert-base",
        phases=(experiment,),
        sources=(
            "mosaicml/examples, examples/benchmarks/bert: "
            "yamls/main/mosaic-bert-base-uncased.yaml, main.py, src/bert_layers.py",
            "Portes et al. 2023, arXiv:2312.17482",
        ),
        hardware="8 A100 of 80 GB; GLUE 79.6 after 1.13 hours (paper)",
        tokens=286_720_000 * 128.0,
        scores=(
            Score("GLUE", 85.4, source),
            Score("MNLI", 85.6, source),
            Score("QNLI", 91.4, source),
            Score("QQP", 92.0, source),
            Score("RTE", 83.0, source),
            Score("SST-2", 93.5, source),
            Score("MRPC", 89.0, source),
            Score("CoLA", 58.2, source),
            Score("STS-B", 90.3, source),
        ),
        deviations=(
            MICROBATCH_MEANS,
            "There norms are computed in bfloat16 (fused_layernorm); here in float32.",
            "The padding token's row starts at zero there and gets no gradient as an input; 6 of "
            "its 30,528 rows stand for no token and take part in the softmax there.",
        ),
    )

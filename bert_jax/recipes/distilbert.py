"""DistilBERT (Sanh et al. 2019, arXiv:1910.01108): half of BERT's layers, no types, no pooler.

``train``, ``distiller`` and ``extract`` below are train.py, distiller.py and
scripts/extract_distilbert.py of huggingface/transformers, examples/research_projects/distillation.
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
from bert_jax.objectives.distillation import DistillationObjective
from bert_jax.objectives.masking import Masking
from bert_jax.recipes.record import Recipe, Score
from bert_jax.recipes.sentences import other_type
from bert_jax.train.optimizer import AdamW
from bert_jax.train.schedule import Linear

_README = "README of transformers' research_projects/distillation, dev"


def distilbert_encoder() -> EncoderConfig:
    """DistilBERT-base, uncased.

    Its table of positions is not trained while it is distilled (sinusoidal_pos_embds of
    training_configs/distilbert-base-uncased.json).
    """
    return EncoderConfig(
        vocab_size=30522,
        hidden_size=768,
        num_layers=6,
        num_heads=12,
        intermediate_size=3072,
        positions=LearnedPositions(max_length=512),
        norm=Norm("post", eps=1e-12),
        activation="gelu",
        dropout=Dropout(0.1, 0.1, attention_out=0.0),  # modeling_distilbert.py: none after out_lin
        initializer=Normal(0.02),
        heads=Heads(pooler=Pooler(activation="relu", output_dropout=0.2)),  # seq_classif_dropout
    )


def distilbert_recipe() -> Recipe:
    """DistilBERT-base from BERT-base, which ``objective.teacher`` must name."""
    experiment = Experiment(
        name="distilbert-base",
        model=dataclasses.replace(distilbert_encoder(), compute_dtype="bfloat16"),
        objective=DistillationObjective(
            teacher="models/bert-base-uncased",  # where yours is
            layers=(0, 2, 4, 7, 9, 11),  # extract
            frozen=("encoder/embeddings/position",),  # sinusoidal_pos_embds: requires_grad False
            temperature=2.0,  # train
            soft_weight=5.0,  # README: alpha_ce
            hard_weight=2.0,  # README: alpha_mlm
            cosine_weight=1.0,  # README: alpha_cos
        ),
        masking=Masking(
            rate=0.15,  # train: mlm_mask_prop
            mask_prob=0.8,  # train: word_mask
            random_prob=0.1,  # train: word_rand
            count="ceil",  # distiller: ceil(mlm_mask_prop * lengths.sum())
            count_base="tokens",  # distiller: lengths count [CLS] and [SEP]
            candidates="text",  # train: token_probs 0 for every special token, [UNK] among them
            random_ids=(0, 30522),  # distiller: any id
            frequency_power=0.7,  # train: mlm_smoothing
        ),
        packing=Packing(seq_length=512, mode="document"),  # lm_seqs_dataset.py: long ones are cut
        batch_size=1000,  # train: 5 rows, 50 gradient accumulation steps; README: 4 processes
        microbatches=4,
        steps=19_336,  # 3 epochs (train: n_epoch); see unsourced
        optimizer=AdamW(
            learning_rate=5e-4,  # train
            b1=0.9,  # distiller
            b2=0.98,  # distiller
            eps=1e-6,  # train: adam_epsilon
            weight_decay=0.0,  # train
            decay="matrices",  # distiller: no bias, no LayerNorm.weight
            clip_norm=5.0,  # train: max_grad_norm
        ),
        schedule=Linear(warmup=967),  # train: warmup_prop .05, rounded up
        evaluation=Evaluation(every=1_000, max_rows=4096),
    )
    return Recipe(
        name="distilbert-base",
        phases=(experiment,),
        sources=(
            "huggingface/transformers, examples/research_projects/distillation: README.md, "
            "train.py, distiller.py, lm_seqs_dataset.py, scripts/extract_distilbert.py, "
            "training_configs/distilbert-base-uncased.json",
            "Sanh et al. 2019, arXiv:1910.01108",
        ),
        hardware="8 V100 of 16 GB, about 90 hours (paper, as remembered)",
        tokens=19_336 * 1000 * 512.0,
        scores=(
            Score("CoLA", 51.3, _README),
            Score("MNLI", 82.1, _README),
            Score("MRPC", 87.5, _README),
            Score("QNLI", 89.2, _README),
            Score("QQP", 88.5, _README),
            Score("RTE", 59.9, _README),
            Score("SST-2", 91.3, _README),
            Score("STS-B", 86.9, _README),
            Score("SQuAD 1.1 F1", 86.9, _README),
        ),
        deviations=(
            "Predictions are 15 % of each row, rounded up, since what is masked in a row hangs on "
            "that row alone here; there of a micro-batch of 5 rows together, among which rare "
            "tokens are shared out.",
            "There rows of like length are batched together; here an epoch is a permutation of all "
            "rows, whatever their length.",
            "There rows of 11 tokens or fewer, or half of them unknown, are left out; here none "
            "is, as no packing looks at what a row holds (not done): leave such documents out "
            "before bert-jax prepare.",
            "Losses are divided by the tokens of the whole batch; there by those of each "
            "micro-batch, whose means are averaged.",
            other_type("float32", "the README's commands leave out train.py's --fp16"),
        ),
        unsourced=(
            "The number of steps depends on the corpus: 19,336 are 3 epochs of 3.3 billion tokens "
            "(as many as BERT's corpora have words) in full rows of 512; set --steps to three "
            "times your store's rows / 1,000 and --schedule.warmup to a twentieth of it.",
            "The batch of the released model is not stated with the code (the paper says up to "
            "4,000): 1,000 is train.py's 250 a process on the README's 4.",
            "Whether the released model's frozen positions are sinusoids (training_configs) or the "
            "teacher's (extract copies them into that table) is not stated: here the teacher's.",
        ),
    )

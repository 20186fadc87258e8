"""Should you mask 15 %? (Wettig et al. 2022, arXiv:2202.08005): a pre-norm RoBERTa-large.

Numbers from princeton-nlp/DinkyTrain, run_efficient_mlm_recipe.sh (``script``: arch roberta_large
with --encoder-normalize-before), and fairseq, fairseq/models/roberta/model.py (``fairseq``).
"""

from __future__ import annotations

import dataclasses

from bert_jax.data.packing import Packing
from bert_jax.experiment import Evaluation, Experiment
from bert_jax.models.config import EncoderConfig, Norm
from bert_jax.objectives.masking import Masking
from bert_jax.recipes.record import Recipe, Score
from bert_jax.recipes.roberta import roberta_encoder
from bert_jax.recipes.sentences import other_type
from bert_jax.train.optimizer import FairseqAdam
from bert_jax.train.schedule import Linear


def wettig_encoder() -> EncoderConfig:
    """The large model of the paper: RoBERTa's shape, vocabulary, dropout and initial values."""
    return dataclasses.replace(
        roberta_encoder("large"),  # script: roberta_large, 512 positions, dropout .1 and .1
        type_vocab_size=0,  # fairseq has no types
        # fairseq: layernorm_embedding True in every architecture; normalize_before adds a last norm
        # (TransformerEncoderBase). eps is torch.nn.LayerNorm's.
        norm=Norm("pre", eps=1e-5, after_embeddings=True),
    )


def wettig_recipe() -> Recipe:
    """Masking 40 % of the tokens, all with the mask token: about three epochs of BERT's corpora."""
    experiment = Experiment(
        name="wettig-40",
        model=dataclasses.replace(wettig_encoder(), compute_dtype="bfloat16"),
        masking=Masking(
            rate=0.4,  # script: MASK_RATE
            mask_prob=1.0,  # script: SAME_RATE 0 and RANDOM_RATE 0
            random_prob=0.0,
            count="stochastic",  # fairseq, mask_tokens_dataset.py
            count_base="tokens",
            candidates="all",
        ),
        eval_masking=Masking(  # everybody's rate; always [MASK], as it predicts at no other token
            rate=0.15,
            mask_prob=1.0,
            random_prob=0.0,
            count="stochastic",
            count_base="tokens",
            candidates="all",
        ),
        packing=Packing(
            seq_length=128, mode="fill", attend="row"
        ),  # script: sample-break-mode none
        batch_size=4096,  # script: BSZ
        microbatches=4,
        steps=23_000,  # script: TOTAL_UPDATES
        optimizer=FairseqAdam(
            learning_rate=2e-3,  # script: PEAK_LR
            b1=0.9,  # script
            b2=0.98,  # script
            eps=1e-6,  # script
            weight_decay=0.01,  # script
            decay="all",
            clip_norm=None,  # script: clip-norm 0.0
        ),
        schedule=Linear(warmup=1380),  # script: WARMUP_UPDATES, 6 %; polynomial_decay
        evaluation=Evaluation(every=1_000, max_rows=4096),
    )
    return Recipe(
        name="wettig-40",
        phases=(experiment,),
        sources=(
            "princeton-nlp/DinkyTrain: run_efficient_mlm_recipe.sh, README.md",
            "Wettig et al. 2022, arXiv:2202.08005",
        ),
        hardware="GPUs of the RTX 2080 kind, 8 rows at a time (script); the time is not stated",
        tokens=23_000 * 4096 * 128,
        scores=(Score("MNLI", 84.5, "README of princeton-nlp/DinkyTrain"),),
        deviations=(
            "There rows are cut through sentences and documents at exactly 128 tokens, with a "
            "separator after each line; here a document that is cut leaves no separator behind, "
            "and every document ends in one.",
            "There the last layers may be DeepSpeed's kernel in stochastic mode (an option of the "
            "script), which is not deterministic.",
            other_type("float16", "script: --fp16"),
        ),
    )

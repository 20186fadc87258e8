"""BERT (Devlin et al. 2019, arXiv:1810.04805), as google-research/bert trains it.

Known deviations, which the objectives and optimizers to come will remove: no next-sentence
prediction; AdamW corrects the moments' bias (Google's does not); the learning rate decays from the
end of the warm-up (Google's decays from step 0, so it drops by 1 % after the warm-up); gradients
are clipped by their global norm (Google clips each replica's own); rows are packed with running
text of single documents; masks are new each epoch (Google's are fixed, ten copies).
"""

from __future__ import annotations

import dataclasses

from bert_jax.data.packing import Packing
from bert_jax.experiment import Evaluation, Experiment
from bert_jax.models.config import (
    Dropout,
    EncoderConfig,
    LearnedPositions,
    Norm,
    TruncatedNormal,
)
from bert_jax.objectives.masking import Masking
from bert_jax.train.optimizer import AdamW
from bert_jax.train.schedule import Linear

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
        activation="gelu_tanh",  # modeling.py, gelu()
        dropout=Dropout(hidden=0.1, attention=0.1),
        initializer=TruncatedNormal(0.02),  # modeling.py, create_initializer()
    )


def bert_base() -> Experiment:
    """BERT-base, uncased, the 128-token phase (90 % of 1M steps; then 100k steps of 512)."""
    return Experiment(
        name="bert-base",
        model=dataclasses.replace(bert_encoder("base"), compute_dtype="bfloat16"),
        masking=Masking(
            rate=0.15,
            mask_prob=0.8,
            random_prob=0.1,
            count="fixed",
            count_base="tokens",  # create_pretraining_data.py: len(tokens) includes [CLS], [SEP]
            max_predictions=20,  # README, for 128 tokens
            random_ids=(0, VOCAB_SIZE),  # create_pretraining_data.py: any entry, special or not
        ),
        packing=Packing(seq_length=128, mode="fill", attend="document"),
        batch_size=256,  # paper, appendix A.2
        steps=900_000,  # paper, appendix A.2: 90 % of 1,000,000 at 128 tokens
        optimizer=AdamW(
            learning_rate=1e-4,  # paper, appendix A.2
            b1=0.9,
            b2=0.999,
            eps=1e-6,  # optimization.py
            weight_decay=0.01,
            decay="matrices",  # optimization.py: all but LayerNorm, layer_norm, bias
            clip_norm=1.0,
        ),
        schedule=Linear(warmup_steps=10_000),
        evaluation=Evaluation(every=10_000, max_rows=4096),
    )

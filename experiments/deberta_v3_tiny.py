"""A small twin of DeBERTa v3 on the bundled corpus: two stages, disentangled embeddings.

    make demo                                     # makes the store, if it is not there yet
    bert-jax train experiments/deberta_v3_tiny.py runs/deberta-tiny
    bert-jax evaluate runs/deberta-tiny

Relative positions only, a generator of the same width and half the depth with the enhanced mask
decoder, its step first; the discriminator learns differences to the generator's embeddings.
"""

import dataclasses
from pathlib import Path

from bert_jax.config import load_experiment
from bert_jax.models.config import Dropout
from bert_jax.recipes import recipe
from bert_jax.train.optimizer import BertAdam
from bert_jax.train.schedule import BertLinear

deberta = recipe("deberta-v3-small")
positions = dataclasses.replace(deberta.model.positions, max_length=64, buckets=16, max_distance=64)
experiment = dataclasses.replace(
    load_experiment(Path(__file__).parent / "fixed_compute_mlm.py"),
    name="deberta-tiny",
    model=dataclasses.replace(
        deberta.model,
        vocab_size=4096,
        hidden_size=128,
        num_layers=4,
        num_heads=2,
        intermediate_size=512,
        positions=positions,
        dropout=Dropout(0.0, 0.0),
        compute_dtype="float32",
    ),
    objective=deberta.objective,
    masking=deberta.masking,
    optimizer=dataclasses.replace(BertAdam(), learning_rate=5e-4),
    schedule=BertLinear(warmup=200),
    steps=2000,
)

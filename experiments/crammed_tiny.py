"""A small twin of crammed BERT on the bundled corpus: as far as three minutes carry it.

    make demo                                     # makes the store, if it is not there yet
    bert-jax train experiments/crammed_tiny.py runs/crammed-tiny
    bert-jax evaluate runs/crammed-tiny

As the recipe: the clock is the wall's, the rate a triangle over the budget, batches grow, a quarter
of all tokens (special ones too) are masked, no biases, scaled sinusoids, no head but the table.

Hardware: one CPU core, 3 minutes and the evaluations (2,079 steps of 4 to 16 x 64 tokens there).
Expected (measured): held-out cross-entropy 5.95 nats (standard error .02), where token frequencies
have 6.55.
"""

import dataclasses
from pathlib import Path

from bert_jax.config import load_experiment
from bert_jax.data.batch_size import BatchWarmup
from bert_jax.data.packing import Packing
from bert_jax.recipes import recipe

crammed = recipe("crammed-bert")
base = load_experiment(Path(__file__).parent / "fixed_compute_mlm.py")

experiment = dataclasses.replace(
    base,
    name="crammed-tiny",
    model=dataclasses.replace(
        crammed.model,
        vocab_size=4096,
        hidden_size=128,
        num_layers=4,
        num_heads=2,
        intermediate_size=256,
        compute_dtype="float32",
    ),
    masking=dataclasses.replace(crammed.masking, random_ids=(0, 4096)),
    eval_masking=base.masking,
    packing=Packing(seq_length=64, attend="row"),
    batch_size=16,
    microbatches=4,
    batch_warmup=BatchWarmup(start=4, increment=4, tokens=500_000),
    steps=100_000,  # more than there is time for
    clock="seconds",
    total=180.0,
    optimizer=crammed.optimizer,
    schedule=crammed.schedule,
)

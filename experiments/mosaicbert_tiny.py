"""A small twin of MosaicBERT on the bundled corpus.

    make demo                                     # makes the store, if it is not there yet
    bert-jax train experiments/mosaicbert_tiny.py runs/mosaicbert-tiny
    bert-jax evaluate runs/mosaicbert-tiny

As the recipe: ALiBi, gated feed-forward layers, post-LN, 30 % of the tokens masked each by a coin,
everything decayed in proportion to the rate over its peak, no clipping, 6 % of the run to warm up.

Hardware: one CPU core, 7 minutes (2,500 steps of 8 x 64 tokens).
Expected (measured): held-out cross-entropy 5.995 nats (standard error .021), where token
frequencies have 6.548. At the recipe's rate of 5e-4 and post-LN it has just left that plateau.
"""

import dataclasses
from pathlib import Path

from bert_jax.config import load_experiment
from bert_jax.recipes import recipe
from bert_jax.train.schedule import Linear

mosaicbert = recipe("mosaicbert-base")
base = load_experiment(Path(__file__).parent / "fixed_compute_mlm.py")
steps = 2500

experiment = dataclasses.replace(
    base,
    name="mosaicbert-tiny",
    model=dataclasses.replace(
        mosaicbert.model,
        vocab_size=4096,
        hidden_size=128,
        num_layers=4,
        num_heads=2,
        intermediate_size=512,
        compute_dtype="float32",
    ),
    masking=dataclasses.replace(mosaicbert.masking, random_ids=(0, 4096)),
    eval_masking=base.masking,
    steps=steps,
    optimizer=mosaicbert.optimizer,
    schedule=Linear(warmup=0.06 * steps, final=0.02),
)

"""ELECTRA against masked language modelling at fixed compute: an example of `bert-jax compare`.

    make demo                       # makes the store, if it is not there yet
    bert-jax compare experiments/fixed_compute_mlm.py experiments/fixed_compute_electra.py \
        --out runs/fixed-compute --then experiments/fixed_compute_probe.py

A step of ELECTRA costs generator and discriminator, so it has 2,752 steps where masked language
modelling has 3,000; both spend 8.63e12 operations. Both read BERT's masks, not ELECTRA's own, so
that generator and masked language model are measured on one task.

Hardware: two CPU cores, under 18 minutes for two seeds.
Measured: words put there at random are told from real ones at .890 (standard error over two seeds
.014) after masked language modelling, at .858 (.003) after ELECTRA, whose discriminator still calls
every token original; .855 of the words are real. `docs/benchmarks.md` has the table.
"""

import dataclasses
from pathlib import Path

from bert_jax.config import load_experiment
from bert_jax.objectives.replaced_tokens import ReplacedTokensObjective

experiment = dataclasses.replace(
    load_experiment(Path(__file__).parent / "fixed_compute_mlm.py"),
    name="electra",
    objective=ReplacedTokensObjective(generator_width=0.25, generator_head_size=32),
    steps=2752,
)

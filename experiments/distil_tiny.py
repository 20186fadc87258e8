"""A small twin of DistilBERT on the bundled corpus: two layers that imitate the demo's four.

    make demo                                     # trains the teacher, runs/demo/run
    bert-jax train experiments/distil_tiny.py runs/distil-tiny
    bert-jax evaluate runs/distil-tiny

Three losses with DistilBERT's weights; layers 0 and 3 of the teacher are where the student starts.

Hardware: two CPU cores, about 5 minutes (1,500 steps of 8 x 64 tokens).
Expected (measured): the most probable token is the teacher's at .793 of all held-out tokens
(standard error .001), divergence at temperature 2 (soft loss) .108, cross-entropy 4.452. The same
student from the same layers without its teacher (--objective.soft-weight 0
--objective.cosine-weight 0): .723, .301 and 4.543.
"""

import dataclasses
from pathlib import Path

from bert_jax.config import load_experiment
from bert_jax.objectives.distillation import DistillationObjective
from bert_jax.train.optimizer import AdamW
from bert_jax.train.schedule import Linear

base = load_experiment(Path(__file__).parent / "quickstart.py")
experiment = dataclasses.replace(
    base,
    name="distil-tiny",
    model=dataclasses.replace(base.model, num_layers=2),
    objective=DistillationObjective(teacher="runs/demo/run", layers=(0, 3)),
    masking=dataclasses.replace(base.masking, rate=0.15),
    steps=1500,
    optimizer=AdamW(learning_rate=5e-4, b2=0.98, weight_decay=0.0, clip_norm=5.0),
    schedule=Linear(warmup=75),
)

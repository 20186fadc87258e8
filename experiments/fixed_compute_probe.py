"""What encoders of different objectives are asked in the end: which words were put there at random.

The common continuation of `fixed_compute_mlm.py` and `fixed_compute_electra.py`: a few hundred
steps of `spot_the_intruder.py` from each result, all parameters trained.
"""

import dataclasses
from pathlib import Path

from bert_jax.config import load_experiment
from bert_jax.objectives.custom import CustomObjective
from bert_jax.train.schedule import Linear

HERE = Path(__file__).parent
experiment = dataclasses.replace(
    load_experiment(HERE / "fixed_compute_mlm.py"),
    name="probe",
    objective=CustomObjective(str(HERE / "spot_the_intruder.py")),
    steps=300,
    schedule=Linear(warmup=30),
)

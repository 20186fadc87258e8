"""Masked language modelling, as one side of a comparison at fixed compute.

    make demo                       # makes the store, if it is not there yet
    bert-jax compare experiments/fixed_compute_mlm.py experiments/fixed_compute_electra.py \
        --out runs/fixed-compute --then experiments/fixed_compute_probe.py

The other side is `fixed_compute_electra.py`, which says what was found.
"""

from bert_jax.data.packing import Packing
from bert_jax.experiment import Checkpoints, Evaluation, Experiment, Logging
from bert_jax.models.config import Dropout, EncoderConfig, Norm, RotaryPositions
from bert_jax.objectives.masking import Masking
from bert_jax.train.optimizer import AdamW
from bert_jax.train.schedule import Trapezoid

experiment = Experiment(
    name="mlm",
    model=EncoderConfig(
        vocab_size=4096,
        hidden_size=128,
        num_layers=4,
        num_heads=2,
        intermediate_size=512,
        positions=RotaryPositions(max_length=512),
        norm=Norm("pre", eps=1e-5),
        dropout=Dropout(0.0, 0.0),
    ),
    data="runs/demo/store",
    masking=Masking(rate=0.15),
    packing=Packing(seq_length=64),
    batch_size=8,
    steps=3000,
    optimizer=AdamW(learning_rate=1e-3, b2=0.98),
    schedule=Trapezoid(warmup=100, decay_length=800),
    evaluation=Evaluation(every=500),
    checkpoints=Checkpoints(every=1000),
    logging=Logging(every=100),
)

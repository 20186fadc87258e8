"""The demo: a small encoder learns English from the State of the Union messages, on two CPU cores.

    make demo

does it all. By hand, with the store of `make demo`:

    bert-jax train experiments/quickstart.py runs/demo/run --data runs/demo/store
"""

from bert_jax.data.packing import Packing
from bert_jax.experiment import Checkpoints, Evaluation, Experiment, Logging
from bert_jax.models.config import Dropout, EncoderConfig, Norm, RotaryPositions
from bert_jax.objectives.masking import Masking
from bert_jax.train.optimizer import AdamW
from bert_jax.train.schedule import Trapezoid

experiment = Experiment(
    name="quickstart",
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
    masking=Masking(rate=0.3),  # more to learn from each row; measured at .15 like everyone's
    eval_masking=Masking(rate=0.15),
    packing=Packing(seq_length=64),
    batch_size=8,
    steps=5500,
    optimizer=AdamW(learning_rate=1e-3, b2=0.98),
    schedule=Trapezoid(warmup_steps=100, decay_steps=1500),
    evaluation=Evaluation(every=1000),
    checkpoints=Checkpoints(every=1000),
    logging=Logging(every=100),
)

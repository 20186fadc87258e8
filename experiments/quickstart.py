"""The demo: a small encoder learns English from the State of the Union messages, on two CPU cores.

    make demo

does it all. By hand, with the store of `make demo`:

    bert-jax train experiments/quickstart.py runs/demo/run --data runs/demo/store

Hardware: two CPU cores, about 5 minutes (5,500 steps x 8 rows x 64 tokens = 2.8 M tokens).
Expected (measured): held-out cross-entropy 4.33, unigram floor 6.55, gain 2.22 nats (standard error
.02), accuracy .265 on 18,151 targets; 2.26 before a change that moved only the last bits of sums.
Tried for 1,500 steps: masking .3 rather than .15 gains .37 nats; b2 .999 rather than .98 loses .34;
a learning rate of 2e-3 has not left the plateau of token frequencies after 2,000.
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
    schedule=Trapezoid(warmup=100, decay_length=1500),
    evaluation=Evaluation(every=1000),
    checkpoints=Checkpoints(every=1000),
    logging=Logging(every=100),
)

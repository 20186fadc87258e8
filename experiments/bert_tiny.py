"""A small twin of BERT: masked words and next sentences, on the bundled corpus.

    make demo                                     # makes the store, if it is not there yet
    bert-jax train experiments/bert_tiny.py runs/bert-tiny
    bert-jax evaluate runs/bert-tiny

What makes BERT's recipe is as in `bert_jax/recipes/bert.py`: pairs with put-back and short ones,
BERT's Adam without bias correction, its schedule with the jump, its masks. The model, the rows and
the steps are small, and dropout is off.
"""

import dataclasses

from bert_jax.experiment import Checkpoints, Evaluation, Logging
from bert_jax.models.config import Dropout
from bert_jax.recipes import recipe
from bert_jax.train.optimizer import BertAdam
from bert_jax.train.schedule import BertLinear

bert = recipe("bert-tiny")
experiment = dataclasses.replace(
    bert,
    name="bert-tiny-twin",
    model=dataclasses.replace(
        bert.model, vocab_size=4096, num_layers=3, compute_dtype="float32", dropout=Dropout(0, 0)
    ),
    data="runs/demo/store",
    masking=dataclasses.replace(bert.masking, random_ids=(0, 4096)),
    packing=dataclasses.replace(bert.packing, seq_length=64),
    batch_size=32,
    steps=4000,
    total=None,
    optimizer=dataclasses.replace(BertAdam(), learning_rate=3e-4),
    schedule=BertLinear(warmup=200),
    evaluation=Evaluation(every=1000),
    checkpoints=Checkpoints(every=1000),
    logging=Logging(every=100),
)

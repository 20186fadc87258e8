"""An objective of one's own: find the tokens that were replaced by random ones.

    make demo                       # trains runs/demo/run, where it starts from
    bert-jax train experiments/spot_the_intruder.py runs/intruder

The guide docs/how-to/add-an-objective.md explains it line by line. Any other experiment takes the
objective by ``--objective custom --objective.file experiments/spot_the_intruder.py``.

Hardware: one CPU core, 2.5 minutes (600 steps of 8 x 64 tokens), beside other work.
Expected (measured): words and intruders are told apart at .924, where calling nothing an intruder
is right at .855; loss .190 (standard error .002), where that share's entropy is .414.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
from quickstart import experiment as quickstart

from bert_jax.models.heads import ReplacedTokenDetector
from bert_jax.objectives.base import row_sums
from bert_jax.objectives.custom import CustomObjective, RowObjective


def corrupt(key, row, setting):
    """Replaces .15 of the ordinary tokens of a row by random ones."""
    where, what = jax.random.split(key)
    ids = row["input_ids"]
    chosen = row["maskable"] & (jax.random.uniform(where, ids.shape) < 0.15)
    random = jax.random.randint(what, ids.shape, 0, setting.vocab_size)
    new = jnp.where(chosen, random, ids)
    return {"input_ids": new, "intruder": new != ids}


def loss(output, batch):
    """Binary cross-entropy over all real tokens: a sum and a weight for every row."""
    logits, real = output["logits"], (batch["segment_ids"] != 0).astype(jnp.float32)
    nll = jax.nn.softplus(jnp.where(batch["intruder"], -logits, logits))
    right = ((logits > 0) == batch["intruder"]).astype(jnp.float32)
    intruders = batch["intruder"].astype(jnp.float32)
    return {
        "loss": row_sums(nll, real),
        "accuracy": row_sums(right, real),
        "intruders": row_sums(intruders, real),
    }


objective = RowObjective(ReplacedTokenDetector, corrupt, loss)
experiment = replace(
    quickstart,
    name="intruder",
    init_from="runs/demo/run",
    objective=CustomObjective(__file__),
    steps=600,
    seed=1,
)

"""An objective of one's own: find the tokens that were replaced by random ones.

    bert-jax train experiments/spot_the_intruder.py runs/intruder --data runs/demo/store

The guide docs/how-to/add-an-objective.md explains it line by line. Any other experiment takes the
objective by ``--objective custom --objective.file experiments/spot_the_intruder.py``.

Hardware: two CPU cores, minutes. Expected: a cross-entropy a little below .42 nats, what the share
of replaced tokens alone is worth (not measured).
"""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from quickstart import experiment as quickstart

from bert_jax.models.heads import ReplacedTokenDetector
from bert_jax.objectives.base import Setting, Stage, merge, row_keys, row_sums, simple_task
from bert_jax.objectives.custom import CustomObjective
from bert_jax.objectives.masked_lm import noise


@dataclass(frozen=True)
class SpotTheIntruder:
    """What an experiment says of the objective."""

    rate: float = 0.15  # share of replaced tokens

    def task(self, setting):
        """The objective for a model and its vocabulary, and the head that it trains."""
        return simple_task(ReplacedTokenDetector(setting.model), Intruders(self.rate, setting))


@dataclass(frozen=True)
class Intruders:
    """The objective."""

    rate: float
    setting: Setting

    @property
    def stages(self):
        """One stage: all parameters, the experiment's optimizer."""
        return (Stage("intruders", intruder_loss),)

    def corrupt(self, key, step, batch):
        """Replaces ordinary tokens by random ones, each row by a key of its own."""
        special = jnp.asarray(self.setting.special.ids)

        def one(key, ids, real):
            where, what = jax.random.split(key)
            chosen = jax.random.uniform(where, ids.shape) < self.rate
            random = jax.random.randint(what, ids.shape, 0, self.setting.vocab_size)
            return jnp.where(chosen & real & ~jnp.isin(ids, special), random, ids)

        ids, real = batch["input_ids"], batch["segment_ids"] != 0
        new = jax.vmap(one)(row_keys(key, batch), ids, real)
        return {**batch, "input_ids": new, "intruder": new != ids}


def intruder_loss(apply, params, batch, key, frozen):
    """Binary cross-entropy over all real tokens: a sum and a weight for every row."""
    inputs = {name: batch[name] for name in ("segment_ids", "position_ids")}
    variables = {"params": merge(params, frozen)}
    logits = apply(variables, batch["input_ids"], **inputs, **noise(batch, key))["logits"]
    nll = jax.nn.softplus(jnp.where(batch["intruder"], -logits, logits))
    right = ((logits > 0) == batch["intruder"]).astype(jnp.float32)
    real = (batch["segment_ids"] != 0).astype(jnp.float32)
    return {"loss": row_sums(nll, real), "accuracy": row_sums(right, real)}


objective = SpotTheIntruder()
experiment = replace(quickstart, name="intruder", objective=CustomObjective(__file__))

"""What the backward pass recomputes, counted in the program of the gradient."""

import jax
import jax.numpy as jnp

from bert_jax.models.config import EncoderConfig, Execution
from bert_jax.models.heads import MaskedLM

IDS = jnp.asarray([[5, 6, 7, 8, 0, 0], [9, 8, 7, 6, 5, 4]])


def products(remat: str) -> int:
    """Matrix products in the program; one layer of it, in the body of a scan."""
    config = EncoderConfig(
        vocab_size=40, hidden_size=16, num_layers=3, num_heads=2, intermediate_size=32,
        execution=Execution("scan", remat),
    )  # fmt: skip
    model = MaskedLM(config)

    def loss(params):
        rngs = {"dropout": jax.random.key(1)}
        return jnp.sum(model.apply(params, IDS, deterministic=False, rngs=rngs)["logits"])

    params = jax.eval_shape(model.init, jax.random.key(0))
    return str(jax.make_jaxpr(jax.grad(loss))(params)).count("dot_general[")


def test_policies_recompute_what_they_say():
    none, dots, full = map(products, ("none", "dots", "full"))
    assert dots - none == 2  # attention scores and the weighted sums of values
    assert full - dots == 6  # query, key, value, attention output, and the two of the MLP

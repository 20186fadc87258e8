"""Optimizers with statistics of tensors give the same on one device and with split parameters."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.models.paths import by_path, from_paths
from bert_jax.parallel.mesh import MeshShape, make_mesh
from bert_jax.train.optimizer import Adafactor, Lamb, Muon, StableAdamW

# Layouts as the model's modules give them (bert_jax/models/layers.py).
LAYOUTS = {
    "encoder/embeddings/word/embedding": ((8, 16), jax.P("tensor", "fsdp")),
    "encoder/layers/query/kernel": ((3, 16, 16), jax.P(None, "fsdp", "tensor")),
    "encoder/layers/key/kernel": ((3, 16, 8), jax.P(None, "fsdp", "tensor")),
    "encoder/layers/value/kernel": ((3, 16, 8), jax.P(None, "fsdp", "tensor")),
    "encoder/layers/query/bias": ((3, 16), jax.P(None, "tensor")),
    "encoder/layers/mlp_out/kernel": ((3, 24, 16), jax.P(None, "tensor", "fsdp")),
    "encoder/layers/mlp_norm/scale": ((3, 16), jax.P(None, None)),
    "head_bias": ((8,), jax.P("tensor")),
}


def start(mesh) -> dict:
    """The same values on any mesh, each leaf in its layout."""
    rng = np.random.default_rng(0)
    leaves = {
        path: jax.device_put(
            rng.normal(0, 0.3, shape).astype(np.float32), jax.NamedSharding(mesh, spec)
        )
        for path, (shape, spec) in LAYOUTS.items()
    }
    return from_paths(leaves)


def after_updates(optimizer, shape: MeshShape):
    """Parameters and optimizer state after three updates, with gradients computed entrywise."""
    mesh = make_mesh(shape, jax.devices()[: shape.data * shape.fsdp * shape.tensor])

    @jax.jit
    def step(params, state, number):
        gradients = jax.tree.map(lambda p: jnp.cos(40 * p + number) + 0.3, params)
        direction, state = optimizer.direction().update(gradients, state, params)
        return jax.tree.map(lambda p, d: p - 0.02 * d, params, direction), state

    with jax.set_mesh(mesh):
        params = start(mesh)
        state = jax.jit(optimizer.direction().init)(params)
        shapes = jax.eval_shape(optimizer.direction().init, params)  # as a restore does it
        for number in range(3):
            params, state = step(params, state, float(number))
    for path, leaf in by_path(params).items():
        assert leaf.sharding.spec == LAYOUTS[path][1], path
    assert jax.tree.map(lambda s: (s.shape, s.dtype), shapes) == jax.tree.map(
        lambda s: (s.shape, s.dtype), state
    )
    return by_path(params), state


@pytest.mark.parametrize(
    "optimizer",
    [
        Lamb(0.02),
        StableAdamW(0.02, weight_decay=0.1),
        Adafactor(0.02, min_size_to_factor=8, clip_norm=1.0),
        Muon(0.02, weight_decay=0.1),
    ],
    ids=lambda optimizer: type(optimizer).__name__,
)
def test_equal_on_every_mesh(optimizer):
    alone, state = after_updates(optimizer, MeshShape(1, 1, 1))
    split, _ = after_updates(optimizer, MeshShape(2, 2, 2))
    assert {leaf.dtype for leaf in jax.tree.leaves(state)} <= {jnp.dtype(t) for t in ("f4", "i4")}
    for path, right in alone.items():
        # Sums of float32 in another order: 1e-7 of updates of .02; the gradient multiplies a
        # difference by 40 a step, Newton-Schulz by up to 500.
        np.testing.assert_allclose(split[path], right, rtol=0, atol=2e-5, err_msg=path)

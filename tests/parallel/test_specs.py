"""Named layouts: given under a mesh, withheld without one and inside manual regions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.parallel import specs
from bert_jax.parallel.mesh import MeshShape, make_mesh

P = jax.P


def axes_of(x) -> tuple:
    return tuple(jax.typeof(x).sharding.spec)


@pytest.fixture
def mesh():
    """2 x 2 x 2, in force."""
    with jax.set_mesh(make_mesh(MeshShape(2, 2, 2))):
        yield


# ------------------------------------------------------------------------------ without a mesh


def test_without_a_mesh_there_are_no_layouts():
    x = jnp.arange(24.0).reshape(4, 6)
    assert specs.spec(specs.BATCH, specs.TENSOR) is None
    assert specs.constrain(x, specs.BATCH, None) is x
    assert specs.gathered(x) is x
    assert specs.batch_shards() == 1
    assert specs.platform() == "cpu"
    np.testing.assert_array_equal(specs.reshape(x, (8, 3), specs.BATCH, None), x.reshape(8, 3))
    np.testing.assert_array_equal(specs.zeros((2, 3), jnp.int32, None, None), np.zeros((2, 3)))
    ids = jnp.asarray([[0, 3], [1, 1]])
    np.testing.assert_array_equal(specs.lookup(x, ids, specs.BATCH, None, None), x[ids])


# -------------------------------------------------------------------------------- under a mesh


def test_specs_name_the_axes(mesh):
    assert specs.spec() == P()
    assert specs.spec(specs.BATCH, None, specs.TENSOR) == P(("data", "fsdp"), None, "tensor")
    assert specs.spec(*specs.HEADS) == P(("data", "fsdp"), "tensor", None, None)
    assert specs.batch_shards() == 4
    assert specs.platform() == "cpu"


def test_layouts_of_results(mesh):
    x = specs.constrain(jnp.arange(64.0).reshape(8, 8), specs.BATCH, specs.TENSOR)
    assert axes_of(x) == (("data", "fsdp"), "tensor")
    flat = specs.reshape(specs.constrain(x, specs.BATCH, None), (64,), specs.BATCH)
    assert axes_of(flat) == (("data", "fsdp"),)
    np.testing.assert_array_equal(flat, np.arange(64.0))
    assert axes_of(specs.zeros((4, 2), jnp.int32, specs.BATCH, specs.TENSOR)) == axes_of(x)


def test_gathered_keeps_the_tensor_axis(mesh):
    values = np.arange(64.0, dtype=np.float32).reshape(8, 8)
    stored = jax.device_put(values, P("fsdp", "tensor"))
    whole = specs.gathered(stored)
    assert axes_of(whole) == (None, "tensor")
    np.testing.assert_array_equal(whole, values)
    untouched = jax.device_put(values, P(None, "tensor"))
    assert specs.gathered(untouched) is untouched
    gradient = jax.jit(jax.grad(lambda w: jnp.sum(specs.gathered(w) ** 2)))(stored)
    assert axes_of(gradient) == ("fsdp", "tensor")  # scattered back to the stored layout
    np.testing.assert_array_equal(gradient, 2 * values)


def test_lookup_of_split_ids(mesh):
    table = np.random.default_rng(0).normal(0, 1, (10, 6)).astype(np.float32)
    ids = jax.device_put(np.arange(8).reshape(4, 2) + 1, P(specs.BATCH))
    rows = specs.lookup(jax.device_put(table, P("tensor", None)), ids, specs.BATCH, None, None)
    assert axes_of(rows) == (("data", "fsdp"), None, None)
    np.testing.assert_array_equal(rows, table[np.asarray(ids)])


def test_manual_axes_are_dropped(mesh):
    """A region that is manual over the batch axes sees its own rows: only ``tensor`` is left."""

    def region(x):
        assert specs.spec(specs.BATCH, specs.TENSOR) == P(None, "tensor")
        assert specs.spec(specs.FSDP) == P(None)
        assert specs.batch_shards() == 1
        assert x.shape == (2, 4)
        return specs.constrain(x, specs.BATCH, specs.TENSOR) * 2

    x = jax.device_put(np.arange(32.0).reshape(8, 4), P(specs.BATCH, None))
    local = jax.shard_map(
        region, in_specs=P(specs.BATCH), out_specs=P(specs.BATCH), axis_names=set(specs.BATCH)
    )
    np.testing.assert_array_equal(jax.jit(local)(x), 2 * np.arange(32.0).reshape(8, 4))

    def half(x):
        assert specs.spec(specs.BATCH, None) == P("fsdp", None)
        assert specs.batch_shards() == 2
        return x

    jax.jit(jax.shard_map(half, in_specs=P("data"), out_specs=P("data"), axis_names={"data"}))(x)


@pytest.mark.parametrize(
    "stored, axis, left",
    [
        (P("fsdp", "tensor"), "fsdp", P(None, "tensor")),
        (P(("data", "fsdp"), None), "fsdp", P("data", None)),
        (P(("data", "fsdp", "tensor")), "fsdp", P(("data", "tensor"))),
        (P(("fsdp",)), "fsdp", P(None)),
        (P(None, "tensor"), "fsdp", P(None, "tensor")),
        (P(), "fsdp", P()),
    ],
)
def test_without_axis(stored, axis, left):
    assert specs.without_axis(stored, axis) == left


def test_platform_of_described_devices():
    """A mesh without devices may name its platform; without a name, this machine's."""
    mesh = jax.sharding.AbstractMesh(
        (1, 1, 1), specs.AXES, axis_types=(jax.sharding.AxisType.Explicit,) * 3
    )
    with jax.sharding.use_abstract_mesh(mesh):
        assert specs.platform() == "cpu"

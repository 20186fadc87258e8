"""Mesh shapes and the way of a host's rows to the devices."""

import jax
import numpy as np
import pytest

from bert_jax.parallel import specs
from bert_jax.parallel.mesh import MeshShape, make_mesh, put_batch


@pytest.mark.parametrize(
    "shape, devices, sizes",
    [
        (MeshShape(), 8, (8, 1, 1)),
        (MeshShape(), 1, (1, 1, 1)),
        (MeshShape(fsdp=4), 8, (2, 4, 1)),
        (MeshShape(fsdp=4, tensor=2), 8, (1, 4, 2)),
        (MeshShape(2, 2, 2), 8, (2, 2, 2)),
        (MeshShape(4, 16, 4), 256, (4, 16, 4)),
    ],
)
def test_data_takes_the_devices_that_are_left(shape, devices, sizes):
    assert shape.sizes(devices) == sizes


@pytest.mark.parametrize(
    "make, message",
    [
        (
            lambda: MeshShape(data=0),
            "mesh.data is 0; it must be at least 1 (or -1: all devices that are left).",
        ),
        (lambda: MeshShape(fsdp=-1), "mesh.fsdp is -1; it must be at least 1."),
        (lambda: MeshShape(tensor=0), "mesh.tensor is 0; it must be at least 1."),
        (
            lambda: MeshShape(fsdp=3).sizes(8),
            "mesh.fsdp 3 x mesh.tensor 1 does not divide the 8 devices; choose sizes whose "
            "product does.",
        ),
        (
            lambda: MeshShape(2, 2, 1).sizes(8),
            "mesh 2 x 2 x 1 wants 4 devices and there are 8; use data=-1 to take what is left.",
        ),
    ],
)
def test_sizes_that_do_not_fit_are_refused(make, message):
    with pytest.raises(ValueError) as caught:
        make()
    assert str(caught.value) == message


def test_make_mesh():
    mesh = make_mesh(MeshShape(fsdp=4))
    assert mesh.axis_names == specs.AXES == ("data", "fsdp", "tensor")
    assert dict(mesh.shape) == {"data": 2, "fsdp": 4, "tensor": 1}
    assert set(mesh.axis_types) == {jax.sharding.AxisType.Explicit}
    one = make_mesh(MeshShape(1), jax.devices()[:1])
    assert one.size == 1 and one.devices.item() == jax.devices()[0]


@pytest.mark.parametrize("microbatches", [1, 2])
def test_put_batch(microbatches):
    """(microbatches, rows, ...): every row once, rows over both batch axes."""
    mesh = make_mesh(MeshShape(2, 2, 2))
    batch = {
        "ids": np.arange(48, dtype=np.int32).reshape(16, 3),
        "example_ids": np.arange(16, dtype=np.uint32),
    }
    placed = put_batch(batch, mesh, microbatches)
    per = 16 // microbatches
    for name, rows in batch.items():
        assert placed[name].dtype == rows.dtype
        right = rows.reshape(microbatches, per, *rows.shape[1:])
        np.testing.assert_array_equal(placed[name], right)
        layout = placed[name].sharding
        assert layout.is_equivalent_to(
            jax.NamedSharding(mesh, jax.P(None, ("data", "fsdp"))), placed[name].ndim
        )
    shapes = {shard.data.shape for shard in placed["ids"].addressable_shards}
    assert shapes == {(microbatches, per // 4, 3)}

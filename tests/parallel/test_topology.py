"""Described TPU slices, and the abstract compilation on devices that are there."""

import importlib.util

import jax
import numpy as np
import pytest

from bert_jax.data.tokenizer_parts import SpecialTokens
from bert_jax.models.config import EncoderConfig
from bert_jax.models.heads import MaskedLM
from bert_jax.objectives.masked_lm import MaskedLanguageModel
from bert_jax.objectives.masking import Masking
from bert_jax.parallel.hlo import collectives, total_bytes
from bert_jax.parallel.mesh import MeshShape, make_mesh, put_batch
from bert_jax.parallel.topology import abstract_batch, compile_train_step, topology_mesh
from bert_jax.train.optimizer import AdamW
from bert_jax.train.state import abstract_state, init_params, init_state
from bert_jax.train.step import Pace, StepConfig, make_train_step


@pytest.mark.parametrize(
    ("topology", "message"),
    [
        (
            "v5litepod-16",
            "topology 'v5litepod-16' is not known; write one of tpu7x, v2, .* v5e:4x4",
        ),
        ("v9:2x2", "topology 'v9:2x2' is not known"),
        ("v5e:16", "topology 'v5e:16' is not known"),
        ("v5e:16x32", "there is no v5e slice 16x32; there are 1x1, 2x2, .*, 16x16"),
        ("v5e:4x2", "there is no v5e slice 4x2; there are .* 2x4"),
        ("v5e:2x2x4", "there is no v5e slice 2x2x4"),
        ("v4:4x4", "there is no v4 slice 4x4; there are 2x2x1, .* up to 4096 chips"),
        ("v4:2x2x8", "there is no v4 slice 2x2x8"),
        ("v4:16x16x20", "there is no v4 slice 16x16x20"),  # 5120 chips
        ("v5p:8x4x4", "there is no v5p slice 8x4x4"),  # sides rise
        ("v5p:0x4x4", "there is no v5p slice 0x4x4"),
    ],
)
def test_slices_that_do_not_exist_are_refused(topology, message):
    with pytest.raises(ValueError, match=message):
        topology_mesh(topology, MeshShape())


@pytest.mark.parametrize(
    ("topology", "shape", "sizes"),
    [
        ("v5e:4x4", MeshShape(), (16, 1, 1)),
        ("v5e:1x1", MeshShape(), (1, 1, 1)),
        ("v6e:2x4", MeshShape(fsdp=4), (2, 4, 1)),
        ("v4:2x2x4", MeshShape(fsdp=4, tensor=2), (2, 4, 2)),  # megacore: a chip is one device
        ("v5p:4x4x8", MeshShape(fsdp=16), (8, 16, 1)),
        ("v3:4x4", MeshShape(), (32, 1, 1)),  # two devices a chip
    ],
)
def test_slices_that_exist(topology, shape, sizes):
    pytest.importorskip("libtpu")
    mesh = topology_mesh(topology, shape)
    assert mesh.axis_names == ("data", "fsdp", "tensor")
    assert mesh.devices.shape == sizes
    assert {device.platform for device in mesh.devices.flat} == {"tpu"}
    assert set(mesh.axis_types) == {jax.sharding.AxisType.Explicit}


def test_mesh_that_does_not_fit_the_torus_is_refused():
    pytest.importorskip("libtpu")
    message = r"mesh 8x8x1 \(data x fsdp x tensor\) does not fit the torus of v5p:4x4x4"
    with pytest.raises(ValueError, match=message):
        topology_mesh("v5p:4x4x4", MeshShape(8, 8, 1))
    with pytest.raises(ValueError, match="mesh 3 x 1 x 1 wants 3 devices and there are 16"):
        topology_mesh("v5e:4x4", MeshShape(3, 1, 1))


def test_without_the_compiler_its_extra_is_named(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.delenv("TPU_LIBRARY_PATH", raising=False)
    with pytest.raises(ValueError, match=r"libtpu, which is not installed; .*bert-jax\[tpu\]"):
        topology_mesh("v5e:4x4", MeshShape())


@pytest.mark.parametrize("words", [False, True])
def test_abstract_batch_is_what_put_batch_makes(words):
    mesh = make_mesh(MeshShape(2, 4, 1))
    names = ["input_ids", "segment_ids", "position_ids"] + ["word_ids"] * words
    rows = {name: np.zeros((32, 5), np.int32) for name in names}
    host = {**rows, "example_ids": np.zeros(32, np.uint32)}
    real = put_batch(host, mesh, microbatches=2)
    shapes = abstract_batch(32, 2, {n: x[:1] for n, x in host.items()}, mesh)
    assert {n: (x.shape, x.dtype) for n, x in shapes.items()} == {
        n: (x.shape, x.dtype) for n, x in real.items()
    }
    for name, leaf in shapes.items():
        assert leaf.sharding.is_equivalent_to(real[name].sharding, leaf.ndim)


@pytest.mark.parametrize(
    ("shape", "least", "most"),
    [
        (MeshShape(8, 1, 1), 1.0, 1.01),
        # A gather of parameters, a scatter of gradients, the sum of its quarters over `data`.
        (MeshShape(2, 4, 1), 2.0, 2.27),
    ],
)
def test_gradients_of_all_microbatches_are_reduced_once(shape, least, most):
    """On present devices, in float32 (XLA:CPU widens bfloat16 reductions)."""
    config = EncoderConfig(vocab_size=500, hidden_size=32, num_layers=1, num_heads=2,
                           intermediate_size=64)  # fmt: skip
    model, optimizer = MaskedLM(config), AdamW()
    special = SpecialTokens(pad=0, unk=1, cls=2, sep=3, mask=4)
    objective = MaskedLanguageModel(Masking(), special, config.vocab_size)
    step = make_train_step(objective, model.apply, StepConfig(optimizer, seed=0))
    names = ("input_ids", "segment_ids", "position_ids")
    example = {name: np.zeros((1, 16), np.int32) for name in names}
    example["example_ids"] = np.zeros(1, np.uint32)
    mesh = make_mesh(shape)
    with jax.set_mesh(mesh):
        state = abstract_state(
            lambda: init_state(init_params(model, 0), objective, optimizer), mesh
        )
    compiled = compile_train_step(
        step, (state, abstract_batch(32, 4, example, mesh), Pace(np.float32(1))), mesh
    )
    weights = sum(leaf.size for leaf in jax.tree.leaves(state.params))
    assert least <= total_bytes(collectives(compiled.as_text())) / (4 * weights) <= most
    donated = compiled.as_text().partition("\n")[0].count("-alias)")
    assert donated == len(jax.tree.leaves(state))

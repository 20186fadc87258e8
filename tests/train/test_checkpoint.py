"""Checkpoints: what was saved comes back on any mesh, and nothing else ever does."""

import os
import random
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from bert_jax.parallel.mesh import MeshShape, make_mesh
from bert_jax.train.checkpoint import BrokenCheckpoint, Checkpointer
from bert_jax.train.checksum import checksums
from bert_jax.train.record import CheckpointMismatch
from bert_jax.train.state import TrainState


def make_state(step: int, rows: int = 64, dtype: jnp.dtype = jnp.float32) -> TrainState:
    """A state of every kind of leaf there is, with values that depend on the step."""
    rng = np.random.default_rng(step)
    params = {
        "encoder": {
            "layers": {"kernel": jnp.asarray(rng.normal(size=(3, rows, 24)), dtype)},
            "norm": {"scale": jnp.asarray(rng.normal(size=24), jnp.float32)},
        },
        "head_bias": jnp.asarray(rng.normal(size=(128,)), jnp.float32),
    }
    moments = jax.tree.map(lambda p: p * 0.5 + step, params)
    adam = optax.ScaleByAdamState(jnp.int32(step), moments, jax.tree.map(jnp.square, moments))
    opt_states = ((optax.EmptyState(), adam, optax.MaskedState(optax.EmptyState())),)
    return TrainState(jnp.int32(step), params, opt_states, jnp.int32(step // 7), jnp.int32(0))


def laid_out(state: TrainState, mesh: jax.sharding.Mesh) -> TrainState:
    """The state on a mesh: matrices split over fsdp and tensor, the rest whole."""

    def put(x: jax.Array) -> jax.Array:
        spec = jax.P(None, "fsdp", "tensor") if x.ndim == 3 else jax.P()
        return jax.device_put(x, jax.NamedSharding(mesh, spec))

    return jax.tree.map(put, state)


def abstract(state: TrainState) -> TrainState:
    leaves, structure = jax.tree.flatten(state)
    described = [jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding) for x in leaves]
    return jax.tree.unflatten(structure, described)


def assert_equal(got: object, expected: object) -> None:
    assert jax.tree.structure(got) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


def saved(directory: Path, *steps: int, **options: object) -> None:
    with Checkpointer(directory, **{"keep_last": 10, **options}) as checkpoints:
        for step in steps:
            checkpoints.save(make_state(step), {"seed": step})


class Heard(list):
    """Sentences said aloud."""

    def __call__(self, text: str) -> None:
        self.append(text)


def test_what_is_saved_comes_back_with_its_facts(tmp_path: Path) -> None:
    meta = {"config": "c0ffee", "examples": 2**40, "nested": {"rate": 0.1, "list": [1, None]}}
    with Checkpointer(tmp_path / "not" / "there", keep_last=2) as checkpoints:
        assert checkpoints.restore_latest(make_state(0)) is None
        assert checkpoints.steps() == []
        checkpoints.save(make_state(20), meta)
        checkpoints.wait()
        assert checkpoints.steps() == [20]
    with Checkpointer(tmp_path / "not" / "there", keep_last=2) as checkpoints:
        restored = checkpoints.restore_latest(make_state(0))
    assert restored is not None
    assert (restored.step, restored.meta) == (20, meta)
    assert_equal(restored.state, make_state(20))


def test_a_state_may_be_donated_as_soon_as_save_returns(tmp_path: Path) -> None:
    """The write takes longer than the steps that overwrite the buffers."""
    step = jax.jit(lambda state: jax.tree.map(lambda x: x + 1, state), donate_argnums=0)
    mesh = make_mesh(MeshShape(data=2, fsdp=2, tensor=2))
    with jax.set_mesh(mesh):
        state = laid_out(make_state(5, rows=8_000), mesh)
        expected = jax.tree.map(np.array, state)
        with Checkpointer(tmp_path, keep_last=1) as checkpoints:
            checkpoints.save(state, {})
            for _ in range(3):
                state = step(state)
            jax.block_until_ready(state)
            restored = checkpoints.restore(5, state)
    assert_equal(restored.state, expected)


SHAPES = [MeshShape(1, 8, 1), MeshShape(2, 2, 2), MeshShape(8, 1, 1)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_checkpoint_moves_between_meshes(tmp_path: Path, shape: MeshShape) -> None:
    one, many = make_mesh(MeshShape(), jax.devices()[:1]), make_mesh(shape)
    for number, (source, target) in enumerate([(one, many), (many, one)]):
        directory = tmp_path / str(number)
        state = laid_out(make_state(3), source)
        with Checkpointer(directory, keep_last=1) as checkpoints:
            checkpoints.save(state, {})
        with Checkpointer(directory, keep_last=1) as checkpoints:
            like = laid_out(make_state(0), target)
            restored = checkpoints.restore_latest(abstract(like))
        assert restored is not None
        assert_equal(restored.state, state)
        kernel = restored.state.params["encoder"]["layers"]["kernel"]
        assert kernel.sharding == like.params["encoder"]["layers"]["kernel"].sharding
        assert checksums({"kernel": kernel}) == checksums(
            {"kernel": state.params["encoder"]["layers"]["kernel"]}
        )


def test_the_description_may_come_from_an_abstract_mesh(tmp_path: Path) -> None:
    saved(tmp_path, 3)
    with jax.set_mesh(make_mesh(MeshShape(fsdp=4))):
        init = lambda: laid_out(make_state(0), jax.sharding.get_abstract_mesh())  # noqa: E731
        like = jax.eval_shape(lambda: {"params": init().params})
        with Checkpointer(tmp_path) as checkpoints:
            restored = checkpoints.restore_latest(like)
    assert restored is not None
    kernel = restored.state["params"]["encoder"]["layers"]["kernel"]
    assert kernel.sharding.spec == jax.P(None, "fsdp", "tensor")
    assert_equal(restored.state["params"], make_state(3).params)


def test_parameters_can_be_read_without_the_optimizer(tmp_path: Path) -> None:
    saved(tmp_path, 3)
    with Checkpointer(tmp_path) as checkpoints:
        restored = checkpoints.restore_latest({"params": make_state(0).params})
    assert restored is not None
    assert_equal(restored.state, {"params": make_state(3).params})


def test_retention_keeps_the_last_and_every_nth(tmp_path: Path) -> None:
    saved(tmp_path, *range(5, 41, 5), keep_last=2, keep_every=15)
    assert Checkpointer(tmp_path).steps() == [15, 30, 35, 40]
    for step in (15, 30, 35, 40):
        assert_equal(Checkpointer(tmp_path).restore(step, make_state(0)).state, make_state(step))


def test_saving_a_step_again_does_nothing(tmp_path: Path) -> None:
    """The last periodic checkpoint and the one at the end of the run may be the same."""
    with Checkpointer(tmp_path) as checkpoints:
        checkpoints.save(make_state(4), {"first": True})
        checkpoints.save(make_state(4), {"first": False})
        assert checkpoints.restore(4, make_state(0)).meta == {"first": True}
        checkpoints.save(make_state(4), {"first": False})
        assert checkpoints.restore(4, make_state(0)).meta == {"first": True}


def files_of(checkpoint: Path) -> list[Path]:
    return sorted(p for p in checkpoint.rglob("*") if p.is_file() and p.stat().st_size)


def test_any_flipped_bit_that_matters_is_detected(tmp_path: Path) -> None:
    """Arrays come back as they were saved, or the checkpoint before is used and that is said."""
    saved(tmp_path, 1, 2)
    rng = random.Random(0)
    files = files_of(tmp_path / "2")
    largest = max(files, key=lambda p: p.stat().st_size)
    assert largest.stat().st_size > 15_000  # random values do not compress: most of it is data
    detected = 0
    for path in [largest] * 12 + rng.choices(files, k=12):
        sound = path.read_bytes()
        position, bit = rng.randrange(len(sound)), rng.randrange(8)
        flipped = bytearray(sound)
        flipped[position] ^= 1 << bit
        path.write_bytes(flipped)
        heard = Heard()
        restored = Checkpointer(tmp_path, notify=heard).restore_latest(make_state(0))
        assert restored is not None
        assert_equal(restored.state, make_state(restored.step))
        assert restored.meta == {"seed": restored.step}
        assert len(heard) == 2 - restored.step
        detected += len(heard)
        path.write_bytes(sound)
    # Bytes that nothing reads any more (superseded index nodes) lie there too; their share is small
    # in the largest file, and large in the others.
    assert detected >= 8


@pytest.mark.parametrize(
    "damage",
    ["truncated", "missing", "emptied", "no_record", "other_facts", "no_arrays", "renamed"],
)
def test_damage_falls_back_to_the_one_before_aloud(tmp_path: Path, damage: str) -> None:
    saved(tmp_path, 1, 2)
    newest = tmp_path / "2"
    largest = max(files_of(newest / "state"), key=lambda p: p.stat().st_size)
    if damage == "truncated":
        os.truncate(largest, largest.stat().st_size // 2)
    elif damage == "missing":
        largest.unlink()
    elif damage == "emptied":
        for path in files_of(newest):
            os.truncate(path, 0)
    elif damage == "no_record":
        shutil.rmtree(newest / "record")
    elif damage == "other_facts":
        (record,) = files_of(newest / "record")[-1:]
        assert '"seed": 2' in record.read_text()
        record.write_text(record.read_text().replace('"seed": 2', '"seed": 3'))
    elif damage == "no_arrays":
        shutil.rmtree(newest / "state")
    else:
        newest.rename(tmp_path / "3")
    (tmp_path / "7").mkdir()  # what a killed mkdir leaves is no checkpoint, and no news
    heard = Heard()
    with Checkpointer(tmp_path, keep_last=3, notify=heard) as checkpoints:
        restored = checkpoints.restore_latest(make_state(0))
        assert restored is not None
        assert_equal(restored.state, make_state(1))
        (sentence,) = heard
        number = 3 if damage == "renamed" else 2
        assert sentence.startswith(f"checkpoint {number} in {tmp_path} is broken (")
        assert sentence.endswith("; trying the one before.")

        # Training goes on from there: the broken one is put aside, the new ones are the newest.
        checkpoints.save(make_state(2), {})
        checkpoints.save(make_state(8), {})
    assert checkpoints.steps() == [1, 2, 8]
    assert f"{number}.set-aside" in heard[1]
    assert (tmp_path / f"{number}.set-aside").is_dir()
    restored = Checkpointer(tmp_path).restore_latest(make_state(0))
    assert restored is not None
    assert_equal(restored.state, make_state(8))


def test_a_broken_checkpoint_does_not_count_as_one_of_the_last(tmp_path: Path) -> None:
    """Else the good one would be deleted for the sake of the broken one."""
    saved(tmp_path, 10, 20)
    shutil.rmtree(tmp_path / "20" / "state")
    with Checkpointer(tmp_path, keep_last=1, notify=Heard()) as checkpoints:
        checkpoints.restore_latest(make_state(0))
        checkpoints.save(make_state(12), {})
    assert Checkpointer(tmp_path).steps() == [12]


def test_an_earlier_checkpoint_can_be_taken_up(tmp_path: Path) -> None:
    saved(tmp_path, 1, 2, 3)
    heard = Heard()
    with Checkpointer(tmp_path, keep_last=5, notify=heard) as checkpoints:
        with pytest.raises(ValueError, match=r"no checkpoint of step 4 in .* \[1, 2, 3\]"):
            checkpoints.restore(4, make_state(0))
        checkpoints.save(checkpoints.restore(1, make_state(0)).state, {})
        assert checkpoints.steps() == [1, 2, 3]  # nothing was done since: nothing is saved
        checkpoints.save(make_state(3), {"again": True})
        checkpoints.wait()
        assert checkpoints.steps() == [1, 3]
        assert checkpoints.restore(3, make_state(0)).meta == {"again": True}
    assert ["2.set-aside" in s or "3.set-aside" in s for s in heard] == [True, True]


def test_no_good_checkpoint_is_an_error(tmp_path: Path) -> None:
    saved(tmp_path, 1, 2)
    for step in (1, 2):
        shutil.rmtree(tmp_path / str(step) / "state")
    heard = Heard()
    checkpoints = Checkpointer(tmp_path, notify=heard)
    with pytest.raises(ValueError, match=r"all checkpoints in .* are broken \(steps 2, 1\)"):
        checkpoints.restore_latest(make_state(0))
    assert [sentence[:12] for sentence in heard] == ["checkpoint 2", "checkpoint 1"]
    with pytest.raises(BrokenCheckpoint, match="checkpoint 1 in"):
        checkpoints.restore(1, make_state(0))


def test_another_model_is_refused_by_name(tmp_path: Path) -> None:
    """Never a fall-back: every checkpoint of the run would be refused alike."""
    saved(tmp_path, 1, 2)
    heard = Heard()
    checkpoints = Checkpointer(tmp_path, notify=heard)
    with pytest.raises(CheckpointMismatch) as error:
        checkpoints.restore_latest(make_state(0, rows=32))
    assert str(error.value) == (
        "params/encoder/layers/kernel is float32 (3, 32, 24) in the model and float32 (3, 64, 24) "
        f"in checkpoint 2 in {tmp_path} (2 more differ): use the configuration it was trained "
        "with, or another run directory."
    )
    with pytest.raises(CheckpointMismatch, match=r"bfloat16 \(3, 64, 24\) in the model and float"):
        checkpoints.restore_latest({"params": make_state(0, dtype=jnp.bfloat16).params})
    fewer, more = make_state(0).params, make_state(0).params | {"new": jnp.zeros(3)}
    fewer.pop("head_bias")
    with pytest.raises(CheckpointMismatch, match=r"params/head_bias is absent in the model and fl"):
        checkpoints.restore_latest({"params": fewer})
    with pytest.raises(CheckpointMismatch, match=r"params/new is float32 \(3,\) .* and absent in"):
        checkpoints.restore_latest({"params": more})
    assert heard == []


def test_a_failed_write_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=r"cannot write a checkpoint to .*/file/run \(NotADirectory"):
        Checkpointer(tmp_path / "file" / "run").save(make_state(1), {})

    def full(_: object) -> None:
        raise ValueError("RESOURCE_EXHAUSTED: Failed to write: No space left [source='a.cc:1']")

    checkpoints = Checkpointer(tmp_path / "run")
    checkpoints.save(make_state(1), {})
    with monkeypatch.context() as patch:
        patch.setattr("orbax.checkpoint.CheckpointManager.wait_until_finished", full)
        with pytest.raises(OSError, match=r"No space left\): make room or .* stay good\.$"):
            checkpoints.wait()
        with pytest.raises(OSError, match="No space left"):
            checkpoints.save(make_state(2), {})
    checkpoints.close()


KILLED = """
import sys
import jax, jax.numpy as jnp
from bert_jax.train.checkpoint import Checkpointer
from bert_jax.train.state import TrainState

def state(step):
    values = jax.random.normal(jax.random.key(step), (4_000_000,))
    return TrainState(jnp.int32(step), {"w": values}, (), jnp.int32(0), jnp.int32(0))

checkpoints = Checkpointer(sys.argv[1], keep_last=3)
checkpoints.save(state(1), {})
checkpoints.wait()
print("ready", flush=True)
for step in range(2, 1000):
    checkpoints.save(state(step), {})
    print(step, flush=True)
"""


def test_kill_while_saving_leaves_whole_checkpoints(tmp_path: Path) -> None:
    program = tmp_path / "killed.py"
    program.write_text(KILLED)
    runs = tmp_path / "run"
    child = subprocess.Popen(
        [sys.executable, str(program), str(runs)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    for _ in range(2):
        child.stdout.readline()
    # The save that was just announced goes on in the background.
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    partial = [p.name for p in runs.iterdir() if not p.name.isdecimal()]
    assert partial, "the kill came too late to mean anything"

    heard = Heard()
    like = TrainState(jnp.int32(0), {"w": jnp.zeros(4_000_000)}, (), jnp.int32(0), jnp.int32(0))
    with Checkpointer(runs, keep_last=3, notify=heard) as checkpoints:
        restored = checkpoints.restore_latest(like)
        assert restored is not None
        assert restored.step in (1, 2, 3)
        expected = jax.random.normal(jax.random.key(restored.step), (4_000_000,))
        np.testing.assert_array_equal(restored.state.params["w"], expected)
        assert heard == []
        checkpoints.save(
            TrainState(jnp.int32(9), {"w": expected}, (), jnp.int32(0), jnp.int32(0)), {}
        )
    # What the killed process left is cleaned away by the next that writes.
    assert all(p.name.isdecimal() for p in runs.iterdir())


TWO_PROCESSES = """
import os, pathlib, sys
import jax
from jax.experimental.multihost_utils import sync_global_devices

number = int(sys.argv[1])
jax.distributed.initialize(f"localhost:{sys.argv[2]}", 2, number)
import jax.numpy as jnp
from bert_jax.parallel.mesh import MeshShape, make_mesh
from bert_jax.train.checkpoint import Checkpointer
from bert_jax.train.state import TrainState

directory = pathlib.Path(sys.argv[3])

def state(step):
    spec = jax.P("fsdp", None)
    w = jax.random.normal(jax.random.key(step), (64, 64), out_sharding=spec)
    return TrainState(jnp.int32(step), {"w": w}, (), jnp.int32(0), jnp.int32(0))

compute = jax.jit(state, static_argnums=0)

def make(step):
    return jax.block_until_ready(compute(step))  # one collective at a time

with jax.set_mesh(make_mesh(MeshShape(1, 2, 1))):
    said = []
    with Checkpointer(directory, keep_last=2, notify=said.append) as checkpoints:
        for step in (1, 2, 3):
            checkpoints.save(make(step), {"step": step})
        checkpoints.wait()
        if number == 0:
            for path in (directory / "3" / "state" / "ocdbt.process_1" / "d").iterdir():
                os.truncate(path, path.stat().st_size // 2)
        sync_global_devices("damaged")
        restored = checkpoints.restore_latest(make(0))
        assert restored.step == 2 and restored.meta == {"step": 2}
        assert jnp.array_equal(restored.state.params["w"], make(2).params["w"])
        assert "checkpoint 3" in said[0] and "is broken" in said[0], said
        checkpoints.save(make(3), {"step": 3})
        checkpoints.wait()
        assert checkpoints.steps() == [2, 3]
"""


@pytest.mark.slow
def test_processes_fall_back_together(tmp_path: Path) -> None:
    """Also where the part of one process alone is damaged."""
    program = tmp_path / "two.py"
    program.write_text(TWO_PROCESSES)
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    children = [
        subprocess.Popen(
            [sys.executable, str(program), str(number), str(port), str(tmp_path / "run")],
            env=environment,
        )
        for number in range(2)
    ]
    try:
        assert [child.wait(timeout=200) for child in children] == [0, 0]
    finally:
        for child in children:
            child.kill()
            child.wait()

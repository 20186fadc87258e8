"""The train step of the base recipes, compiled for a TPU pod slice by the real TPU compiler.

By default each recipe is compiled at full size (scan over layers: depth costs nothing) without
optimization, which leaves the reductions as they are, on one layout; the slow tests have the other,
compile with optimization, and look at memory. Collectives are counted with loop trips.
"""

from __future__ import annotations

import collections
import dataclasses
import functools

import pytest

pytest.importorskip("libtpu")

import jax
import jax.numpy as jnp
import numpy as np
import optax

from bert_jax.data.packing import Packing
from bert_jax.data.synthetic import synthetic_rows
from bert_jax.experiment import Experiment
from bert_jax.models.config import ComputeDtype
from bert_jax.objectives.base import split_passed, total_loss
from bert_jax.parallel import specs
from bert_jax.parallel.hlo import REDUCTIONS, collectives, total_bytes
from bert_jax.parallel.mesh import MeshShape
from bert_jax.parallel.topology import abstract_batch, compile_train_step, topology_mesh
from bert_jax.recipes import preset, recipe
from bert_jax.train.state import TrainState, abstract_state, init_state, initial_key
from bert_jax.train.step import Pace, StepConfig, make_train_step
from bert_jax.train.task import make_task, synthetic_vocabulary

pytestmark = pytest.mark.sweep

TOPOLOGY = "v5e:4x4"
# What a chip (of 16 GiB) may need: 2.5 GiB were measured for 16 rows of 128, 8.7 GiB for
# microbatches of 32 rows of 512.
MEMORY = {"bert-base": 3 * 2**30, "roberta-base": 10 * 2**30}
DATA_PARALLEL, FULLY_SHARDED = MeshShape(16, 1, 1), MeshShape(1, 16, 1)
# Payload of a step over the bytes of one gradient: reduced once, with room for what is not a
# gradient; and, fully sharded, parameters gathered (float32 at worst) beside it.
LIMITS = {DATA_PARALLEL: 1.3, FULLY_SHARDED: 3.2}
WITHOUT_OPTIMIZATION = {"optimization_level": 9}  # jax's O0

FULL = Pace(np.float32(1.0))


@pytest.fixture(autouse=True, scope="module")
def _nothing_cached():
    """An executable for devices that are not there cannot be read back: do not store it."""
    name = "jax_persistent_cache_min_compile_time_secs"
    before = getattr(jax.config, name)
    jax.config.update(name, 1e9)
    yield
    jax.config.update(name, before)


@dataclasses.dataclass(frozen=True)
class Step:
    """A compiled step, and what is asked of it."""

    compiled: jax.stages.Compiled
    state: TrainState
    dtype: ComputeDtype
    limit: float

    def faults(self) -> list[str]:
        """What is wrong with it, in words; empty if nothing is."""
        text = self.compiled.as_text()
        operations = collectives(text)
        weights = sum(leaf.size for leaf in jax.tree.leaves(self.state.params))
        gradient = weights * jnp.dtype(self.dtype).itemsize
        total, largest = total_bytes(operations), max(c.bytes for c in operations)
        reduced = collections.Counter()
        for c in operations:
            if c.kind in REDUCTIONS:
                reduced[c.dtype] += c.total_bytes
        ours = reduced.pop("f32" if self.dtype == "float32" else "bf16", 0)
        other = sum(reduced.values())
        aliased = text.partition("\n")[0].count("-alias)")
        leaves = len(jax.tree.leaves(self.state))
        checks = {
            f"{leaves - aliased} of {leaves} arrays of the state are not donated": aliased
            == leaves,
            f"a collective moves {largest / weights / 4:.1f} times the parameters": (
                largest <= 4 * weights
            ),
            f"the collectives of a step move {total / gradient:.2f} gradients": (
                total <= self.limit * gradient
            ),
            f"{ours:,} bytes are reduced in the gradient's type, less than it has": ours
            >= gradient,
            # Float32 always: sums of losses and weights, the norm, and a table of one row, which
            # the compiler gathers by summing it with zeros.
            f"{other:,} bytes are reduced in other types, {dict(reduced)}": (
                other <= (0 if self.dtype == "float32" else 4096)
            ),
        }
        return [fault for fault, holds in checks.items() if not holds]

    def memory(self) -> int:
        """Bytes a chip needs: arguments, results that alias none, temporaries, code."""
        m = self.compiled.memory_analysis()
        return (
            m.argument_size_in_bytes
            + m.output_size_in_bytes
            - m.alias_size_in_bytes
            + m.temp_size_in_bytes
            + m.generated_code_size_in_bytes
        )


def parts(e: Experiment):
    """Task of an experiment, and the builder of its first state."""
    task = make_task(e, synthetic_vocabulary(e.model), e.masking)

    def init() -> TrainState:
        return init_state(task.init(initial_key(e.seed)), task.objective, e.optimizer)

    return task, init


def batch_of(e: Experiment, mesh: jax.sharding.Mesh):
    special = synthetic_vocabulary(e.model).special
    rows = synthetic_rows(e.model.vocab_size, special, e.packing, seed=0)
    example = rows.take(np.arange(1), words=e.masking.needs_words)
    example["example_ids"] = np.zeros(1, np.uint32)
    return abstract_batch(e.batch_size, e.microbatches, example, mesh)


def compiled(name: str, shape: MeshShape, dtype: ComputeDtype, options) -> Step:
    """The step of a recipe as `bert_jax.train.loop` runs it."""
    return compiled_experiment(
        dataclasses.replace(recipe(name), gradient_dtype=dtype), shape, options
    )


def compiled_experiment(e: Experiment, shape: MeshShape, options) -> Step:
    task, init = parts(e)
    step = make_train_step(
        task.objective, task.apply, StepConfig(e.optimizer, e.seed, e.gradient_dtype)
    )
    mesh = topology_mesh(TOPOLOGY, shape)
    with jax.set_mesh(mesh):
        state = abstract_state(init, mesh)
    executable = compile_train_step(
        step, (state, batch_of(e, mesh), FULL), mesh, compiler_options=options
    )
    return Step(executable, state, e.gradient_dtype, LIMITS[shape])


@pytest.mark.parametrize(
    ("name", "shape", "dtype"),
    [
        ("bert-base", DATA_PARALLEL, "bfloat16"),
        ("roberta-base", FULLY_SHARDED, "float32"),
        pytest.param("bert-base", FULLY_SHARDED, "float32", marks=pytest.mark.slow),
        pytest.param("roberta-base", FULLY_SHARDED, "bfloat16", marks=pytest.mark.slow),
    ],
)
def test_step_moves_each_gradient_once(name, shape, dtype):
    assert compiled(name, shape, dtype, WITHOUT_OPTIMIZATION).faults() == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "shape", "dtype"),
    [
        ("bert-base", DATA_PARALLEL, "float32"),
        ("bert-base", FULLY_SHARDED, "bfloat16"),
        ("roberta-base", DATA_PARALLEL, "bfloat16"),
        ("roberta-base", FULLY_SHARDED, "float32"),
    ],
)
def test_optimized_step_moves_each_gradient_once_and_fits(name, shape, dtype):
    step = compiled(name, shape, dtype, None)
    assert step.faults() == []
    assert step.memory() < MEMORY[name]


# The other forms of attention at the sizes they are meant for: windows in blocks, one-hot products.
FAMILIES = {"modernbert-base": 1024, "deberta-v3-base-generator": 512}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "length"), FAMILIES.items())
def test_other_families_move_each_gradient_once(name, length):
    base = recipe("roberta-base")
    e = dataclasses.replace(
        base,
        model=dataclasses.replace(preset(name), compute_dtype="bfloat16"),
        packing=Packing(seq_length=length),
        masking=dataclasses.replace(base.masking, random_ids=None),
        batch_size=256,
        microbatches=2,
        steps=1000,
        gradient_dtype="bfloat16",
    )
    step = compiled_experiment(e, DATA_PARALLEL, WITHOUT_OPTIMIZATION)
    assert step.faults() == []


@pytest.mark.slow
def test_copy_without_constraints_is_caught(monkeypatch):
    """The same model, loss and layouts of parameters, with the rest left to the partitioner."""
    e = recipe("bert-base")
    task, init = parts(e)
    explicit = topology_mesh(TOPOLOGY, FULLY_SHARDED)
    with jax.set_mesh(explicit):
        laid_out = abstract_state(init, explicit), batch_of(e, explicit)
    automatic = jax.sharding.Mesh(explicit.devices, explicit.axis_names)
    state, batch = jax.tree.map(
        lambda leaf: leaf.update(sharding=jax.NamedSharding(automatic, leaf.sharding.spec)),
        laid_out,
    )
    monkeypatch.setattr(specs, "spec", lambda *axes: None)
    monkeypatch.setattr(specs, "gathered", lambda parameter: parameter)
    step = compile_train_step(
        functools.partial(unconstrained_step, e, task), (state, batch), automatic,
        compiler_options=WITHOUT_OPTIMIZATION,
    )  # fmt: skip
    faults = Step(step, state, "float32", LIMITS[FULLY_SHARDED]).faults()
    assert any("the collectives of a step move" in fault for fault in faults), faults


def unconstrained_step(e, task, state, batch):
    """A step as one would write it first: the gradient of the loss of the global batch."""
    rows = jax.tree.map(lambda leaf: leaf[0], batch)
    rows = task.objective.corrupt(jax.random.key(1), state.step, rows)
    (stage,) = task.objective.stages

    def loss(params):
        sums, _ = split_passed(stage.loss(task.apply, params, rows, jax.random.key(2), {}))
        return total_loss(sums, stage.coefficients, {n: sums[n][1] for n in stage.coefficients})

    direction, moments = e.optimizer.direction().update(
        jax.grad(loss)(state.params), state.opt_states[0], state.params
    )
    rate = e.optimizer.learning_rate
    params = optax.apply_updates(state.params, optax.tree.scale(-rate, direction))
    return dataclasses.replace(state, step=state.step + 1, params=params, opt_states=(moments,))

"""The train step with objectives of several stages: exact by hand, whatever the mesh."""

import dataclasses
import functools
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from bert_jax.objectives.base import Passed, Stage
from bert_jax.parallel.mesh import MeshShape, make_mesh, put_batch
from bert_jax.train.optimizer import AdamW
from bert_jax.train.state import TrainState, init_state
from bert_jax.train.step import Keys, Pace, StepConfig, make_train_step

FAST_COMPILE = {"xla_backend_optimization_level": 0}


@dataclass(frozen=True)
class Probe:
    """An optimizer that moves nothing and leaves the gradients in its state."""

    learning_rate: float = 1.0

    def direction(self) -> optax.GradientTransformation:
        zeros = functools.partial(jax.tree.map, jnp.zeros_like)
        return optax.GradientTransformation(zeros, lambda g, state, params: (zeros(g), g))


def mesh_of(shape: MeshShape) -> jax.sharding.Mesh:
    return make_mesh(shape, jax.devices()[: shape.data * shape.fsdp * shape.tensor])


FULL = Pace(np.float32(1.0))


def settings(optimizer=Probe(), **kwargs) -> StepConfig:
    return StepConfig(optimizer, **{"seed": 5, **kwargs})


# ---------------------------------------------------------------------------- two stages


def first_loss(apply, params, batch, key, frozen):
    """Squares of the first layer's error over tokens, and of its values over examples."""
    hidden = batch["x"] @ params["first"]
    error = jnp.sum((hidden - batch["y"]) ** 2, axis=(-1, -2)) * batch["counted"]
    values = jnp.sum(hidden**2, axis=(-1, -2))
    noise = jax.vmap(lambda e: jax.random.uniform(jax.random.fold_in(key, e)))(batch["example_ids"])
    return {
        "error": (jnp.sum(error), jnp.sum(batch["counted"]) * batch["x"].shape[1]),
        "values": (jnp.sum(values * batch["noise"]), jnp.sum(batch["noise"])),
        "drawn": (jnp.sum(noise), jnp.asarray(noise.size, jnp.float32)),
    }


def second_loss(apply, params, batch, key, frozen):
    """The second layer on top of the first, which it takes as it is by now."""
    out = (batch["x"] @ frozen["first"]) @ params["second"]["kernel"] + params["second"]["bias"]
    error = jnp.sum((out - batch["y"]) ** 2, axis=(-1, -2))
    return {"top": (jnp.sum(error), jnp.asarray(error.shape[0], jnp.float32))}


@dataclass(frozen=True)
class Descent:
    """Plain gradient descent."""

    learning_rate: float

    def direction(self) -> optax.GradientTransformation:
        return optax.identity()


@dataclass(frozen=True)
class TwoStages:
    """Two losses of two denominators; then a third on other parameters, after the update."""

    first_optimizer: Descent = Descent(0.01)

    @property
    def stages(self):
        coefficients = {"error": 2.0, "values": 0.5}
        return (
            Stage("first", first_loss, coefficients, lambda p: p == "first", self.first_optimizer),
            Stage("second", second_loss, {"top": 1.0}, lambda p: p.startswith("second/")),
        )

    def corrupt(self, key, step, batch):
        noise = jax.vmap(lambda e: jax.random.uniform(jax.random.fold_in(key, e)))
        return {**batch, "noise": noise(batch["example_ids"]) * (step + 1)}


def no_model(*_):
    raise AssertionError("the toy losses compute everything themselves")


def toy_batch() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    return {
        "x": rng.normal(0, 1, (16, 3, 8)).astype(np.float32),
        "y": rng.normal(0, 1, (16, 3, 8)).astype(np.float32),
        # Most of what counts stands in the first rows: means of means would be wrong.
        "counted": (rng.random(16) < np.linspace(1, 0, 16)).astype(np.float32),
        "example_ids": np.arange(16, dtype=np.uint32),
    }


def toy_params() -> dict:
    rng = np.random.default_rng(4)
    draw = lambda *shape: jnp.asarray(rng.normal(0, 0.3, shape), jnp.float32)  # noqa: E731
    return {
        "first": draw(8, 8),
        "second": {"kernel": draw(8, 8), "bias": draw(8)},
        "frozen": {"kernel": draw(8, 8)},
    }


LAYOUTS = {"first": jax.P("fsdp", "tensor"), "second": {"kernel": jax.P("fsdp"), "bias": jax.P()},
           "frozen": {"kernel": jax.P(None, "fsdp")}}  # fmt: skip


def toy_step(shape: MeshShape, microbatches: int, **kwargs) -> tuple[TrainState, dict]:
    objective = TwoStages()
    config = settings(Descent(0.1), seed=7, **kwargs)
    mesh = mesh_of(shape)
    with jax.set_mesh(mesh):
        params = jax.tree.map(jax.device_put, toy_params(), LAYOUTS)
        state = init_state(params, objective, config.optimizer)
        state = dataclasses.replace(state, step=jnp.full((), 4, jnp.int32))
        step = jax.jit(make_train_step(objective, no_model, config), compiler_options=FAST_COMPILE)
        state, metrics = step(
            state, put_batch(toy_batch(), mesh, microbatches), Pace(np.float32(0.6))
        )
    return jax.tree.map(np.asarray, (state, metrics))


def toy_by_hand():
    """The step in float64, all rows at once: gradients of both stages, and their sums."""
    batch = {name: x.astype(np.float64) for name, x in toy_batch().items()}
    params = jax.tree.map(lambda p: np.asarray(p, np.float64), toy_params())
    key = Keys.from_seed(7).masks
    noise = np.asarray(
        [jax.random.uniform(jax.random.fold_in(key, e)) * 5 for e in range(16)], np.float64
    )
    x, y, counted = batch["x"], batch["y"], batch["counted"]
    hidden = x @ params["first"]
    sums = {
        "error": (((hidden - y) ** 2).sum((1, 2)) @ counted, counted.sum() * 3),
        "values": ((hidden**2).sum((1, 2)) @ noise, noise.sum()),
    }
    per_row = 2.0 * 2 * (hidden - y) * counted[:, None, None] / sums["error"][1]
    per_row += 0.5 * 2 * hidden * noise[:, None, None] / sums["values"][1]
    d_first = np.einsum("ntd,nte->de", x, per_row)
    first = params["first"] - 0.6 * 0.01 * d_first  # 0.6 of the stage's own rate
    below = x @ first
    error = below @ params["second"]["kernel"] + params["second"]["bias"] - y
    sums["top"] = ((error**2).sum(), 16)
    d_kernel = np.einsum("ntd,nte->de", below, 2 * error / 16)
    d_bias = (2 * error / 16).sum((0, 1))
    second = {
        "kernel": params["second"]["kernel"] - 0.6 * 0.1 * d_kernel,
        "bias": params["second"]["bias"] - 0.6 * 0.1 * d_bias,
    }
    norm = np.sqrt(sum((g**2).sum() for g in (d_first, d_kernel, d_bias)))
    return {**params, "first": first, "second": second}, sums, norm


@pytest.mark.parametrize(
    "shape, microbatches",
    [
        (MeshShape(1), 1),
        (MeshShape(1), 4),
        (MeshShape(8), 2),
        (MeshShape(2, 2, 2), 4),
        (MeshShape(1, 4, 2), 1),
    ],
)
def test_two_stages_with_two_denominators(shape, microbatches):
    """Another objective fits, and is exact under accumulation and split over devices.

    The second stage sees the first's update; each has its own optimizer; what no stage trains
    stays, bit for bit.
    """
    state, metrics = toy_step(shape, microbatches)
    params, sums, norm = toy_by_hand()
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), state.params, params
    )
    for name, (total, weight) in sums.items():
        np.testing.assert_allclose(metrics["sums"][name], (total, weight), rtol=1e-5)
    np.testing.assert_array_equal(
        state.params["frozen"]["kernel"], toy_params()["frozen"]["kernel"]
    )
    np.testing.assert_allclose(metrics["gradient_norm"], norm, rtol=1e-5)
    assert metrics["sums"]["drawn"][1] == 16 and state.step == 5


def test_gradients_may_cross_devices_in_bfloat16():
    """Each device's share is rounded once; where nothing crosses, nothing is rounded."""
    exact, _ = toy_step(MeshShape(1), 1)
    same, _ = toy_step(MeshShape(1), 1, gradient_dtype="bfloat16")
    jax.tree.map(np.testing.assert_array_equal, same.params, exact.params)
    rounded, _ = toy_step(MeshShape(2, 4), 1, gradient_dtype="bfloat16")
    start = toy_params()["first"]
    moved, right = (np.asarray(s.params["first"] - start) for s in (rounded, exact))
    assert rounded.params["first"].dtype == np.float32
    error = np.linalg.norm(moved - right) / np.linalg.norm(right)
    assert 1e-5 < error < 2**-8


def test_two_stages_may_not_give_one_name_twice():
    @dataclass(frozen=True)
    class Twice(TwoStages):
        @property
        def stages(self):
            return (super().stages[0], dataclasses.replace(super().stages[0], name="again"))

    config = settings(Descent(0.1))
    with jax.set_mesh(mesh_of(MeshShape(1))):
        state = init_state(toy_params(), Twice(), config.optimizer)
        batch = put_batch(toy_batch(), mesh_of(MeshShape(1)), 1)
        with pytest.raises(ValueError, match="stage 'again' returns 'drawn', as an earlier stage"):
            jax.eval_shape(make_train_step(Twice(), no_model, config), state, batch, FULL)


def test_one_bad_stage_undoes_the_whole_step():
    """The first stage's gradients are fine, the second's are not: neither moves."""
    params = toy_params()
    params["second"]["bias"] = params["second"]["bias"].at[0].set(jnp.inf)
    objective, config = TwoStages(), settings(AdamW())
    mesh = mesh_of(MeshShape(1))
    with jax.set_mesh(mesh):
        before = init_state(params, objective, config.optimizer)
        step = jax.jit(make_train_step(objective, no_model, config), compiler_options=FAST_COMPILE)
        after, metrics = step(before, put_batch(toy_batch(), mesh, 1), FULL)
    assert not metrics["finite"] and (after.skipped, after.skipped_in_a_row) == (1, 1)
    jax.tree.map(np.testing.assert_array_equal, after.params, params)
    jax.tree.map(np.testing.assert_array_equal, after.opt_states, before.opt_states)


# ------------------------------------------------------------------ stages that pass something on


def passing_loss(apply, params, batch, key, frozen):
    """The first stage of `TwoStages`, which also passes each row's mean state on."""
    sums = first_loss(apply, params, batch, key, frozen)
    return Passed(sums, {"state": jnp.mean(batch["x"] @ params["first"], axis=1)})


def reading_loss(apply, params, batch, key, frozen):
    """Reads what was passed: computed with the first layer as it was before its update."""
    out = batch["state"] @ params["second"]["kernel"]
    error = jnp.sum((out - jnp.mean(batch["y"], axis=1)) ** 2, axis=-1)
    return {"top": (error, jnp.ones_like(error))}  # a number a row


@dataclass(frozen=True)
class Passing(TwoStages):
    """Two stages; the second reads from the first what was computed before its update."""

    @property
    def stages(self):
        first, second = super().stages
        return (
            dataclasses.replace(first, loss=passing_loss),
            dataclasses.replace(second, loss=reading_loss),
        )


@pytest.mark.parametrize("shape, microbatches", [(MeshShape(1), 1), (MeshShape(2, 2, 2), 4)])
def test_a_later_stage_reads_what_an_earlier_one_passed_on(shape, microbatches):
    objective, config = Passing(), settings(Descent(0.1), seed=7)
    mesh = mesh_of(shape)
    with jax.set_mesh(mesh):
        params = jax.tree.map(jax.device_put, toy_params(), LAYOUTS)
        state = init_state(params, objective, config.optimizer)
        step = jax.jit(make_train_step(objective, no_model, config), compiler_options=FAST_COMPILE)
        state, metrics = step(state, put_batch(toy_batch(), mesh, microbatches), FULL)
    batch = {name: x.astype(np.float64) for name, x in toy_batch().items()}
    old = jax.tree.map(lambda p: np.asarray(p, np.float64), toy_params())
    read = (batch["x"] @ old["first"]).mean(1)  # not the layer that the first stage has left
    error = read @ old["second"]["kernel"] - batch["y"].mean(1)
    np.testing.assert_allclose(metrics["sums"]["top"][0], (error**2).sum(), rtol=1e-5)
    kernel = old["second"]["kernel"] - 0.1 * read.T @ (2 * error / 16)
    np.testing.assert_allclose(state.params["second"]["kernel"], kernel, rtol=1e-5, atol=1e-6)
    assert metrics["sums"]["top"][1] == 16


# ----------------------------------------------------------------- microbatches that are left out


def test_one_program_serves_every_number_of_microbatches():
    mesh = mesh_of(MeshShape(1))
    with jax.set_mesh(mesh):
        step = jax.jit(
            make_train_step(TwoStages(), no_model, settings(Descent(0.1))),
            compiler_options=FAST_COMPILE,
        )
        state = init_state(toy_params(), TwoStages(), Descent(0.1))
        batch = put_batch(toy_batch(), mesh, 4)
        programs = []
        for count in (1, 1, 2, 4):  # the second finds the state where the first has put it
            state, _ = step(state, batch, Pace(np.float32(count / 4), np.int32(count)))
            programs.append(step._cache_size())
    assert programs[1:] == [programs[1]] * 3


# ---------------------------------------------------------------------------- clipping by replicas


@dataclass(frozen=True)
class ReplicaProbe(Probe):
    """Wants each device's own gradient clipped."""

    clip: str = "replica"
    clip_norm: float = 0.5


def test_each_replica_s_own_gradient_is_clipped_before_the_mean():
    """Four devices: by hand, from the gradients of each one's rows alone."""
    objective = TwoStages(first_optimizer=ReplicaProbe())
    config, mesh = settings(ReplicaProbe(), seed=7), mesh_of(MeshShape(4))
    with jax.set_mesh(mesh):
        state = init_state(toy_params(), objective, config.optimizer)
        step = jax.jit(make_train_step(objective, no_model, config), compiler_options=FAST_COMPILE)
        state, _ = step(state, put_batch(toy_batch(), mesh, 1), FULL)
    clipped, norms = [], []
    for device in range(4):
        share = {name: x[device * 4 : device * 4 + 4] for name, x in toy_batch().items()}
        with jax.set_mesh(mesh_of(MeshShape(1))):
            alone = TwoStages(first_optimizer=Probe())
            one = init_state(toy_params(), alone, Probe())
            run = jax.jit(
                make_train_step(alone, no_model, settings(Probe(), seed=7)),
                compiler_options=FAST_COMPILE,
            )
            one, _ = run(one, put_batch(share, mesh_of(MeshShape(1)), 1), FULL)
        gradient = np.asarray(one.opt_states[0]["first"], np.float64)
        norms.append(np.linalg.norm(gradient))
        clipped.append(gradient * min(1, 0.5 / norms[-1]))
    assert min(norms) < 0.5 < max(norms) or min(norms) > 0.5  # some are clipped
    np.testing.assert_allclose(
        state.opt_states[0]["first"], np.mean(clipped, 0), rtol=1e-5, atol=1e-7
    )

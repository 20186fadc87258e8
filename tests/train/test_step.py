"""The train step: the same numbers on any mesh and in any microbatches, whatever the objective."""

import dataclasses
import functools
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from bert_jax.data.tokenizer import SpecialTokens
from bert_jax.models.config import (
    EncoderConfig,
    Execution,
    LearnedPositions,
    Norm,
    Normal,
    RotaryPositions,
)
from bert_jax.models.heads import MaskedLM
from bert_jax.objectives.base import means
from bert_jax.objectives.masked_lm import MaskedLanguageModel
from bert_jax.objectives.masking import Masking
from bert_jax.parallel.mesh import MeshShape, make_mesh, put_batch
from bert_jax.train.optimizer import AdamW
from bert_jax.train.state import TrainState, init_params, init_state
from bert_jax.train.step import Keys, Pace, StepConfig, make_train_step

FAST_COMPILE = {"xla_backend_optimization_level": 0}
SPECIAL = SpecialTokens(pad=9, cls=7, sep=3, mask=0, unk=5)
ROWS, LENGTH, VOCAB = 32, 16, 300

POST = EncoderConfig(
    VOCAB,
    hidden_size=16,
    num_layers=2,
    num_heads=4,
    intermediate_size=32,
    embedding_size=8,
    type_vocab_size=2,
    positions=LearnedPositions(LENGTH, SPECIAL.pad + 1),
    initializer=Normal(0.2),  # so large that nothing is nearly linear
    pad_id=SPECIAL.pad,
)
PRE = dataclasses.replace(
    POST, embedding_size=None, positions=RotaryPositions(LENGTH), norm=Norm("pre", 1e-5)
)
OBJECTIVE = MaskedLanguageModel(Masking(0.3, count="bernoulli"), SPECIAL, VOCAB)


@dataclass(frozen=True)
class Probe:
    """An optimizer that moves nothing and leaves the gradients in its state."""

    learning_rate: float = 1.0

    def direction(self) -> optax.GradientTransformation:
        zeros = functools.partial(jax.tree.map, jnp.zeros_like)
        return optax.GradientTransformation(zeros, lambda g, state, params: (zeros(g), g))


def rows(first_example: int = 0, padding_only: bool = False) -> dict[str, np.ndarray]:
    """Two documents and padding in each of 32 rows; lengths differ from row to row."""
    rng = np.random.default_rng(first_example)
    ends = rng.integers(6, LENGTH + 1, (ROWS, 1)) * (not padding_only)
    places = np.arange(LENGTH)
    segments = np.where(places < 5, 1, 2) * (places < ends)
    ids = np.where(segments == 0, SPECIAL.pad, rng.integers(10, VOCAB, (ROWS, LENGTH)))
    positions = np.where(segments == 2, places - 5, places) * (segments != 0)
    arrays = {"input_ids": ids, "segment_ids": segments, "position_ids": positions}
    return {
        **{name: x.astype(np.int32) for name, x in arrays.items()},
        "example_ids": np.arange(first_example, first_example + ROWS, dtype=np.uint32),
    }


def mesh_of(shape: MeshShape) -> jax.sharding.Mesh:
    return make_mesh(shape, jax.devices()[: shape.data * shape.fsdp * shape.tensor])


@functools.cache
def initial(config: EncoderConfig) -> dict:
    """Initial parameters of a model, on the host."""
    init = jax.jit(lambda: init_params(MaskedLM(config), 0), compiler_options=FAST_COMPILE)
    return jax.tree.map(np.asarray, init())


@functools.cache
def compiled(objective, apply, config: StepConfig):
    step = make_train_step(objective, apply, config)
    return jax.jit(step, compiler_options=FAST_COMPILE)


FULL = Pace(np.float32(1.0))


def settings(optimizer=Probe(), **kwargs) -> StepConfig:
    return StepConfig(optimizer, **{"seed": 5, **kwargs})


@functools.cache
def model_of(config: EncoderConfig):
    return MaskedLM(config).apply


def placed(config: EncoderConfig) -> dict:
    """Initial parameters in their layouts on the mesh in force."""
    shapes = jax.eval_shape(lambda: init_params(MaskedLM(config), 0))
    place = lambda p, s: jax.device_put(p, s.sharding.spec)  # noqa: E731
    return jax.tree.map(place, initial(config), shapes)


def probe(config: EncoderConfig, shape: MeshShape, microbatches: int, batch, step: int = 0):
    """(gradients, metrics) of one step from the initial parameters."""
    mesh = mesh_of(shape)
    with jax.set_mesh(mesh):
        params = placed(config)
        state = init_state(params, OBJECTIVE, Probe())
        state = dataclasses.replace(state, step=state.step + step)
        run = compiled(OBJECTIVE, model_of(config), settings())
        state, metrics = run(state, put_batch(batch, mesh, microbatches), FULL)
        jax.tree.map(assert_same_layout, state.opt_states[0], params)
    return jax.tree.map(np.asarray, (state.opt_states[0], metrics))


def assert_same_layout(gradient, parameter):
    assert jax.typeof(gradient).sharding == jax.typeof(parameter).sharding


def assert_equal_steps(got, right):
    """1e-6 in loss, 1e-5 in L2 for each gradient: float32 sums in another order."""
    (grads, metrics), (right_grads, right_metrics) = got, right
    loss, weight = metrics["sums"]["loss"]
    np.testing.assert_allclose(loss, right_metrics["sums"]["loss"][0], rtol=1e-6)
    assert weight == right_metrics["sums"]["loss"][1] > 0
    assert metrics["sums"]["dropped"] == right_metrics["sums"]["dropped"]
    np.testing.assert_allclose(metrics["gradient_norm"], right_metrics["gradient_norm"], rtol=1e-5)
    scale = np.linalg.norm(right_grads["encoder"]["layers"]["query"]["bias"])

    def check(path, got, right):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        size = np.linalg.norm(right)
        if size < 1e-4 * scale:  # softmax ignores what is the same for all keys
            assert name == "encoder/layers/key/bias"
            assert np.linalg.norm(got) < 1e-4 * scale
        else:
            assert np.linalg.norm(got - right) < 1e-5 * size, name

    jax.tree.map_with_path(check, grads, right_grads)


MESHES = [MeshShape(8), MeshShape(2, 4), MeshShape(1, 4, 2)]
mesh_id = lambda shape: f"{shape.data}x{shape.fsdp}x{shape.tensor}"  # noqa: E731


@functools.cache
def alone(config: EncoderConfig):
    return probe(config, MeshShape(1), 1, rows())


# ----------------------------------------------------------------------- meshes, microbatches


@pytest.mark.parametrize(
    "shape",
    [MESHES[0], pytest.param(MESHES[1], marks=pytest.mark.slow), MESHES[2]],
    ids=mesh_id,
)
def test_eight_devices_are_one(shape):
    """With dropout, overflowing masks, two documents a row: loss and every gradient."""
    assert_equal_steps(probe(POST, shape, 1, rows()), alone(POST))


def test_four_microbatches_are_one_batch():
    assert_equal_steps(probe(POST, MeshShape(1), 4, rows()), alone(POST))


@pytest.mark.slow
@pytest.mark.parametrize("shape", [*MESHES, MeshShape(2, 2, 2)], ids=mesh_id)
@pytest.mark.parametrize("config", [POST, PRE], ids=["post", "pre"])
def test_eight_devices_and_two_microbatches_are_one(config, shape):
    assert_equal_steps(probe(config, shape, 2, rows()), alone(config))


@pytest.mark.slow
@pytest.mark.parametrize("shape", [MeshShape(1), *MESHES], ids=mesh_id)
@pytest.mark.parametrize(
    "execution", [Execution("scan", "none"), Execution("scan", "full"), Execution("unroll", "dots")]
)
def test_execution_changes_no_gradient(execution, shape):
    config = dataclasses.replace(PRE, execution=execution)
    assert_equal_steps(probe(config, shape, 1, rows()), alone(PRE))


def test_order_of_rows_does_not_matter():
    """Everything random hangs on an example's index, not on its place."""
    order = np.random.default_rng(0).permutation(ROWS)
    moved = {name: x[order] for name, x in rows().items()}
    assert_equal_steps(probe(POST, MeshShape(1), 1, moved), alone(POST))


def test_other_examples_give_other_masks_and_dropout():
    same_text = {**rows(), "example_ids": rows()["example_ids"] + ROWS}
    grads, metrics = probe(POST, MeshShape(1), 1, same_text)
    right, right_metrics = alone(POST)
    assert metrics["sums"]["loss"][0] != right_metrics["sums"]["loss"][0]
    kernel = lambda g: g["head_dense"]["kernel"]  # noqa: E731
    assert np.linalg.norm(kernel(grads) - kernel(right)) > 0.3 * np.linalg.norm(kernel(right))


def test_another_step_gives_other_dropout_and_the_same_masks():
    """Masks hang on the example alone; dropout on the step too."""
    grads, metrics = probe(POST, MeshShape(1), 1, rows(), step=1)
    right, right_metrics = alone(POST)
    assert metrics["sums"]["loss"][1] == right_metrics["sums"]["loss"][1]
    np.testing.assert_allclose(
        metrics["sums"]["loss"][0], right_metrics["sums"]["loss"][0], rtol=0.1
    )
    assert metrics["sums"]["loss"][0] != right_metrics["sums"]["loss"][0]
    assert np.abs(grads["head_bias"] - right["head_bias"]).max() > 1e-4


def test_no_target_at_all_gives_zero():
    """Rows of padding only: loss 0, weight 0, every gradient exactly 0 (P23)."""
    grads, metrics = probe(POST, MeshShape(1), 1, rows(padding_only=True))
    assert metrics["sums"]["loss"] == (0, 0)
    assert metrics["finite"] and metrics["gradient_norm"] == 0
    jax.tree.map(lambda g: np.testing.assert_array_equal(g, 0), grads)
    assert means(metrics["sums"])["loss"] == 0.0


def test_streams_are_apart():
    first, second = Keys.from_seed(0), Keys.from_seed(1)
    data = [jax.random.key_data(k).tolist() for k in vars(first).values()]
    data += [jax.random.key_data(k).tolist() for k in vars(second).values()]
    assert len({tuple(words) for words in data}) == 4
    assert all(jax.random.key_impl(k) == "threefry2x32" for k in vars(first).values())


# ------------------------------------------------------------------------- whole training steps

ADAMW = AdamW(3e-3, clip_norm=1.0)


@functools.cache
def start_training() -> TrainState:
    with jax.set_mesh(mesh_of(MeshShape(1))):
        return init_state(placed(POST), OBJECTIVE, ADAMW)


def train(state: TrainState, batches, config: EncoderConfig = POST):
    """(state after, metrics of each step) on one device."""
    mesh = mesh_of(MeshShape(1))
    history = []
    with jax.set_mesh(mesh):
        step = compiled(OBJECTIVE, model_of(config), settings(ADAMW))
        for batch in batches:
            state, metrics = step(state, put_batch(batch, mesh, 1), FULL)
            history.append(metrics)
    return state, history


def poisoned(batch: dict) -> dict:
    """One row holds ids past the token table, whose rows are NaN."""
    ids = batch["input_ids"].copy()
    ids[3, :6] = 10_000
    return {**batch, "input_ids": ids}


def test_a_step_with_bad_gradients_changes_nothing_but_counters():
    """Skipped, counted, forgotten after the next good step (P49)."""
    first, _ = train(start_training(), [rows(0)])
    assert (first.step, first.skipped, first.skipped_in_a_row) == (1, 0, 0)
    bad, metrics = train(first, [poisoned(rows(32)), poisoned(rows(64))])
    assert [bool(m["finite"]) for m in metrics] == [False, False]
    assert not any(np.isfinite(m["gradient_norm"]) for m in metrics)
    assert (bad.step, bad.skipped, bad.skipped_in_a_row) == (3, 2, 2)
    jax.tree.map(np.testing.assert_array_equal, bad.params, first.params)
    jax.tree.map(np.testing.assert_array_equal, bad.opt_states, first.opt_states)
    good, metrics = train(bad, [rows(96)])
    assert metrics[0]["finite"]
    assert (good.step, good.skipped, good.skipped_in_a_row) == (4, 2, 0)
    never_bad, _ = train(dataclasses.replace(first, step=bad.step), [rows(96)])
    jax.tree.map(np.testing.assert_array_equal, good.params, never_bad.params)
    assert (good.params["head_bias"] != bad.params["head_bias"]).any()


def test_norms_move_in_a_bfloat16_model():
    """100 steps: every scale has left 1, and is within 1e-2 of the float32 model's (P48)."""
    narrow = dataclasses.replace(POST, compute_dtype="bfloat16")
    batches = [rows(ROWS * i) for i in range(100)]
    (wide_state, wide_metrics), (state, metrics) = (
        train(start_training(), batches, config) for config in (POST, narrow)
    )
    loss = lambda history: [m["sums"]["loss"][0] / m["sums"]["loss"][1] for m in history]  # noqa: E731
    assert loss(metrics)[-1] < loss(metrics)[0]
    np.testing.assert_allclose(loss(metrics), loss(wide_metrics), rtol=0.02)
    dtypes = {leaf.dtype for leaf in jax.tree.leaves((state.params, state.opt_states))}
    assert dtypes == {np.dtype(np.float32), np.dtype(np.int32)}
    scales = 0
    for path, leaf in jax.tree_util.tree_leaves_with_path(state.params):
        if path[-1].key == "scale":
            scales += 1
            wide = functools.reduce(lambda tree, key: tree[key.key], path, wide_state.params)
            assert (leaf != 1).all() and np.abs(leaf - 1).max() > 0.02
            np.testing.assert_allclose(leaf, wide, atol=1e-2)
    assert scales == 4


# ------------------------------------------------------------------------ batches that are not full


@pytest.mark.parametrize(
    "shape",
    [MeshShape(1), pytest.param(MeshShape(2, 2, 2), marks=pytest.mark.slow)],
    ids=mesh_id,
)
def test_microbatches_without_examples_are_left_out(shape):
    """Half of the microbatches hold examples: the same step as those alone, and one program."""
    full = rows()
    half = {name: x[: ROWS // 2] for name, x in full.items()}
    padded = {name: np.concatenate([x, np.zeros_like(x)]) for name, x in half.items()}
    padded["example_ids"] = full["example_ids"]
    mesh = mesh_of(shape)
    results = []
    with jax.set_mesh(mesh):
        step = compiled(OBJECTIVE, model_of(POST), settings())
        for batch, count, pace in (
            (half, 2, FULL),
            (padded, 4, Pace(np.float32(1), np.int32(2))),
            (padded, 4, Pace(np.float32(1), np.int32(3))),
        ):
            state = init_state(placed(POST), OBJECTIVE, Probe())
            state, metrics = step(state, put_batch(batch, mesh, count), pace)
            results.append(jax.tree.map(np.asarray, (state.opt_states[0], metrics)))
    right, left_out, empty = results
    assert_equal_steps(left_out, right)
    assert_equal_steps(empty, right)  # an empty microbatch that is computed adds nothing either

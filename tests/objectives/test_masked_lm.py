"""The masked-LM objective: masks by example index, losses as sums and counts."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.data.tokenizer import SpecialTokens
from bert_jax.objectives.base import Objective, means, split_passed
from bert_jax.objectives.masked_lm import MaskedLanguageModel, masked_lm_loss
from bert_jax.objectives.masking import Masking
from bert_jax.parallel import specs
from bert_jax.parallel.mesh import MeshShape, make_mesh

SPECIAL = SpecialTokens(pad=9, cls=7, sep=3, mask=0, unk=5)
VOCAB, ROWS, LENGTH = 200, 16, 32
OBJECTIVE = MaskedLanguageModel(Masking(unit="word"), SPECIAL, VOCAB)
KEY = jax.random.key(1, impl="threefry2x32")
FAST_COMPILE = {"xla_backend_optimization_level": 0}


def rows(first_example: int = 0, count: int = ROWS) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    ids = rng.integers(10, VOCAB, (count, LENGTH)).astype(np.int32)
    ids[:, 0], ids[:, -4:] = SPECIAL.cls, SPECIAL.pad
    words = np.cumsum(rng.random(ids.shape) < 0.6, axis=1).astype(np.int32)
    return {
        "input_ids": ids,
        "segment_ids": (ids != SPECIAL.pad).astype(np.int32),
        "position_ids": np.tile(np.arange(LENGTH, dtype=np.int32), (count, 1)),
        "word_ids": np.where(ids < 10, -1, words).astype(np.int32),
        "example_ids": np.arange(first_example, first_example + count, dtype=np.uint32),
    }


STEP = jnp.zeros((), jnp.int32)


@functools.partial(jax.jit, compiler_options=FAST_COMPILE)
def corrupt(key, step, batch):
    return OBJECTIVE.corrupt(key, step, batch)


# ----------------------------------------------------------------------------------- corrupt


def test_is_an_objective():
    assert isinstance(OBJECTIVE, Objective)
    (stage,) = OBJECTIVE.stages
    assert stage.optimizer is None and stage.coefficients == {"loss": 1.0}
    assert stage.trains("encoder/layers/query/kernel")


def test_what_corrupt_adds():
    before = rows()
    after = corrupt(KEY, STEP, before)
    assert set(after) == {*before, "positions", "targets", "weights", "dropped"}
    for name in set(before) - {"input_ids"}:
        np.testing.assert_array_equal(after[name], before[name])
    chosen = np.take_along_axis(before["input_ids"], np.asarray(after["positions"]), axis=1)
    np.testing.assert_array_equal(after["targets"], chosen)
    assert (np.sum(after["weights"], axis=1) == 4).mean() > 0.5  # round(.15 x 27)


def test_masks_are_new_each_epoch_and_the_same_each_time():
    """The row of epoch e has another example index; the step itself changes nothing."""
    first = corrupt(KEY, STEP, rows())
    again = corrupt(KEY, STEP + 3, rows())
    jax.tree.map(np.testing.assert_array_equal, first, again)
    for other in (corrupt(KEY, STEP, rows(ROWS)), corrupt(jax.random.key(2), STEP, rows())):
        same = (np.asarray(first["positions"]) == other["positions"]).all(axis=1)
        assert same.sum() <= 2  # few words fit: now and then two draws agree


def test_masks_hang_on_the_example_alone():
    """Not on its place in the batch, nor on the other rows."""
    first = jax.tree.map(np.asarray, corrupt(KEY, STEP, rows()))
    order = np.random.default_rng(0).permutation(ROWS)
    moved = corrupt(KEY, STEP, {name: x[order] for name, x in rows().items()})
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a[order], b), first, moved)


@pytest.mark.parametrize("shape", [MeshShape(1), MeshShape(2), MeshShape(2, 2), MeshShape(2, 4)])
def test_masks_do_not_depend_on_the_mesh(shape):
    """As the train step does it: row by row of devices, microbatch after microbatch."""
    right = corrupt(KEY, STEP, rows())
    devices = jax.devices()[: shape.data * shape.fsdp]
    with jax.set_mesh(make_mesh(shape, devices)):
        region = jax.shard_map(
            lambda batch: jax.lax.map(lambda rows: OBJECTIVE.corrupt(KEY, STEP, rows), batch),
            in_specs=jax.P(None, specs.BATCH),
            out_specs=jax.P(None, specs.BATCH),
            axis_names=set(specs.BATCH),
        )
        batch = {name: x.reshape(2, 8, *x.shape[1:]) for name, x in rows().items()}
        batch = {name: jax.device_put(x, jax.P(None, specs.BATCH)) for name, x in batch.items()}
        got = jax.jit(region, compiler_options=FAST_COMPILE)(batch)
    jax.tree.map(
        lambda a, b: np.testing.assert_array_equal(np.asarray(a).reshape(b.shape), b), got, right
    )


# -------------------------------------------------------------------------------------- loss


class Recorder:
    """Stands for a model: keeps what it is called with, answers with given losses."""

    def __init__(self, nll, correct):
        self.output = {"nll": nll, "correct": correct}

    def __call__(self, variables, input_ids, **inputs):
        self.variables, self.inputs = variables, inputs
        return self.output


def masked_batch():
    batch = {name: jnp.asarray(x) for name, x in rows(count=2).items()}
    weights = jnp.asarray([[1.0, 1.0, 0.0], [1.0, 0.0, 0.0]])
    dropped = jnp.asarray([0, 5])
    slots = jnp.zeros((2, 3), jnp.int32)
    return {**batch, "positions": slots, "targets": slots, "weights": weights, "dropped": dropped}


def test_sums_and_weights():
    nll = jnp.asarray([[1.0, 2.0, 100.0], [4.0, 100.0, 100.0]])
    correct = jnp.asarray([[True, False, True], [True, True, True]])
    model = Recorder(nll, correct)
    sums = masked_lm_loss(model, {"a": {"x": 1}}, masked_batch(), KEY, {"a": {"y": 2}})
    by_row = jax.tree.map(np.ndarray.tolist, jax.tree.map(np.asarray, sums))
    assert by_row == {
        "loss": ([3.0, 4.0], [2.0, 1.0]),
        "accuracy": ([1.0, 1.0], [2.0, 1.0]),
        "dropped": ([0.0, 5.0], [2.0, 6.0]),
    }
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(sums))
    assert means(split_passed(sums).sums) == {"loss": 7 / 3, "accuracy": 2 / 3, "dropped": 5 / 8}
    assert model.variables == {"params": {"a": {"x": 1, "y": 2}}}


def test_a_key_means_dropout():
    model = Recorder(jnp.ones((2, 3)), jnp.ones((2, 3), bool))
    batch = masked_batch()
    masked_lm_loss(model, {}, batch, KEY, {})
    assert model.inputs["deterministic"] is False
    assert (model.inputs["rngs"]["dropout"] == KEY).all()
    np.testing.assert_array_equal(model.inputs["example_ids"], batch["example_ids"])
    masked_lm_loss(model, {}, batch, None, {})
    assert model.inputs["deterministic"] is True and model.inputs["rngs"] is None

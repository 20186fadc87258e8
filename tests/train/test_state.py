"""The state of a run before its first step, and as a pytree."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.models.config import EncoderConfig
from bert_jax.models.heads import MaskedLM
from bert_jax.objectives.base import Stage
from bert_jax.parallel.mesh import MeshShape, make_mesh
from bert_jax.train.optimizer import AdamW
from bert_jax.train.state import TrainState, init_params, init_state


class TwoStages:
    """The head by an optimizer of its own, then the rest."""

    stages = (
        Stage("head", lambda *_: {}, trains=lambda p: p == "head", optimizer=AdamW(b1=0.5)),
        Stage("body", lambda *_: {}, trains=lambda p: p.startswith("body/")),
    )

    def corrupt(self, key, step, batch):
        return batch


PARAMS = {"head": jnp.ones(8), "body": {"kernel": jnp.ones((8, 4)), "frozen": jnp.ones(2)}}


@pytest.fixture
def state() -> TrainState:
    return init_state(PARAMS, TwoStages(), AdamW(clip_norm=None))


def test_before_the_first_step(state):
    assert state.params is PARAMS
    for counter in (state.step, state.skipped, state.skipped_in_a_row):
        assert counter.shape == () and counter.dtype == jnp.int32 and counter == 0
    buffers = {x.unsafe_buffer_pointer() for x in (state.step, state.skipped)}
    assert len(buffers) == 2  # a donated buffer cannot be donated twice


def test_each_stage_has_moments_of_what_it_trains(state):
    shapes = [
        sorted(leaf.shape for leaf in jax.tree.leaves(s) if leaf.ndim) for s in state.opt_states
    ]
    assert shapes == [[(8,), (8,)], [(2,), (2,), (8, 4), (8, 4)]]
    for leaf in jax.tree.leaves(state.opt_states):
        np.testing.assert_array_equal(leaf, 0)


def test_a_state_is_a_pytree_of_anything(state):
    """Shapes, layouts and names stand in it as well as arrays: checkpoints need that."""
    shapes = jax.eval_shape(lambda: state)
    assert isinstance(shapes, TrainState)
    names = jax.tree.map(lambda leaf: str(leaf.shape), state)
    assert names.step == "()" and names.params["body"]["kernel"] == "(8, 4)"
    again = jax.tree.unflatten(jax.tree.structure(state), jax.tree.leaves(state))
    jax.tree.map(np.testing.assert_array_equal, again, state)


def test_moments_get_the_layout_of_their_parameters():
    with jax.set_mesh(make_mesh(MeshShape(2, 4))):
        params = jax.tree.map(
            lambda x: jax.device_put(x, jax.P("fsdp") if x.shape[0] == 8 else jax.P()), PARAMS
        )
        state = init_state(params, TwoStages(), AdamW())
        for leaf in jax.tree.leaves(state.opt_states):
            split = leaf.shape[:1] == (8,)
            assert ("fsdp" in jax.typeof(leaf).sharding.spec) == split


def test_initial_parameters_depend_on_the_seed():
    config = EncoderConfig(10, 8, num_layers=1, num_heads=1, intermediate_size=8)
    shapes = jax.eval_shape(lambda: init_params(MaskedLM(config), 0))
    assert {"encoder", "head_dense", "head_norm", "head_bias"} == set(shapes)
    assert {leaf.dtype for leaf in jax.tree.leaves(shapes)} == {jnp.dtype(jnp.float32)}

"""Every family trains: the step is the same on any mesh, and its loss falls."""

import dataclasses
import functools
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from bert_jax.data.tokenizer import SpecialTokens
from bert_jax.models.config import EncoderConfig, LocalAttention, Normal
from bert_jax.models.heads import MaskedLM
from bert_jax.objectives.masked_lm import MaskedLanguageModel
from bert_jax.objectives.masking import Masking
from bert_jax.parallel.mesh import MeshShape, make_mesh, put_batch
from bert_jax.train.optimizer import AdamW
from bert_jax.train.state import init_params, init_state
from bert_jax.train.step import Pace, StepConfig, make_train_step

FAST_COMPILE = {"xla_backend_optimization_level": 0}
FAMILIES = (
    "bert-base",
    "roberta-base",
    "albert-base-v1",
    "distilbert-base",
    "electra-small-generator",
    "deberta-base",
    "deberta-v2-xlarge",
    "deberta-v3-base-generator",
    "modernbert-base",
    "neobert",
    "nomic-bert",
)


@dataclass(frozen=True)
class Probe:
    """An optimizer that moves nothing and leaves the gradients in its state."""

    learning_rate: float = 1.0

    def direction(self) -> optax.GradientTransformation:
        zeros = functools.partial(jax.tree.map, jnp.zeros_like)
        return optax.GradientTransformation(zeros, lambda g, state, params: (zeros(g), g))


def special(config: EncoderConfig) -> SpecialTokens:
    pad = config.pad_id
    return SpecialTokens(pad=pad, unk=5, cls=1 - pad, sep=3, mask=4)


def objective(config: EncoderConfig) -> MaskedLanguageModel:
    return MaskedLanguageModel(Masking(0.3, count="bernoulli"), special(config), config.vocab_size)


def rows(config: EncoderConfig, count: int = 16) -> dict[str, np.ndarray]:
    """Two documents and padding in each row."""
    length = 80 if isinstance(config.attention, LocalAttention) else 16
    rng = np.random.default_rng(0)
    ends, places = rng.integers(length // 2, length + 1, (count, 1)), np.arange(length)
    segments = np.where(places < length // 3, 1, 2) * (places < ends)
    ids = np.where(segments == 0, config.pad_id, rng.integers(10, 60, segments.shape))
    positions = np.where(segments == 2, places - length // 3, places) * (segments != 0)
    arrays = {"input_ids": ids, "segment_ids": segments, "position_ids": positions}
    return {
        **{name: x.astype(np.int32) for name, x in arrays.items()},
        "example_ids": np.arange(count, dtype=np.uint32),
    }


def stepped(config: EncoderConfig, optimizer, shape: MeshShape, steps: int = 1):
    """(state, losses) after some steps over one batch, from initial parameters."""
    mesh = make_mesh(shape, jax.devices()[: shape.data * shape.fsdp * shape.tensor])
    model, losses = MaskedLM(config), []
    settings = StepConfig(optimizer, seed=5)
    with jax.set_mesh(mesh):
        params = jax.jit(lambda: init_params(model, 0), compiler_options=FAST_COMPILE)()
        state = init_state(params, objective(config), optimizer)
        step = jax.jit(
            make_train_step(objective(config), model.apply, settings),
            compiler_options=FAST_COMPILE,
        )
        for _ in range(steps):
            state, metrics = step(state, put_batch(rows(config), mesh, 2), Pace(np.float32(1)))
            losses.append(float(metrics["sums"]["loss"][0] / metrics["sums"]["loss"][1]))
    return jax.tree.map(np.asarray, state), losses


@pytest.mark.slow  # test_step.py has BERT, on many meshes
@pytest.mark.parametrize("name", FAMILIES)
def test_eight_devices_are_one(tiny_preset, name):
    """With dropout, two microbatches and three mesh axes: the loss and every gradient."""
    config = dataclasses.replace(tiny_preset(name), initializer=Normal(0.2))
    alone, loss = stepped(config, Probe(), MeshShape(1))
    state, other_loss = stepped(config, Probe(), MeshShape(2, 2, 2))
    np.testing.assert_allclose(other_loss, loss, rtol=1e-6)
    right = alone.opt_states[0]
    total = max(np.linalg.norm(x) for x in jax.tree.leaves(right))

    def check(path, got, right):
        # Float32 sums in another order; what softmax ignores has a gradient of rounding only.
        size = max(np.linalg.norm(right), 1e-2 * total)
        assert np.linalg.norm(got - right) < 2e-5 * size, path

    jax.tree.map_with_path(check, state.opt_states[0], right)


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_the_loss_falls(tiny_preset, name):
    """Thirty steps over one batch, masked anew each time, without dropout."""
    config = tiny_preset(name)
    still = dataclasses.replace(
        config.dropout, hidden=0.0, attention=0.0, embedding=0.0, attention_out=0.0
    )
    config = dataclasses.replace(config, dropout=still)
    _, losses = stepped(config, AdamW(learning_rate=1e-2), MeshShape(1), steps=30)
    assert abs(losses[0] - np.log(60)) < 0.4  # an untrained model knows nothing
    assert np.mean(losses[-5:]) < losses[0] - 0.15

"""Causal attention: the same parameters, seeing no token that follows."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.models.config import EncoderConfig, Execution, LocalAttention
from bert_jax.models.encoder import Encoder
from bert_jax.models.heads import MaskedLM
from bert_jax.parallel.mesh import MeshShape, make_mesh

pytestmark = pytest.mark.sweep

# Post- and pre-norm; learned, rotary, disentangled and linear positions; windows in blocks and
# over all pairs; the mask decoder.
NAMES = (
    pytest.param("bert-base", marks=pytest.mark.slow),
    "neobert",
    pytest.param("deberta-base", marks=pytest.mark.slow),
    "deberta-v3-base-generator",
    "mosaicbert-base",
    "modernbert-base",
)
FAST_COMPILE = {"xla_backend_optimization_level": 0}


def directed(config: EncoderConfig, direction: str, form: str = "fast") -> EncoderConfig:
    """Of few layers, which compile faster: a global one and two of windows, or two."""
    return dataclasses.replace(
        config,
        num_layers=3 if isinstance(config.attention, LocalAttention) else 2,
        attention=dataclasses.replace(config.attention, direction=direction),
        execution=Execution("unroll", "none", form),
    )


@functools.cache
def parameters(config: EncoderConfig):
    """Far from initial values; of either direction."""
    shapes = jax.eval_shape(MaskedLM(config).init, jax.random.key(0))["params"]["encoder"]
    rng = np.random.default_rng(0)

    def draw(path, leaf):
        mean = 1.0 if path[-1].key == "scale" else 0.0
        return jnp.asarray(rng.normal(mean, 0.25, leaf.shape), jnp.float32)

    return jax.tree.map_with_path(draw, shapes)


def batch(config: EncoderConfig):
    """Ids, documents and positions: a full row, two documents and padding."""
    length = 80 if isinstance(config.attention, LocalAttention) else 12
    half = length // 2
    segments = np.ones((2, length), np.int32)
    segments[1, half:] = 2
    segments[1, -3:] = 0
    positions = np.tile(np.arange(length, dtype=np.int32), (2, 1))
    positions[1, half:] -= half
    ids = np.random.default_rng(1).integers(10, 60, segments.shape).astype(np.int32)
    return ids, segments, np.where(segments == 0, 0, positions)


def encoded(config: EncoderConfig, capture, params, ids, segments, positions):
    """The states that a head reads, and all that the encoder gives."""
    out = Encoder(config).apply({"params": params}, ids, segments, positions, None, None, capture)
    return out.hidden if out.decoded is None else out.decoded, out


@functools.cache
def forward(config: EncoderConfig, capture: tuple[str, ...] = ()):
    run = functools.partial(encoded, config, capture)
    return jax.jit(run, compiler_options=FAST_COMPILE)


@functools.cache
def gradient(config: EncoderConfig):
    """States, and gradients of a loss over real tokens."""

    def loss(params, ids, segments, positions):
        states, _ = encoded(config, (), params, ids, segments, positions)
        shape = states.shape[1:]
        weights = jnp.cos(jnp.arange(shape[0] * shape[1]).reshape(shape))
        return jnp.sum(states * weights * (segments != 0)[..., None]), states

    return jax.jit(jax.value_and_grad(loss, has_aux=True), compiler_options=FAST_COMPILE)


def parameters_of(config: EncoderConfig):
    return parameters(dataclasses.replace(directed(config, "both"), execution=Execution()))


def run(config: EncoderConfig, rows, capture=()):
    return jax.tree.map(np.asarray, forward(config, capture)(parameters_of(config), *rows))


def run_gradient(config: EncoderConfig, rows):
    (_, states), grads = gradient(config)(parameters_of(config), *rows)
    return np.asarray(states), jax.tree.map(np.asarray, grads)


@pytest.fixture(params=NAMES)
def config(request, tiny_preset) -> EncoderConfig:
    return tiny_preset(request.param)


def test_a_later_token_changes_no_earlier_state(config):
    """Exactly; seen both ways it does. The window's reach is 2, so its neighbours tell it."""
    ids, segments, positions = batch(config)
    place = ids.shape[1] // 3
    other = ids.copy()
    other[:, place:] = np.random.default_rng(2).integers(10, 60, other[:, place:].shape)
    for form in ("fast", "reference"):
        left = directed(config, "left", form)
        before, _ = run(left, (ids, segments, positions))
        after, _ = run(left, (other, segments, positions))
        np.testing.assert_array_equal(before[:, :place], after[:, :place])
        assert (before[:, place] != after[:, place]).any(axis=-1).all()
    both = directed(config, "both")
    before, _ = run(both, (ids, segments, positions))
    after, _ = run(both, (other, segments, positions))
    assert np.abs(before[:, place - 1] - after[:, place - 1]).max() > 0.1


def test_an_earlier_token_changes_later_states(config):
    """Causal is not blind: the token before is seen, one of another document is not."""
    ids, segments, positions = batch(config)
    half = ids.shape[1] // 2
    other = ids.copy()
    other[:, half - 1] = 10 + (ids[:, half - 1] - 9) % 50
    left = directed(config, "left")
    before, _ = run(left, (ids, segments, positions))
    after, _ = run(left, (other, segments, positions))
    assert np.abs(before[0, half] - after[0, half]).max() > 0.1
    np.testing.assert_array_equal(before[1, half:], after[1, half:])


def test_maps_are_the_lower_triangle(config):
    """In the first layer, where scores are the same: what is left, shared out anew."""
    rows, capture = batch(config), ("attentions", "hidden_states")
    _, both = run(directed(config, "both"), rows, capture)
    _, left = run(directed(config, "left"), rows, capture)
    triangle = np.tril(both.attentions[0].astype(np.float64))
    real = rows[1] != 0
    right = triangle / np.where(real[:, None, :, None], triangle.sum(-1, keepdims=True), 1)
    np.testing.assert_allclose(left.attentions[0], right, atol=2e-6)  # two float32 softmaxes
    above = np.triu(np.ones(left.attentions.shape[-2:], bool), 1)
    assert left.attentions[..., above].max() == 0
    sums = left.attentions.sum(-1).transpose(1, 3, 0, 2)[real]
    np.testing.assert_allclose(sums, 1, atol=1e-5)
    np.testing.assert_array_equal(left.hidden_states[0], both.hidden_states[0])


def test_forms_and_gradients(config):
    """Blocks and masks over all pairs agree, forward and backward, and nothing is infinite."""
    states, grads = run_gradient(directed(config, "left", "fast"), batch(config))
    right, right_grads = run_gradient(directed(config, "left", "reference"), batch(config))
    real = batch(config)[1] != 0
    np.testing.assert_allclose(states[real], right[real], atol=2e-5)
    total = max(np.linalg.norm(x) for x in jax.tree.leaves(right_grads))
    for got, wanted in zip(jax.tree.leaves(grads), jax.tree.leaves(right_grads), strict=True):
        assert np.isfinite(got).all()
        assert np.linalg.norm(got - wanted) < 2e-5 * total


@pytest.mark.parametrize(
    "name",
    [
        "modernbert-base",
        pytest.param("deberta-base", marks=pytest.mark.slow),
        pytest.param("mosaicbert-base", marks=pytest.mark.slow),
    ],
)
def test_eight_devices_are_one(tiny_preset, name):
    """Batch of 4 (both rows twice) over 2 x 2, heads over 2; scanned there."""
    config = directed(tiny_preset(name), "left")
    rows = [np.concatenate([x, x]) for x in batch(config)]
    states, grads = run_gradient(config, rows)
    scanned = dataclasses.replace(config, execution=Execution("scan", "none", "fast"))
    one = parameters_of(config)
    with jax.set_mesh(make_mesh(MeshShape(2, 2, 2))):
        shapes = jax.eval_shape(MaskedLM(config).init, jax.random.key(0))["params"]["encoder"]
        params = jax.tree.map(lambda x, s: jax.device_put(x, s.sharding.spec), one, shapes)
        placed = [jax.device_put(x, jax.P(("data", "fsdp"), None)) for x in rows]
        (_, got), got_grads = gradient(scanned)(params, *placed)
        got, got_grads = np.asarray(got), jax.tree.map(np.asarray, got_grads)
    real = rows[1] != 0
    np.testing.assert_allclose(got[real], states[real], atol=2e-5)
    total = max(np.linalg.norm(x) for x in jax.tree.leaves(grads))
    for a, b in zip(jax.tree.leaves(got_grads), jax.tree.leaves(grads), strict=True):
        assert np.linalg.norm(a - b) < 2e-5 * total


def test_both_directions_start_from_the_same_parameters(config):
    """A run that changes its direction keeps its parameters: same names, shapes and draws."""
    init = jax.jit(lambda c: MaskedLM(c).init(jax.random.key(3)), static_argnums=0)
    jax.tree.map(
        np.testing.assert_array_equal,
        init(directed(config, "left")),
        init(directed(config, "both")),
    )

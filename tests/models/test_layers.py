"""The small modules: initial values, linear maps, norm, tables, activations."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.models.config import Norm, Normal, TruncatedNormal, Uniform
from bert_jax.models.layers import (
    Dense,
    LayerNorm,
    RMSNorm,
    Table,
    activate,
    initial_values,
    norm_layer,
)
from bert_jax.parallel import specs
from bert_jax.parallel.mesh import MeshShape, make_mesh

KEY = jax.random.key(0, impl="threefry2x32")


# --------------------------------------------------------------------------- initial values


def test_truncated_normal_is_cut_at_two_sigma_and_not_rescaled():
    """Google BERT's weights have a standard deviation of .0176, not .02."""
    values = np.asarray(initial_values(TruncatedNormal(0.02), KEY, (1000, 1000)))
    assert values.dtype == np.float32
    assert np.abs(values).max() <= 0.04
    assert abs(values.std() - 0.0176) < 5e-5  # exactly .8796 sigma = .017593
    assert abs(values.mean()) < 5 * 0.0176 / 1000


def test_normal_is_not_cut():
    values = np.asarray(initial_values(Normal(0.02), KEY, (1000, 1000)))
    assert abs(values.std() - 0.02) < 5e-5
    assert abs(values.mean()) < 5 * 0.02 / 1000
    beyond = (np.abs(values) > 0.04).mean()
    assert abs(beyond - 0.0455) < 0.001  # two-sided tail at two sigma


def test_uniform_fills_its_interval():
    values = np.asarray(initial_values(Uniform(0.02), KEY, (1000, 1000)))
    assert -0.02 <= values.min() < -0.01999 and 0.01999 < values.max() <= 0.02
    assert abs(values.std() - 0.02 / math.sqrt(3)) < 5e-5


@pytest.mark.parametrize("initializer", [TruncatedNormal(), Normal(), Uniform()])
@pytest.mark.parametrize("shape", [MeshShape(8), MeshShape(1, 4, 2)])
def test_initial_values_do_not_depend_on_the_mesh(initializer, shape):
    """Bit for bit, compiled as a user's program is, not as the tests are (conftest.py)."""

    def values(mesh):
        with jax.set_mesh(mesh):
            return jax.jit(
                lambda: initial_values(initializer, KEY, (64, 32), "fsdp", "tensor"),
                compiler_options={"xla_backend_optimization_level": 3},
            )()

    split = values(make_mesh(shape))
    assert jax.typeof(split).sharding.spec == jax.P("fsdp", "tensor")
    np.testing.assert_array_equal(split, values(make_mesh(MeshShape(), jax.devices()[:1])))


# -------------------------------------------------------------------------------- LayerNorm


def normalise(x, eps):
    x = np.asarray(x, np.float64)
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + eps)


def test_epsilon_is_inside_the_root():
    """With eps as great as the variance, outside the root would be off by a factor 1.4."""
    x = jax.random.normal(KEY, (4, 64)) * 0.1
    norm = LayerNorm(0.01)
    variables = norm.init(KEY, x)
    np.testing.assert_allclose(norm.apply(variables, x), normalise(x, 0.01), atol=2e-6)
    assert {k: v.tolist() for k, v in variables["params"].items()} == {
        "scale": [1.0] * 64,
        "bias": [0.0] * 64,
    }


def test_scale_and_bias():
    x = jax.random.normal(KEY, (4, 8))
    scale, bias = jnp.arange(8.0), jnp.arange(8.0)[::-1]
    out = LayerNorm(1e-5).apply({"params": {"scale": scale, "bias": bias}}, x)
    np.testing.assert_allclose(out, normalise(x, 1e-5) * scale + bias, atol=1e-5)


def test_statistics_of_bfloat16_inputs_are_float32():
    """Numbers near 1000 are 4 apart in bfloat16: a bfloat16 mean would be off by as much."""
    x = (1000 + 8 * jax.random.normal(KEY, (4, 256))).astype(jnp.bfloat16)
    norm = LayerNorm(1e-12)
    out = norm.apply(norm.init(KEY, x), x)
    assert out.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.asarray(out, np.float32), normalise(x, 1e-12), rtol=2**-8)


def test_a_constant_row_gives_the_bias():
    out = LayerNorm(1e-12).apply(
        {"params": {"scale": jnp.ones(4), "bias": jnp.arange(4.0)}}, jnp.full((2, 4), 7.0)
    )
    np.testing.assert_array_equal(out, np.tile(np.arange(4.0), (2, 1)))


def test_rms_norm_does_not_centre():
    """Row [3, 4] has power 12.5; epsilon is inside the root."""
    x = jnp.asarray([[3.0, 4.0]])
    params = {"params": {"scale": jnp.asarray([1.0, 2.0])}}
    np.testing.assert_allclose(
        RMSNorm(eps=0.5).apply(params, x), [[3 / math.sqrt(13), 8 / math.sqrt(13)]], rtol=1e-6
    )
    assert RMSNorm(1e-5).apply(params, x.astype(jnp.bfloat16)).dtype == jnp.bfloat16


def test_a_norm_without_bias_has_a_scale_only():
    params = LayerNorm(1e-5, bias=False).init(KEY, jnp.ones((1, 4)))["params"]
    assert params.keys() == {"scale"}


@pytest.mark.parametrize(
    ("norm", "module"),
    [
        (Norm("post", 1e-5), LayerNorm(1e-5, True)),
        (Norm("pre", 1e-6, bias=False), LayerNorm(1e-6, False)),
        (Norm("pre", 1e-6, kind="rms"), RMSNorm(1e-6)),
    ],
)
def test_the_module_of_a_norm(norm, module):
    assert norm_layer(norm) == module


# ------------------------------------------------------------------------------------ Dense


def test_dense_of_vectors_and_without_bias():
    """(rows, d) as well as (batch, length, d); replicated rows stay so under a mesh."""
    rng = np.random.default_rng(0)
    x = rng.normal(0, 1, (6, 16)).astype(np.float32)
    dense = Dense(32, Normal(0.5), "out", bias=False)
    params = dense.init(KEY, jnp.asarray(x))
    assert params["params"].keys() == {"kernel"}
    right = x.astype(np.float64) @ np.asarray(params["params"]["kernel"], np.float64)
    # Sums of 16 products of order 1.
    np.testing.assert_allclose(dense.apply(params, jnp.asarray(x)), right, atol=1e-5)
    with jax.set_mesh(make_mesh(MeshShape(2, 2, 2))):
        placed = jax.device_put(params, jax.P("fsdp", "tensor"))
        rows = jax.device_put(x, jax.P())
        out = jax.jit(lambda p, x: dense.apply(p, x, rows=None))(placed, rows)
        assert jax.typeof(out).sharding.spec == jax.P(None, "tensor")
        np.testing.assert_allclose(out, right, atol=1e-5)


@pytest.mark.parametrize("split", ["none", "in", "out"])
def test_dense_is_a_linear_map_with_bias(split):
    rng = np.random.default_rng(0)
    x = rng.normal(0, 1, (8, 3, 16)).astype(np.float32)
    dense = Dense(32, TruncatedNormal(), split)
    params = dense.init(KEY, jnp.asarray(x))["params"]
    np.testing.assert_array_equal(params["bias"], 0)
    assert 0.015 < np.std(params["kernel"]) < 0.02
    params = {**params, "bias": jnp.arange(32.0)}
    right = x.astype(np.float64) @ np.asarray(params["kernel"], np.float64) + np.arange(32)
    np.testing.assert_allclose(dense.apply({"params": params}, jnp.asarray(x)), right, atol=1e-5)
    with jax.set_mesh(make_mesh(MeshShape(2, 2, 2))):
        stored = jax.eval_shape(dense.init, jax.eval_shape(lambda: KEY), x)["params"]
        placed = jax.tree.map(lambda p, a: jax.device_put(p, a.sharding.spec), params, stored)
        tokens = (specs.BATCH, None, specs.TENSOR if split == "in" else None)
        out = jax.jit(dense.apply)({"params": placed}, jax.device_put(x, specs.spec(*tokens)))
        wanted = (specs.BATCH, None, specs.TENSOR if split == "out" else None)
        assert jax.typeof(out).sharding.spec == jax.P(*wanted)
    np.testing.assert_allclose(out, right, atol=1e-5)


# ------------------------------------------------------------------------------------ Table


def test_lookup_and_gradient_of_a_table():
    table = Table(10, 4, TruncatedNormal())
    variables = table.init(KEY, jnp.zeros((1, 1), jnp.int32))
    ids = jnp.asarray([[3, 9, 3], [0, 3, 1]])
    rows = np.asarray(variables["params"]["embedding"])
    np.testing.assert_array_equal(table.apply(variables, ids), rows[np.asarray(ids)])
    gradient = jax.grad(lambda v: table.apply(v, ids).sum())(variables)
    hits = np.bincount(np.asarray(ids).reshape(-1), minlength=10)
    np.testing.assert_array_equal(gradient["params"]["embedding"], np.tile(hits[:, None], 4))


def test_a_row_can_start_at_zero():
    embedding = Table(10, 4, Normal(), zero_row=3).init(KEY, jnp.zeros((1, 1), jnp.int32))
    values = np.asarray(embedding["params"]["embedding"])
    np.testing.assert_array_equal(values[3], 0)
    assert (np.delete(values, 3, axis=0) != 0).all()


def test_an_id_past_the_table_is_loud():
    table = Table(10, 4, TruncatedNormal())
    variables = table.init(KEY, jnp.zeros((1, 1), jnp.int32))
    out = table.apply(variables, jnp.asarray([[9, 10]]))
    assert np.isfinite(out[0, 0]).all() and np.isnan(out[0, 1]).all()


# ------------------------------------------------------------------------------- activation


def test_gelu_is_the_error_function_form():
    x = np.linspace(-6, 6, 241)
    exact = [v * 0.5 * math.erfc(-v / math.sqrt(2)) for v in x]
    np.testing.assert_allclose(activate("gelu", jnp.asarray(x, jnp.float32)), exact, atol=1e-6)


def test_gelu_tanh_is_googles_approximation():
    x = np.linspace(-6, 6, 241)
    right = 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    np.testing.assert_allclose(activate("gelu_tanh", jnp.asarray(x, jnp.float32)), right, atol=1e-6)


@pytest.mark.parametrize("kind, at_one", [("gelu", 0.8413447), ("gelu_tanh", 0.8411920)])
def test_the_two_forms_are_told_apart(kind, at_one):
    np.testing.assert_allclose(activate(kind, jnp.float32(1.0)), at_one, atol=3e-7)
    both = [activate(k, jnp.float32(2.69)) for k in ("gelu", "gelu_tanh")]
    assert abs(abs(both[0] - both[1]) - 4.7e-4) < 1e-5


@pytest.mark.parametrize(
    ("kind", "right"),
    [
        ("relu", [0.0, 0.0, 2.0]),
        ("silu", [-1 / (1 + math.e), 0.0, 2 / (1 + math.exp(-2))]),
        ("tanh", [math.tanh(-1), 0.0, math.tanh(2)]),
    ],
)
def test_other_activations(kind, right):
    np.testing.assert_allclose(activate(kind, jnp.asarray([-1.0, 0.0, 2.0])), right, rtol=1e-6)

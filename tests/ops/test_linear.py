"""product: an einsum whose two gradients are taken in the compute type and summed in float32."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxprs_in_params

from bert_jax.ops.linear import add_bias, product
from bert_jax.parallel import specs
from bert_jax.parallel.mesh import MeshShape, make_mesh

SHAPES = {
    "td,df->tf": ((24, 16), (16, 32)),  # dense layers
    "td,vd->tv": ((24, 16), (40, 16)),  # tied vocabulary projection
    "abd,vd->abv": ((4, 6, 16), (40, 16)),
    "bhqd,bhkd->bhqk": ((2, 3, 8, 4), (2, 3, 8, 4)),  # scores
    "bhqk,bhkd->bhqd": ((2, 3, 8, 8), (2, 3, 8, 4)),  # context
}
EQUATIONS = list(SHAPES)


def operands(equation: str):
    rng = np.random.default_rng(0)
    x, w = (rng.normal(0, 1, shape).astype(np.float32) for shape in SHAPES[equation])
    return x, w, rng.normal(0, 1, np.einsum(equation, x, w).shape).astype(np.float32)


def gradients_of(equation: str, **kwargs):
    """(value, gradients) of ``sum(product * cotangent)``."""

    def loss(x, w, cotangent):
        return jnp.sum(product(equation, x, w, **kwargs).astype(jnp.float32) * cotangent)

    return jax.value_and_grad(loss, argnums=(0, 1))


def reference(equation: str, x, w, cotangent):
    terms, out = equation.split("->")
    left, right = terms.split(",")
    x, w, cotangent = (np.asarray(a, np.float64) for a in (x, w, cotangent))
    return (
        np.einsum(f"{out},{right}->{left}", cotangent, w),
        np.einsum(f"{left},{out}->{right}", x, cotangent),
    )


@pytest.mark.parametrize("equation", EQUATIONS)
def test_float32_equals_einsum(equation):
    x, w, cotangent = operands(equation)
    out = product(equation, jnp.asarray(x), jnp.asarray(w))
    np.testing.assert_allclose(out, np.einsum(equation, x, w), rtol=1e-5, atol=1e-5)
    _, (d_x, d_w) = jax.jit(gradients_of(equation))(x, w, cotangent)
    right_x, right_w = reference(equation, x, w, cotangent)
    np.testing.assert_allclose(d_x, right_x, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(d_w, right_w, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("equation", EQUATIONS)
def test_bfloat16_runs_forward_and_backward(equation):
    """Some bfloat16 products with float32 sums crash XLA:CPU when they run; none of ours may."""
    x, w, cotangent = operands(equation)
    x = jnp.asarray(x, jnp.bfloat16)
    w = jnp.asarray(w, jnp.bfloat16 if equation.count("b") > 1 else jnp.float32)
    out = jax.jit(functools.partial(product, equation, result=jnp.float32))(x, w)
    assert out.dtype == jnp.float32
    # The products of rounded operands are exact in float32.
    rounded = [np.asarray(a.astype(jnp.bfloat16), np.float64) for a in (x, w)]
    np.testing.assert_allclose(out, np.einsum(equation, *rounded), rtol=1e-5, atol=1e-5)
    _, (d_x, d_w) = jax.jit(gradients_of(equation))(x, w, cotangent)
    assert (d_x.dtype, d_w.dtype) == (x.dtype, w.dtype)
    for got, right in zip((d_x, d_w), reference(equation, *rounded, cotangent), strict=True):
        difference = np.linalg.norm(np.asarray(got, np.float64) - right)
        assert difference < 2**-8 * np.linalg.norm(right)  # one rounding of cotangent and result


def test_long_sums_do_not_saturate():
    """bfloat16 sums of ones stop at 256; these have 1001 and 999 terms."""
    x = jnp.ones((999, 1001), jnp.bfloat16)
    w = jnp.ones((1001, 8))
    out = product("td,df->tf", x, w, result=jnp.float32)
    np.testing.assert_array_equal(out, 1001)
    d_w = jax.grad(lambda w: product("td,df->tf", x, w).astype(jnp.float32).sum())(w)
    assert d_w.dtype == jnp.float32
    np.testing.assert_array_equal(d_w, 999)  # not a bfloat16 number


@pytest.mark.parametrize("result", [None, jnp.float32])
@pytest.mark.parametrize("equation", ["td,df->tf", "bhqd,bhkd->bhqk"])
def test_every_product_has_compute_type_operands_and_float32_sums(equation, result):
    """Forward and backward: three to five times faster where bfloat16 has units of its own."""
    x, w, cotangent = operands(equation)
    narrow = x.astype(jnp.bfloat16)
    trace = jax.make_jaxpr(gradients_of(equation, result=result))(narrow, w, cotangent)
    dots = list(dots_of(trace.jaxpr))
    assert len(dots) == 3
    for dot in dots:
        assert {v.aval.dtype for v in dot.invars} == {jnp.dtype(jnp.bfloat16)}
        assert dot.params["preferred_element_type"] == jnp.float32


def test_gradient_of_a_bias_is_summed_in_float32():
    """999 ones: a bfloat16 sum would stop at 256, and its rounding would give 1000."""
    x, bias = jnp.zeros((3, 333, 4), jnp.bfloat16), jnp.arange(4.0)
    out = add_bias(x, bias)
    assert out.dtype == jnp.bfloat16
    np.testing.assert_array_equal(out[1, 2], bias)
    loss = lambda x, bias: add_bias(x, bias).astype(jnp.float32).sum()  # noqa: E731
    d_x, d_bias = jax.jit(jax.grad(loss, argnums=(0, 1)))(x, bias)
    assert (d_x.dtype, d_bias.dtype) == (jnp.bfloat16, jnp.float32)
    np.testing.assert_array_equal(d_bias, 999)
    np.testing.assert_array_equal(d_x, 1)


def dots_of(jaxpr):
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            yield equation
        for inner in jaxprs_in_params(equation.params):
            yield from dots_of(inner)


@pytest.mark.parametrize("shape", [MeshShape(8), MeshShape(2, 2, 2)])
def test_layouts_under_a_mesh(shape):
    """Results and gradients have the layouts asked for, and the values of one device."""
    x, w, cotangent = operands("td,df->tf")
    right = jax.jit(gradients_of("td,df->tf"))(x, w, cotangent)
    with jax.set_mesh(make_mesh(shape)):
        x = jax.device_put(x, specs.spec(specs.BATCH, None))
        w = jax.device_put(w, specs.spec(None, specs.TENSOR))
        out = product("td,df->tf", x, w, specs.BATCH, specs.TENSOR)
        assert jax.typeof(out).sharding.spec == jax.P(specs.BATCH, specs.TENSOR)
        cotangent = jax.device_put(cotangent, specs.spec(specs.BATCH, specs.TENSOR))

        def loss(x, w):
            return jnp.sum(product("td,df->tf", x, w, specs.BATCH, specs.TENSOR) * cotangent)

        got = jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))(x, w)
        assert jax.typeof(got[1][0]).sharding.spec == jax.typeof(x).sharding.spec
        assert jax.typeof(got[1][1]).sharding.spec == jax.typeof(w).sharding.spec
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), got, right)

"""Products of two arrays in a compute type, accumulated in float32, with both gradients likewise.

Plain autodiff of a bfloat16 product would hand float32 cotangents to the backward products, which
then run in float32 (three to five times slower on a CPU with bfloat16 units), and a product of two
bfloat16 arrays asked for in bfloat16 is computed in float32 by XLA:CPU. So both directions are
written out here: operands in the compute type, sums in float32. A parameter stays float32 outside;
it is cast inside, and its gradient comes back in float32, never rounded to the compute type.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from bert_jax.parallel import specs


def product(
    equation: str,
    x: Float[Array, "..."],
    w: Float[Array, "..."],
    *layout: specs.Axis,
    result: DTypeLike | None = None,
) -> Float[Array, "..."]:
    """``einsum(equation, x, w)`` in the type of ``x``, with float32 accumulation.

    Args:
        equation: Two operands; every letter stands in at least two of the three terms, none is
            repeated inside a term (so that both gradients are einsums of the same kind).
        x: Activations; their type is the compute type.
        w: Activations or a float32 parameter, which is cast to the type of ``x``.
        *layout: Mesh axes of the result's dimensions.
        result: Type of the result; that of ``x`` by default.

    Returns:
        The product.
    """
    return _product(equation, layout, jnp.dtype(result or x.dtype), x, w)


def _einsum(equation, x, w, sharding):
    return jnp.einsum(equation, x, w, preferred_element_type=jnp.float32, out_sharding=sharding)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _product(equation, layout, result, x, w):
    out = _einsum(equation, x, w.astype(x.dtype), specs.spec(*layout))
    return out.astype(result)


def _forward(equation, layout, result, x, w):
    return _product(equation, layout, result, x, w), (x, w)


def _backward(equation, layout, result, saved, d_out):
    del layout, result
    x, w = saved
    d_out = d_out.astype(x.dtype)
    terms, out = equation.split("->")
    left, right = terms.split(",")
    d_x = _einsum(f"{out},{right}->{left}", d_out, w.astype(x.dtype), _layout_of(x))
    d_w = _einsum(f"{left},{out}->{right}", x, d_out, _layout_of(w))
    return d_x.astype(x.dtype), d_w.astype(w.dtype)


_product.defvjp(_forward, _backward)


def _layout_of(primal: Array) -> jax.P | None:
    if jax.sharding.get_abstract_mesh().empty:
        return None
    return jax.typeof(primal).sharding.spec


@jax.custom_vjp
def add_bias(
    x: Float[Array, "*batch features"], bias: Float[Array, "features"]
) -> Float[Array, "*batch features"]:
    """``x + bias`` in the type of ``x``; the gradient of ``bias`` is summed and kept in float32.

    Plain autodiff would round that sum to the compute type, and the compiler may then move the
    reduction over devices before the cast back to float32.
    """
    return x + bias.astype(x.dtype)


def _add_bias_forward(x, bias):
    return add_bias(x, bias), None


def _add_bias_backward(_, d_out):
    return d_out, jnp.sum(d_out, axis=range(d_out.ndim - 1), dtype=jnp.float32)


add_bias.defvjp(_add_bias_forward, _add_bias_backward)

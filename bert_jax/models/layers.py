"""The small modules every encoder is made of: linear maps, norm, tables, activations.

Own ones because flax's take no output layout, and their default epsilon and gelu are not those of
the encoders here. Parameter names say the role: ``kernel`` and ``embedding`` are decayed by the
usual recipes, ``bias`` and ``scale`` are not.
"""

from __future__ import annotations

import math

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float, Int

from bert_jax.models.axes import Activation, Initializer, Norm, TruncatedNormal, Uniform
from bert_jax.ops.linear import add_bias, product
from bert_jax.parallel import specs

# What a remat policy may keep by name. It cannot see the products themselves: they stand inside a
# custom gradient.
DENSE_OUTPUT = "dense_output"


def initial_values(
    initializer: Initializer, key: jax.Array, shape: tuple[int, ...], *layout: specs.Axis
) -> Float[Array, "..."]:
    """A float32 parameter drawn from ``initializer``, born in its layout.

    The values do not depend on the mesh.
    """
    sharding = specs.spec(*layout)
    if isinstance(initializer, Uniform):
        draws = jax.random.uniform(key, shape, jnp.float32, -1.0, 1.0, out_sharding=sharding)
        return initializer.limit * draws
    if isinstance(initializer, TruncatedNormal):
        draws = jax.random.truncated_normal(
            key, -2.0, 2.0, shape, jnp.float32, out_sharding=sharding
        )
    else:
        draws = jax.random.normal(key, shape, jnp.float32, out_sharding=sharding)
    return initializer.std * draws


class Dense(nn.Module):
    """A linear map over the last axis, computed on tokens flattened to two dimensions.

    Flattened because XLA:CPU otherwise fuses the whole residual stream into each weight gradient
    (the cost grows with depth); elsewhere it is free.

    Attributes:
        features: Output width.
        initializer: Distribution of the kernel.
        split: Which side is split over the ``tensor`` axis: ``out`` (into heads or the
            feed-forward layer), ``in`` (back to the residual stream), or ``none``.
        bias: Whether a bias is added.
    """

    features: int
    initializer: Initializer
    split: str = "none"
    bias: bool = True

    @nn.compact
    def __call__(
        self, x: Float[Array, "*batch d"], rows: specs.Axis = specs.BATCH
    ) -> Float[Array, "*batch features"]:
        """``x @ kernel + bias``, in the type of ``x``.

        Args:
            x: Tokens (batch, length, d), or vectors (rows, d).
            rows: Mesh axes that split the first dimension.
        """
        width = x.shape[-1]
        out_axis = specs.TENSOR if self.split == "out" else None
        in_axis = specs.TENSOR if self.split == "in" else None
        stored = (in_axis or specs.FSDP, out_axis if in_axis is None else specs.FSDP)
        kernel = self.param(
            "kernel",
            lambda key: initial_values(self.initializer, key, (width, self.features), *stored),
        )
        flat = x
        if x.ndim == 3:
            flat = specs.reshape(x, (x.shape[0] * x.shape[1], width), rows, in_axis)
        y = product("td,df->tf", flat, specs.gathered(kernel), rows, out_axis)
        if self.bias:
            bias = self.param(
                "bias", lambda _: specs.zeros((self.features,), jnp.float32, out_axis)
            )
            y = add_bias(y, bias)
        y = checkpoint_name(y, DENSE_OUTPUT)
        if x.ndim == 3:
            y = specs.reshape(y, (*x.shape[:2], self.features), rows, None, out_axis)
        return y


class LayerNorm(nn.Module):
    """Layer normalisation over the last axis; statistics and the affine map in float32.

    The result has the type of the input. ``eps`` is inside the square root (Ba et al. 2016).

    Attributes:
        eps: Epsilon.
        bias: Whether a bias is added after the scale.
    """

    eps: float
    bias: bool = True

    @nn.compact
    def __call__(self, x: Float[Array, "*batch d"]) -> Float[Array, "*batch d"]:
        """The normalised ``x``, in its type."""
        width = x.shape[-1]
        scale = self.param("scale", lambda _: jnp.ones((width,), out_sharding=specs.spec(None)))
        wide = x.astype(jnp.float32)
        centred = wide - jnp.mean(wide, axis=-1, keepdims=True)
        variance = jnp.mean(centred * centred, axis=-1, keepdims=True)
        normed = centred * jax.lax.rsqrt(variance + self.eps) * scale
        if self.bias:
            normed = normed + self.param("bias", lambda _: specs.zeros((width,), jnp.float32, None))
        return normed.astype(x.dtype)


class RMSNorm(nn.Module):
    """Division by the root mean square, then a scale (Zhang & Sennrich 2019, arXiv:1910.07467).

    In float32; the result has the type of the input. ``eps`` is inside the square root.

    Attributes:
        eps: Epsilon.
    """

    eps: float

    @nn.compact
    def __call__(self, x: Float[Array, "*batch d"]) -> Float[Array, "*batch d"]:
        """The normalised ``x``, in its type."""
        width = x.shape[-1]
        scale = self.param("scale", lambda _: jnp.ones((width,), out_sharding=specs.spec(None)))
        wide = x.astype(jnp.float32)
        power = jnp.mean(wide * wide, axis=-1, keepdims=True)
        return (wide * jax.lax.rsqrt(power + self.eps) * scale).astype(x.dtype)


def norm_layer(norm: Norm, name: str | None = None) -> LayerNorm | RMSNorm:
    """The module of a config's norm."""
    if norm.kind == "rms":
        return RMSNorm(norm.eps, name=name)
    return LayerNorm(norm.eps, norm.bias, name=name)


class Table(nn.Module):
    """A table of embeddings, looked up in float32.

    The cast to the compute type comes after the sum of the embeddings: the other order would
    accumulate the table's gradient in bfloat16, which saturates at 256 equal contributions.

    Attributes:
        rows: Rows of the table.
        width: Columns.
        initializer: Distribution.
        split: Axis over which rows are split; the token table's rows go over ``tensor``.
        zero_row: A row that starts at zero (RoBERTa's padding), or None.
        used: Rows from this one on are no entries: they start at zero, and no gradient comes to
            them, so they stay there. None: all are entries.
    """

    rows: int
    width: int
    initializer: Initializer
    split: str | None = None
    zero_row: int | None = None
    used: int | None = None

    def setup(self) -> None:
        """Makes the table."""
        self.embedding = self.param("embedding", self._init)

    def _init(self, key: jax.Array) -> Float[Array, "rows width"]:
        shape = (self.rows, self.width)
        values = initial_values(self.initializer, key, shape, self.split, specs.FSDP)
        row = jnp.arange(self.rows)[:, None]
        if self.zero_row is not None:
            values = jnp.where(row != self.zero_row, values, 0)
        if self.used is not None and self.used < self.rows:
            values = jnp.where(row < self.used, values, 0)
        return values

    def whole(self) -> Float[Array, "rows width"]:
        """The table, gathered over the ``fsdp`` axis."""
        return specs.gathered(self.embedding)

    def __call__(self, ids: Int[Array, "batch length"]) -> Float[Array, "batch length width"]:
        """Rows of the table, float32."""
        return specs.lookup(self.whole(), ids, specs.BATCH, None, None)


def activate(kind: Activation, x: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
    """An activation, elementwise.

    ``gelu`` is the Gaussian error linear unit (Hendrycks & Gimpel 2016) with the exact erf,
    ``gelu_tanh`` Google BERT's approximation of it (they differ by at most 4.7e-4), ``silu``
    ``x * sigmoid(x)``.
    """
    if kind == "gelu":
        return 0.5 * x * (1 + _erf(x * math.sqrt(0.5)))
    if kind == "gelu_tanh":
        return jax.nn.gelu(x, approximate=True)
    return {"relu": jax.nn.relu, "silu": jax.nn.silu, "tanh": jnp.tanh}[kind](x)


@jax.custom_jvp
def _erf(x: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
    """The error function, with the textbook derivative: jax 0.12's fails inside a shard_map."""
    return jax.lax.erf(x)


@_erf.defjvp
def _erf_jvp(primals, tangents):
    (x,), (dx,) = primals, tangents
    return _erf(x), (2 / math.sqrt(math.pi)) * jnp.exp(-x * x) * dx

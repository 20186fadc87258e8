"""One transformer layer, for every kind of attention, norm and feed-forward map of the config."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from bert_jax.models.config import (
    DisentangledPositions,
    EncoderConfig,
    LocalAttention,
)
from bert_jax.models.layers import Dense, activate, norm_layer
from bert_jax.models.positions import alibi_bias, rotate
from bert_jax.ops.attention import attention, attention_probabilities, window_mask
from bert_jax.ops.disentangled import disentangled_bias, relative_buckets
from bert_jax.ops.dropout import DropoutSeed, dropout
from bert_jax.ops.local_attention import block_length, local_attention
from bert_jax.parallel import specs

# Dropout sites of a layer (3 is that of the embeddings).
ATTENTION_SITE, ATTENTION_OUT_SITE, MLP_OUT_SITE = 0, 1, 2
MLP_INNER_SITE, RELATIVE_SITE = 4, 5

Padding = Literal["blind", "transformers"]  # see `bert_jax.models.encoder.Encoder`
Rotation = tuple[Float[Array, "batch 1 length half"], Float[Array, "batch 1 length half"]]
Heads = Float[Array, "batch heads length head_dim"]


@dataclass(frozen=True)
class LayerKind:
    """What sets a layer apart from others of its stack; static, so each kind is compiled once.

    Attributes:
        local: Whether its attention is a window.
        attention_norm: Whether its attention has a norm.
    """

    local: bool = False
    attention_norm: bool = True


class Context(NamedTuple):
    """What all layers of a stack read beside the residual stream.

    Attributes:
        segment_ids: Document of every token, 0 for padding.
        mask: Who sees whom without a window.
        rotation: Cosines and sines of rotary positions in global layers, or None.
        local_rotation: The same in local layers.
        relative: Table of relative positions, normed, or None.
        position_ids: Positions, where scores depend on distances (ALiBi), or None.
    """

    segment_ids: Int[Array, "batch length"]
    mask: Bool[Array, "batch 1 length length"]
    rotation: Rotation | None = None
    local_rotation: Rotation | None = None
    relative: Float[Array, "rows d"] | None = None
    position_ids: Int[Array, "batch length"] | None = None


class Layer(nn.Module):
    """One transformer layer: attention and feed-forward, each with its residual and norm.

    Attributes:
        config: Of the encoder.
        kind: Of this layer.
        maps: Whether attention probabilities are returned too.
        padding: What padding sees.
    """

    config: EncoderConfig
    kind: LayerKind = LayerKind()
    maps: bool = False
    padding: Padding = "blind"

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "batch length d"],
        context: Context,
        seed: DropoutSeed | None,
        query: Float[Array, "batch length d"] | None = None,
    ) -> tuple[Float[Array, "batch length d"], Float[Array, "batch heads length length"] | None]:
        """The layer's output, in the type of ``x``, and its attention maps if asked for.

        Args:
            x: Hidden states.
            context: See `Context`.
            seed: Dropout seed, or None.
            query: Where queries and the residual come from, if not from ``x`` (enhanced mask
                decoder); keys and values are those of ``x``.
        """
        norm = self.config.norm
        stream = x if query is None else query
        if norm.placement == "post":
            attended, maps = self._attention(stream, x, context, seed)
            stream = norm_layer(norm, "attention_norm")(stream + attended)
            return norm_layer(norm, "mlp_norm")(stream + self._mlp(stream, seed)), maps
        # A config with the mask decoder is post-norm, so queries come from ``x`` here.
        assert query is None
        normed = stream
        if self.kind.attention_norm:
            normed = norm_layer(norm, "attention_norm")(stream)
        attended, maps = self._attention(normed, normed, context, seed)
        stream = stream + attended
        return stream + self._mlp(norm_layer(norm, "mlp_norm")(stream), seed), maps

    def _attention(self, x, keys, context: Context, seed):
        """Attention of ``x`` over ``keys``; and its maps, or None."""
        c = self.config
        bias_of = {"query", "key", "value", "position_query", "position_key"}
        if c.biases.attention != "all":
            few = {"query", "value", "position_query"}
            bias_of = few if c.biases.attention == "query_value" else set()
        contents = {
            name: Dense(c.hidden_size, c.initializer, "out", name in bias_of, name=name)
            for name in ("query", "key", "value")
        }
        query = self._heads(contents["query"](x))
        key, value = (self._heads(contents[name](keys)) for name in ("key", "value"))
        rotation = context.local_rotation if self.kind.local else context.rotation
        if rotation is not None:
            query, key = rotate(query, *rotation), rotate(key, *rotation)
        scale, bias = None, None
        if isinstance(c.positions, DisentangledPositions):
            scale = (c.head_dim * (1 + len(c.positions.terms))) ** -0.5
            bias = scale * self._relative_bias(query, key, contents, bias_of, context, seed)
        if context.position_ids is not None:
            # Made anew in every layer: cheap, and fused with the softmax instead of stored.
            bias = alibi_bias(context.position_ids, c.num_heads)
        context_vectors, shares = self._attend(query, key, value, context, scale, bias, seed)
        merged = specs.reshape(
            context_vectors.transpose(0, 2, 1, 3), x.shape, specs.BATCH, None, specs.TENSOR
        )
        out_bias = c.biases.attention != "none"
        out = Dense(c.hidden_size, c.residual_initializer, "in", out_bias, name="attention_out")
        return dropout(out(merged), c.dropout.on_attention_out, seed, ATTENTION_OUT_SITE), shares

    def _attend(self, query, key, value, context: Context, scale, bias, seed):
        c = self.config
        rate = c.dropout.attention
        mask = context.mask
        if self.kind.local:
            assert isinstance(c.attention, LocalAttention)
            radius = c.attention.radius
            # A row of one block has no far keys to leave out.
            blocked = query.shape[2] > block_length(radius) + radius
            pairs = self.maps or self.padding != "blind" or c.execution.attention == "reference"
            if blocked and not pairs:
                return local_attention(
                    query, key, value, context.segment_ids,
                    radius=radius, direction=c.attention.direction,
                    dropout_rate=rate, seed=seed, site=ATTENTION_SITE,
                ), None  # fmt: skip
            mask = mask & window_mask(mask.shape[-1], radius)
        empty = "zero"
        if self.padding == "transformers":
            empty = "uniform" if isinstance(c.positions, DisentangledPositions) else "added"
        shares = None
        if self.maps:
            shares = attention_probabilities(query, key, mask, bias=bias, scale=scale, empty=empty)
        return attention(
            query, key, value, mask, bias=bias, scale=scale, empty=empty,
            dropout_rate=rate, seed=seed, site=ATTENTION_SITE,
        ), shares  # fmt: skip

    def _relative_bias(self, query, key, contents, bias_of, context: Context, seed):
        """Scores between contents and relative positions, not scaled."""
        c, p = self.config, self.config.positions
        assert isinstance(p, DisentangledPositions) and context.relative is not None
        relative = context.relative
        if seed is not None:
            # One mask for the whole batch: the table has no examples.
            relative = dropout(relative[None], c.dropout.hidden, seed.shared(), RELATIVE_SITE)[0]
        relative = relative.astype(query.dtype)

        def rows(term: str, content: str) -> Float[Array, "rows heads head_dim"] | None:
            if term not in p.terms:
                return None
            own = f"position_{content}"
            module = contents[content]
            if p.projections == "own":
                bias = own in bias_of
                module = Dense(c.hidden_size, c.initializer, "out", bias, name=own)
            projected = module(relative, rows=None)
            shape = (projected.shape[0], c.num_heads, c.head_dim)
            return specs.reshape(projected, shape, None, specs.TENSOR, None)

        fast = c.execution.attention == "fast" or (
            c.execution.attention == "auto" and specs.platform() != "cpu"
        )
        indices = relative_buckets(query.shape[2], buckets=p.buckets, max_distance=p.max_distance)
        return disentangled_bias(
            query, key, rows("c2p", "key"), rows("p2c", "query"), indices,
            form="one_hot" if fast else "gather",
        )  # fmt: skip

    def _heads(self, y: Float[Array, "batch length d"]) -> Heads:
        c = self.config
        shape = (*y.shape[:2], c.num_heads, c.head_dim)
        return specs.reshape(y, shape, specs.BATCH, None, specs.TENSOR, None).transpose(0, 2, 1, 3)

    def _mlp(self, x, seed):
        c = self.config
        bias = c.biases.mlp == "all"
        out_bias = c.biases.mlp != "none"
        inner = Dense(c.intermediate_size, c.initializer, "out", bias, name="mlp_in")(x)
        inner = activate(c.activation, inner)
        if c.mlp == "gated":
            gate = Dense(c.intermediate_size, c.initializer, "out", bias, name="mlp_gate")(x)
            inner = inner * gate
        inner = dropout(inner, c.dropout.mlp_inner, seed, MLP_INNER_SITE)
        out = Dense(c.hidden_size, c.residual_initializer, "in", out_bias, name="mlp_out")(inner)
        return dropout(out, c.dropout.on_mlp_out, seed, MLP_OUT_SITE)


class NeighbourConvolution(nn.Module):
    """DeBERTa v2's convolution: ``norm(output + activation(convolution(embeddings)))``.

    A tap reads a neighbour of the same document only, so documents packed in a row do not mix.

    Attributes:
        config: Of the encoder.
        padding: ``transformers``: padding ends as zero.
    """

    config: EncoderConfig
    padding: Padding = "blind"

    @nn.compact
    def __call__(
        self,
        embeddings: Float[Array, "batch length d"],
        output: Float[Array, "batch length d"],
        segment_ids: Int[Array, "batch length"],
        seed: DropoutSeed | None,
    ) -> Float[Array, "batch length d"]:
        """The first layer's output with its neighbourhood.

        Args:
            embeddings: Input of the first layer.
            output: Its output.
            segment_ids: Document of every token, 0 for padding.
            seed: Dropout seed, or None.
        """
        c = self.config
        assert c.convolution is not None
        reach = c.convolution.kernel_size // 2
        taps = [_shifted(embeddings, segment_ids, offset) for offset in range(-reach, reach + 1)]
        # One product over all taps at once: (taps * d) -> d.
        seen = jnp.concatenate(taps, axis=-1)
        y = Dense(c.hidden_size, c.initializer, name="taps")(seen)
        y = dropout(y, c.dropout.hidden, seed, MLP_OUT_SITE)
        y = output + activate(c.convolution.activation, y)
        y = norm_layer(c.norm, "norm")(y)
        return y if self.padding == "blind" else jnp.where((segment_ids != 0)[..., None], y, 0)


def _shifted(x, segment_ids, offset: int):
    """``x`` at the place ``offset`` further on, zero where that is another document."""
    length = x.shape[1]
    before, after = max(-offset, 0), max(offset, 0)

    def shift(a, fill):
        widths = [(0, 0), (before, after)] + [(0, 0)] * (a.ndim - 2)
        padded = jnp.pad(a, widths, constant_values=fill)
        return jax.lax.slice_in_dim(padded, after, after + length, axis=1)

    same = (shift(segment_ids, -1) == segment_ids) & (segment_ids != 0)
    return jnp.where(same[..., None], shift(x, 0), 0)

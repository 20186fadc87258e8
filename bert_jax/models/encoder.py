"""The one encoder: embeddings, a stack of layers over one tree of parameters, a final norm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from bert_jax.models.config import EncoderConfig, LearnedPositions, RotaryPositions
from bert_jax.models.layers import DENSE_OUTPUT, Dense, LayerNorm, Table, activate
from bert_jax.models.positions import default_position_ids, rotary_angles, rotate
from bert_jax.ops.attention import attention, segment_mask
from bert_jax.ops.dropout import DropoutSeed, dropout
from bert_jax.parallel import specs

# Dropout sites: inside a layer, and the embeddings' own "layer" before the first.
ATTENTION_SITE, ATTENTION_OUT_SITE, MLP_OUT_SITE, EMBEDDING_SITE = range(4)

Rotation = tuple[Float[Array, "batch 1 length half"], Float[Array, "batch 1 length half"]]


class Embeddings(nn.Module):
    """Token, type and position tables, summed in float32; norm, dropout, projection."""

    config: EncoderConfig

    def setup(self) -> None:
        """Builds the tables the config asks for."""
        c = self.config
        pad_row = c.pad_id if self._counts_real_tokens else None
        self.word = Table(
            c.padded_vocab_size, c.table_size, c.initializer, specs.TENSOR, zero_row=pad_row
        )
        if isinstance(c.positions, LearnedPositions):
            rows = c.positions.max_length + c.positions.offset
            zero = c.positions.offset - 1 if self._counts_real_tokens else None
            self.position = Table(rows, c.table_size, c.initializer, zero_row=zero)
        if c.type_vocab_size:
            self.type = Table(c.type_vocab_size, c.table_size, c.initializer)
        if c.norm.placement == "post":
            self.norm = LayerNorm(c.norm.eps)
        if c.table_size != c.hidden_size:
            self.projection = Dense(c.hidden_size, c.initializer)

    @property
    def _counts_real_tokens(self) -> bool:
        positions = self.config.positions
        return isinstance(positions, LearnedPositions) and positions.offset > 0

    def __call__(
        self,
        ids: Int[Array, "batch length"],
        position_ids: Int[Array, "batch length"],
        type_ids: Int[Array, "batch length"] | None,
        seed: DropoutSeed | None,
    ) -> Float[Array, "batch length d"]:
        """Embedded tokens, in the compute type. Positions count from 0; types are 0 by default."""
        c = self.config
        x = self.word(ids)
        if isinstance(c.positions, LearnedPositions):
            x = x + self.position(position_ids + c.positions.offset)
        if c.type_vocab_size:
            x = x + self.type(jnp.zeros_like(ids) if type_ids is None else type_ids)
        if c.norm.placement == "post":
            x = self.norm(x)
        x = x.astype(c.compute_dtype)
        x = dropout(x, c.dropout.hidden, seed, EMBEDDING_SITE)
        return x if c.table_size == c.hidden_size else self.projection(x)


class Layer(nn.Module):
    """One transformer layer: attention and feed-forward, each with its residual and norm."""

    config: EncoderConfig

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "batch length d"],
        mask: Bool[Array, "batch 1 length length"],
        rotation: Rotation | None,
        seed: DropoutSeed | None,
    ) -> Float[Array, "batch length d"]:
        """The layer's output, in the type of ``x``."""
        eps = self.config.norm.eps
        if self.config.norm.placement == "post":
            x = LayerNorm(eps, name="attention_norm")(x + self._attention(x, mask, rotation, seed))
            return LayerNorm(eps, name="mlp_norm")(x + self._mlp(x, seed))
        normed = LayerNorm(eps, name="attention_norm")(x)
        x = x + self._attention(normed, mask, rotation, seed)
        return x + self._mlp(LayerNorm(eps, name="mlp_norm")(x), seed)

    def _attention(self, x, mask, rotation, seed):
        c = self.config

        def heads(name: str) -> Float[Array, "batch heads length head_dim"]:
            y = Dense(c.hidden_size, c.initializer, "out", name=name)(x)
            shape = (*x.shape[:2], c.num_heads, c.head_dim)
            y = specs.reshape(y, shape, specs.BATCH, None, specs.TENSOR, None)
            return y.transpose(0, 2, 1, 3)

        query, key, value = heads("query"), heads("key"), heads("value")
        if rotation is not None:
            query, key = rotate(query, *rotation), rotate(key, *rotation)
        context = attention(
            query, key, value, mask,
            dropout_rate=c.dropout.attention, seed=seed, site=ATTENTION_SITE,
        )  # fmt: skip
        context = context.transpose(0, 2, 1, 3)
        context = specs.reshape(context, x.shape, specs.BATCH, None, specs.TENSOR)
        out = Dense(c.hidden_size, c.initializer, "in", name="attention_out")(context)
        return dropout(out, c.dropout.hidden, seed, ATTENTION_OUT_SITE)

    def _mlp(self, x, seed):
        c = self.config
        inner = Dense(c.intermediate_size, c.initializer, "out", name="mlp_in")(x)
        out = Dense(c.hidden_size, c.initializer, "in", name="mlp_out")(
            activate(c.activation, inner)
        )
        return dropout(out, c.dropout.hidden, seed, MLP_OUT_SITE)


class Encoder(nn.Module):
    """ids -> hidden states. The parameters of all layers are one tree with a leading layer axis.

    One detached `Layer` is applied to slices of that tree, by a scan or by a Python loop; both
    give the same values from the same parameters.
    """

    config: EncoderConfig

    @nn.compact
    def __call__(
        self,
        ids: Int[Array, "batch length"],
        segment_ids: Int[Array, "batch length"],
        position_ids: Int[Array, "batch length"] | None = None,
        token_type_ids: Int[Array, "batch length"] | None = None,
        seed: DropoutSeed | None = None,
    ) -> tuple[Float[Array, "batch length d"], Float[Array, "rows width"]]:
        """Hidden states (in the compute type) and the whole token table (for tied outputs)."""
        c = self.config
        if position_ids is None:
            real = (segment_ids != 0).astype(jnp.int32)
            position_ids = default_position_ids(c.positions, real)
        embeddings = Embeddings(c, name="embeddings")
        x = embeddings(ids, position_ids, token_type_ids, seed)
        rotation = None
        if isinstance(c.positions, RotaryPositions):
            rotation = rotary_angles(position_ids, c.head_dim, c.positions.theta)
        x = self._layers(x, segment_mask(segment_ids), rotation, seed)
        if c.norm.placement == "pre":
            x = LayerNorm(c.norm.eps, name="final_norm")(x)
        return x, embeddings.word.whole()

    def _layers(self, x, mask, rotation, seed):
        c = self.config
        layer = Layer(c, parent=None)

        def init(key: jax.Array):
            keys = jax.random.split(key, c.num_layers)
            return jax.vmap(lambda k: layer.init({"params": k}, x, mask, rotation, None)["params"])(
                keys
            )

        stack: Any = self.param("layers", init)

        def run(x, parameters, index) -> Any:
            # Layer 0 of the seed is the embeddings; see EMBEDDING_SITE.
            layer_seed = None if seed is None else seed.at_layer(index + 1)
            return layer.apply({"params": parameters}, x, mask, rotation, layer_seed)

        return run_stack(run, x, stack, c)


def run_stack(
    run: Callable[[jax.Array, dict, int | jax.Array], jax.Array],
    x: Float[Array, "batch length d"],
    stack: dict,
    config: EncoderConfig,
) -> Float[Array, "batch length d"]:
    """Applies ``run(x, parameters, index)`` for every layer of ``stack``.

    Args:
        run: One layer; ``index`` is an int when unrolled, a traced int32 when scanned.
        x: Input of the first layer.
        stack: Parameters with a leading axis of ``num_layers``.
        config: Its ``execution`` chooses loop and rematerialisation.
    """
    on_cpu = specs.platform() == "cpu"
    loop, remat = config.execution.loop, config.execution.remat
    loop = ("unroll" if on_cpu else "scan") if loop == "auto" else loop
    remat = ("none" if on_cpu else "dots") if remat == "auto" else remat
    if remat != "none":
        run = jax.checkpoint(run, policy=_remat_policy(remat))
    if loop == "unroll":
        leaves, tree = jax.tree.flatten(stack)
        layers = zip(*map(unstack, leaves), strict=True)
        for index, layer in enumerate(layers):
            x = run(x, jax.tree.unflatten(tree, layer), index)
        return x
    indices = jnp.arange(config.num_layers)
    return jax.lax.scan(lambda x, layer: (run(x, *layer), None), x, (stack, indices))[0]


@jax.custom_vjp
def unstack(stacked: Float[Array, "layers *rest"]) -> tuple[Float[Array, "*rest"], ...]:
    """The slices along the first axis.

    Autodiff of plain indexing would add one array of the whole stack's size for every layer, work
    that grows with the square of the depth; here the gradients are stacked once.
    """
    return tuple(stacked[index] for index in range(stacked.shape[0]))


def _unstack_forward(stacked):
    return unstack(stacked), None


def _unstack_backward(_, gradients):
    return (jnp.stack(gradients),)


unstack.defvjp(_unstack_forward, _unstack_backward)


def _remat_policy(remat: str) -> Callable[..., bool]:
    policies = jax.checkpoint_policies
    if remat == "dots":
        return policies.save_only_these_names(DENSE_OUTPUT)
    return policies.nothing_saveable

"""The one encoder: embeddings, a stack of layers over one tree of parameters, a final norm."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, cast

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from bert_jax.models.config import (
    AlibiPositions,
    DisentangledPositions,
    EncoderConfig,
    RotaryPositions,
)
from bert_jax.models.embeddings import Embeddings
from bert_jax.models.layer import (
    Context,
    Layer,
    LayerKind,
    NeighbourConvolution,
    Padding,
)
from bert_jax.models.layers import Table, norm_layer
from bert_jax.models.positions import default_position_ids, rotary_angles
from bert_jax.models.stack import LayerStack
from bert_jax.ops.attention import left_mask, row_mask, segment_mask
from bert_jax.ops.dropout import DropoutSeed

Captured = Literal["hidden_states", "attentions"]
Capture = tuple[Captured, ...]


class Encoded(NamedTuple):
    """What an encoder gives its head.

    Attributes:
        hidden: Hidden states, in the compute type.
        table: The whole token table, float32 (for tied outputs).
        decoded: Hidden states after the enhanced mask decoder, where the config has one.
        hidden_states: If captured: the input of the first layer and the output of each, before any
            final norm.
        attentions: If captured: attention probabilities of every layer, float32.
    """

    hidden: Float[Array, "batch length d"]
    table: Float[Array, "rows width"]
    decoded: Float[Array, "batch length d"] | None = None
    hidden_states: Float[Array, "layers_and_one batch length d"] | None = None
    attentions: Float[Array, "layers batch heads length length"] | None = None


class Encoder(nn.Module):
    """ids -> hidden states. The parameters of all layers are one tree with a leading layer axis.

    One detached `Layer` is applied to slices of that tree, by a scan or by a Python loop; both
    give the same values from the same parameters.

    Attributes:
        config: The encoder.
        padding: What padding sees, which is for heads that normalise over whole rows; real tokens
            are the same either way. ``blind``: nothing. ``transformers``: what it sees there: the
            real tokens of its row, in windows those within reach, equal shares of all where
            there are none or positions are disentangled; windows are then computed over all pairs.
    """

    config: EncoderConfig
    padding: Padding = "blind"

    @nn.compact
    def __call__(
        self,
        ids: Int[Array, "batch length"],
        segment_ids: Int[Array, "batch length"],
        position_ids: Int[Array, "batch length"] | None = None,
        token_type_ids: Int[Array, "batch length"] | None = None,
        seed: DropoutSeed | None = None,
        capture: Capture = (),
    ) -> Encoded:
        """Encodes a batch.

        Args:
            ids: Token ids.
            segment_ids: Document of every token, 0 for padding.
            position_ids: Positions from 0; None: those of the scheme.
            token_type_ids: Segment types; None: 0.
            seed: Dropout seed; None at evaluation.
            capture: What else to return; asking for attention maps computes windows over all pairs.
        """
        c = self.config
        if position_ids is None:
            real = (segment_ids != 0).astype(jnp.int32)
            position_ids = default_position_ids(c.positions, real)
        embeddings = Embeddings(c, name="embeddings")
        learning = segment_ids if self.padding == "transformers" else None
        x = embeddings(ids, position_ids, token_type_ids, seed, learning)
        context = self._context(segment_ids, position_ids)
        layer = Layer(c, maps="attentions" in capture, padding=self.padding, parent=None)
        stored = self._stored(layer, x, context)
        start = None
        if c.heads.vocabulary.mask_decoder == "enhanced":
            start = embeddings.absolute(position_ids).astype(x.dtype)
        x, decoded, states, maps = self._layers(layer, stored, x, context, start, seed, capture)
        if c.norm.placement == "pre":
            final = norm_layer(c.norm, "final_norm")
            x = final(x)
            decoded = None if decoded is None else final(decoded)
        return Encoded(
            hidden=x,
            table=embeddings.word.whole(),
            decoded=decoded,
            hidden_states=jnp.stack(states) if states else None,
            attentions=jnp.stack(maps) if maps else None,
        )

    def _context(self, segment_ids, position_ids) -> Context:
        """What every layer reads; computed once."""
        c, p = self.config, self.config.positions
        rotation = local_rotation = relative = None
        if isinstance(p, RotaryPositions):
            rotation = local_rotation = rotary_angles(position_ids, c.head_dim, p.theta)
            if p.local_theta not in (None, p.theta):
                local_rotation = rotary_angles(position_ids, c.head_dim, p.local_theta)
        if isinstance(p, DisentangledPositions):
            table = Table(p.table_rows, c.hidden_size, c.initializer, name="relative")
            relative = table.whole()
            if p.norm == "layer":
                relative = norm_layer(c.norm, "relative_norm")(relative)
        whole = self.padding == "transformers" and not isinstance(p, DisentangledPositions)
        mask = row_mask(segment_ids) if whole else segment_mask(segment_ids)
        if c.attention.direction == "left":
            mask = mask & left_mask(segment_ids.shape[1])
        places = position_ids if isinstance(p, AlibiPositions) else None
        return Context(segment_ids, mask, rotation, local_rotation, relative, places)

    def _stored(self, layer: Layer, x, context: Context) -> dict[str, Any]:
        """Parameters of all layers, stacked along a first axis."""
        c = self.config

        def init(key: jax.Array) -> Any:
            keys = jax.random.split(key, c.stored_layers)
            stacked = jax.vmap(lambda k: layer.init({"params": k}, x, context, None)["params"])(
                keys
            )
            if c.norm.skip_first:
                norm = jax.tree.map(lambda a: a[1:], stacked["attention_norm"])
                stacked = {**stacked, "attention_norm": norm}
            return stacked

        return cast(dict[str, Any], self.param("layers", init))

    def _layers(self, layer: Layer, stored, x, context: Context, start, seed, capture):
        """Hidden states, those of the mask decoder, and what was captured."""
        c = self.config

        def run(kind: LayerKind, x, parameters, index):
            own = layer.clone(kind=kind, parent=None)
            # Layer 0 of the seed is the embeddings.
            layer_seed = None if seed is None else seed.at_layer(index + 1)
            x, maps = own.apply({"params": parameters}, x, context, layer_seed)
            return x, (x if "hidden_states" in capture else None, maps)

        stack = LayerStack(c, stored, run)
        embedded, before = x, x
        states = [x] if "hidden_states" in capture else []
        maps = []
        for stretch in stack.stretches:
            before = x
            x, captured = stack.apply(stretch, x)
            if stretch.start == 0 and c.convolution is not None:
                beside = NeighbourConvolution(c, self.padding, name="convolution")
                conv_seed = None if seed is None else seed.at_layer(c.applied_layers + 1)
                x = beside(embedded, x, context.segment_ids, conv_seed)
                captured = [(None if s is None else x, m) for s, m in captured]
            states += [state for state, _ in captured if state is not None]
            maps += [each for _, each in captured if each is not None]
        decoded = None
        if start is not None:
            last = c.applied_layers - 1
            decoded = self._decode(layer, stack.layer(last), before, context, start, seed)
        return x, decoded, states, maps

    def _decode(self, layer: Layer, parameters, keys, context: Context, start, seed):
        """The enhanced mask decoder: the last layer twice, over the input it had.

        Queries (and the residual) start as absolute positions plus that input; the second pass
        starts from the first one's output (microsoft/DeBERTa, masked_language_model.py).
        """
        query = start + keys
        for step in (2, 3):
            index = self.config.applied_layers + step
            layer_seed = None if seed is None else seed.at_layer(index)
            query, _ = layer.apply({"params": parameters}, keys, context, layer_seed, query)
        return query

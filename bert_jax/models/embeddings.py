"""Token ids -> the first hidden states: tables summed in float32, norm, dropout, projection."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from bert_jax.models.config import (
    DisentangledPositions,
    EncoderConfig,
    LearnedPositions,
    SinusoidalPositions,
)
from bert_jax.models.layers import Dense, Table, norm_layer
from bert_jax.models.positions import sinusoids
from bert_jax.ops.dropout import DropoutSeed, dropout
from bert_jax.parallel import specs

EMBEDDING_SITE = 3  # dropout site; the embeddings are "layer" 0 of the seed


def has_position_table(config: EncoderConfig) -> bool:
    """Whether the encoder holds a table of absolute positions, added here or not."""
    positions = config.positions
    if isinstance(positions, DisentangledPositions):
        enhanced = config.heads.vocabulary.mask_decoder == "enhanced"
        return enhanced or positions.at_input == "absolute"
    return isinstance(positions, LearnedPositions)


class Factor(nn.Module):
    """One number that is trained and multiplies what it is given.

    Attributes:
        start: Its initial value.
    """

    start: float

    @nn.compact
    def __call__(self, x: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
        """``x`` times the number."""
        start = jnp.full((1,), self.start, jnp.float32, out_sharding=specs.spec(None))
        return x * self.param("scale", lambda _: start)


class Embeddings(nn.Module):
    """Tokens, types and positions, summed in float32; norm, dropout, projection.

    Attributes:
        config: Of the encoder.
    """

    config: EncoderConfig

    def setup(self) -> None:
        """Builds the tables the config asks for."""
        c = self.config
        offset = c.positions.offset if isinstance(c.positions, LearnedPositions) else 0
        # fairseq's tables start with a zero row for padding, and its positions skip padding.
        zero_token, zero_position = (c.pad_id, offset - 1) if offset else (None, None)
        self.word = Table(
            c.padded_vocab_size,
            c.table_size,
            c.initializer,
            specs.TENSOR,
            zero_row=zero_token,
            used=c.vocab_size,
        )
        if has_position_table(c):
            rows = c.positions.max_length + offset
            self.position = Table(rows, c.table_size, c.initializer, zero_row=zero_position)
        if isinstance(c.positions, SinusoidalPositions) and c.positions.scale == "learned":
            self.position = Factor(c.table_size**-0.5)
        if c.type_vocab_size:
            self.type = Table(c.type_vocab_size, c.table_size, c.initializer)
        if c.norm.on_embeddings:
            self.norm = norm_layer(c.norm)
        if c.embedding_size is not None:
            bias = c.embedding_projection == "after_norm"
            start = c.outer_initializer(c.embedding_size, c.hidden_size)
            self.projection = Dense(c.hidden_size, start, bias=bias)

    def __call__(
        self,
        ids: Int[Array, "batch length"],
        position_ids: Int[Array, "batch length"],
        type_ids: Int[Array, "batch length"] | None,
        seed: DropoutSeed | None,
        segment_ids: Int[Array, "batch length"] | None = None,
    ) -> Float[Array, "batch length d"]:
        """Embedded tokens, in the compute type. Positions count from 0; types are 0 by default.

        With ``segment_ids``, what transformers does at padding: the padding token learns nothing,
        nor does a position row of padding's own (its ``padding_idx``), and padding is zero where
        positions are disentangled.
        """
        c = self.config
        x = self.word(ids)
        if segment_ids is not None:
            x = _taught(x, ids != c.pad_id)
        if isinstance(c.positions, SinusoidalPositions):
            waves = sinusoids(position_ids, c.table_size, c.positions.theta)
            x = x + (self.position(waves) if c.positions.scale == "learned" else waves)
        if isinstance(c.positions, LearnedPositions) or (
            isinstance(c.positions, DisentangledPositions) and c.positions.at_input == "absolute"
        ):
            places = self.absolute(position_ids)
            if segment_ids is not None and isinstance(c.positions, LearnedPositions):
                places = _taught(places, position_ids >= 0)
            x = x + places
        if c.type_vocab_size:
            x = x + self.type(jnp.zeros_like(ids) if type_ids is None else type_ids)
        if c.embedding_size is not None and c.embedding_projection == "before_norm":
            x = self.projection(x.astype(c.compute_dtype)).astype(jnp.float32)
        if c.norm.on_embeddings:
            x = self.norm(x)
        if segment_ids is not None and isinstance(c.positions, DisentangledPositions):
            x = jnp.where((segment_ids != 0)[..., None], x, 0)
        x = x.astype(c.compute_dtype)
        x = dropout(x, c.dropout.on_embeddings, seed, EMBEDDING_SITE)
        if c.embedding_size is not None and c.embedding_projection == "after_norm":
            x = self.projection(x)
        return x

    def absolute(
        self, position_ids: Int[Array, "batch length"]
    ) -> Float[Array, "batch length width"]:
        """Embeddings of absolute positions, float32."""
        positions = self.config.positions
        offset = positions.offset if isinstance(positions, LearnedPositions) else 0
        return self.position(position_ids + offset)


def _taught(
    rows: Float[Array, "batch length width"], learns: Bool[Array, "batch length"]
) -> Float[Array, "batch length width"]:
    """``rows``, with a gradient only where ``learns``."""
    return jnp.where(learns[..., None], rows, jax.lax.stop_gradient(rows))

"""Heads of pre-training: the vocabulary, pairs of texts, replaced tokens."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from bert_jax.models.encoder import Encoded
from bert_jax.models.layers import Dense, Table, activate, norm_layer
from bert_jax.models.model import EncoderModel, SlotIds
from bert_jax.models.pooling import pool
from bert_jax.ops.cross_entropy import linear_cross_entropy, project
from bert_jax.ops.dropout import DropoutSeed, dropout
from bert_jax.parallel import specs

CPU_VOCAB_BLOCK = 2048  # rows; blocks of 1024-2048 were fastest (docs/benchmarks.md)

# Dropout sites of heads.
POOLER_SITE, CLASSIFIER_SITE = range(2)


class MaskedLM(EncoderModel):
    """Encoder with a masked-language-model head.

    Dense, activation, norm, projection onto the token table and a bias, unless
    ``config.heads.vocabulary`` says otherwise. Inside, the vocabulary is padded to a multiple of
    128 rows; outside, logits have ``config.vocab_size`` columns.

    Head inputs:
        positions: (batch, K) places where the head is applied; everywhere if None.
        targets: (batch, K) right ids at ``positions``; asks for losses instead of logits.

    Head outputs:
        ``logits`` float32 (batch, length or K, V); or with ``targets``: ``nll`` float32 and
        ``correct`` bool, both (batch, K).
    """

    def _head(
        self,
        encoded: Encoded,
        segment_ids,
        seed,
        *,
        positions: SlotIds | None = None,
        targets: SlotIds | None = None,
    ) -> dict[str, Array]:
        del segment_ids, seed
        hidden = encoded.hidden if encoded.decoded is None else encoded.decoded
        if positions is not None:
            hidden = jnp.take_along_axis(hidden, positions[..., None], axis=1)
        return self._vocabulary(hidden, encoded.table, targets)

    def _vocabulary(self, x, table, targets) -> dict[str, Float[Array, "..."]]:
        c, head = self.config, self.config.heads.vocabulary
        if head.transform == "dense":
            x = Dense(c.table_size, c.initializer, bias=head.bias, name="head_dense")(x)
            x = norm_layer(c.norm, "head_norm")(activate(head.activation or c.activation, x))
        if head.decoder == "untied":
            width = x.shape[-1]
            rows, used = c.padded_vocab_size, c.vocab_size
            own = Table(rows, width, c.initializer, specs.TENSOR, used=used, name="decoder")
            table = own.whole()
        if head.decoder_bias:
            rows = (c.padded_vocab_size,)
            bias = self.param("head_bias", lambda _: specs.zeros(rows, jnp.float32, specs.TENSOR))
        else:
            bias = jnp.zeros_like(table[:, 0])  # laid out, and varying, as the table is
        if targets is None:
            logits = project(x, table, bias, c.vocab_size)
            logits = specs.constrain(logits, specs.BATCH, None, None)
            return {"logits": logits[..., : c.vocab_size]}
        batch, slots, width = x.shape
        nll, correct = linear_cross_entropy(
            specs.reshape(x, (batch * slots, width), specs.BATCH, None),
            table,
            bias,
            specs.reshape(targets, (batch * slots,), specs.BATCH),
            vocab_size=c.vocab_size,
            block=vocab_block(),
        )
        return {
            "nll": specs.reshape(nll, (batch, slots), *specs.TOKENS),
            "correct": specs.reshape(correct, (batch, slots), *specs.TOKENS),
        }


class PreTraining(MaskedLM):
    """Masked language model that also judges a pair of texts (BERT's NSP, ALBERT's SOP).

    Head inputs as `MaskedLM`.

    Head outputs:
        Those of `MaskedLM`, and ``pair_logits`` float32 (batch, 2): BERT's 0 is "B follows A",
        1 "B is from elsewhere"; ALBERT's 1 is "swapped".
    """

    def _head(
        self,
        encoded: Encoded,
        segment_ids,
        seed,
        *,
        positions: SlotIds | None = None,
        targets: SlotIds | None = None,
    ) -> dict[str, Array]:
        tokens = super()._head(encoded, segment_ids, seed, positions=positions, targets=targets)
        pooled = pool_and_transform(self, encoded.hidden, segment_ids, seed)
        return tokens | {"pair_logits": classify(self, pooled, 2, "pair")}


class ReplacedTokenDetector(EncoderModel):
    """Discriminator of replaced-token detection (ELECTRA, DeBERTa v3).

    Head outputs:
        ``logits`` float32 (batch, length): above 0 says "this token was replaced".
    """

    def _head(self, encoded: Encoded, segment_ids, seed) -> dict[str, Array]:
        del segment_ids, seed
        c, x = self.config, encoded.hidden
        if c.heads.detector == "token_and_context":
            x = norm_layer(c.norm, "detector_norm")(x + x[:, :1])
        x = activate(c.activation, Dense(c.hidden_size, c.initializer, name="detector_dense")(x))
        start = c.outer_initializer(c.hidden_size, 1)
        scores = Dense(1, start, name="detector")(x).astype(jnp.float32)
        return {"logits": jax.lax.index_in_dim(scores, 0, axis=2, keepdims=False)}


def pool_and_transform(
    model: EncoderModel,
    hidden: Float[Array, "batch length d"],
    segment_ids,
    seed: DropoutSeed | None,
) -> Float[Array, "batch d"]:
    """One vector a row: pooled, mapped, activated, as ``config.heads.pooler`` says.

    To be called while ``model`` runs: it makes the parameters ``pooler`` and ``pooler_norm``.
    """
    pooled = pool(model.config.heads.pooler.pooling, hidden, segment_ids)
    return head_transform(model, pooled.astype(hidden.dtype), seed)


def head_transform(
    model: EncoderModel, x: Float[Array, "batch *rest d"], seed: DropoutSeed | None
) -> Float[Array, "batch *rest d"]:
    """The pooler's map, activation and norm, with the dropout before it."""
    c, pooler = model.config, model.config.heads.pooler
    x = dropout(x, pooler.input_dropout, seed, POOLER_SITE)
    x = Dense(c.hidden_size, c.initializer, bias=pooler.bias, name="pooler")(x)
    x = activate(pooler.activation, x)
    return norm_layer(c.norm, "pooler_norm")(x) if pooler.norm == "encoder" else x


def classify(
    model: EncoderModel, x: Float[Array, "batch *rest d"], labels: int, name: str
) -> Float[Array, "batch *rest labels"]:
    """Logits of a linear classifier, float32."""
    if labels < 1:
        raise ValueError(f"num_labels is {labels}; a classifier has 1 (a score) or more.")
    return Dense(labels, model.config.initializer, name=name)(x).astype(jnp.float32)


def vocab_block() -> int | None:
    """Vocabulary rows a block of the fused loss; None where the table is split over devices."""
    mesh = jax.sharding.get_abstract_mesh()
    if not mesh.empty:
        sizes = dict(zip(mesh.axis_names, mesh.axis_sizes, strict=True))
        explicit = [axis for axis in specs.AXES if axis not in mesh.manual_axes]
        if any(sizes.get(axis, 1) > 1 for axis in explicit):
            return None
    return CPU_VOCAB_BLOCK if specs.platform() == "cpu" else None

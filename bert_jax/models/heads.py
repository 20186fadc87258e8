"""Models: an encoder with a head on it."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Integer

from bert_jax.models.config import EncoderConfig
from bert_jax.models.encoder import Encoder
from bert_jax.models.inputs import validate_inputs
from bert_jax.models.layers import Dense, LayerNorm, activate
from bert_jax.ops.cross_entropy import linear_cross_entropy, project
from bert_jax.ops.dropout import DropoutSeed
from bert_jax.parallel import specs

# Arrays of the host are welcome, and checked; inside jit they are jax's.
TokenIds = Integer[Array | np.ndarray, "batch length"]
SlotIds = Integer[Array | np.ndarray, "batch slots"]
RowIds = Integer[Array | np.ndarray, "batch"]

CPU_VOCAB_BLOCK = 2048  # rows; blocks of 1024-2048 were fastest (docs/benchmarks.md)


class MaskedLM(nn.Module):
    """Encoder with a masked-language-model head (dense, gelu, norm, tied projection + bias).

    ``model.init(key)`` gives ``{"params": ...}``; ``model.apply({"params": params}, input_ids,
    ...)`` a dict. Inside, the vocabulary is padded to a multiple of 128 rows; outside, logits have
    ``config.vocab_size`` columns.
    """

    config: EncoderConfig

    @nn.compact
    def __call__(
        self,
        input_ids: TokenIds | None = None,
        attention_mask: TokenIds | None = None,
        *,
        segment_ids: TokenIds | None = None,
        position_ids: TokenIds | None = None,
        token_type_ids: TokenIds | None = None,
        positions: SlotIds | None = None,
        targets: SlotIds | None = None,
        example_ids: RowIds | None = None,
        deterministic: bool = True,
    ) -> dict[str, Array]:
        """Runs the model.

        Arrays of numpy are checked against the config (`validate_inputs`).

        Args:
            input_ids: Token ids. May be left out when only initialising.
            attention_mask: 1 for real tokens, 0 for padding. With neither this nor
                ``segment_ids``, tokens equal to ``config.pad_id`` are padding.
            segment_ids: Document number of every token, 0 for padding: attention stays inside.
            position_ids: Positions from 0; by default those of the config's scheme.
            token_type_ids: Segment types; 0 by default.
            positions: Where the head is applied, K places a row; everywhere if None.
            targets: Right ids at ``positions``; asks for losses instead of logits.
            example_ids: Global example index of every row: dropout depends on it. By default the
                row's number in the batch.
            deterministic: False applies dropout, with ``rngs={"dropout": key}``.

        Returns:
            ``hidden`` (batch, length, d) always; ``logits`` float32 (batch, length or K, V); or
            with ``targets``: ``nll`` float32 and ``correct`` bool, both (batch, K).
        """
        c = self.config
        _check_host_arrays(
            c,
            input_ids,
            position_ids=position_ids,
            token_type_ids=token_type_ids,
            positions=positions,
            targets=targets,
        )
        if input_ids is None:
            input_ids = specs.zeros((specs.batch_shards(), 1), jnp.int32, *specs.TOKENS)
            segment_ids = jnp.ones_like(input_ids)
        if segment_ids is None:
            real = input_ids != c.pad_id if attention_mask is None else attention_mask != 0
            segment_ids = jnp.asarray(real, jnp.int32)
        input_ids, segment_ids = jnp.asarray(input_ids), jnp.asarray(segment_ids)
        position_ids, token_type_ids = (
            None if x is None else jnp.asarray(x) for x in (position_ids, token_type_ids)
        )
        seed = None
        if not deterministic:
            if example_ids is None:
                example_ids = jnp.zeros_like(input_ids[:, 0]) + jnp.arange(input_ids.shape[0])
            seed = DropoutSeed.from_key(self.make_rng("dropout"), jnp.asarray(example_ids))
        hidden, table = Encoder(c, name="encoder")(
            input_ids, segment_ids, position_ids, token_type_ids, seed
        )
        output = {"hidden": hidden}
        if positions is not None:
            hidden = jnp.take_along_axis(hidden, jnp.asarray(positions)[..., None], axis=1)
        return output | self._head(hidden, table, targets)

    def _head(self, x, table, targets) -> dict[str, Float[Array, "..."]]:
        c = self.config
        x = Dense(c.table_size, c.initializer, name="head_dense")(x)
        x = LayerNorm(c.norm.eps, name="head_norm")(activate(c.activation, x))
        rows = (c.padded_vocab_size,)
        bias = self.param("head_bias", lambda _: specs.zeros(rows, jnp.float32, specs.TENSOR))
        if targets is None:
            logits = project(x, table, bias, c.vocab_size)
            logits = specs.constrain(logits, specs.BATCH, None, None)
            return {"logits": logits[..., : c.vocab_size]}
        batch, slots, width = x.shape
        nll, correct = linear_cross_entropy(
            specs.reshape(x, (batch * slots, width), specs.BATCH, None),
            table,
            bias,
            specs.reshape(jnp.asarray(targets), (batch * slots,), specs.BATCH),
            vocab_size=c.vocab_size,
            block=vocab_block(),
        )
        return {
            "nll": specs.reshape(nll, (batch, slots), *specs.TOKENS),
            "correct": specs.reshape(correct, (batch, slots), *specs.TOKENS),
        }


def _check_host_arrays(config: EncoderConfig, input_ids, **others) -> None:
    """`validate_inputs` for what lies on the host; traced and device arrays are left alone."""
    if isinstance(input_ids, np.ndarray):
        on_host = {name: x for name, x in others.items() if isinstance(x, np.ndarray)}
        validate_inputs(config, input_ids, **on_host)


def vocab_block() -> int | None:
    """Vocabulary rows a block of the fused loss; None where the table is split over devices."""
    mesh = jax.sharding.get_abstract_mesh()
    if not mesh.empty:
        sizes = dict(zip(mesh.axis_names, mesh.axis_sizes, strict=True))
        explicit = [axis for axis in specs.AXES if axis not in mesh.manual_axes]
        if any(sizes.get(axis, 1) > 1 for axis in explicit):
            return None
    return CPU_VOCAB_BLOCK if specs.platform() == "cpu" else None

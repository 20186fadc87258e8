"""What all models share: inputs from outside, checked, through the encoder, to a head."""

from __future__ import annotations

from typing import Any, get_args

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, Integer

from bert_jax.models.config import EncoderConfig
from bert_jax.models.encoder import Capture, Captured, Encoded, Encoder
from bert_jax.models.inputs import check_inputs
from bert_jax.models.layer import Padding
from bert_jax.ops.dropout import DropoutSeed
from bert_jax.parallel import specs

# Arrays of the host are welcome, and checked; inside jit they are jax's.
TokenIds = Integer[Array | np.ndarray, "batch length"]
SlotIds = Integer[Array | np.ndarray, "batch slots"]
RowIds = Integer[Array | np.ndarray, "batch"]

HEAD_LAYERS = 8  # numbers of the dropout seed after the encoder's that heads may use


class EncoderModel(nn.Module):
    """An encoder alone; subclasses put a head on it.

    ``model.init(key)`` gives ``{"params": ...}``; ``model.apply({"params": params}, input_ids,
    ...)`` a dict.

    Attributes:
        config: The encoder.
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
        example_ids: RowIds | None = None,
        deterministic: bool = True,
        capture: Capture = (),
        **head_inputs: Any,
    ) -> dict[str, Array]:
        """Runs the model.

        Arrays whose values are known (numpy's, or jax's outside jit) are checked against the
        config.

        Args:
            input_ids: Token ids. May be left out when only initialising.
            attention_mask: 1 for real tokens, 0 for padding. With neither this nor
                ``segment_ids``, tokens equal to ``config.pad_id`` are padding.
            segment_ids: Document number of every token, 0 for padding: attention stays inside.
            position_ids: Positions from 0; by default those of the config's scheme.
            token_type_ids: Segment types; 0 by default.
            example_ids: Global example index of every row: dropout depends on it. By default the
                row's number in the batch.
            deterministic: False applies dropout, with ``rngs={"dropout": key}``.
            capture: ``"hidden_states"``: adds ``hidden_states`` (layers + 1, batch, length, d), the
                embeddings and every layer's output; ``"attentions"``: adds ``attentions`` (layers,
                batch, heads, length, length), float32.
            **head_inputs: What the head takes; see the model's own description.

        Returns:
            ``hidden`` (batch, length, d) always, and what the head gives.

        Raises:
            ValueError: For inputs the config cannot hold, naming the value, the limit and the fix.
        """
        c = self.config
        check_inputs(
            c,
            input_ids,
            attention_mask=attention_mask,
            segment_ids=segment_ids,
            position_ids=position_ids,
            token_type_ids=token_type_ids,
            **head_inputs,
        )
        unknown = set(capture) - set(get_args(Captured))
        if isinstance(capture, str) or unknown:
            raise ValueError(
                f"capture is {capture!r}; give a tuple of {', '.join(get_args(Captured))}."
            )
        if input_ids is None:
            rows = specs.batch_shards() * self._rows_at_init()
            input_ids = specs.zeros((rows, 1), jnp.int32, *specs.TOKENS)
            segment_ids = jnp.ones_like(input_ids)
        if segment_ids is None:
            real = input_ids != c.pad_id if attention_mask is None else attention_mask != 0
            segment_ids = jnp.asarray(real, jnp.int32)
        input_ids = jnp.asarray(input_ids, jnp.int32)
        segment_ids = jnp.asarray(segment_ids, jnp.int32)
        position_ids, token_type_ids = (
            None if x is None else jnp.asarray(x, jnp.int32) for x in (position_ids, token_type_ids)
        )
        seed = None
        if not deterministic:
            if example_ids is None:
                example_ids = jnp.zeros_like(input_ids[:, 0]) + jnp.arange(input_ids.shape[0])
            seed = DropoutSeed.from_key(self.make_rng("dropout"), jnp.asarray(example_ids))
        encoded = Encoder(c, self._padding(), name="encoder")(
            input_ids, segment_ids, position_ids, token_type_ids, seed, capture
        )
        output = {"hidden": encoded.hidden}
        for name in capture:
            output[name] = getattr(encoded, name)
        head_seed = None if seed is None else seed.at_layer(c.applied_layers + HEAD_LAYERS)
        head_inputs = {n: None if x is None else jnp.asarray(x) for n, x in head_inputs.items()}
        return output | self._head(encoded, segment_ids, head_seed, **head_inputs)

    def _head(
        self,
        encoded: Encoded,
        segment_ids: Int[Array, "batch length"],
        seed: DropoutSeed | None,
        **inputs: Any,
    ) -> dict[str, Array]:
        """What the model gives beside hidden states."""
        del encoded, segment_ids, seed
        if inputs:
            raise TypeError(f"{type(self).__name__} takes no {', '.join(inputs)}")
        return {}

    def _padding(self) -> Padding:
        """What padding sees; see `bert_jax.models.encoder.Encoder`."""
        return "blind"

    def _rows_at_init(self) -> int:
        """Rows of the batch that `init` makes up."""
        return 1

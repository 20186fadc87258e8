"""How many parameters a model has, without the padding of its vocabulary."""

from __future__ import annotations

import math

import jax

from bert_jax.models.config import EncoderConfig
from bert_jax.models.model import EncoderModel
from bert_jax.models.paths import by_path

# Parameters whose first axis is the vocabulary, padded to ``config.padded_vocab_size`` rows.
VOCABULARY_PATHS = ("encoder/embeddings/word/embedding", "decoder/embedding", "head_bias")


def real_shape(path: str, shape: tuple[int, ...], config: EncoderConfig) -> tuple[int, ...]:
    """Shape of a parameter without padded vocabulary rows."""
    return (config.vocab_size, *shape[1:]) if path in VOCABULARY_PATHS else shape


def parameter_count(model: EncoderModel) -> int:
    """Parameters of a model; tied weights count once, padded vocabulary rows not at all."""
    shapes = jax.eval_shape(model.init, jax.random.key(0))["params"]
    return sum(
        math.prod(real_shape(path, leaf.shape, model.config))
        for path, leaf in by_path(shapes).items()
    )

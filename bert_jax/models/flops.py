"""Operations of a model's matrix products, from its config alone.

Look-ups, norms, softmax, activations, dropout, losses and the optimizer are not counted, nor is
anything computed a second time (rematerialised layers, logits of the blocked loss): the definition
of model FLOPs of PaLM (arXiv:2204.02311, appendix B), with the encoder's square where a decoder has
a triangle. A backward pass takes twice a forward pass: one product for each operand's gradient.
"""

from __future__ import annotations

from bert_jax.models.config import DisentangledPositions, EncoderConfig, LocalAttention
from bert_jax.models.heads import MaskedLM, PreTraining, ReplacedTokenDetector
from bert_jax.models.model import EncoderModel
from bert_jax.models.stack import layer_kinds


def model_flops_per_step(config: EncoderConfig, rows: int, length: int, slots: int) -> float:
    """Operations of one step of masked language modelling, forward and backward.

    Args:
        config: The encoder.
        rows: Rows of a batch, over all devices and microbatches.
        length: Positions of a row.
        slots: Predictions of a row (`Masking.slots`).
    """
    return 3.0 * rows * (forward_flops(config, length) + slots * head_flops(config))


def forward_flops(config: EncoderConfig, length: int) -> float:
    """Operations of the encoder's forward pass over one row.

    With T = ``length``, width d, inner width f (times 3 maps if gated, else 2), table width e and L
    applied layers::

        L * T * (8 d^2 + 4 d f + 4 S d)  +  [factorised] 2 T e d

    (query, key, value and output projections; the maps of the feed-forward layer, 6 d f if gated;
    scores and weighted values over the S tokens that are seen, T or a window's, whatever the
    segments; the projection of factorised embeddings). Every term of disentangled positions adds
    2 S d, the convolution 2 k d^2 once.
    """
    d, f, e = config.hidden_size, config.intermediate_size, config.table_size
    maps = 6 if config.mlp == "gated" else 4
    terms = (
        len(config.positions.terms) if isinstance(config.positions, DisentangledPositions) else 0
    )
    per_seen = (4 + 2 * terms) * d
    seen = 0
    for kind in layer_kinds(config):
        window = length
        if kind.local and isinstance(config.attention, LocalAttention):
            sides = 2 if config.attention.direction == "both" else 1
            window = min(length, sides * config.attention.radius + 1)
        seen += window
    per_position = config.applied_layers * (8 * d * d + maps * d * f) + seen * per_seen
    per_position += 2 * e * d if config.embedding_size is not None else 0
    if config.convolution is not None:
        per_position += 2 * config.convolution.kernel_size * d * d
    return float(length * per_position)


def head_flops(config: EncoderConfig) -> float:
    """Operations of the vocabulary head's forward pass for one prediction: 2 d e + 2 e V."""
    d, e = config.hidden_size, config.table_size
    dense = config.heads.vocabulary.transform == "dense"
    return float((2 * d * e if dense else 0) + 2 * (e if dense else d) * config.vocab_size)


def pooler_flops(config: EncoderConfig, *, labels: int) -> float:
    """Operations of the pooler's map and a classifier on it, forward, for one row or token."""
    return float(2 * config.hidden_size * (config.hidden_size + labels))


def heads_flops(model: EncoderModel, length: int) -> float:
    """Operations of a model's heads, forward, over one row, at every position.

    Heads of other models than those of pre-training (`bert_jax.models.heads`) are not counted.
    """
    config = model.config
    if isinstance(model, ReplacedTokenDetector):
        return length * pooler_flops(config, labels=1)
    if not isinstance(model, MaskedLM):
        return 0.0
    pairs = pooler_flops(config, labels=2) if isinstance(model, PreTraining) else 0.0
    return length * head_flops(config) + pairs

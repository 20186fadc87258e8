"""ModernBERT (Warner et al. 2024, arXiv:2412.13663) and Ettin, its ladder of sizes."""

from __future__ import annotations

from bert_jax.models.config import (
    Biases,
    Dropout,
    EncoderConfig,
    Heads,
    LocalAttention,
    Norm,
    Pooler,
    RotaryPositions,
    TruncatedNormal,
    VocabularyHead,
)

VOCAB_SIZE = 50368  # 50,280 of OLMo's BPE, special tokens, 83 unused: a multiple of 64
# (layers, width, heads, feed-forward width); config.json of the releases.
SIZES = {"base": (22, 768, 12, 1152), "large": (28, 1024, 16, 2624)}
# JHU-CLSP/ettin-encoder-vs-decoder, pretraining/configs/standard.
ETTIN_SIZES = {
    "17m": (7, 256, 4, 384),
    "32m": (10, 384, 6, 576),
    "68m": (19, 512, 8, 768),
    "150m": (22, 768, 12, 1152),
    "400m": (28, 1024, 16, 2624),
    "1b": (28, 1792, 28, 3840),
}


def modernbert_encoder(size: str) -> EncoderConfig:
    """ModernBERT as released: 8,192 tokens, theta 160,000 in global layers."""
    return _encoder(*SIZES[size], local_theta=10_000.0)


def ettin_encoder(size: str) -> EncoderConfig:
    """Ettin as released: theta 160,000 in local layers too (but in the smallest)."""
    return _encoder(*ETTIN_SIZES[size], local_theta=10_000.0 if size == "17m" else 160_000.0)


def _encoder(
    layers: int, width: int, heads: int, inner: int, *, local_theta: float
) -> EncoderConfig:
    return EncoderConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=width,
        num_layers=layers,
        num_heads=heads,
        intermediate_size=inner,
        # Phase 1 (1,024 tokens) has theta 10,000 everywhere.
        positions=RotaryPositions(max_length=8192, theta=160_000.0, local_theta=local_theta),
        attention=LocalAttention(window=128, global_every=3),
        norm=Norm("pre", eps=1e-5, bias=False, after_embeddings=True, skip_first=True),
        activation="gelu",
        mlp="gated",
        biases=Biases("none", "none"),
        dropout=Dropout(
            hidden=0.0, attention=0.0, attention_out=0.1
        ),  # yaml: attn_out_dropout_prob
        initializer=TruncatedNormal(0.02, residual="by_depth"),  # init_method full_megatron
        heads=Heads(
            vocabulary=VocabularyHead(bias=False),
            pooler=Pooler(
                pooling="cls",
                activation="gelu",
                bias=False,
                norm="encoder",
                output_dropout=0.0,
                token_heads="transform",
            ),
        ),
        pad_id=50283,
    )

"""Model configs: what they derive, and what they refuse with which sentence."""

import dataclasses
import math

import pytest

from bert_jax.models.config import (
    AlibiPositions,
    Convolution,
    DisentangledPositions,
    Dropout,
    EncoderConfig,
    GlobalAttention,
    Heads,
    LayerSharing,
    LearnedPositions,
    LocalAttention,
    Norm,
    Normal,
    Pooler,
    RotaryPositions,
    TruncatedNormal,
    Uniform,
    VocabularyHead,
)


@pytest.mark.parametrize(
    "vocab_size, rows",
    [(1, 128), (127, 128), (128, 128), (129, 256), (30522, 30592), (50265, 50304)],
)
def test_vocabulary_is_padded_to_a_multiple_of_128(vocab_size, rows):
    assert EncoderConfig(vocab_size).padded_vocab_size == rows


def test_derived_sizes():
    config = EncoderConfig(1000, hidden_size=96, num_heads=8)
    assert (config.head_dim, config.table_size) == (12, 96)
    assert dataclasses.replace(config, embedding_size=32).table_size == 32


def test_defaults_are_the_base_size_of_bert():
    config = EncoderConfig(30522)
    shape = (config.num_layers, config.hidden_size, config.num_heads, config.intermediate_size)
    assert shape == (12, 768, 12, 3072)
    assert config.norm == Norm("post", 1e-12)
    assert config.dropout == Dropout(0.1, 0.1)
    assert config.initializer == TruncatedNormal(0.02)
    assert config.positions == LearnedPositions(512, 0)
    assert config.pad_id == 0


def test_configs_are_hashable_values():
    assert EncoderConfig(10) == EncoderConfig(10)
    assert len({EncoderConfig(10), EncoderConfig(10), EncoderConfig(11)}) == 2
    with pytest.raises(dataclasses.FrozenInstanceError):
        EncoderConfig(10).vocab_size = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: EncoderConfig(0), "vocab_size is 0; it must be at least 1."),
        (lambda: EncoderConfig(9, hidden_size=0), "hidden_size is 0; it must be at least 1."),
        (lambda: EncoderConfig(9, num_layers=0), "num_layers is 0; it must be at least 1."),
        (lambda: EncoderConfig(9, num_heads=-1), "num_heads is -1; it must be at least 1."),
        (
            lambda: EncoderConfig(9, intermediate_size=0),
            "intermediate_size is 0; it must be at least 1.",
        ),
        (
            lambda: EncoderConfig(9, type_vocab_size=-2),
            "type_vocab_size is -2; it must be at least 0.",
        ),
        (
            lambda: EncoderConfig(9, embedding_size=0),
            "embedding_size is 0; it must be at least 1.",
        ),
        (
            lambda: EncoderConfig(9, hidden_size=100),
            "hidden_size 100 is not divisible by num_heads 12; choose a multiple.",
        ),
        (
            lambda: EncoderConfig(9, hidden_size=15, num_heads=3, positions=RotaryPositions()),
            "rotary positions need an even head size; hidden_size 15 / num_heads 3 gives 5.",
        ),
        (
            lambda: EncoderConfig(9, pad_id=9),
            "pad_id 9 is outside the vocabulary of 9 entries.",
        ),
        (lambda: EncoderConfig(9, pad_id=-1), "pad_id -1 is outside the vocabulary of 9 entries."),
        (
            lambda: LearnedPositions(max_length=0),
            "positions.max_length is 0; it must be at least 1.",
        ),
        (lambda: LearnedPositions(offset=-1), "positions.offset is -1; it must be at least 0."),
        (
            lambda: RotaryPositions(max_length=0),
            "positions.max_length is 0; it must be at least 1.",
        ),
        (lambda: RotaryPositions(theta=1.0), "positions.theta is 1.0; it must be greater than 1."),
        (
            lambda: AlibiPositions(max_length=0),
            "positions.max_length is 0; it must be at least 1.",
        ),
        (lambda: Norm(eps=0.0), "norm.eps is 0.0; it must lie between 0 and 1."),
        (lambda: Norm(eps=1.0), "norm.eps is 1.0; it must lie between 0 and 1."),
        (lambda: Dropout(hidden=1.0), "dropout.hidden is 1.0; a rate lies in [0, 1)."),
        (lambda: Dropout(attention=-0.1), "dropout.attention is -0.1; a rate lies in [0, 1)."),
        (lambda: Dropout(mlp_inner=2.0), "dropout.mlp_inner is 2.0; a rate lies in [0, 1)."),
        (lambda: Dropout(mlp_out=1.0), "dropout.mlp_out is 1.0; a rate lies in [0, 1)."),
        (
            lambda: RotaryPositions(local_theta=0.5),
            "positions.local_theta is 0.5; it must be greater than 1.",
        ),
        (
            lambda: LocalAttention(window=1),
            "attention.window is 1; it must be at least 2.",
        ),
        (lambda: LayerSharing(inner=0), "sharing.inner is 0; it must be at least 1."),
        (
            lambda: Convolution(kernel_size=4),
            "convolution.kernel_size is 4; it must be odd, so that it has a middle.",
        ),
        (
            lambda: Pooler(output_dropout=1.5),
            "heads.pooler.output_dropout is 1.5; a rate lies in [0, 1).",
        ),
    ],
)
def test_errors_name_the_value_and_what_it_must_be(make, message):
    with pytest.raises(ValueError) as caught:
        make()
    assert str(caught.value) == message


DISENTANGLED = DisentangledPositions()
ENHANCED = Heads(VocabularyHead(mask_decoder="enhanced"))


@pytest.mark.parametrize(
    ("make", "part"),
    [
        (lambda: DisentangledPositions(buckets=256, max_distance=128), "max_distance 128"),
        (lambda: DisentangledPositions(buckets=1), "buckets 1 does not go"),
        (lambda: DisentangledPositions(terms=()), "name c2p, p2c or both"),
        (lambda: DisentangledPositions(terms=("c2p", "c2p")), "each once"),
        (lambda: Norm("post", skip_first=True), "norm.skip_first goes with placement 'pre'"),
        (
            lambda: EncoderConfig(9, positions=DISENTANGLED, attention=LocalAttention()),
            "local attention does not go with disentangled positions",
        ),
        (
            lambda: EncoderConfig(9, sharing=LayerSharing(), attention=LocalAttention()),
            "shared layers are all of one kind",
        ),
        (lambda: EncoderConfig(9, sharing=LayerSharing(13)), "groups 13 exceeds num_layers 12"),
        (lambda: EncoderConfig(9, heads=ENHANCED), "'enhanced' needs disentangled positions"),
        (
            lambda: EncoderConfig(
                9,
                positions=dataclasses.replace(DISENTANGLED, at_input="absolute"),
                heads=ENHANCED,
            ),
            "without absolute ones at the input",
        ),
        (
            lambda: EncoderConfig(9, positions=DISENTANGLED, heads=ENHANCED, norm=Norm("pre")),
            "norm placement 'post'",
        ),
        (
            lambda: EncoderConfig(9, positions=AlibiPositions(), attention=LocalAttention()),
            "local attention does not go with ALiBi positions",
        ),
        (
            lambda: EncoderConfig(9, attention=GlobalAttention("left"), convolution=Convolution()),
            "'left' does not go with the convolution",
        ),
        (
            lambda: EncoderConfig(
                9, embedding_size=8, heads=Heads(VocabularyHead(transform="none"))
            ),
            "needs embedding_size 8 = hidden_size 768",
        ),
    ],
)
def test_combinations_that_are_no_encoder(make, part):
    with pytest.raises(ValueError) as caught:
        make()
    assert part in str(caught.value) and "\n" not in str(caught.value)


def test_maps_back_to_the_stream_start_smaller_by_depth():
    """Megatron's rule: .02 / sqrt(2 * 22) in ModernBERT-base."""
    config = EncoderConfig(9, num_layers=22, initializer=TruncatedNormal(0.02, "by_depth"))
    assert config.residual_initializer == TruncatedNormal(0.02 / math.sqrt(44))
    assert EncoderConfig(9, initializer=Normal(0.03)).residual_initializer == Normal(0.03)


def test_maps_outside_the_layers_may_start_as_in_tensorflow():
    config = EncoderConfig(9, initializer=TruncatedNormal(0.02, outer="glorot"))
    assert config.outer_initializer(128, 256) == Uniform(math.sqrt(6 / 384))
    assert config.residual_initializer == config.initializer
    for start in (TruncatedNormal(0.02), Normal(0.03), Uniform(0.1)):
        assert EncoderConfig(9, initializer=start).outer_initializer(3, 4) == start


def test_rows_of_relative_tables():
    assert DisentangledPositions().table_rows == 512
    assert DisentangledPositions(buckets=0, max_distance=100).table_rows == 200

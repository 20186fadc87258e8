"""Model configs: what they derive, and what they refuse with which sentence."""

import dataclasses

import pytest

from bert_jax.models.config import (
    Dropout,
    EncoderConfig,
    LearnedPositions,
    Norm,
    RotaryPositions,
    TruncatedNormal,
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
        (lambda: Norm(eps=0.0), "norm.eps is 0.0; it must lie between 0 and 1."),
        (lambda: Norm(eps=1.0), "norm.eps is 1.0; it must lie between 0 and 1."),
        (lambda: Dropout(hidden=1.0), "dropout.hidden is 1.0; a rate lies in [0, 1)."),
        (lambda: Dropout(attention=-0.1), "dropout.attention is -0.1; a rate lies in [0, 1)."),
    ],
)
def test_errors_name_the_value_and_what_it_must_be(make, message):
    with pytest.raises(ValueError) as caught:
        make()
    assert str(caught.value) == message

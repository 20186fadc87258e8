"""A small untrained masked language model with a real tokenizer."""

from dataclasses import dataclass
from typing import Any

import jax
import pytest

from bert_jax.data.tokenizer import Tokenizer
from bert_jax.models.config import EncoderConfig, Normal, RotaryPositions
from bert_jax.models.heads import MaskedLM

TEXTS = [
    "the congress of the united states met in december",
    "the people of the united states elected a congress",
    "unbelievable uncertainties unsettled the uncomfortable people",
]


@dataclass(frozen=True)
class Model:
    """What `fill_mask` and `pseudo_perplexity` take."""

    model: MaskedLM
    params: Any
    tokenizer: Tokenizer | None


@pytest.fixture(scope="session")
def model() -> Model:
    """Random weights, large enough that predictions are far from uniform."""
    tokenizer = Tokenizer.train(texts=TEXTS * 3, kind="wordpiece", vocab_size=100)
    config = EncoderConfig(
        vocab_size=tokenizer.vocab_size,
        hidden_size=32,
        num_layers=2,
        num_heads=2,
        intermediate_size=48,
        positions=RotaryPositions(max_length=64),
        initializer=Normal(0.3),
    )
    module = MaskedLM(config)
    params = jax.jit(module.init)(jax.random.key(1))["params"]
    return Model(module, params, tokenizer)

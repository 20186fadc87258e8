"""The same model in transformers + torch: for benchmarks and for the curves the tests compare to.

Needs the extra ``reference``. Nothing in the package imports this.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from transformers import BertConfig, BertForMaskedLM

from bert_jax.interop.arrays import to_checkpoint, whole_entries
from bert_jax.interop.families import FAMILIES
from bert_jax.models.config import EncoderConfig


def bert_for_masked_lm(config: EncoderConfig, params: Mapping[str, Any]) -> BertForMaskedLM:
    """``BertForMaskedLM`` of our config with our parameters, in training mode."""
    activations = {"gelu": "gelu", "gelu_tanh": "gelu_pytorch_tanh"}
    model = BertForMaskedLM(
        BertConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            num_hidden_layers=config.num_layers,
            num_attention_heads=config.num_heads,
            intermediate_size=config.intermediate_size,
            max_position_embeddings=config.positions.max_length,
            type_vocab_size=config.type_vocab_size,
            hidden_act=activations[config.activation],
            hidden_dropout_prob=config.dropout.hidden,
            attention_probs_dropout_prob=config.dropout.attention,
            layer_norm_eps=config.norm.eps,
            pad_token_id=config.pad_id,
        )
    )
    with torch.no_grad():
        for key, value in hugging_face_arrays(config, params).items():
            model.get_parameter(key).copy_(torch.from_numpy(value))
    return model.train()


def hugging_face_arrays(config: EncoderConfig, params: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Our parameters under their Hugging Face keys, in that orientation, vocabulary trimmed."""
    return to_checkpoint(params, whole_entries(FAMILIES["bert"], "BertForMaskedLM", config), config)

"""What families share of config.json: reading a field, writing it, refusing what we do not have."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

from bert_jax.models.config import (
    Activation,
    Dropout,
    EncoderConfig,
    Initializer,
    Norm,
    Normal,
    RotaryPositions,
    Uniform,
    VocabularyHead,
)

Json = Mapping[str, Any]

# Names of transformers' ACT2FN that are the same function (formulas of its activations.py, 5.24).
_ACTIVATIONS: dict[str, Activation] = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_accurate": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
    "tanh": "tanh",
}
_NAMES: dict[Activation, str] = {"gelu_tanh": "gelu_new"}


def required(raw: Json, *names: str) -> int:
    """A size under the first of its names that config.json has."""
    for name in names:
        value = raw.get(name)
        if value is not None:
            if isinstance(value, bool) or not isinstance(value, int):
                raise ValueError(f"config.json has {name} {value!r}; it must be a whole number.")
            return value
    raise ValueError(f"config.json lacks {names[0]}, without which the shape is unknown.")


def activation(raw: Json, name: str, default: str = "gelu") -> Activation:
    """Our activation for a field of config.json."""
    theirs = raw.get(name, default)
    if theirs not in _ACTIVATIONS:
        raise ValueError(
            f"config.json has {name} {theirs!r}, which is not implemented; known are "
            f"{', '.join(_ACTIVATIONS)}."
        )
    return _ACTIVATIONS[theirs]


def activation_name(kind: Activation) -> str:
    """Their name of our activation."""
    return _NAMES.get(kind, kind)


def refuse(raw: Json, name: str, allowed: tuple[Any, ...]) -> None:
    """ValueError if a field has a value with a meaning we do not have; absent is fine."""
    if name in raw and raw[name] not in allowed:
        choices = " or ".join(map(repr, allowed))
        raise ValueError(
            f"config.json has {name} {raw[name]!r}, which is not implemented; only {choices} is."
        )


def refuse_strangers(raw: Json) -> None:
    """What no family here has: decoders, relative keys, pruned heads, quantised weights."""
    refuse(raw, "is_decoder", (False, None))
    refuse(raw, "is_encoder_decoder", (False, None))
    refuse(raw, "add_cross_attention", (False, None))
    refuse(raw, "position_embedding_type", ("absolute", None))
    refuse(raw, "pruned_heads", ({}, None))
    refuse(raw, "quantization_config", (None,))
    hidden, heads = raw.get("hidden_size"), raw.get("num_attention_heads")
    if isinstance(hidden, int) and isinstance(heads, int) and heads > 0:
        refuse(raw, "attention_head_size", (hidden // heads, None))


def bert_shape(
    raw: Json, *, eps: float = 1e-12, act: str = "gelu", rate: float = 0.1
) -> dict[str, Any]:
    """Arguments of `EncoderConfig` that most families name as BERT does.

    Args:
        raw: Contents of config.json.
        eps: The family's default epsilon.
        act: Its default activation.
        rate: Its default dropout rate.
    """
    refuse_strangers(raw)
    return {
        "vocab_size": required(raw, "vocab_size"),
        "hidden_size": required(raw, "hidden_size"),
        "num_layers": required(raw, "num_hidden_layers"),
        "num_heads": required(raw, "num_attention_heads"),
        "intermediate_size": required(raw, "intermediate_size"),
        "norm": Norm("post", eps=raw.get("layer_norm_eps", eps)),
        "activation": activation(raw, "hidden_act", act),
        "dropout": Dropout(
            hidden=raw.get("hidden_dropout_prob", rate),
            attention=raw.get("attention_probs_dropout_prob", rate),
        ),
        "initializer": Normal(raw.get("initializer_range", 0.02)),
        "pad_id": raw.get("pad_token_id", 0) or 0,
    }


def bert_json(config: EncoderConfig) -> dict[str, Any]:
    """The inverse of `bert_shape`."""
    return {
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "intermediate_size": config.intermediate_size,
        "layer_norm_eps": config.norm.eps,
        "hidden_act": activation_name(config.activation),
        "hidden_dropout_prob": config.dropout.hidden,
        "attention_probs_dropout_prob": config.dropout.attention,
        "initializer_range": spread(config.initializer),
        "pad_token_id": config.pad_id,
        "tie_word_embeddings": tied(config),
    }


def embedding_size(raw: Json, default: int) -> int | None:
    """Width of the tables; None where it is that of the hidden states."""
    size = raw.get("embedding_size") or default
    return None if size == raw["hidden_size"] else size


def vocabulary(raw: Json, *, act: Activation | None = None) -> VocabularyHead:
    """The vocabulary head; ``act`` if the family's is fixed, whatever the encoder's is."""
    own = None if act == activation(raw, "hidden_act") else act
    is_tied = raw.get("tie_word_embeddings", True)
    return VocabularyHead(activation=own, decoder="tied" if is_tied else "untied")


def tied(config: EncoderConfig) -> bool:
    """Whether the output table is the token table."""
    return config.heads.vocabulary.decoder == "tied"


def spread(initializer: Initializer) -> float:
    """Standard deviation, as config.json states it (of the draws before a cut)."""
    if isinstance(initializer, Uniform):
        return initializer.limit / math.sqrt(3)
    return initializer.std


def canonical(config: EncoderConfig) -> EncoderConfig:
    """The config with every field that says nothing new set to None, and how it runs set aside.

    Two configs with equal canonical forms compute the same function of the same parameters. The
    enhanced mask decoder is set aside too: transformers has none.
    """
    vocabulary, positions = config.heads.vocabulary, config.positions
    if isinstance(positions, RotaryPositions) and positions.local_theta == positions.theta:
        positions = dataclasses.replace(positions, local_theta=None)
    if vocabulary.activation == config.activation:
        vocabulary = dataclasses.replace(vocabulary, activation=None)
    vocabulary = dataclasses.replace(vocabulary, mask_decoder="none")
    dropout = dataclasses.replace(
        config.dropout,
        embedding=config.dropout.on_embeddings,
        attention_out=config.dropout.on_attention_out,
    )
    norm = dataclasses.replace(config.norm, after_embeddings=config.norm.on_embeddings)
    default = EncoderConfig(vocab_size=config.vocab_size, pad_id=config.pad_id)
    return dataclasses.replace(
        config,
        embedding_projection=(
            "after_norm" if config.embedding_size is None else config.embedding_projection
        ),
        positions=positions,
        norm=norm,
        dropout=dropout,
        initializer=default.initializer,
        heads=dataclasses.replace(config.heads, vocabulary=vocabulary),
        compute_dtype=default.compute_dtype,
        execution=default.execution,
    )


def said(
    model_type: str,
    config: EncoderConfig,
    fields: dict[str, Any],
    encoder_config: Callable[[Json], EncoderConfig],
) -> dict[str, Any]:
    """``fields``, if reading them gives back the encoder and vocabulary head of ``config``.

    Pooler and detector are not compared: whether they matter is a question of the model. Nor is
    dropout, which changes no value: `bert_jax.interop.choice` tells what config.json cannot say.

    Raises:
        ValueError: Naming the first part of ``config`` the family cannot say.
    """
    ours, back = canonical(config), canonical(encoder_config(fields))
    for field in dataclasses.fields(EncoderConfig):
        if field.name == "dropout":
            continue
        mine, theirs = getattr(ours, field.name), getattr(back, field.name)
        if field.name == "heads":
            mine, theirs = mine.vocabulary, theirs.vocabulary
        if mine != theirs:
            raise ValueError(
                f"{model_type} has no way to say {field.name} {mine}; the nearest it has is "
                f"{theirs}."
            )
    return fields

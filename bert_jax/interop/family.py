"""What a family of the Hugging Face world is: config mappings and key maps, both directions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from bert_jax.interop.keys import Entry
from bert_jax.models.config import EncoderConfig
from bert_jax.models.model import EncoderModel

Json = Mapping[str, Any]


@dataclass(frozen=True)
class HeadMap:
    """One class of transformers, such as ``BertForMaskedLM``.

    Attributes:
        model: Our class for it.
        entries: Key map of the head; keys are whole (with the prefix, where they have it).
        tied: Copies of other parameters a checkpoint may hold: their key -> key of the original.
            Both are whole keys. Copies that differ are refused.
        spellings: Other beginnings of the head's keys -> those of ``entries``, for checkpoints
            that name the same parameters otherwise.
    """

    model: type[EncoderModel]
    entries: Callable[[EncoderConfig], list[Entry]]
    tied: Mapping[str, str] = field(default_factory=dict)
    spellings: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Family:
    """A ``model_type`` of transformers.

    Attributes:
        model_type: Of config.json.
        prefix: Before the body's keys in models with a head, such as ``bert.``.
        base: The class without a head, such as ``BertModel``.
        encoder_config: Our config from config.json; ValueError for what we do not have.
        hf_config: The fields of config.json that say the shape, from our config: the inverse of
            ``encoder_config`` wherever the family can say it; ValueError where it cannot.
        body: Key map of the encoder, keys without the prefix.
        heads: By class name; the first with a given ``model`` is the one exported.
        unused: Beginnings of keys (without the prefix) that carry nothing for us: buffers.
    """

    model_type: str
    prefix: str
    base: str
    encoder_config: Callable[[Json], EncoderConfig]
    hf_config: Callable[[EncoderConfig], dict[str, Any]]
    body: Callable[[EncoderConfig], list[Entry]]
    heads: Mapping[str, HeadMap]
    unused: tuple[str, ...] = ()

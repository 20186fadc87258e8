"""Import of Hugging Face directories: config.json + model.safetensors (+ tokenizer files).

Masked-LM checkpoints of BERT, RoBERTa and XLM-RoBERTa. Nothing is guessed: every missing or
unexpected key is an error or stands in the report, and pickles are never opened.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from safetensors.numpy import load_file

from bert_jax.data.tokenizer import Tokenizer
from bert_jax.interop import bert, roberta
from bert_jax.interop.keys import Entry
from bert_jax.models.config import Activation, Dropout, EncoderConfig, Norm, Normal
from bert_jax.models.heads import MaskedLM
from bert_jax.models.paths import by_path, from_paths

_FAMILIES: dict[str, ModuleType] = {"bert": bert, "roberta": roberta, "xlm-roberta": roberta}
_ACTIVATIONS: dict[str, Activation] = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}
_TOKENIZER_FILES = ("tokenizer.json", "vocab.txt", "vocab.json", "sentencepiece.bpe.model")


@dataclass(frozen=True)
class ImportReport:
    """What an import did beside copying.

    Attributes:
        model_type: Of config.json.
        unused: Keys of the checkpoint that a masked-LM model has no use for.
        renamed: Old names that were read under their new ones (gamma -> weight, beta -> bias).
    """

    model_type: str
    unused: tuple[str, ...]
    renamed: tuple[str, ...]


@dataclass(frozen=True)
class Loaded:
    """A model from elsewhere.

    Attributes:
        model: The module.
        params: Its parameters, float32.
        tokenizer: None if the directory holds no tokenizer files.
        report: What was left out or renamed.
    """

    model: MaskedLM
    params: dict[str, Any]
    tokenizer: Tokenizer | None
    report: ImportReport


def import_hf(directory: str | os.PathLike[str]) -> Loaded:
    """Reads a masked-LM checkpoint directory.

    Raises:
        ValueError: In one sentence: an unknown architecture or activation, a missing file or key,
            a shape that contradicts config.json, a decoder that differs where it should be tied.
    """
    directory = Path(directory)
    raw = _read_config(directory)
    family = _FAMILIES.get(raw.get("model_type", ""))
    if family is None:
        raise ValueError(
            f"{directory} is a {raw.get('model_type')!r} model; this version imports "
            f"{', '.join(_FAMILIES)}."
        )
    config = encoder_config(raw, family, directory)
    weights, renamed = _modern_names(_read_weights(directory))
    weights = _with_prefix(weights, family.PREFIX)
    weights = _settle_decoder(weights, family, raw, directory)
    params, used = _convert(weights, family.entries(config), config, directory)
    rest = sorted(set(weights) - used)
    unused = tuple(key for key in rest if key.startswith(family.UNUSED))
    unexpected = [key for key in rest if key not in unused]
    if unexpected:
        raise ValueError(
            f"{directory} holds {len(unexpected)} parameters that a {raw['model_type']} masked-LM "
            f"model does not have: {', '.join(unexpected)}; import a masked-LM checkpoint."
        )
    has_tokenizer = any((directory / name).exists() for name in _TOKENIZER_FILES)
    tokenizer = Tokenizer.load(directory) if has_tokenizer else None
    report = ImportReport(raw["model_type"], unused, tuple(renamed))
    return Loaded(MaskedLM(config), params, tokenizer, report)


def encoder_config(
    raw: Mapping[str, Any], family: ModuleType, where: str | os.PathLike[str]
) -> EncoderConfig:
    """Our config from the contents of config.json."""
    activation = raw.get("hidden_act", "gelu")
    if activation not in _ACTIVATIONS:
        raise ValueError(
            f"{where} has hidden_act {activation!r}; known are {', '.join(_ACTIVATIONS)}."
        )
    if not raw.get("tie_word_embeddings", True):
        raise ValueError(f"{where} has an untied decoder, which this version does not import.")
    if raw.get("position_embedding_type", "absolute") != "absolute":
        raise ValueError(
            f"{where} has position_embedding_type {raw['position_embedding_type']!r}; only "
            f"'absolute' is known."
        )
    return EncoderConfig(
        vocab_size=raw["vocab_size"],
        hidden_size=raw["hidden_size"],
        num_layers=raw["num_hidden_layers"],
        num_heads=raw["num_attention_heads"],
        intermediate_size=raw["intermediate_size"],
        type_vocab_size=raw.get("type_vocab_size", 2),
        positions=family.positions(raw),
        norm=Norm("post", eps=raw.get("layer_norm_eps", 1e-12)),
        activation=_ACTIVATIONS[activation],
        dropout=Dropout(
            raw.get("hidden_dropout_prob", 0.1), raw.get("attention_probs_dropout_prob", 0.1)
        ),
        initializer=Normal(raw.get("initializer_range", 0.02)),
        pad_id=raw.get("pad_token_id", 0),
    )


def _read_config(directory: Path) -> dict[str, Any]:
    path = directory / "config.json"
    if not path.exists():
        raise ValueError(f"{directory} holds no config.json; give a Hugging Face model directory.")
    return json.loads(path.read_text())


def _read_weights(directory: Path) -> dict[str, np.ndarray]:
    path = directory / "model.safetensors"
    if path.exists():
        return load_file(path)
    index = directory / "model.safetensors.index.json"
    if index.exists():
        return _read_shards(directory, json.loads(index.read_text())["weight_map"])
    pickles = sorted(p.name for p in directory.glob("*.bin")) + sorted(
        p.name for p in directory.glob("*.pt")
    )
    if pickles:
        raise ValueError(
            f"{directory} holds only {pickles[0]}, a pickle, which may run code when opened; "
            f"convert it with transformers' save_pretrained(..., safe_serialization=True)."
        )
    raise ValueError(f"{directory} holds no model.safetensors.")


def _read_shards(directory: Path, weight_map: Mapping[str, str]) -> dict[str, np.ndarray]:
    weights: dict[str, np.ndarray] = {}
    for name in sorted(set(weight_map.values())):
        if Path(name).name != name:
            raise ValueError(
                f"{directory}/model.safetensors.index.json names the shard {name!r}, which is "
                f"outside the directory; shards must lie beside their index."
            )
        shard = load_file(directory / name)
        weights |= {key: shard[key] for key, file in weight_map.items() if file == name}
    return weights


def _modern_names(weights: Mapping[str, np.ndarray]) -> tuple[dict[str, np.ndarray], list[str]]:
    """LayerNorm.gamma and .beta of TensorFlow days under today's names; nothing else is renamed."""
    out, renamed = {}, []
    for key, value in weights.items():
        new = re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", key)
        new = re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", new)
        if new != key:
            renamed.append(key)
        out[new] = value
    return out, renamed


def _with_prefix(weights: dict[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    """Puts the family's prefix before the keys of a bare encoder."""
    return {
        prefix + key if key.startswith(("embeddings.", "encoder.", "pooler.")) else key: value
        for key, value in weights.items()
    }


def _settle_decoder(
    weights: dict[str, np.ndarray], family: ModuleType, raw: Mapping[str, Any], where: Path
) -> dict[str, np.ndarray]:
    """Drops copies of tied arrays; a copy that differs is an error, not a choice."""
    copies = dict(family.TIED)
    bias, other_bias = family.DECODER_BIASES
    if bias not in weights and other_bias in weights:
        weights = {bias if key == other_bias else key: v for key, v in weights.items()}
    else:
        copies[other_bias] = bias
    for copy, original in copies.items():
        if copy in weights and original in weights:
            if not np.array_equal(weights[copy], weights[original]):
                raise ValueError(
                    f"{where}: {copy} differs from {original}, though config.json says they are "
                    f"tied (tie_word_embeddings {raw.get('tie_word_embeddings', True)})."
                )
            weights = {key: value for key, value in weights.items() if key != copy}
    return weights


def _convert(
    weights: Mapping[str, np.ndarray], entries: list[Entry], config: EncoderConfig, where: Path
) -> tuple[dict[str, Any], set[str]]:
    """Our tree, and the keys it was made of."""
    flat: dict[str, np.ndarray] = {}
    used: set[str] = set()
    missing: list[str] = []
    for entry in entries:
        layers = range(config.num_layers) if entry.per_layer else range(1)
        keys = [entry.theirs.format(layer=layer) for layer in layers]
        absent = [key for key in keys if key not in weights]
        missing += absent
        if absent:
            continue
        used |= set(keys)
        values = [entry.to_ours(weights[key], config) for key in keys]
        flat[entry.ours] = np.stack(values) if entry.per_layer else values[0]
    if missing:
        raise ValueError(f"{where} lacks {len(missing)} parameters: {', '.join(missing)}.")
    _check_shapes(flat, config, where)
    return from_paths({path: jnp.asarray(x) for path, x in flat.items()}), used


def _check_shapes(flat: Mapping[str, np.ndarray], config: EncoderConfig, where: Path) -> None:
    shapes = jax.eval_shape(MaskedLM(config).init, jax.random.key(0))["params"]
    for path, leaf in by_path(shapes).items():
        if flat[path].shape != leaf.shape:
            raise ValueError(
                f"{where}: {path} has shape {flat[path].shape}; config.json asks for {leaf.shape}."
            )

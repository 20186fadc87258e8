"""Files of a Hugging Face directory: config.json, and weights in every format that is only data.

Pickles are never opened: they may run code. Names inside files never lead out of the directory.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file

Weights = dict[str, np.ndarray]

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_FLAX = "flax_model.msgpack"
_NOT_OPENED = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl", "*.h5")
_FLAX_WORDS = {"kernel": "weight", "scale": "weight", "embedding": "weight"}


def read_config(directory: Path) -> dict[str, Any]:
    """Contents of config.json."""
    path = directory / "config.json"
    if not path.exists():
        raise ValueError(
            f"{directory} holds no config.json; give a local Hugging Face model directory (nothing "
            f"is fetched: download it first)."
        )
    return _json(path)


def read_weights(directory: Path) -> Weights:
    """All arrays by key, kernels (out, in) as PyTorch has them, in the types they are stored in.

    Reads ``model.safetensors``, or the shards that ``model.safetensors.index.json`` names, or
    ``flax_model.msgpack``: the first of them that is there.

    Raises:
        ValueError: In one sentence, if there is none, or it is damaged or reaches outside.
    """
    if (directory / _SINGLE).exists():
        return _safetensors(directory / _SINGLE)
    if (directory / _INDEX).exists():
        return _shards(directory / _INDEX)
    if (directory / _FLAX).exists():
        return _msgpack(directory / _FLAX)
    others = sorted(path.name for pattern in _NOT_OPENED for path in directory.glob(pattern))
    if others:
        raise ValueError(
            f"{directory} holds only {others[0]}, which may run code when opened; where you trust "
            f"it, load model and tokenizer with transformers and save_pretrained both: that writes "
            f"model.safetensors."
        )
    raise ValueError(
        f"{directory} holds no model.safetensors, no shards with their {_INDEX} and no {_FLAX}."
    )


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text())
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not JSON: {error}.") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds no JSON object.")
    return content


def _safetensors(path: Path) -> Weights:
    try:
        return load_file(path)
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged ({error}); fetch it again.") from error


def _shards(index: Path) -> Weights:
    weight_map = _json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ValueError(f"{index} names no shards (weight_map).")
    weights: Weights = {}
    for name in sorted(set(map(str, weight_map.values()))):
        if Path(name).name != name or "\\" in name or name in (".", ".."):
            raise ValueError(
                f"{index} names the shard {name!r}, which is outside the directory; shards must "
                f"lie beside their index."
            )
        path = index.parent / name
        if not path.exists():
            raise ValueError(f"{index} names the shard {name}, which is not there; fetch it too.")
        shard = _safetensors(path)
        keys = [key for key, file in weight_map.items() if file == name]
        absent = [key for key in keys if key not in shard]
        if absent:
            raise ValueError(f"{path} lacks {', '.join(absent)}, which {index.name} says it holds.")
        weights |= {key: shard[key] for key in keys}
    return weights


def _msgpack(path: Path) -> Weights:
    """Arrays of the Flax classes that transformers had until version 4, under PyTorch's names."""
    from flax.serialization import msgpack_restore

    try:
        tree = msgpack_restore(path.read_bytes())
    # msgpack raises a class of its own for nearly every kind of damage, or plain ones.
    except Exception as error:
        raise ValueError(
            f"{path} is not a msgpack file of Flax parameters ({type(error).__name__}: {error}); "
            f"fetch it again."
        ) from error
    if isinstance(tree, dict) and set(tree) == {"params"}:
        tree = tree["params"]
    weights: Weights = {}
    for words, value in _leaves(tree, (), path):
        word = words[-1]
        if word == "kernel" and value.ndim == 2:
            value = value.T
        weights[".".join((*words[:-1], _FLAX_WORDS.get(word, word)))] = value
    return weights


def _leaves(
    tree: Any, words: tuple[str, ...], path: Path
) -> Iterator[tuple[tuple[str, ...], np.ndarray]]:
    """Paths and arrays of a nested dict; ValueError for anything else in it."""
    if isinstance(tree, np.ndarray) and words:
        yield words, tree
    elif isinstance(tree, Mapping) and all(isinstance(word, str) for word in tree):
        for word, branch in tree.items():
            yield from _leaves(branch, (*words, word), path)
    else:
        raise ValueError(
            f"{path} holds {type(tree).__name__} at {'/'.join(words) or 'its root'}; parameters "
            f"are a nested dict of arrays."
        )

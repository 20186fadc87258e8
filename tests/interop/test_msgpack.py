"""Checkpoints of the Flax classes transformers once had: the same parameters as the others'."""

import json
import re
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
from flax.serialization import msgpack_serialize
from flax.traverse_util import unflatten_dict
from safetensors.numpy import load_file

from bert_jax.interop import import_hf

PARITY = Path(__file__).parents[1] / "data" / "parity"
FLAX_CASES = (
    "bert_mlm", "bert_pretraining", "bert_classify", "bert_span", "roberta_mlm",
    "roberta_classify", "albert_pretraining", "albert_groups", "distilbert_mlm",
    "electra_discriminator", "electra_generator",
)  # fmt: skip


def flax_tree(weights):
    """Nested, under Flax's words: tables are embeddings, norms have a scale, kernels (in, out)."""
    flat = {}
    for key, value in weights.items():
        *words, last = key.split(".")
        if last == "weight" and "embeddings" in words[-1]:
            last = "embedding"
        elif last == "weight" and re.search("norm", words[-1], re.IGNORECASE):
            last = "scale"
        elif last == "weight":
            last, value = "kernel", np.ascontiguousarray(value.T)
        flat[(*words, last)] = value
    return unflatten_dict(flat)


@pytest.fixture
def directory(tmp_path):
    """``directory(case)``: a fixture with flax_model.msgpack in place of model.safetensors."""

    def make(case, content=None):
        shutil.copytree(PARITY / case, tmp_path / case)
        weights = tmp_path / case / "model.safetensors"
        tree = flax_tree(load_file(weights))
        weights.unlink()
        data = msgpack_serialize(tree) if content is None else content(tree)
        (tmp_path / case / "flax_model.msgpack").write_bytes(data)
        return tmp_path / case

    return make


@pytest.mark.parametrize("case", FLAX_CASES)
def test_gives_what_safetensors_give(directory, case):
    loaded, expected = import_hf(directory(case)), import_hf(PARITY / case)
    jax.tree.map(np.testing.assert_array_equal, loaded.params, expected.params)
    assert loaded.report == expected.report and loaded.model == expected.model


def test_a_tree_under_params_and_one_without_the_prefix_are_read(directory):
    def bare(tree):
        return msgpack_serialize({"params": {**tree["bert"], "cls": tree["cls"]}})

    loaded, expected = import_hf(directory("bert_mlm", bare)), import_hf(PARITY / "bert_mlm")
    jax.tree.map(np.testing.assert_array_equal, loaded.params, expected.params)


def test_safetensors_come_first(directory):
    path = directory("bert_mlm", lambda _: b"damaged")
    shutil.copy(PARITY / "bert_mlm" / "model.safetensors", path)
    assert import_hf(path).report.unexpected == ()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (lambda _: b"\xc1 no msgpack", r"not a msgpack file .*fetch it again"),
        (lambda tree: msgpack_serialize(tree)[:500], r"not a msgpack file .*fetch it again"),
        (lambda _: msgpack_serialize([1, 2]), "holds list at its root"),
        (lambda _: msgpack_serialize(np.zeros(3)), "holds ndarray at its root"),
        (lambda tree: msgpack_serialize(tree | {"step": 3}), "holds int at step"),
        (lambda tree: msgpack_serialize(tree | {"x": {"y": "z"}}), "holds str at x/y"),
    ],
)
def test_what_is_no_tree_of_arrays_is_refused(directory, content, message):
    with pytest.raises(ValueError, match=message):
        import_hf(directory("bert_mlm", content))


def test_a_missing_parameter_is_named_as_elsewhere(directory):
    def without(tree):
        del tree["cls"]["predictions"]["transform"]["dense"]["kernel"]
        return msgpack_serialize(tree)

    name = r"lacks 1 parameters: cls\.predictions\.transform\.dense\.weight"
    with pytest.raises(ValueError, match=name):
        import_hf(directory("bert_mlm", without))


def test_shapes_are_checked_as_elsewhere(directory):
    path = directory("bert_mlm")
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"intermediate_size": 64}))
    with pytest.raises(ValueError, match=r"has the shape \(80, 48\); config.json asks"):
        import_hf(path)

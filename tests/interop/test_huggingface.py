"""Import of directories: what is read, what is refused, and what the report tells."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save_file

from bert_jax.data.tokenizer import Tokenizer
from bert_jax.interop import import_hf

PARITY = Path(__file__).parents[1] / "data" / "parity"


def write(directory, weights):
    save_file(weights, directory / "model.safetensors")


def configure(directory, **changes):
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def _equal(a, b):
    jax.tree.map(np.testing.assert_array_equal, a.params, b.params)


def test_old_norm_names_are_read_and_reported(checkpoint):
    directory, weights, write = checkpoint
    expected = import_hf(directory)
    old = {
        k.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
        if "encoder.layer" in k
        else k: v
        for k, v in weights.items()
    }
    write(old)
    loaded = import_hf(directory)
    _equal(loaded, expected)
    assert len(loaded.report.renamed) == 3 * 2 * 2  # layers, norms, scale and bias


def test_a_missing_key_is_named(checkpoint):
    directory, weights, write = checkpoint
    del weights["bert.encoder.layer.1.output.dense.bias"]
    write(weights)
    with pytest.raises(ValueError, match=r"lacks 1 parameters: bert\.encoder\.layer\.1\.output"):
        import_hf(directory)


def test_keys_beyond_the_model_are_told_apart(checkpoint):
    """Known to the family: unused; else unexpected. With or without the prefix."""
    directory, weights, write = checkpoint
    expected = import_hf(directory)
    assert expected.report.unused == expected.report.unexpected == expected.report.new == ()
    ids = np.arange(64)[None]
    extra = {
        "bert.pooler.dense.weight": np.zeros((48, 48), np.float32),
        "cls.seq_relationship.bias": np.zeros(2, np.float32),
        "embeddings.position_ids": ids,
        "classifier.weight": np.zeros((2, 48), np.float32),
        "bert.encoder.layer.3.output.dense.bias": np.zeros(48, np.float32),
        "adapter.down": np.zeros(3, np.float32),
    }
    write(weights | extra)
    loaded = import_hf(directory)
    _equal(loaded, expected)
    assert loaded.report.unused == (
        "bert.embeddings.position_ids",
        "bert.pooler.dense.weight",
        "classifier.weight",
        "cls.seq_relationship.bias",
    )
    assert loaded.report.unexpected == ("adapter.down", "bert.encoder.layer.3.output.dense.bias")


def test_a_tied_decoder_may_be_stored_twice_but_not_differ(checkpoint):
    directory, weights, write = checkpoint
    expected = import_hf(directory)
    table = weights["bert.embeddings.word_embeddings.weight"]
    copies = {"cls.predictions.decoder.weight": table.copy()}
    copies["cls.predictions.decoder.bias"] = weights["cls.predictions.bias"].copy()
    write(weights | copies)
    _equal(import_hf(directory), expected)
    copies["cls.predictions.decoder.weight"][3, 5] += 1e-3
    write(weights | copies)
    with pytest.raises(ValueError, match=r"decoder\.weight differs"):
        import_hf(directory)


def test_shards_are_read_inside_the_directory_only(checkpoint):
    directory, weights, _ = checkpoint
    expected = import_hf(directory)
    names = sorted(weights)
    parts = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, keys in parts.items():
        save_file({key: weights[key] for key in keys}, directory / file)
    (directory / "model.safetensors").unlink()
    index = directory / "model.safetensors.index.json"
    weight_map = {key: file for file, keys in parts.items() for key in keys}
    index.write_text(json.dumps({"weight_map": weight_map}))
    _equal(import_hf(directory), expected)
    weight_map[names[0]] = "../../other.safetensors"
    index.write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(ValueError, match="outside the directory"):
        import_hf(directory)


def test_a_pickle_is_never_opened(checkpoint):
    directory, _, _ = checkpoint
    (directory / "model.safetensors").unlink()
    (directory / "pytorch_model.bin").write_bytes(b"not even a pickle")
    with pytest.raises(ValueError, match="may run code when opened"):
        import_hf(directory)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_act": "relu6"}, "relu6"),
        ({"model_type": "gpt2"}, "gpt2"),
        ({"vocab_size": 96}, r"word_embeddings.weight has the shape \(97, 48\); config.json asks"),
        ({"intermediate_size": 64}, r"encoder/layers/mlp_in/kernel, here \(48, 64\)"),
        ({"num_hidden_layers": 4}, r"lacks 16 parameters: .*layer\.3\."),
        ({"tie_word_embeddings": False}, r"lacks 1 parameters: cls\.predictions\.decoder\.weight"),
        ({"architectures": ["BertLMHeadModel"]}, "BertLMHeadModel; implemented are BertModel, "),
        ({"position_embedding_type": "relative_key"}, "relative_key"),
        ({"layer_norm_eps": None}, "a field of the wrong type or value for bert"),
        ({"hidden_act": ["gelu"]}, "a field of the wrong type or value for bert"),
        ({"architectures": "BertForMaskedLM"}, "architectures 'BertForMaskedLM'; it is a list"),
    ],
)
def test_a_config_that_does_not_fit_is_refused(checkpoint, change, message):
    directory, _, _ = checkpoint
    configure(directory, **change)
    with pytest.raises(ValueError, match=message):
        import_hf(directory)


def test_no_config_is_one_sentence(tmp_path):
    with pytest.raises(ValueError, match=r"holds no config\.json"):
        import_hf(tmp_path)


# ----------------------------------------------------------------------------- prefixes, formats


def without_prefix(weights, prefix):
    return {key.removeprefix(prefix): value for key, value in weights.items()}


@pytest.mark.parametrize(
    ("case", "prefix"),
    [("bert_mlm", "bert."), ("modernbert_classify", "model."), ("deberta_v3_classify", "deberta."),
     ("distilbert_mlm", "distilbert."), ("albert_pretraining", "albert.")],
)  # fmt: skip
def test_the_prefix_may_be_missing(copy, case, prefix):
    directory, weights = copy(case)
    expected = import_hf(directory)
    write(directory, without_prefix(weights, prefix))
    loaded = import_hf(directory)
    _equal(loaded, expected)
    assert loaded.report == expected.report


def test_narrow_weights_are_read_as_float32(checkpoint):
    directory, weights, write = checkpoint
    for dtype in (jnp.bfloat16, jnp.float16):
        write({key: np.asarray(value, dtype) for key, value in weights.items()})
        loaded = import_hf(directory)
        assert {leaf.dtype for leaf in jax.tree.leaves(loaded.params)} == {np.dtype("float32")}
        bias = loaded.params["encoder"]["layers"]["query"]["bias"][1]
        theirs = weights["bert.encoder.layer.1.attention.self.query.bias"]
        np.testing.assert_array_equal(bias, theirs.astype(dtype).astype(np.float32))


def test_weights_that_are_no_real_numbers_are_refused(checkpoint):
    directory, weights, write = checkpoint
    key = "bert.encoder.layer.0.output.dense.weight"
    write(weights | {key: weights[key].astype(np.int8)})
    with pytest.raises(ValueError, match=rf"{key} holds int8"):
        import_hf(directory)


def test_damage_is_one_sentence(checkpoint):
    directory, _, _ = checkpoint
    path = directory / "model.safetensors"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(ValueError, match=r"model\.safetensors is damaged"):
        import_hf(directory)
    path.unlink()
    with pytest.raises(ValueError, match=r"holds no model\.safetensors"):
        import_hf(directory)
    (directory / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"config\.json is not JSON"):
        import_hf(directory)
    (directory / "config.json").write_text("[]")
    with pytest.raises(ValueError, match="no JSON object"):
        import_hf(directory)


@pytest.mark.parametrize(
    ("weight_map", "message"),
    [
        ({"a": "../model.safetensors"}, "outside the directory"),
        ({"a": "/etc/passwd"}, "outside the directory"),
        ({"a": ".."}, "outside the directory"),
        ({"a": "sub\\\\a.safetensors"}, "outside the directory"),
        ({"a": "gone.safetensors"}, "not there"),
        ({"a": "part.safetensors"}, "lacks a, which"),
        ({}, "names no shards"),
    ],
)
def test_an_index_that_does_not_fit_is_refused(checkpoint, weight_map, message):
    directory, _, _ = checkpoint
    (directory / "model.safetensors").rename(directory / "part.safetensors")
    index = {"weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match=message):
        import_hf(directory)


# ------------------------------------------------------------------------------------- tokenizer


def vocabulary(size):
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    return "\n".join(words + [f"w{i}" for i in range(size - len(words))]) + "\n"


def test_the_tokenizer_beside_it_is_read(checkpoint):
    directory, _, _ = checkpoint
    assert import_hf(directory).tokenizer is None
    (directory / "vocab.txt").write_text(vocabulary(97))
    tokenizer = import_hf(directory).tokenizer
    assert isinstance(tokenizer, Tokenizer) and tokenizer.vocab_size == 97
    (directory / "vocab.txt").write_text(vocabulary(98))
    with pytest.raises(ValueError, match="tokenizer has 98 entries, the model's vocabulary 97"):
        import_hf(directory)

"""Exports: read back bit for bit, whole or not at all, and refused with the reason."""

import dataclasses
import importlib.util
import json
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

from bert_jax.interop import import_hf
from bert_jax.interop.choice import choose
from bert_jax.interop.export import export_hf
from bert_jax.interop.families import FAMILIES
from bert_jax.models.config import (
    AlibiPositions,
    Biases,
    Dropout,
    EncoderConfig,
    GlobalAttention,
    Heads,
    LearnedPositions,
    Norm,
    Pooler,
    RotaryPositions,
    SinusoidalPositions,
    TruncatedNormal,
    VocabularyHead,
)
from bert_jax.models.heads import MaskedLM, ReplacedTokenDetector
from bert_jax.models.model import EncoderModel
from bert_jax.models.paths import by_path, from_paths
from bert_jax.models.task_heads import SentenceEncoder, SequenceClassifier, TokenClassifier
from bert_jax.recipes import preset

pytestmark = pytest.mark.sweep

PARITY = Path(__file__).parents[1] / "data" / "parity"
TOOL = Path(__file__).parents[2] / "tools" / "export_roundtrip.py"
_spec = importlib.util.spec_from_file_location("export_roundtrip", TOOL)
tool = importlib.util.module_from_spec(_spec)
sys.modules["export_roundtrip"] = tool  # where dataclasses look for it
_spec.loader.exec_module(tool)

CASES = {case.name: case for case in tool.cases()}
BERT = CASES["bert, masked LM"].model.config
SMALL = dataclasses.replace(BERT, num_layers=1)


def export(directory, model, *, seed=0, **arguments):
    params = tool.draw(model, seed)
    return params, export_hf(directory, model, params, **arguments)


def config_of(directory):
    return json.loads((directory / "config.json").read_text())


def equal(a, b):
    a, b = by_path(a), by_path(b)
    assert a.keys() == b.keys()
    for path, leaf in a.items():
        np.testing.assert_array_equal(leaf, b[path], err_msg=path)


# ------------------------------------------------------------------------------ there and back


def _without_twins(case):
    """All heads of every family once, and every shape and name with one of them."""
    plain = not case.shape and case.family not in ("xlm-roberta", "camembert")
    return case.head == "masked LM" or (plain and case.head != "regressor")


def _in_default_run(case):
    return case.head == "masked LM" or case.family in ("bert", "deberta-v2", "modernbert")


@pytest.mark.parametrize(
    "name",
    [
        name if _in_default_run(case) else pytest.param(name, marks=pytest.mark.slow)
        for name, case in CASES.items()
        if _without_twins(case)
    ],
)
@pytest.mark.filterwarnings("ignore:transformers has no DebertaV2ForReplaced:UserWarning")
def test_what_is_exported_is_read_back_bit_for_bit(name, tmp_path):
    case = CASES[name]
    params, report = export(tmp_path / "out", case.model, family=case.family)
    back = import_hf(tmp_path / "out")
    assert back.model == case.model
    equal(back.params, params)
    assert back.report.architecture == report.architecture
    assert back.report.model_type == case.family
    assert (back.report.new, back.report.unexpected, back.report.renamed) == ((), (), ())


@pytest.mark.parametrize("case", sorted(p.parent.name for p in PARITY.glob("*/meta.json")))
def test_a_directory_of_transformers_keeps_its_arrays(case, tmp_path):
    loaded = import_hf(PARITY / case)
    family = loaded.report.model_type
    export_hf(tmp_path / "out", loaded.model, loaded.params, family=family)
    theirs = load_file(PARITY / case / "model.safetensors")
    for key, value in load_file(tmp_path / "out" / "model.safetensors").items():
        old = next(
            (o + key.removeprefix(n) for h in FAMILIES[family].heads.values()
             for o, n in h.spellings.items() if key not in theirs and key.startswith(n)),
            key,
        )  # fmt: skip
        np.testing.assert_array_equal(value, theirs.pop(old), err_msg=key)
    # Copies of tied arrays may be left over there, nothing else.
    assert not theirs or all("decoder" in key for key in theirs)


def test_the_family_is_found_from_the_config(tmp_path):
    twins = {"xlm-roberta": "roberta", "camembert": "roberta"}  # equal but for the name
    for name, case in CASES.items():
        if case.head == "masked LM" and case.shape != "square":  # an ELECTRA that is a BERT
            choice = choose(case.model)
            assert choice.family.model_type == twins.get(case.family, case.family), name


def test_a_config_made_here_is_exported_with_its_defaults_written_out(tmp_path):
    config = EncoderConfig(
        vocab_size=50,
        hidden_size=16,
        num_layers=1,
        num_heads=2,
        intermediate_size=32,
        type_vocab_size=2,
        compute_dtype="bfloat16",
        initializer=TruncatedNormal(0.01),
        heads=Heads(pooler=Pooler(activation="relu")),  # which a masked LM has not
    )
    _, report = export(tmp_path / "out", MaskedLM(config))
    assert report.architecture == "BertForMaskedLM"
    written = config_of(tmp_path / "out")
    assert written["initializer_range"] == 0.01
    assert written["dtype"] == "float32"


# ------------------------------------------------------------------------------------ the files


def test_files_and_fields_of_a_masked_language_model(tmp_path):
    tokenizer = tool.tokenizer_of("bert")
    _, report = export(tmp_path / "out", MaskedLM(SMALL), tokenizer=tokenizer)
    assert report.files == (
        "README.md",
        "config.json",
        "model.safetensors",
        "special_tokens_map.json",
        "tokenizer.json",
        "tokenizer_config.json",
    )
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == list(report.files)
    assert [p.name for p in tmp_path.iterdir()] == ["out"]  # nothing is left beside it
    assert (report.missing, report.notes) == ((), ())
    written = config_of(tmp_path / "out")
    assert (
        written
        | {
            "architectures": ["BertForMaskedLM"],
            "model_type": "bert",
            "vocab_size": 300,
            "num_hidden_layers": 1,
            "tie_word_embeddings": True,
            "pad_token_id": tokenizer.special.pad,
            "bos_token_id": tokenizer.special.cls,
            "eos_token_id": tokenizer.special.sep,
            "cls_token_id": tokenizer.special.cls,
            "sep_token_id": tokenizer.special.sep,
        }
        == written
    )
    assert "id2label" not in written
    about = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())
    assert about["model_max_length"] == 64
    assert about["model_input_names"] == ["input_ids", "token_type_ids", "attention_mask"]
    assert import_hf(tmp_path / "out").tokenizer.digest() == tokenizer.digest()


def test_the_checkpoint_is_as_transformers_writes_it(tmp_path):
    params, _ = export(tmp_path / "out", MaskedLM(SMALL))
    path = tmp_path / "out" / "model.safetensors"
    with safe_open(path, "numpy") as file:
        assert file.metadata() == {"format": "pt"}
    arrays = load_file(path)
    table = arrays["bert.embeddings.word_embeddings.weight"]
    assert table.shape == (300, 48)  # of 384 rows inside
    np.testing.assert_array_equal(table, params["encoder"]["embeddings"]["word"]["embedding"][:300])
    kernel = params["encoder"]["layers"]["mlp_in"]["kernel"][0]
    np.testing.assert_array_equal(
        arrays["bert.encoder.layer.0.intermediate.dense.weight"], kernel.T
    )
    assert "cls.predictions.decoder.weight" not in arrays  # tied
    assert [key for key in arrays if key.endswith("predictions.bias") or "decoder" in key] == [
        "cls.predictions.bias"
    ]
    assert arrays["cls.predictions.bias"].shape == (300,)
    assert {a.dtype for a in arrays.values()} == {np.dtype(np.float32)}


def test_an_untied_decoder_has_its_table_and_both_biases(tmp_path):
    model = CASES["bert, untied, masked LM"].model
    export(tmp_path / "out", model)
    assert config_of(tmp_path / "out")["tie_word_embeddings"] is False
    arrays = load_file(tmp_path / "out" / "model.safetensors")
    decoder = arrays["cls.predictions.decoder.weight"]
    assert not np.array_equal(decoder, arrays["bert.embeddings.word_embeddings.weight"])
    # transformers asks for both; only the decoder's is used.
    np.testing.assert_array_equal(
        arrays["cls.predictions.decoder.bias"], arrays["cls.predictions.bias"]
    )


def test_a_bare_encoder_has_no_prefix_and_tells_of_the_pooler(tmp_path):
    _, report = export(tmp_path / "out", EncoderModel(SMALL))
    assert report.architecture == "BertModel"
    assert report.missing == ("pooler.dense.weight", "pooler.dense.bias")
    assert "do not use pooler_output" in report.notes[0]
    arrays = load_file(tmp_path / "out" / "model.safetensors")
    assert all(key.startswith(("embeddings.", "encoder.")) for key in arrays)
    distil = EncoderModel(CASES["distilbert, encoder"].model.config)
    assert export(tmp_path / "distil", distil)[1].missing == ()
    sentences = SentenceEncoder(SMALL)
    assert export(tmp_path / "sentences", sentences)[1].architecture == "BertModel"


def test_classes_are_named(tmp_path):
    labels = ["none", "PER", "LOC"]
    export(tmp_path / "a", TokenClassifier(SMALL, num_labels=3), labels=labels)
    written = config_of(tmp_path / "a")
    assert written["id2label"] == {"0": "none", "1": "PER", "2": "LOC"}
    assert written["label2id"] == {"none": 0, "PER": 1, "LOC": 2}
    export(tmp_path / "b", SequenceClassifier(SMALL, num_labels=1))
    assert config_of(tmp_path / "b")["id2label"] == {"0": "LABEL_0"}


def test_without_a_tokenizer_no_token_id_is_outside_the_vocabulary(tmp_path):
    """ModernBERT's defaults are beyond 50,000."""
    export(tmp_path / "out", CASES["modernbert, masked LM"].model)
    written = config_of(tmp_path / "out")
    ids = {name: value for name, value in written.items() if name.endswith("_token_id")}
    assert ids == {
        "pad_token_id": 0,
        "bos_token_id": None,
        "eos_token_id": None,
        "cls_token_id": None,
        "sep_token_id": None,
    }


def test_the_mask_decoder_is_left_out_with_a_warning(tmp_path):
    config = CASES["deberta-v2, masked LM"].model.config
    head = VocabularyHead(mask_decoder="enhanced")
    heads = dataclasses.replace(config.heads, vocabulary=head)
    model = MaskedLM(dataclasses.replace(config, heads=heads))
    params = tool.draw(model)
    with pytest.warns(UserWarning, match="transformers has no enhanced mask decoder"):
        report = export_hf(tmp_path / "out", model, params)
    assert "without it" in report.notes[0]
    back = import_hf(tmp_path / "out")
    assert back.model.config == config
    kept = by_path(params)
    del kept["encoder/embeddings/position/embedding"]
    equal(back.params, from_paths(kept))


def test_head_dropout_that_has_no_field_is_noted(tmp_path):
    config = CASES["roberta, classifier"].model.config
    pooler = dataclasses.replace(config.heads.pooler, input_dropout=0.0)
    heads = dataclasses.replace(config.heads, pooler=pooler)
    model = SequenceClassifier(dataclasses.replace(config, heads=heads))
    _, report = export(tmp_path / "out", model)
    assert "heads.pooler.input_dropout 0.0" in report.notes[0]


# -------------------------------------------------------------------------------------- refused

NEOBERT = {
    "positions": RotaryPositions(64),
    "norm": Norm("pre", kind="rms", bias=False),
    "activation": "silu",
    "mlp": "gated",
    "type_vocab_size": 0,
}


@pytest.mark.parametrize(
    ("change", "arguments", "message"),
    [
        (
            NEOBERT,
            {},
            "transformers has no family for this MaskedLM; in the nearest, modernbert: modernbert "
            r"has no way to say norm Norm\(placement='pre', .*, kind='rms'",
        ),
        ({"type_vocab_size": 0}, {"family": "bert"}, "bert has a type table"),
        ({}, {"family": "modernbert"}, "^modernbert has rotary positions"),
        ({"positions": LearnedPositions(64, offset=5)}, {}, "nearest, roberta: roberta has no way"),
        ({}, {"family": "bertt"}, "no family is called 'bertt'; did you mean bert?"),
        ({}, {"labels": ["a", "b"]}, "MaskedLM has no classes to name"),
        ({"vocab_size": 90}, {"tokenizer": "bert"}, "the tokenizer has 100 tokens and the model"),
        ({"pad_id": 7}, {"tokenizer": "bert"}, "the tokenizer pads with 0 and the model's pad_id"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_reason(change, arguments, message, tmp_path):
    if "tokenizer" in arguments:
        arguments = {"tokenizer": tool.tokenizer_of(arguments["tokenizer"])}
    model = MaskedLM(dataclasses.replace(SMALL, **change))
    with pytest.raises(ValueError, match=message):
        export(tmp_path / "out", model, **arguments)
    assert list(tmp_path.iterdir()) == []


def test_a_pooler_the_family_has_not_is_refused(tmp_path):
    model = SequenceClassifier(
        dataclasses.replace(SMALL, heads=Heads(pooler=Pooler(activation="silu")))
    )
    with pytest.raises(
        ValueError, match=r"bert has no way to say heads\.pooler\.activation silu; t"
    ):
        export(tmp_path / "out", model, family="bert")
    with pytest.raises(ValueError, match="bert has no class for a ReplacedTokenDetector"):
        export(tmp_path / "out", ReplacedTokenDetector(SMALL), family="bert")


@pytest.mark.parametrize("labels", [["a", "b"], ["a", "b", "b"]])
def test_labels_must_be_those_of_the_model(labels, tmp_path):
    with pytest.raises(ValueError, match="2 different names, and the model has 3 classes"):
        export(tmp_path / "out", SequenceClassifier(SMALL, num_labels=3), labels=labels)


def test_parameters_must_be_those_of_the_model(tmp_path):
    model, params = MaskedLM(SMALL), by_path(tool.draw(MaskedLM(SMALL)))
    wider = params | {"head_bias": np.zeros(5, np.float32)}
    with pytest.raises(ValueError, match=r"head_bias is \(5,\), and MaskedLM .* has it \(384,\)"):
        export_hf(tmp_path / "out", model, from_paths(wider))
    del wider["head_bias"]
    with pytest.raises(ValueError, match="head_bias is absent"):
        export_hf(tmp_path / "out", model, from_paths(wider))
    lost = params | {"head_bias": np.full_like(params["head_bias"], np.nan)}
    with pytest.raises(ValueError, match="head_bias holds values that are not finite"):
        export_hf(tmp_path / "out", model, from_paths(lost))
    assert not (tmp_path / "out").exists()


def test_an_empty_directory_is_filled_and_another_left_alone(tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    export(out, EncoderModel(SMALL))
    before = (out / "model.safetensors").read_bytes()
    with pytest.raises(ValueError, match="out is not empty; name a new directory"):
        export(out, EncoderModel(SMALL), seed=1)
    assert (out / "model.safetensors").read_bytes() == before
    with pytest.raises(ValueError, match="is a file"):
        export(out / "config.json", EncoderModel(SMALL))
    export(tmp_path / "new" / "deep", EncoderModel(SMALL))


@pytest.mark.parametrize("broken", ["save_file", "Tokenizer.save"])
def test_nothing_is_left_of_an_export_that_failed(broken, tmp_path, monkeypatch):
    def fail(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(f"bert_jax.interop.export.{broken}", fail)
    with pytest.raises(OSError, match="No space left"):
        export(tmp_path / "out", EncoderModel(SMALL), tokenizer=tool.tokenizer_of("bert"))
    assert list(tmp_path.iterdir()) == []


# ------------------------------------------------------------------------------------- presets

PUBLISHED = {
    "bert-base": "bert",
    "roberta-base": "roberta",
    "albert-base-v2": "albert",
    "distilbert-base": "distilbert",
    "electra-small": "electra",
    "deberta-base": "deberta",
    "deberta-v2-xlarge": "deberta-v2",
    "deberta-v3-base": "deberta-v2",
    "modernbert-base": "modernbert",
    "ettin-32m": "modernbert",
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_encoder_is_of_its_family(name):
    config = preset(name)
    assert choose(MaskedLM(config)).family.model_type == PUBLISHED[name]
    classifier = choose(SequenceClassifier(config))
    assert classifier.family.model_type == PUBLISHED[name]


def test_dropout_that_has_no_field_is_noted(tmp_path):
    """ModernBERT was trained with a rate its config.json cannot say."""
    (note,) = choose(MaskedLM(preset("modernbert-base"))).unsaid
    assert note.startswith("config.json cannot say dropout.attention_out 0.1 and says 0.0")


@pytest.mark.parametrize("name", ["neobert", "nomic-bert"])
def test_what_transformers_has_no_code_for_is_refused(name):
    with pytest.raises(ValueError, match="in the nearest, modernbert: modernbert has no way to"):
        choose(MaskedLM(preset(name)))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mosaicbert-base", "nearest, bert: bert has no way to say positions AlibiPositions"),
        ("crammed-bert", "nearest, distilbert: distilbert has no way to say positions Sinusoidal"),
        ("wettig-large", "nearest, roberta: roberta has "),
    ],
)
def test_encoders_of_papers_alone_are_refused(name, message):
    for model in (MaskedLM(preset(name)), EncoderModel(preset(name))):
        with pytest.raises(ValueError, match=message) as caught:
            choose(model)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_causal_encoder_is_refused(name, tmp_path):
    """Transformers would run it both ways: other numbers from the same parameters."""
    config = preset(name)
    if config.convolution is not None:  # no causal model has one
        return
    left = dataclasses.replace(config.attention, direction="left")
    model = MaskedLM(dataclasses.replace(config, attention=left))
    for family in (None, PUBLISHED[name]):
        with pytest.raises(ValueError, match=r"has no way to say attention .*direction='left'"):
            choose(model, family)


@pytest.mark.parametrize(
    "change",
    [
        {"biases": Biases(mlp="out")},
        {"mlp": "gated", "biases": Biases(mlp="out")},
        {"positions": SinusoidalPositions(512)},
        {"positions": SinusoidalPositions(512, scale="learned")},
        {"positions": AlibiPositions(512)},
    ],
)
@pytest.mark.parametrize("name", sorted(set(PUBLISHED) - {"ettin-32m"}))
def test_axes_of_no_family_are_refused_by_all(name, change):
    """Set in an encoder that its family says in full otherwise."""
    # Windows do not go with linear biases, nor does DeBERTa's mask decoder.
    plain = {"attention": GlobalAttention(), "heads": Heads()}
    config = dataclasses.replace(preset(name), **plain | change)
    for family in (None, PUBLISHED[name]):
        with pytest.raises(ValueError, match=r"has no way to say|rotary|positions") as caught:
            choose(MaskedLM(config), family)
        assert "\n" not in str(caught.value)


def test_dropout_after_the_feed_forward_layer_is_noted():
    rates = Dropout(0.1, 0.1, mlp_out=0.0)
    (note,) = choose(MaskedLM(dataclasses.replace(SMALL, dropout=rates))).unsaid
    assert note.startswith("config.json cannot say dropout.mlp_out 0.0 and says 0.1")


def test_the_vocabulary_head_of_a_model_without_one_does_not_matter():
    heads = Heads(vocabulary=VocabularyHead(activation="silu"))
    config = dataclasses.replace(SMALL, heads=heads)
    assert choose(EncoderModel(config)).architecture == "BertModel"
    with pytest.raises(ValueError, match="bert has no way to say heads"):
        choose(MaskedLM(config), "bert")


@pytest.mark.parametrize(
    ("name", "change"),
    [("modernbert-base", {"num_layers": 1}), ("albert-base-v1", {"embedding_size": 16})],
)
def test_shapes_at_the_edge_come_back(tiny_preset, name, change, tmp_path):
    """No attention norm at all; a projection between equal widths, which ALBERT has."""
    model = MaskedLM(dataclasses.replace(tiny_preset(name), **change))
    params = jax.jit(model.init)(jax.random.key(0))["params"]
    export_hf(tmp_path / "out", model, params)
    loaded = import_hf(tmp_path / "out")
    ids = np.arange(8).reshape(1, 8) + 5
    np.testing.assert_array_equal(
        loaded.model.apply({"params": loaded.params}, ids)["logits"],
        model.apply({"params": params}, ids)["logits"],
    )
    assert loaded.report.new == loaded.report.unexpected == ()


def test_a_tokenizer_gives_no_types_to_a_model_without_them(tiny_preset, tmp_path):
    tokenizer = tool.tokenizer_of("bert")
    sizes = {"vocab_size": tokenizer.vocab_size, "pad_id": tokenizer.special.pad}
    model = MaskedLM(dataclasses.replace(tiny_preset("distilbert-base"), **sizes))
    export(tmp_path / "out", model, tokenizer=tokenizer)
    about = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())
    assert about["model_input_names"] == ["input_ids", "attention_mask"]

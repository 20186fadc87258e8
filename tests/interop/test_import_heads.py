"""Which model a checkpoint becomes, and where its head's parameters come from."""

import json
from pathlib import Path

import jax
import numpy as np
import pytest
from flax.traverse_util import flatten_dict
from safetensors.numpy import save_file

from bert_jax.interop import import_hf
from bert_jax.models.heads import MaskedLM, PreTraining, ReplacedTokenDetector
from bert_jax.models.model import EncoderModel
from bert_jax.models.task_heads import (
    MultipleChoice,
    SentenceEncoder,
    SequenceClassifier,
    SpanExtractor,
    TokenClassifier,
)

pytestmark = pytest.mark.sweep

PARITY = Path(__file__).parents[1] / "data" / "parity"


def write(directory, weights):
    save_file(weights, directory / "model.safetensors")


def configure(directory, **changes):
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def _equal(a, b):
    jax.tree.map(np.testing.assert_array_equal, a.params, b.params)


def paths(params):
    return set(flatten_dict(params, sep="/"))


def without_prefix(weights, prefix):
    return {key.removeprefix(prefix): value for key, value in weights.items()}


# ------------------------------------------------------------------------------- tied parameters


DECODER = "cls.predictions.decoder.weight"
TABLE = "bert.embeddings.word_embeddings.weight"


def test_a_bias_of_the_decoder_has_either_name(checkpoint):
    directory, weights, write = checkpoint
    expected = import_hf(directory)
    bias = weights.pop("cls.predictions.bias")
    write(weights | {"cls.predictions.decoder.bias": bias})
    _equal(import_hf(directory), expected)
    write(weights | {"cls.predictions.decoder.bias": bias, "cls.predictions.bias": bias + 1})
    with pytest.raises(ValueError, match=r"decoder\.bias differs from cls\.predictions\.bias"):
        import_hf(directory)


def test_a_table_stored_only_as_the_decoder_is_read(checkpoint):
    directory, weights, write = checkpoint
    expected = import_hf(directory)
    weights[DECODER] = weights.pop(TABLE)
    write(weights)
    _equal(import_hf(directory), expected)


def test_an_untied_decoder_is_one_of_its_own(checkpoint):
    directory, weights, write = checkpoint
    configure(directory, tie_word_embeddings=False)
    own = weights[TABLE][::-1].copy()
    bias = weights["cls.predictions.bias"]
    write(weights | {DECODER: own})
    loaded = import_hf(directory)
    assert loaded.model.config.heads.vocabulary.decoder == "untied"
    np.testing.assert_array_equal(loaded.params["decoder"]["embedding"][:97], own)
    np.testing.assert_array_equal(loaded.params["head_bias"][:97], bias)
    assert loaded.report.notes == ()
    # Where both biases are there, transformers adds the decoder's.
    write(weights | {DECODER: own, "cls.predictions.decoder.bias": bias + 1})
    loaded = import_hf(directory)
    np.testing.assert_array_equal(loaded.params["head_bias"][:97], bias + 1)
    assert loaded.report.unused == ("cls.predictions.bias",)
    assert "is the one that counts" in loaded.report.notes[0]


def test_a_bare_encoder_of_an_untied_checkpoint_has_its_token_table(checkpoint):
    directory, weights, write = checkpoint
    configure(directory, tie_word_embeddings=False)
    write(weights | {DECODER: weights[TABLE] + 1})
    loaded = import_hf(directory, model=EncoderModel)
    table = loaded.params["encoder"]["embeddings"]["word"]["embedding"]
    np.testing.assert_array_equal(table[:97], weights[TABLE])


@pytest.mark.parametrize("legacy", [True, False])
def test_either_vocabulary_head_of_deberta_is_read(copy, legacy):
    """Microsoft's names and transformers'; a config that says the other is told of."""
    directory, weights = copy("deberta_v3_mlm_lm_head")
    configure(directory, legacy=legacy)
    loaded = import_hf(directory)
    kernel = weights["lm_predictions.lm_head.dense.weight"].T
    np.testing.assert_array_equal(loaded.params["head_dense"]["kernel"], kernel)
    assert len(loaded.report.renamed) == 5 and loaded.report.unused == ()
    assert len(loaded.report.notes) == legacy
    spelled = {k: v for k, v in weights.items() if not k.startswith("lm_predictions")}
    other = {
        key.replace("lm_predictions.lm_head.", "cls.predictions.transform.").replace(
            "transform.bias", "bias"
        ): value + 1
        for key, value in weights.items()
        if key.startswith("lm_predictions")
    }
    write(directory, spelled | other)
    loaded = import_hf(directory)
    np.testing.assert_array_equal(loaded.params["head_dense"]["kernel"], kernel + 1)
    assert loaded.report.renamed == () and len(loaded.report.notes) == (not legacy)
    # Both: the one config.json names.
    write(directory, weights | other)
    loaded = import_hf(directory)
    np.testing.assert_array_equal(loaded.params["head_dense"]["kernel"], kernel + legacy)


def test_the_detector_of_deberta_v3_is_read_when_asked_for(copy):
    directory, weights = copy("deberta_v3_mlm")
    rng = np.random.default_rng(0)
    shapes = {"dense.weight": (48, 48), "dense.bias": (48,), "classifier.bias": (1,)}
    shapes |= {"LayerNorm.weight": (48,), "LayerNorm.bias": (48,), "classifier.weight": (1, 48)}
    head = {f"mask_predictions.{k}": rng.normal(size=s).astype("f4") for k, s in shapes.items()}
    write(directory, weights | head)
    assert set(import_hf(directory).report.unused) == set(head)
    loaded = import_hf(directory, model=ReplacedTokenDetector)
    assert loaded.report.new == loaded.report.unexpected == ()
    np.testing.assert_array_equal(
        loaded.params["detector_dense"]["kernel"], head["mask_predictions.dense.weight"].T
    )
    np.testing.assert_array_equal(
        loaded.params["detector_norm"]["scale"], head["mask_predictions.LayerNorm.weight"]
    )


# ---------------------------------------------------------------------------------------- models


def test_the_architecture_decides_the_model():
    kinds = {
        "bert_mlm": MaskedLM,
        "bert_pretraining": PreTraining,
        "bert_tag": TokenClassifier,
        "bert_span": SpanExtractor,
        "electra_discriminator": ReplacedTokenDetector,
        "electra_generator": MaskedLM,
        "modernbert_classify": SequenceClassifier,
    }
    assert {case: type(import_hf(PARITY / case).model) for case in kinds} == kinds
    assert import_hf(PARITY / "bert_tag").model.num_labels == 5
    assert import_hf(PARITY / "bert_regress").model.num_labels == 1


def test_without_an_architecture_the_keys_decide(copy):
    directory, weights = copy("bert_classify")
    configure(directory, architectures=None, id2label=None, num_labels=3)
    loaded = import_hf(directory)
    assert type(loaded.model) is SequenceClassifier and loaded.model.num_labels == 3
    assert loaded.report.architecture == "BertForSequenceClassification"
    assert "names no architecture" in loaded.report.notes[0]
    write(directory, {k: v for k, v in weights.items() if not k.startswith("classifier")})
    assert type(import_hf(directory).model) is EncoderModel


def test_a_base_checkpoint_becomes_a_classifier_with_a_drawn_head(copy):
    directory, weights = copy("bert_mlm")
    bare = {k: v for k, v in without_prefix(weights, "bert.").items() if not k.startswith("cls")}
    pooler = {
        "pooler.dense.weight": np.ones((48, 48), "f4"),
        "pooler.dense.bias": np.ones(48, "f4"),
    }
    write(directory, bare | pooler)
    configure(directory, architectures=["BertModel"])
    encoder = import_hf(directory)
    assert type(encoder.model) is EncoderModel and paths(encoder.params) == {
        path for path in paths(encoder.params) if path.startswith("encoder/")
    }
    assert encoder.report.unused == ("bert.pooler.dense.bias", "bert.pooler.dense.weight")

    loaded = import_hf(directory, model=SequenceClassifier, num_labels=5, seed=3)
    assert loaded.model.num_labels == 5
    assert loaded.report.new == ("classifier/bias", "classifier/kernel")
    assert loaded.report.unused == ()
    np.testing.assert_array_equal(loaded.params["pooler"]["kernel"], 1)
    jax.tree.map(np.testing.assert_array_equal, loaded.params["encoder"], encoder.params["encoder"])
    kernel = loaded.params["classifier"]["kernel"]
    assert kernel.shape == (48, 5) and 0.01 < np.std(kernel) < 0.03  # initializer_range .02
    again = import_hf(directory, model=SequenceClassifier, num_labels=5, seed=3)
    other = import_hf(directory, model=SequenceClassifier, num_labels=5, seed=4)
    _equal(again, loaded)
    assert not np.array_equal(other.params["classifier"]["kernel"], kernel)


@pytest.mark.parametrize(
    ("case", "model", "new"),
    [
        ("bert_mlm", EncoderModel, set()),
        ("bert_mlm", SentenceEncoder, set()),
        ("bert_mlm", SpanExtractor, {"span/kernel", "span/bias"}),
        ("bert_classify", MultipleChoice, "shape"),
        ("bert_pretraining", MaskedLM, set()),
        ("modernbert_mlm", TokenClassifier, {"classifier/kernel", "classifier/bias"}),
        ("roberta_mlm", SequenceClassifier,
         {"pooler/kernel", "pooler/bias", "classifier/kernel", "classifier/bias"}),
        ("roberta_mlm", ReplacedTokenDetector,
         {"detector_dense/kernel", "detector_dense/bias", "detector/kernel", "detector/bias"}),
        ("electra_generator", SentenceEncoder, set()),
    ],
)  # fmt: skip
def test_a_model_asked_for_takes_what_is_there(case, model, new):
    if new == "shape":
        with pytest.raises(ValueError, match=r"classifier\.weight has the shape \(3, 48\)"):
            import_hf(PARITY / case, model=model)
        return
    loaded = import_hf(PARITY / case, model=model)
    assert type(loaded.model) is model and set(loaded.report.new) == new
    output = jax.jit(loaded.model.apply)({"params": loaded.params}, np.full((2, 5), 7, np.int32))
    assert all(np.isfinite(x).all() for x in output.values())


def test_a_promised_head_must_be_there(copy):
    directory, weights = copy("bert_classify")
    del weights["classifier.bias"]
    write(directory, weights)
    with pytest.raises(ValueError, match=r"lacks 1 parameters: classifier\.bias"):
        import_hf(directory)


def test_an_unknown_architecture_may_give_its_encoder(copy):
    directory, weights = copy("bert_mlm")
    configure(directory, architectures=["BertForSomethingElse"])
    with pytest.raises(ValueError, match="reads the encoder of another"):
        import_hf(directory)
    loaded = import_hf(directory, model=EncoderModel)
    assert "BertForSomethingElse" in loaded.report.notes[0]
    del weights


@pytest.mark.usefixtures("unchecked")
def test_arguments_that_do_not_fit_are_told():
    with pytest.raises(ValueError, match="num_labels is 3, but MaskedLM has no labels"):
        import_hf(PARITY / "bert_mlm", num_labels=3)
    with pytest.raises(ValueError, match="give a class"):
        import_hf(PARITY / "bert_mlm", model=dict)


def test_a_classifier_of_other_labels_is_drawn_anew():
    """Its pooler stays; the checkpoint's classifier is unused."""
    three = import_hf(PARITY / "bert_classify")
    five = import_hf(PARITY / "bert_classify", model=SequenceClassifier, num_labels=5)
    assert three.model.num_labels != 5
    assert five.report.new == ("classifier/bias", "classifier/kernel")
    assert {"classifier.weight", "classifier.bias"} <= set(five.report.unused)
    assert five.params["classifier"]["kernel"].shape == (48, 5)
    jax.tree.map(np.testing.assert_array_equal, five.params["pooler"], three.params["pooler"])
    same = import_hf(PARITY / "bert_classify", num_labels=three.model.num_labels)
    assert same.report.new == ()


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"model": "SequenceClassifier"}, "give a class, such as bert_jax.SequenceClassifier"),
        ({"model": SequenceClassifier, "num_labels": 0}, "num_labels is 0; a classifier has 1"),
    ],
)
def test_a_model_that_is_none_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        import_hf(PARITY / "bert_mlm", **arguments)


def test_a_tokenizer_may_be_left_alone(copy):
    directory, _ = copy("bert_mlm")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{i}" for i in range(200))]
    (directory / "vocab.txt").write_text("\n".join(words))
    with pytest.raises(ValueError, match=r"the tokenizer has 205 entries.*tokenizer='ignore'"):
        import_hf(directory)
    assert import_hf(directory, tokenizer="ignore").tokenizer is None


def test_drawn_parameters_depend_on_the_seed_alone():
    """Not on jax's default generator, whose values may depend on the platform."""
    with jax.default_prng_impl("rbg"):
        other = import_hf(PARITY / "bert_mlm", model=SequenceClassifier)
    _equal(other, import_hf(PARITY / "bert_mlm", model=SequenceClassifier))

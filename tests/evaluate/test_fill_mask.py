"""Fill-mask against a plain forward pass, and its refusals."""

import dataclasses

import jax
import numpy as np
import pytest

from bert_jax.evaluate.fill_mask import fill_mask, fill_mask_run, format_predictions
from bert_jax.interop import export_hf
from bert_jax.models.config import LearnedPositions
from bert_jax.models.growth import resize_vocabulary
from bert_jax.models.heads import MaskedLM
from bert_jax.models.model import EncoderModel
from bert_jax.models.task_heads import SequenceClassifier


def _probabilities(model, text):
    """Softmax of the full logits at each mask, without padding."""
    ids = np.asarray([model.tokenizer.encode(text).ids], np.int32)
    logits = model.model.apply({"params": model.params}, ids)["logits"][0]
    places = np.flatnonzero(ids[0] == model.tokenizer.special.mask)
    return np.asarray(jax.nn.softmax(logits, axis=-1))[places]


@pytest.mark.parametrize("text", ["the [MASK] of the", "[MASK] people met the [MASK]"])
def test_guesses_are_the_most_probable_tokens(model, text):
    expected = _probabilities(model, text)
    predictions = fill_mask(text, model, top_k=4)
    assert len(predictions) == len(expected)
    for guesses, row in zip(predictions, expected, strict=True):
        order = np.argsort(-row)[:4]
        assert [model.tokenizer.token_to_id(g.token) for g in guesses] == order.tolist()
        # float32 softmax, rows padded to another length
        np.testing.assert_allclose([g.probability for g in guesses], row[order], rtol=1e-5)


def test_the_text_of_a_guess_has_it_in_the_place_of_its_mask_only(model):
    first, second = fill_mask("the [MASK] of the [MASK] met", model, top_k=1)
    word = first[0].token.removeprefix("##")
    assert word in first[0].text
    assert first[0].text.endswith("of the [MASK] met")
    assert second[0].text.startswith("the [MASK] of the")
    assert first[0].text.count("[MASK]") == second[0].text.count("[MASK]") == 1


def test_the_printed_form_names_each_mask(model):
    text = "the [MASK] of the [MASK]"
    lines = format_predictions(text, fill_mask(text, model, top_k=2)).splitlines()
    assert lines[0] == text
    assert lines[1].strip() == "mask 1" and lines[4].strip() == "mask 2"
    assert len(lines) == 7


@pytest.mark.parametrize(
    ("text", "top_k", "message"),
    [
        ("no mask here", 5, r"holds no \[MASK\]"),
        ("the [MASK]", 0, "top_k is 0"),
        ("the [MASK]", 10_000, "top_k is 10000"),
        ("people " * 80 + "[MASK]", 5, "the model has 64 positions"),
    ],
)
def test_what_cannot_be_filled_is_one_sentence(model, text, top_k, message):
    with pytest.raises(ValueError, match=message):
        fill_mask(text, model, top_k=top_k)


def test_a_model_without_a_tokenizer_cannot_read(model):
    with pytest.raises(ValueError, match="has no tokenizer"):
        fill_mask("the [MASK]", dataclasses.replace(model, tokenizer=None))


def test_a_model_without_a_vocabulary_head_predicts_no_words(model):
    classifier = SequenceClassifier(model.model.config)
    with pytest.raises(ValueError, match="is a SequenceClassifier, which predicts no words"):
        fill_mask("the [MASK]", dataclasses.replace(model, model=classifier))


@pytest.fixture(scope="module")
def exported(model, tmp_path_factory):
    """The same encoder with BERT's norm and positions, as a Hugging Face directory."""
    config = dataclasses.replace(
        model.model.config, positions=LearnedPositions(64), type_vocab_size=2
    )
    module = MaskedLM(config)
    params = jax.jit(module.init)(jax.random.key(1))["params"]
    directory = tmp_path_factory.mktemp("models") / "bert"
    export_hf(directory, module, params, model.tokenizer)
    export_hf(directory.with_name("bare"), EncoderModel(config), {"encoder": params["encoder"]})
    return directory, dataclasses.replace(model, model=module, params=params)


def test_a_hugging_face_directory_is_read(exported):
    directory, source = exported
    text = "the [MASK] of the"
    assert fill_mask_run(directory, [text]) == format_predictions(text, fill_mask(text, source))


def test_a_directory_without_a_vocabulary_head_is_refused(exported):
    with pytest.raises(ValueError, match="holds no trained vocabulary head"):
        fill_mask_run(exported[0].with_name("bare"), ["the [MASK]"])


def test_entries_that_no_text_has_are_not_guessed(model):
    """A model may have more vocabulary entries than its tokenizer (ModernBERT, DeBERTa)."""
    config, params = resize_vocabulary(
        model.model.config,
        model.params,
        model.tokenizer.vocab_size + 5,
        rows=np.full((5, 32), 9.0, np.float32),
    )
    larger = dataclasses.replace(model, model=MaskedLM(config), params=params)
    expected = fill_mask("the [MASK] of the", model, top_k=3)
    got = fill_mask("the [MASK] of the", larger, top_k=3)
    assert [g.token for g in got[0]] == [g.token for g in expected[0]]
    np.testing.assert_allclose(
        [g.probability for g in got[0]], [g.probability for g in expected[0]], rtol=1e-5
    )

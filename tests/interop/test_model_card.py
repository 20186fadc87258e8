"""The model card: what is stated, and that nothing is made up."""

import dataclasses
import re

import numpy as np
import pytest

from bert_jax.data.tokenizer import Tokenizer
from bert_jax.interop.model_card import NOT_STATED, QUESTIONS, model_card
from bert_jax.models.config import (
    EncoderConfig,
    LayerSharing,
    LocalAttention,
    NoPositions,
    RotaryPositions,
    SinusoidalPositions,
)
from bert_jax.models.heads import MaskedLM
from bert_jax.models.task_heads import SequenceClassifier

CONFIG = EncoderConfig(
    vocab_size=60, hidden_size=16, num_layers=2, num_heads=2, intermediate_size=1024
)
ARRAYS = {"a": np.zeros((60, 20), np.float32), "b": np.zeros(34, np.float32)}


def card(facts=(), *, model=None, tokenizer=None, notes=()):
    model = MaskedLM(CONFIG) if model is None else model
    return model_card(model, "BertForMaskedLM", ARRAYS, tokenizer, notes, dict(facts))


def rows(text, section):
    """Names and values of a section's table."""
    part = text.split(f"## {section}\n")[1].split("\n## ")[0]
    return dict(re.findall(r"^\| (.+?) \| (.*) \|$", part, re.MULTILINE))


def test_a_card_without_facts_makes_none_up():
    text = card()
    assert rows(text, "Training") == dict.fromkeys((*QUESTIONS, "Licence", "Languages"), NOT_STATED)
    front = text.split("---\n")[1]
    assert front.splitlines() == [
        "library_name: transformers",
        "tags:",
        "- bert-jax",
        "pipeline_tag: fill-mask",
    ]
    assert "# BertForMaskedLM\n" in text
    assert "## Notes" not in text


def test_facts_are_shown_and_the_front_matter_has_what_hugging_face_reads():
    facts = {
        "Name": "legal-bert",
        "Steps": "1,000",
        "Licence": "Apache-2.0",
        "Languages": "en, zh-Hant",
        "Seed": "3 | 4\nand more",
    }
    text = card(facts, notes=["One.", "Two."])
    stated = rows(text, "Training")
    assert stated["Steps"] == "1,000" and stated["Optimizer"] == NOT_STATED
    assert stated["Seed"] == r"3 \| 4 and more"  # stays in its cell
    assert stated["Licence"] == "Apache-2.0"
    front = text.split("---\n")[1]
    assert 'license: "apache-2.0"\n' in front
    assert 'language:\n- "en"\n- "zh-Hant"\n' in front
    assert "# legal-bert\n" in text and "Name" not in stated
    assert "## Notes\n\n- One.\n- Two.\n" in text


def test_a_language_must_be_a_code():
    with pytest.raises(ValueError, match=r"'English \(US\)' is no code of ISO 639"):
        card({"Languages": "en, English (US)"})


def test_the_model_is_described():
    tokenizer = Tokenizer.train(texts=["a small text"] * 3, kind="wordpiece", vocab_size=30)
    about = rows(card(tokenizer=tokenizer), "Model")
    assert about["Parameters"] == "1,234, float32"
    assert about["Layers"] == "2"
    assert about["Width"] == "16, 2 heads"
    assert about["Feed-forward"] == "width 1,024, plain, gelu"
    assert about["Longest input"] == "512 tokens"
    assert about["Vocabulary"] == "60 entries"
    assert about["Tokenizer"].startswith(f"wordpiece, {tokenizer.vocab_size} tokens")
    assert rows(card(), "Model")["Tokenizer"] == "none in this directory"
    assert "AutoTokenizer" in card(tokenizer=tokenizer) and "AutoTokenizer" not in card()


@pytest.mark.parametrize(
    ("change", "name", "value"),
    [
        ({"sharing": LayerSharing()}, "Layers", "2, with the parameters of 1"),
        ({"positions": RotaryPositions()}, "Positions", "rotary, theta 10,000"),
        ({"positions": SinusoidalPositions()}, "Positions", "sinusoidal, theta 10,000"),
        ({"positions": NoPositions()}, "Positions", "none"),
        (
            {"positions": RotaryPositions(), "attention": LocalAttention(64, 3)},
            "Attention",
            "windows of 64 tokens, every layer number divisible by 3 global",
        ),
    ],
)
def test_axes_are_named(change, name, value):
    text = card(model=SequenceClassifier(dataclasses.replace(CONFIG, **change), num_labels=7))
    assert rows(text, "Model")[name] == value
    assert rows(text, "Model")["Classes"] == "7"
    assert "AutoModelForSequenceClassification" in text
    assert "pipeline_tag: text-classification" in text

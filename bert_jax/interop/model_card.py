"""The README.md of an exported directory: what the model is, how to use it, how it was made."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

import numpy as np

from bert_jax import __version__
from bert_jax.data.tokenizer import Tokenizer
from bert_jax.models.axes import (
    DisentangledPositions,
    LearnedPositions,
    LocalAttention,
    RotaryPositions,
    SinusoidalPositions,
)
from bert_jax.models.config import EncoderConfig
from bert_jax.models.heads import MaskedLM, PreTraining, ReplacedTokenDetector
from bert_jax.models.model import EncoderModel
from bert_jax.models.task_heads import (
    MultipleChoice,
    SequenceClassifier,
    SpanExtractor,
    TokenClassifier,
)

NOT_STATED = "not stated"
# What a reader of a card asks about training. Each is answered, if only by "not stated".
QUESTIONS = (
    "Training data",
    "Objective",
    "Steps",
    "Rows a step",
    "Sequence length",
    "Optimizer",
    "Learning rate",
    "Held-out results",
)
LICENCE, LANGUAGES, NAME = "Licence", "Languages", "Name"

_CODE = re.compile(r"[A-Za-z]{2,3}(-[A-Za-z0-9]+)*")


def model_card(
    model: EncoderModel,
    architecture: str,
    arrays: Mapping[str, np.ndarray],
    tokenizer: Tokenizer | None,
    notes: Sequence[str],
    facts: Mapping[str, str],
) -> str:
    """The text of README.md, with the YAML block that Hugging Face reads.

    Args:
        model: The model.
        architecture: Its class in transformers.
        arrays: The checkpoint.
        tokenizer: Beside it; None if there is none.
        notes: Sentences a user should know.
        facts: What is known, by name, in the order to show it. ``Name``, ``Licence`` (an SPDX
            identifier), ``Languages`` (codes of ISO 639, joined by commas) and `QUESTIONS` are
            asked for, and "not stated" where they are absent; others are added.
    """
    licence, languages = facts.get(LICENCE), facts.get(LANGUAGES)
    made = {question: facts.get(question, NOT_STATED) for question in QUESTIONS}
    made |= {name: value for name, value in facts.items() if name not in (NAME,)}
    made |= {LICENCE: licence or NOT_STATED, LANGUAGES: languages or NOT_STATED}
    parts = [
        _front_matter(model, licence, languages),
        f"# {facts.get(NAME, architecture)}",
        f"A `{architecture}`, written by bert-jax {__version__} for Hugging Face transformers.",
        "## Use",
        _usage(model, tokenizer),
        "## Model",
        _table(_about(model, arrays, tokenizer)),
        "## Training",
        _table(made),
    ]
    if notes:
        parts += ["## Notes", "\n".join(f"- {note}" for note in notes)]
    parts += [
        "## Limits",
        "What is not stated above is not known to the program that wrote this page. It has tested "
        "neither what the model knows of any language or field nor what biases it took from its "
        "data.",
    ]
    return "\n\n".join(parts) + "\n"


def _front_matter(model: EncoderModel, licence: str | None, languages: str | None) -> str:
    lines = ["---", "library_name: transformers", "tags:", "- bert-jax"]
    task = _TASKS.get(type(model))
    if task is not None:
        lines.append(f"pipeline_tag: {task}")
    if licence:
        lines.append(f"license: {json.dumps(licence.lower())}")
    codes = [code.strip() for code in (languages or "").split(",") if code.strip()]
    for code in codes:
        if not _CODE.fullmatch(code):
            raise ValueError(
                f"the language {code!r} is no code of ISO 639; write en, de or zh-Hant, say."
            )
    if codes:
        lines += ["language:", *(f"- {json.dumps(code)}" for code in codes)]
    return "\n".join([*lines, "---"])


_TASKS: dict[type[EncoderModel], str] = {
    EncoderModel: "feature-extraction",
    MaskedLM: "fill-mask",
    SequenceClassifier: "text-classification",
    TokenClassifier: "token-classification",
    SpanExtractor: "question-answering",
    MultipleChoice: "multiple-choice",
}
_AUTO: dict[type[EncoderModel], str] = {
    MaskedLM: "AutoModelForMaskedLM",
    PreTraining: "AutoModelForPreTraining",
    ReplacedTokenDetector: "AutoModelForPreTraining",
    SequenceClassifier: "AutoModelForSequenceClassification",
    TokenClassifier: "AutoModelForTokenClassification",
    SpanExtractor: "AutoModelForQuestionAnswering",
    MultipleChoice: "AutoModelForMultipleChoice",
}


def _usage(model: EncoderModel, tokenizer: Tokenizer | None) -> str:
    auto = _AUTO.get(type(model), "AutoModel")
    imported = [auto] if tokenizer is None else [auto, "AutoTokenizer"]
    lines = [
        f"from transformers import {', '.join(imported)}",
        "",
        f'model = {auto}.from_pretrained("path/to/this/directory")',
    ]
    if tokenizer is not None:
        lines.append('tokenizer = AutoTokenizer.from_pretrained("path/to/this/directory")')
    text = "\n".join(["```python", *lines, "```"])
    back = '`bert_jax.import_hf("path/to/this/directory")` reads it back, bit for bit.'
    if model.config.heads.vocabulary.mask_decoder == "enhanced":
        back = '`bert_jax.import_hf("path/to/this/directory")` reads it, without the mask decoder.'
    return f"{text}\n\n{back}"


def _about(
    model: EncoderModel, arrays: Mapping[str, np.ndarray], tokenizer: Tokenizer | None
) -> dict[str, str]:
    c = model.config
    about = {
        "Layers": _layers(c),
        "Width": f"{c.hidden_size}, {c.num_heads} heads",
        "Feed-forward": f"width {c.intermediate_size:,}, {c.mlp}, {c.activation}",
        "Norm": f"{c.norm.placement}, {c.norm.kind}, epsilon {c.norm.eps:g}",
        "Positions": _positions(c),
        "Longest input": f"{c.positions.max_length:,} tokens",
        "Vocabulary": f"{c.vocab_size:,} entries",
        "Parameters": f"{sum(array.size for array in arrays.values()):,}, float32",
    }
    if isinstance(c.attention, LocalAttention):
        about["Attention"] = (
            f"windows of {c.attention.window} tokens, every layer number divisible by "
            f"{c.attention.global_every} global"
        )
    if isinstance(model, SequenceClassifier | TokenClassifier):
        about["Classes"] = str(model.num_labels)
    about["Tokenizer"] = "none in this directory"
    if tokenizer is not None:
        about["Tokenizer"] = (
            f"{tokenizer.kind}, {tokenizer.vocab_size:,} tokens; text is normalised by "
            f"{tokenizer.normalization}"
        )
    return about


def _layers(c: EncoderConfig) -> str:
    if c.sharing is None:
        return str(c.num_layers)
    return f"{c.applied_layers}, with the parameters of {c.stored_layers}"


def _positions(c: EncoderConfig) -> str:
    p = c.positions
    if isinstance(p, LearnedPositions):
        return "learned"
    if isinstance(p, SinusoidalPositions):
        return f"sinusoidal, theta {p.theta:,.0f}"
    if isinstance(p, RotaryPositions):
        return f"rotary, theta {p.theta:,.0f}"
    if isinstance(p, DisentangledPositions):
        return f"disentangled ({', '.join(p.terms)})"
    return "none"


def _table(rows: Mapping[str, str]) -> str:
    lines = [f"| {_cell(name)} | {_cell(value)} |" for name, value in rows.items()]
    return "\n".join(["| | |", "|---|---|", *lines])


def _cell(text: str) -> str:
    """Text that stays in its cell."""
    return " ".join(text.split()).replace("|", "\\|")

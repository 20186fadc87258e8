"""Exports a tiny model of every family and head, and loads it with transformers.

    python tools/export_roundtrip.py [--only deberta] [--keep DIRECTORY]

Each is drawn at random with large weights (an omission shows), exported, and loaded by the
`AutoModelFor...` class with warnings as errors and transformers' log captured. It passes if nothing
was said, no key was missing or unexpected (but those the export told of), logits at real tokens of
a padded batch are within 1e-4 of ours, relative to the largest, and the tokenizer gives our ids.

Needs the extra ``reference``, but for what the tests use: `cases`, `draw`, `tokenizer_of`.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import logging
import sys
import tempfile
import traceback
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from bert_jax.data.tokenizer import Tokenizer
from bert_jax.interop.export import ExportReport, export_hf
from bert_jax.interop.families import FAMILIES
from bert_jax.models.heads import MaskedLM, PreTraining, ReplacedTokenDetector
from bert_jax.models.model import EncoderModel
from bert_jax.models.paths import by_path, from_paths
from bert_jax.models.task_heads import (
    MultipleChoice,
    SequenceClassifier,
    SpanExtractor,
    TokenClassifier,
)

BOUND = 1e-4  # of the largest logit: the project's promise; float32 rounding is about 1e-6
VOCAB = 300
ROWS, LENGTH, LENGTHS = 4, 21, (21, 13, 7, 2)
TEXTS = [
    "the congress of the united states met in december",
    "the people of the united states elected a congress",
    "unbelievable uncertainties unsettled the uncomfortable people",
] * 3

_SMALL = {"vocab_size": VOCAB, "hidden_size": 48, "num_hidden_layers": 3, "pad_token_id": 0}
_BERT = {
    **_SMALL,
    "num_attention_heads": 4,
    "intermediate_size": 80,
    "max_position_embeddings": 64,
    "type_vocab_size": 2,
}
_ROBERTA = {**_BERT, "max_position_embeddings": 66, "type_vocab_size": 1, "pad_token_id": 1}
_DEBERTA = {
    **_BERT,
    "type_vocab_size": 0,
    "relative_attention": True,
    "position_biased_input": False,
    "pos_att_type": ["c2p", "p2c"],
    "layer_norm_eps": 1e-7,
    "pooler_hidden_size": 48,
}
_DEBERTA_V3 = {
    **_DEBERTA,
    "position_buckets": 8,
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
}
_MODERNBERT = {
    **_SMALL,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 128,
    "local_attention": 8,
    "global_attn_every_n_layers": 3,
}
_ALBERT = {**_BERT, "embedding_size": 16, "hidden_act": "gelu_new"}
_ELECTRA = {**_BERT, "embedding_size": 24}
_DISTILBERT = {
    "vocab_size": VOCAB,
    "dim": 48,
    "n_layers": 3,
    "n_heads": 4,
    "hidden_dim": 80,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
_UNTIED = {"tie_word_embeddings": False}
# Contents of config.json, by model type and variant.
SHAPES: dict[str, dict[str, dict[str, Any]]] = {
    "bert": {"": _BERT, "untied": _BERT | _UNTIED | {"hidden_act": "gelu_new"}},
    "roberta": {
        "": _ROBERTA,
        "two types": {**_ROBERTA, "type_vocab_size": 2, "hidden_act": "silu"},
        "untied": _ROBERTA | _UNTIED,
    },
    "xlm-roberta": {"": _ROBERTA},
    "camembert": {"": _ROBERTA},
    "albert": {
        "": _ALBERT,
        "groups": {
            **_ALBERT,
            "num_hidden_layers": 4,
            "num_hidden_groups": 2,
            "inner_group_num": 2,
        },
        "untied": _ALBERT | _UNTIED,
    },
    "distilbert": {"": _DISTILBERT, "untied": _DISTILBERT | _UNTIED},
    "electra": {
        "": _ELECTRA,
        "square": {**_ELECTRA, "embedding_size": 48, "hidden_act": "relu"},
        "untied": _ELECTRA | _UNTIED,
    },
    "deberta": {
        "": _DEBERTA,
        "absolute": {**_DEBERTA, "position_biased_input": True, "type_vocab_size": 2},
        "untied": _DEBERTA | _UNTIED,
    },
    "deberta-v2": {
        "": _DEBERTA_V3,
        "convolution": {**_DEBERTA_V3, "conv_kernel_size": 3, "conv_act": "gelu"},
        # What an encoder of this project without types is.
        "plain": {**_BERT, "type_vocab_size": 0, "relative_attention": False},
        "unshared": {**_DEBERTA_V3, "share_att_key": False, "embedding_size": 32},
        "untied": _DEBERTA_V3 | _UNTIED,
    },
    "modernbert": {
        "": _MODERNBERT,
        "mean": {
            **_MODERNBERT,
            "global_attn_every_n_layers": 2,
            "classifier_pooling": "mean",
            "classifier_bias": True,
            "norm_bias": True,
            "attention_bias": True,
            "mlp_bias": True,
        },
        "untied": _MODERNBERT | _UNTIED | {"decoder_bias": False},
    },
}
_HEADS: dict[str, tuple[type[EncoderModel], dict[str, Any]]] = {
    "encoder": (EncoderModel, {}),
    "masked LM": (MaskedLM, {}),
    "pre-training": (PreTraining, {}),
    "detector": (ReplacedTokenDetector, {}),
    "classifier": (SequenceClassifier, {"num_labels": 3}),
    "regressor": (SequenceClassifier, {"num_labels": 1}),
    "tagger": (TokenClassifier, {"num_labels": 5}),
    "span": (SpanExtractor, {}),
    "multiple choice": (MultipleChoice, {}),
}
_AUTO: dict[type[EncoderModel], str] = {
    EncoderModel: "AutoModel",
    MaskedLM: "AutoModelForMaskedLM",
    PreTraining: "AutoModelForPreTraining",
    ReplacedTokenDetector: "AutoModelForPreTraining",
    SequenceClassifier: "AutoModelForSequenceClassification",
    TokenClassifier: "AutoModelForTokenClassification",
    SpanExtractor: "AutoModelForQuestionAnswering",
    MultipleChoice: "AutoModelForMultipleChoice",
}
# Output names: ours, and theirs in the order to look for them.
_OUTPUTS = {
    "hidden": ("last_hidden_state",),
    "logits": ("logits", "prediction_logits"),
    "pair_logits": ("seq_relationship_logits", "sop_logits"),
    "start_logits": ("start_logits",),
    "end_logits": ("end_logits",),
}


@dataclass(frozen=True)
class Case:
    """One model to export: its ``model_type``, which of its `SHAPES`, which head."""

    family: str
    shape: str
    head: str
    model: EncoderModel

    @property
    def name(self) -> str:
        """For tables."""
        return ", ".join(filter(None, (self.family, self.shape, self.head)))


def cases() -> list[Case]:
    """Every family, shape and head that the family has."""
    made = []
    for name, family in FAMILIES.items():
        known = {head.model for head in family.heads.values()} | {EncoderModel}
        for shape, raw in SHAPES[name].items():
            config = family.encoder_config(raw)
            for head, (model, arguments) in _HEADS.items():
                # An untied decoder matters to those who have one.
                if model in known and (shape != "untied" or issubclass(model, MaskedLM)):
                    made.append(Case(name, shape, head, model(config, **arguments)))
    return made


def draw(model: EncoderModel, seed: int = 0) -> dict[str, Any]:
    """Parameters large enough that leaving one out shows; rows that pad the vocabulary are 0."""
    rng = np.random.default_rng(seed)
    shapes = by_path(jax.eval_shape(model.init, jax.random.key(0))["params"])
    leaves = {}
    for path, leaf in shapes.items():
        role = path.rpartition("/")[2]
        # Kernels keep the size of what they are given; anything far larger saturates softmaxes.
        scale = leaf.shape[-2] ** -0.5 if role in ("kernel", "taps") else 0.5
        value = rng.normal(0, scale, leaf.shape) + (role == "scale")
        if leaf.shape[0] == model.config.padded_vocab_size:
            value[model.config.vocab_size :] = 0
        leaves[path] = jax.numpy.asarray(value, np.float32)
    return from_paths(leaves)


@functools.cache
def tokenizer_of(family: str) -> Tokenizer:
    """A small tokenizer of the kind the family was published with, and its padding id."""
    if family in ("roberta", "xlm-roberta", "camembert"):
        return Tokenizer.train(texts=TEXTS, kind="byte_bpe", vocab_size=VOCAB)
    if family in ("albert", "deberta-v2"):
        return Tokenizer.train(texts=TEXTS, kind="unigram", vocab_size=60)
    return Tokenizer.train(texts=TEXTS, kind="wordpiece", vocab_size=100)


def batch(model: EncoderModel) -> dict[str, np.ndarray]:
    """Padded rows, with both types where the model has them."""
    rng, config = np.random.default_rng(1), model.config
    mask = (np.arange(LENGTH) < np.array(LENGTHS)[:, None]).astype(np.int32)
    ids = rng.integers(5, config.vocab_size, (ROWS, LENGTH))
    inputs = {
        "input_ids": np.where(mask == 1, ids, config.pad_id).astype(np.int32),
        "attention_mask": mask,
    }
    if config.type_vocab_size > 1:
        inputs["token_type_ids"] = (np.arange(LENGTH) > 4).astype(np.int32) * mask
    return inputs


# ------------------------------------------------------------------------- against transformers


@dataclass(frozen=True)
class Result:
    """What a case came to: the largest relative error of an output, and what went wrong."""

    error: float
    problems: tuple[str, ...]


def check(case: Case, directory: Path) -> Result:
    """Exports a case and compares it with transformers."""
    tokenizer = tokenizer_of(case.family)
    params = draw(case.model)
    with warnings.catch_warnings():
        if (case.family, case.head) == ("deberta-v2", "detector"):
            warnings.filterwarnings("ignore", "transformers has no", UserWarning)
        report = export_hf(directory, case.model, params, tokenizer, family=case.family)
    theirs, said, info = _load(report, case.model, directory)
    problems = _complaints(report, theirs, said, info)
    problems += _tokenizer_problems(directory, tokenizer)
    error = _largest_error(case.model, params, theirs)
    if not error < BOUND:
        problems.append(f"outputs differ by {error:.1e}")
    return Result(error, tuple(problems))


@contextlib.contextmanager
def _listening() -> Iterator[list[str]]:
    """Collects what transformers logs from warnings on; Python's warnings are errors."""
    said: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: said.append(record.getMessage())
    logger = logging.getLogger("transformers")
    logger.addHandler(handler)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            yield said
    finally:
        logger.removeHandler(handler)


def _load(
    report: ExportReport, model: EncoderModel, directory: Path
) -> tuple[Any, list[str], Mapping[str, Any]]:
    import transformers

    transformers.logging.disable_progress_bar()
    transformers.utils.logging.warning_once.cache_clear()  # else only the first case would say it
    known = hasattr(transformers, report.architecture)  # else its encoder is what can be read
    auto = getattr(transformers, _AUTO[type(model)] if known else "AutoModel")
    with _listening() as said:
        loaded, info = auto.from_pretrained(directory, output_loading_info=True)
    return loaded.eval(), said, info


def _complaints(
    report: ExportReport, theirs: Any, said: list[str], info: Mapping[str, Any]
) -> list[str]:
    import transformers

    problems = []
    if not hasattr(transformers, report.architecture):
        return [f"missing {info['missing_keys']}"] if info["missing_keys"] else []
    if type(theirs).__name__ != report.architecture:
        problems.append(f"loaded as {type(theirs).__name__}, not {report.architecture}")
    if set(info["missing_keys"]) != set(report.missing):
        problems.append(f"missing {sorted(info['missing_keys'])}")
    for kind in ("unexpected_keys", "mismatched_keys", "error_msgs"):
        if info.get(kind):
            problems.append(f"{kind}: {info[kind]}")
    # What the export told is missing, transformers may tell too.
    if not report.missing:
        problems += said
    return problems


def _tokenizer_problems(directory: Path, tokenizer: Tokenizer) -> list[str]:
    import transformers

    with _listening() as said:
        theirs = transformers.AutoTokenizer.from_pretrained(directory)
        problems = [
            f"tokenizer: {text!r} becomes {other}"
            for text in TEXTS[:3]
            if (other := theirs(text)["input_ids"]) != tokenizer.encode(text).ids
        ]
    return problems + said


def _largest_error(model: EncoderModel, params: Mapping[str, Any], theirs: Any) -> float:
    import torch

    inputs = batch(model)
    with jax.default_matmul_precision("highest"):
        # Compiling is most of a case's time, and level 0 changes no value that matters here.
        fast = {"xla_backend_optimization_level": 0}
        output: Any = jax.jit(model.apply, compiler_options=fast)({"params": params}, **inputs)
    given = {name: torch.tensor(value, dtype=torch.long) for name, value in inputs.items()}
    if isinstance(model, MultipleChoice):
        given = {name: x.reshape(-1, model.num_choices, LENGTH) for name, x in given.items()}
    with torch.no_grad():
        expected = theirs(**given)
    worst, compared = 0.0, 0
    for ours, names in _OUTPUTS.items():
        other = next((expected[name] for name in names if name in expected), None)
        if other is None or ours not in output:
            continue
        compared += 1
        a, b = np.asarray(output[ours], np.float32), other.numpy()
        if a.shape[:2] == inputs["input_ids"].shape:
            real = inputs["attention_mask"] == 1
            a, b = a[real], b[real]
        worst = max(worst, float(np.abs(a - b).max() / np.abs(b).max()))
    return worst if compared else float("nan")


def main() -> int:
    """Prints a table; exit code 1 if a case failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default="", help="cases whose name has this in it")
    parser.add_argument("--keep", type=Path, help="directory for the exports; by default removed")
    arguments = parser.parse_args()
    chosen = [case for case in cases() if arguments.only in case.name]
    width, failed = max((len(case.name) for case in chosen), default=0), 0
    with contextlib.ExitStack() as stack:
        root = arguments.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for case in chosen:
            directory = root / case.name.replace(", ", "-").replace(" ", "_")
            try:
                result = check(case, directory)
            except Exception as error:  # noqa: BLE001 (a case that breaks is a row of the table)
                traceback.print_exc()
                result = Result(float("nan"), (f"{type(error).__name__}: {error}",))
            failed += bool(result.problems)
            verdict = "; ".join(" ".join(p.split()) for p in result.problems) or "pass"
            print(f"{case.name:<{width}}  {result.error:8.1e}  {verdict}", flush=True)
    print(f"{len(chosen) - failed} of {len(chosen)} passed")
    return 1 if failed or not chosen else 0


if __name__ == "__main__":
    sys.exit(main())

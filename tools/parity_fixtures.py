"""Fixtures of tests/data/parity, made or computed again by transformers and torch.

    pip install -e ".[reference]"
    python tools/parity_fixtures.py refresh tests/data/parity/bert_mlm
    python tools/parity_fixtures.py make /tmp/fixtures albert_groups deberta_v2_absolute
    python tools/parity_fixtures.py make /tmp/fixtures all

``refresh`` keeps a fixture's configuration, weights, inputs and labels and computes outputs, loss
and gradient norms again (the directories without a meta.json are from elsewhere and stay as they
are). ``make`` draws a case of `CASES` anew from its seed. Weights are large, norm scales not 1 and
biases not 0, so that an omission shows; everything is float32 with dropout off.

A fixture holds config.json, model.safetensors, meta.json (the class that made it) and
reference.npz: ``in.*``, ``label.*`` (-100 is ignored), ``out.*`` and ``gradnorm.KEY``, the L2 norm
of the loss's gradient for every parameter of the class.
"""

from __future__ import annotations

import argparse
import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

VOCABULARY, ROWS, LENGTH = 97, 3, 17
IGNORED = -100
_INPUTS = ("input_ids", "attention_mask", "token_type_ids")
_OUTPUTS = (
    "loss", "logits", "prediction_logits", "seq_relationship_logits", "sop_logits",
    "start_logits", "end_logits",
)  # fmt: skip

_BERT = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 40,
    "max_position_embeddings": 40,
}
_ALBERT = _BERT | {"embedding_size": 16}
_DISTILBERT = {
    "vocab_size": VOCABULARY,
    "dim": 32,
    "n_layers": 2,
    "n_heads": 4,
    "hidden_dim": 40,
    "max_position_embeddings": 40,
}
_DEBERTA = _BERT | {
    "relative_attention": True,
    "position_biased_input": False,
    "pos_att_type": ["c2p", "p2c"],
}
_DEBERTA_V3 = _DEBERTA | {
    "position_buckets": 8,
    "share_att_key": True,
    "norm_rel_ebd": "layer_norm",
}
_MODERNBERT = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 24,
    "max_position_embeddings": 64,
    "local_attention": 6,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "cls_token_id": 1,
    "sep_token_id": 2,
}
# Class of transformers and what its configuration says beyond the defaults. The first three are
# committed: they go where no older fixture does.
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "albert_groups": (
        "AlbertForSequenceClassification",
        _ALBERT | {
            "num_hidden_layers": 4, "num_hidden_groups": 2, "inner_group_num": 2,
            "hidden_size": 24, "hidden_act": "gelu", "type_vocab_size": 3, "num_labels": 4,
        },
    ),
    "deberta_v2_absolute": (
        "DebertaV2ForMaskedLM",
        _DEBERTA_V3 | {
            "pos_att_type": "c2p", "position_biased_input": True, "type_vocab_size": 2,
            "embedding_size": 16, "share_att_key": False, "norm_rel_ebd": "none",
            "position_buckets": -1, "max_relative_positions": 6, "hidden_act": "silu",
        },
    ),
    "modernbert_biases": (
        "ModernBertForSequenceClassification",
        _MODERNBERT | {
            "attention_bias": True, "mlp_bias": True, "norm_bias": True, "classifier_bias": True,
            "global_attn_every_n_layers": 2, "classifier_activation": "relu", "num_labels": 3,
        },
    ),
    "albert_one_group": ("AlbertForMaskedLM", _ALBERT | {"inner_group_num": 3}),
    "albert_uneven": (
        "AlbertForMaskedLM", _ALBERT | {"num_hidden_layers": 5, "num_hidden_groups": 2},
    ),
    "albert_tag": ("AlbertForTokenClassification", _ALBERT | {"num_labels": 5}),
    "albert_span": ("AlbertForQuestionAnswering", _ALBERT),
    "bert_relu": ("BertForMaskedLM", _BERT | {"hidden_act": "relu", "type_vocab_size": 1}),
    "bert_silu": ("BertForSequenceClassification", _BERT | {"hidden_act": "silu"}),
    "bert_untied": ("BertForMaskedLM", _BERT | {"tie_word_embeddings": False}),
    "bert_choice": ("BertForMultipleChoice", _BERT),
    "bert_next_sentence": ("BertForNextSentencePrediction", _BERT),
    "roberta_gelu_new": ("RobertaForMaskedLM", _BERT | {"hidden_act": "gelu_new"}),
    "roberta_untied": ("RobertaForMaskedLM", _BERT | {"tie_word_embeddings": False}),
    "roberta_tag": ("RobertaForTokenClassification", _BERT | {"num_labels": 3}),
    "roberta_span": ("RobertaForQuestionAnswering", _BERT),
    "roberta_choice": ("RobertaForMultipleChoice", _BERT),
    "xlm_roberta_classify": ("XLMRobertaForSequenceClassification", _BERT | {"pad_token_id": 3}),
    "camembert_mlm": ("CamembertForMaskedLM", _BERT),
    "distilbert_sinusoidal": (
        "DistilBertForSequenceClassification",
        _DISTILBERT | {"sinusoidal_pos_embds": True, "activation": "relu"},
    ),
    "distilbert_tag": ("DistilBertForTokenClassification", _DISTILBERT | {"num_labels": 3}),
    "distilbert_span": ("DistilBertForQuestionAnswering", _DISTILBERT),
    "distilbert_untied": ("DistilBertForMaskedLM", _DISTILBERT | {"tie_word_embeddings": False}),
    "electra_classify": (
        "ElectraForSequenceClassification", _BERT | {"embedding_size": 24, "hidden_act": "relu"},
    ),
    "electra_narrow_generator": (
        "ElectraForMaskedLM", _BERT | {"embedding_size": 48, "hidden_act": "relu"},
    ),
    "electra_wide": ("ElectraForPreTraining", _BERT | {"embedding_size": 32}),
    "electra_tag": ("ElectraForTokenClassification", _BERT | {"embedding_size": 24}),
    "electra_choice": ("ElectraForMultipleChoice", _BERT | {"embedding_size": 24}),
    "deberta_v1_clipped": (
        "DebertaForMaskedLM", _DEBERTA | {"max_relative_positions": 5, "type_vocab_size": 2},
    ),
    "deberta_v1_p2c": (
        "DebertaForSequenceClassification",
        _DEBERTA | {"pos_att_type": ["p2c"], "position_biased_input": True, "num_labels": 3},
    ),
    "deberta_v1_tag": ("DebertaForTokenClassification", _DEBERTA | {"embedding_size": 16}),
    "deberta_v1_plain": ("DebertaForMaskedLM", _BERT),
    "deberta_v2_plain": ("DebertaV2ForMaskedLM", _BERT | {"position_biased_input": False}),
    "deberta_v2_projected": (
        "DebertaV2ForMaskedLM", _DEBERTA_V3 | {"embedding_size": 16, "type_vocab_size": 2},
    ),
    "deberta_v2_p2c": (
        "DebertaV2ForTokenClassification",
        _DEBERTA_V3 | {"pos_att_type": "p2c", "share_att_key": False, "num_labels": 3},
    ),
    "deberta_v2_c2p_shared": (
        "DebertaV2ForMultipleChoice", _DEBERTA_V3 | {"pos_att_type": "c2p"},
    ),
    "deberta_v2_conv_tanh": (
        "DebertaV2ForSequenceClassification",
        _DEBERTA_V3 | {
            "conv_kernel_size": 5, "pooler_hidden_act": "tanh", "max_relative_positions": 12,
        },
    ),
    "deberta_v2_untied": ("DebertaV2ForMaskedLM", _DEBERTA_V3 | {"tie_word_embeddings": False}),
    "modernbert_cls": (
        "ModernBertForSequenceClassification", _MODERNBERT | {"classifier_pooling": "cls"},
    ),
    "modernbert_every_two": (
        "ModernBertForMaskedLM", _MODERNBERT | {"global_attn_every_n_layers": 2},
    ),
    "modernbert_global": (
        "ModernBertForMaskedLM",
        _MODERNBERT | {"layer_types": ["full_attention"] * 3, "decoder_bias": False},
    ),
    "modernbert_silu": (
        "ModernBertForMaskedLM",
        _MODERNBERT | {
            "hidden_activation": "silu", "classifier_activation": "tanh", "norm_bias": True,
            "tie_word_embeddings": False,
        },
    ),
    "electra_span": ("ElectraForQuestionAnswering", _BERT),
    "deberta_v1_span": ("DebertaForQuestionAnswering", _DEBERTA),
    "deberta_v2_conv_span": (
        "DebertaV2ForQuestionAnswering",
        _DEBERTA_V3 | {"conv_kernel_size": 3, "conv_act": "gelu"},
    ),
    "modernbert_span": ("ModernBertForQuestionAnswering", _MODERNBERT | {"num_labels": 2}),
    "modernbert_choice": (
        "ModernBertForMultipleChoice", _MODERNBERT | {"classifier_pooling": "mean"},
    ),
}  # fmt: skip


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    refresh = commands.add_parser("refresh", help="compute references again")
    refresh.add_argument("directories", nargs="+", type=Path)
    make_new = commands.add_parser("make", help="draw cases anew")
    make_new.add_argument("parent", type=Path)
    make_new.add_argument("cases", nargs="+", help="names, or 'all'")
    arguments = parser.parse_args()
    if arguments.command == "refresh":
        for directory in arguments.directories:
            if (directory / "meta.json").exists():
                compute(directory, *stored(directory / "reference.npz"))
        return
    chosen = list(CASES) if arguments.cases == ["all"] else arguments.cases
    for name in chosen:
        make(arguments.parent / name, name)


def make(directory: Path, name: str) -> None:
    """Draws a case of `CASES`."""
    architecture, options = CASES[name]
    kind = getattr(transformers, architecture)
    # A number of its own, so that a new case moves no other.
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    config = kind.config_class(**options)
    config.architectures = [architecture]
    model = kind(config)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            parameter.copy_(torch.from_numpy(weight(key, tuple(parameter.shape), rng)))
    model.tie_weights()
    directory.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(directory)
    (directory / "generation_config.json").unlink(missing_ok=True)
    compute(directory, *batch(architecture, config, rng))


def weight(key: str, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """A large random parameter: norm scales around 1, kernels that keep the scale of inputs."""
    draws = rng.normal(size=shape)
    if len(shape) == 1:
        is_scale = "norm" in key.lower() and key.endswith("weight")
        return np.asarray(is_scale + 0.3 * draws, np.float32)
    if "embeddings" in key:
        return np.asarray(draws, np.float32)
    return np.asarray(1.3 * draws / np.sqrt(np.prod(shape[1:])), np.float32)


def batch(
    architecture: str, config: Any, rng: np.random.Generator
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Inputs with padding, and labels of the class's task."""
    choices = (2,) if architecture.endswith("MultipleChoice") else ()
    shape = (ROWS, *choices, LENGTH)
    lengths = np.full(shape[:-1], LENGTH)
    lengths[1:] = rng.integers(LENGTH // 2, LENGTH, lengths[1:].shape)
    real = np.arange(LENGTH) < lengths[..., None]
    inputs = {
        "input_ids": np.where(real, rng.integers(5, VOCABULARY, shape), config.pad_token_id),
        "attention_mask": real.astype(np.int64),
    }
    if (getattr(config, "type_vocab_size", 0) or 0) > 1:
        inputs["token_type_ids"] = rng.integers(0, config.type_vocab_size, shape) * real
    return inputs, labels(architecture, config, real, rng)


def labels(
    architecture: str, config: Any, real: np.ndarray, rng: np.random.Generator
) -> dict[str, np.ndarray]:
    """What the class's own loss takes."""
    if architecture.endswith("QuestionAnswering"):
        return {"start_positions": np.full(ROWS, 2), "end_positions": np.full(ROWS, 4)}
    if architecture.endswith("MultipleChoice"):
        return {"labels": rng.integers(0, 2, ROWS)}
    if architecture.endswith("NextSentencePrediction"):
        return {"labels": rng.integers(0, 2, ROWS)}
    if architecture.endswith("SequenceClassification"):
        if config.num_labels == 1:
            return {"labels": rng.normal(size=ROWS).astype(np.float32)}
        return {"labels": rng.integers(0, config.num_labels, ROWS)}
    if architecture == "ElectraForPreTraining":
        return {"labels": rng.integers(0, 2, real.shape)}
    classes = VOCABULARY
    if architecture.endswith("TokenClassification"):
        classes = config.num_labels
    counted = real & (rng.random(real.shape) < 0.4)
    counted[:, 1] = True
    out = {"labels": np.where(counted, rng.integers(0, classes, real.shape), IGNORED)}
    if architecture.endswith("ForPreTraining"):
        pair = "next_sentence_label" if architecture.startswith("Bert") else "sentence_order_label"
        out[pair] = rng.integers(0, 2, ROWS)
    return out


def stored(path: Path) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Inputs and labels of a fixture."""
    with np.load(path) as file:
        return tuple(  # type: ignore[return-value]
            {name.removeprefix(part): file[name] for name in file.files if name.startswith(part)}
            for part in ("in.", "label.")
        )


def compute(directory: Path, inputs: dict[str, np.ndarray], targets: dict[str, np.ndarray]) -> None:
    """Writes reference.npz and meta.json from the directory's configuration and weights."""
    architecture = json.loads((directory / "config.json").read_text())["architectures"][0]
    kind = getattr(transformers, architecture)
    model = kind.from_pretrained(directory, attn_implementation="eager", dtype=torch.float32)
    model.eval()
    given = {name: torch.from_numpy(np.asarray(x)) for name, x in (inputs | targets).items()}
    output = model(**given, output_hidden_states=True)
    output.loss.backward()
    arrays = {f"in.{name}": x for name, x in inputs.items()}
    arrays |= {f"label.{name}": x for name, x in targets.items()}
    for name in _OUTPUTS:
        if getattr(output, name, None) is not None:
            arrays[f"out.{name}"] = getattr(output, name).detach().numpy()
    arrays["out.embeddings"] = output.hidden_states[0].detach().numpy()
    rows = {n: x.reshape(-1, x.shape[-1]) for n, x in given.items() if n in _INPUTS}
    with torch.no_grad():
        arrays["out.last_hidden_state"] = model.base_model(**rows).last_hidden_state.numpy()
    for key, parameter in model.named_parameters():
        if parameter.grad is not None:
            arrays[f"gradnorm.{key}"] = parameter.grad.norm().numpy()
    np.savez(directory / "reference.npz", allow_pickle=False, **arrays)
    meta = {
        "case": directory.name,
        "reference_class": architecture,
        "transformers": transformers.__version__,
        "torch": torch.__version__,
        "dtype": "float32",
        "note": "dropout off; outputs at padded positions are not part of the contract",
    }
    (directory / "meta.json").write_text(json.dumps(meta, indent=1) + "\n")


if __name__ == "__main__":
    main()

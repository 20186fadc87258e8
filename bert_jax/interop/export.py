"""Export to Hugging Face directories: config.json + model.safetensors + tokenizer + README.md.

What is written loads in transformers without a warning, a missing key or an unexpected one (a bare
encoder's pooler excepted, which is said), and `import_hf` gives the same parameters back bit for
bit.
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from safetensors.numpy import save_file

from bert_jax.data.tokenizer import Tokenizer
from bert_jax.interop.arrays import to_checkpoint, whole_entries
from bert_jax.interop.choice import Choice, choose
from bert_jax.interop.model_card import model_card
from bert_jax.models.config import EncoderConfig
from bert_jax.models.model import EncoderModel
from bert_jax.models.paths import by_path
from bert_jax.models.task_heads import SequenceClassifier, TokenClassifier

_ABSOLUTE = "encoder/embeddings/position/embedding"  # of the mask decoder, left out with it
# Base classes of transformers with a pooler of pre-training, which a bare encoder has no values
# for; transformers draws it anew.
_BARE_POOLERS = {
    "BertModel": ("pooler.dense.weight", "pooler.dense.bias"),
    "RobertaModel": ("pooler.dense.weight", "pooler.dense.bias"),
    "XLMRobertaModel": ("pooler.dense.weight", "pooler.dense.bias"),
    "CamembertModel": ("pooler.dense.weight", "pooler.dense.bias"),
    "AlbertModel": ("pooler.weight", "pooler.bias"),
}


@dataclass(frozen=True)
class ExportReport:
    """What an export wrote.

    Attributes:
        architecture: Class of transformers the directory is for.
        files: Names of the files.
        missing: Keys the class has and the model does not; transformers draws them at random.
        notes: What else a user should know, a sentence each.
    """

    architecture: str
    files: tuple[str, ...]
    missing: tuple[str, ...]
    notes: tuple[str, ...]


def export_hf(
    directory: str | os.PathLike[str],
    model: EncoderModel,
    params: Mapping[str, Any],
    tokenizer: Tokenizer | None = None,
    *,
    family: str | None = None,
    labels: Sequence[str] | None = None,
    facts: Mapping[str, str] | None = None,
) -> ExportReport:
    """Writes a model for transformers; all of it, or nothing.

    Args:
        directory: New, or empty.
        model: Any model whose family transformers has.
        params: Its parameters; written as float32.
        tokenizer: Written beside it; its longest input is the model's.
        family: ``model_type``; None: the first whose config can say the encoder.
        labels: Names of a classifier's or tagger's classes.
        facts: For the model card; see `bert_jax.interop.model_card.model_card`.

    Raises:
        ValueError: In one sentence: the directory is not empty, no family can say the encoder
            (with the reason), labels, tokenizer or parameters do not fit the model.
    """
    directory = Path(directory).resolve()  # a link is followed, "." has a name
    _check_directory(directory)
    config = model.config
    _check_params(model, params)
    _check_tokenizer(tokenizer, config)
    names = _label_names(model, labels)
    choice = choose(model, family)
    notes = [*choice.lost, *choice.unsaid]
    arrays = _arrays(choice, config, params)
    missing = _BARE_POOLERS.get(choice.architecture, ())
    if missing:
        notes.append(
            f"{choice.architecture} has a pooler, which an encoder alone has not: transformers "
            f"draws {' and '.join(missing)} at random and says so; do not use pooler_output."
        )
    about = _config(choice, tokenizer, names)
    card = model_card(model, choice.architecture, arrays, tokenizer, notes, facts or {})
    with _whole(directory) as unfinished:
        save_file(arrays, unfinished / "model.safetensors", metadata={"format": "pt"})
        text = json.dumps(about, indent=2, sort_keys=True, ensure_ascii=False)
        (unfinished / "config.json").write_text(text + "\n", encoding="utf-8")
        if tokenizer is not None:
            tokenizer.save(unfinished, max_length=config.positions.max_length)
            _name_inputs(unfinished / "tokenizer_config.json", config)
        (unfinished / "README.md").write_text(card, encoding="utf-8")
        files = tuple(sorted(path.name for path in unfinished.iterdir()))
    for sentence in choice.lost:
        warnings.warn(sentence, stacklevel=2)
    return ExportReport(choice.architecture, files, missing, tuple(notes))


def _name_inputs(path: Path, config: EncoderConfig) -> None:
    """Has the tokenizer give segment types to models that have them, and to no others."""
    about = json.loads(path.read_text(encoding="utf-8"))
    types = ["token_type_ids"] if config.type_vocab_size > 1 else []
    about["model_input_names"] = ["input_ids", *types, "attention_mask"]
    path.write_text(json.dumps(about, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _arrays(
    choice: Choice, config: EncoderConfig, params: Mapping[str, Any]
) -> dict[str, np.ndarray]:
    """The checkpoint; nothing of the model is left out unsaid."""
    entries = whole_entries(choice.family, choice.architecture, choice.config)
    known = {entry.ours for entry in entries}
    if config.heads.vocabulary.mask_decoder == "enhanced":
        known.add(_ABSOLUTE)
    homeless = sorted(set(by_path(params)) - known)
    if homeless:
        raise ValueError(
            f"{choice.architecture} has no place for {', '.join(homeless)}; export the encoder "
            f"alone, or another family."
        )
    arrays = to_checkpoint(params, entries, choice.config)
    head = choice.family.heads.get(choice.architecture)
    for copy, original in () if head is None else head.tied.items():
        if copy in arrays and original not in arrays:
            # An untied decoder has the bias that counts; that of the tied one is still asked for.
            arrays[original] = arrays[copy]
    return arrays


def _config(
    choice: Choice, tokenizer: Tokenizer | None, labels: Sequence[str] | None
) -> dict[str, Any]:
    """The contents of config.json."""
    first, last = (
        (None, None) if tokenizer is None else (tokenizer.special.cls, tokenizer.special.sep)
    )
    # Without a tokenizer null: a default of transformers may lie outside the vocabulary.
    tokens = {"bos_token_id": first, "eos_token_id": last}
    tokens |= {"cls_token_id": first, "sep_token_id": last}
    classes = {}
    if labels is not None:
        classes = {
            "id2label": {str(i): name for i, name in enumerate(labels)},
            "label2id": {name: i for i, name in enumerate(labels)},
        }
    return {
        **tokens,
        **choice.fields,
        **classes,
        "architectures": [choice.architecture],
        "model_type": choice.family.model_type,
        "dtype": "float32",
    }


# ---------------------------------------------------------------------------------------- checks


def _check_directory(directory: Path) -> None:
    if directory.exists() and not directory.is_dir():
        raise ValueError(f"{directory} is a file; name a new directory.")
    if directory.exists() and any(directory.iterdir()):
        raise ValueError(
            f"{directory} is not empty; name a new directory, or empty this one: an export does "
            f"not overwrite."
        )


def _check_params(model: EncoderModel, params: Mapping[str, Any]) -> None:
    wanted = by_path(jax.eval_shape(model.init, jax.random.key(0))["params"])
    given = by_path(params)
    for path in wanted | given:
        here = tuple(given[path].shape) if path in given else "absent"
        there = tuple(wanted[path].shape) if path in wanted else "absent"
        if here != there:
            raise ValueError(
                f"the parameter {path} is {here}, and {type(model).__name__} with this config has "
                f"it {there}; give the parameters of this model."
            )
        if not np.isfinite(given[path]).all():
            raise ValueError(
                f"the parameter {path} holds values that are not finite; export an earlier "
                f"checkpoint."
            )


def _check_tokenizer(tokenizer: Tokenizer | None, config: EncoderConfig) -> None:
    if tokenizer is None:
        return
    if tokenizer.vocab_size > config.vocab_size:
        raise ValueError(
            f"the tokenizer has {tokenizer.vocab_size} tokens and the model {config.vocab_size} "
            f"entries; give the tokenizer the model was trained with."
        )
    if tokenizer.special.pad != config.pad_id:
        raise ValueError(
            f"the tokenizer pads with {tokenizer.special.pad} and the model's pad_id is "
            f"{config.pad_id}; give the tokenizer the model was trained with."
        )


def _label_names(model: EncoderModel, labels: Sequence[str] | None) -> Sequence[str] | None:
    """Names of the classes; None for models without classes."""
    if not isinstance(model, SequenceClassifier | TokenClassifier):
        if labels is not None:
            raise ValueError(
                f"{type(model).__name__} has no classes to name; leave labels out "
                f"({len(labels)} given)."
            )
        return None
    if labels is None:
        return [f"LABEL_{i}" for i in range(model.num_labels)]
    if len(labels) != model.num_labels or len(set(labels)) != len(labels):
        raise ValueError(
            f"labels are {', '.join(labels)}: {len(set(labels))} different names, and the model "
            f"has {model.num_labels} classes; name each once, in the order of the logits."
        )
    return labels


@contextmanager
def _whole(directory: Path) -> Iterator[Path]:
    """A directory beside, which takes the place of ``directory`` if all goes well."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    unfinished = directory.parent / f".{directory.name}.{uuid.uuid4().hex[:8]}.unfinished"
    unfinished.mkdir()
    try:
        yield unfinished
        unfinished.replace(directory)  # also of an empty directory
    except BaseException:
        shutil.rmtree(unfinished)
        raise

"""Import of Hugging Face directories: config.json, weights, and the tokenizer if one is there.

Nothing is guessed: a missing parameter is an error or a new one, and both stand in the report, as
does everything the checkpoint holds beyond the model.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from bert_jax.data.tokenizer import Tokenizer
from bert_jax.interop import names
from bert_jax.interop.architecture import build, choose, known_keys, stated_labels
from bert_jax.interop.convert import convert, draw, parameter_shapes
from bert_jax.interop.families import FAMILIES
from bert_jax.interop.family import Family
from bert_jax.interop.read import Weights, read_config, read_weights
from bert_jax.models.config import EncoderConfig
from bert_jax.models.model import EncoderModel
from bert_jax.models.paths import from_paths

_TOKENIZER_FILES = ("tokenizer.json", "vocab.txt", "vocab.json", "*.model")


@dataclass(frozen=True)
class ImportReport:
    """What an import did beside copying.

    Attributes:
        model_type: Of config.json.
        architecture: Class of transformers whose keys were read; the one without a head where the
            asked-for head has no class there.
        new: Paths of our parameters that the checkpoint lacks: drawn, to be trained.
        unused: Keys the family knows and this model has no use for: other heads, buffers.
        unexpected: Keys the family does not know.
        renamed: Keys that were read under another name (gamma -> weight, beta -> bias; another
            spelling of the head).
        notes: Whatever else is worth a look, in sentences.
    """

    model_type: str
    architecture: str
    new: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()
    renamed: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Loaded:
    """A model from elsewhere.

    Attributes:
        model: The module.
        params: Its parameters, float32.
        tokenizer: None if the directory holds no tokenizer files.
        report: What was left out, renamed or drawn.
    """

    model: EncoderModel
    params: dict[str, Any]
    tokenizer: Tokenizer | None
    report: ImportReport


def import_hf(
    directory: str | os.PathLike[str],
    *,
    model: type[EncoderModel] | None = None,
    num_labels: int | None = None,
    tokenizer: Literal["read", "ignore"] = "read",
    seed: int = 0,
) -> Loaded:
    """Reads a checkpoint directory of transformers.

    Args:
        directory: With config.json and model.safetensors, shards with their index, or
            flax_model.msgpack.
        model: Class of the model; None means the one that ``architectures`` in config.json names.
            Parameters of another class are taken from the checkpoint where it has them, else
            drawn.
        num_labels: Of a classifier; None means that of config.json. Where it is another, the
            classifier is drawn anew.
        tokenizer: ``ignore`` leaves the files of a tokenizer alone that cannot be read here, or
            that has more entries than the model (`bert_jax.models.growth.resize_vocabulary`).
        seed: Of drawn parameters.

    Raises:
        ValueError: In one sentence: an architecture, option or activation we do not have; a
            missing file or parameter; a shape that contradicts config.json; a decoder that differs
            where it should be tied; a tokenizer with more entries than the model.
    """
    directory = Path(directory)
    try:
        loaded = _import(directory, model, num_labels, seed)
        if tokenizer == "ignore":
            return loaded
        found = _tokenizer(directory, loaded.model.config)
        return dataclasses.replace(loaded, tokenizer=found)
    except ValueError as error:
        if str(directory) in str(error):
            raise
        raise ValueError(f"{directory}: {error}") from error


def encoder_config_of(directory: str | os.PathLike[str]) -> EncoderConfig:
    """The encoder that a checkpoint directory of transformers holds, from its config.json alone.

    Raises:
        ValueError: As `import_hf`.
    """
    raw = read_config(Path(directory))
    return _encoder_config(_family(raw), raw)


def _import(
    directory: Path, model: type[EncoderModel] | None, num_labels: int | None, seed: int
) -> Loaded:
    raw = read_config(directory)
    family = _family(raw)
    config = _encoder_config(family, raw)
    weights, renamed = names.modern(read_weights(directory))
    known = known_keys(family, config)
    weights = names.with_prefix(weights, family, known)
    weights, respelled, notes = _respelled(weights, family, raw)
    _check_model(model, num_labels)
    target = choose(family, raw, weights, config, model)
    module = build(target, raw, config, num_labels)
    entries = target.entries(config)
    wanted = {key for entry in entries for key in entry.keys(config)}
    weights, settled = names.settled(
        weights, target.tied(config), wanted, raw.get("tie_word_embeddings", True)
    )
    shapes = parameter_shapes(module)
    body = {entry.ours for entry in target.body(config)}
    optional = set() if target.promised else set(shapes) - body
    if num_labels is not None and num_labels != stated_labels(raw):
        entries = [entry for entry in entries if not entry.ours.startswith("classifier/")]
    flat, used = convert(weights, entries, config, shapes, optional)
    new = sorted(set(shapes) - set(flat))
    flat |= draw(module, new, seed)
    rest = sorted(set(weights) - used)
    unused = [key for key in rest if key in known or key.startswith(_buffers(family))]
    report = ImportReport(
        model_type=family.model_type,
        architecture=target.name,
        new=tuple(new),
        unused=tuple(unused),
        unexpected=tuple(key for key in rest if key not in unused),
        renamed=(*renamed, *respelled),
        notes=(*target.notes, *notes, *settled),
    )
    return Loaded(module, from_paths(flat), None, report)


def _check_model(model: type[EncoderModel] | None, num_labels: int | None) -> None:
    if model is not None and not (isinstance(model, type) and issubclass(model, EncoderModel)):
        raise ValueError(f"model is {model!r}; give a class, such as bert_jax.SequenceClassifier.")
    if num_labels is not None and num_labels < 1:
        raise ValueError(f"num_labels is {num_labels}; a classifier has 1 (a score) or more.")


def _family(raw: Mapping[str, Any]) -> Family:
    family = FAMILIES.get(str(raw.get("model_type")))
    if family is None:
        raise ValueError(
            f"config.json has model_type {raw.get('model_type')!r}; implemented are "
            f"{', '.join(FAMILIES)}."
        )
    return family


def _encoder_config(family: Family, raw: Mapping[str, Any]) -> EncoderConfig:
    try:
        return family.encoder_config(raw)
    except (TypeError, AttributeError, LookupError, ArithmeticError) as error:
        raise ValueError(
            f"config.json has a field of the wrong type or value for {family.model_type} ({error})."
        ) from error


def _respelled(
    weights: Weights, family: Family, raw: Mapping[str, Any]
) -> tuple[Weights, list[str], list[str]]:
    """Heads under their one name; a note where config.json says the other than there is."""
    spellings = {k: v for head in family.heads.values() for k, v in head.spellings.items()}
    if not spellings:
        return weights, [], []
    legacy = raw.get("legacy", True)
    weights, renamed = names.respelled(weights, spellings, prefer=not legacy)
    head_there = any(key.startswith(tuple(spellings.values())) for key in weights)
    notes = []
    if head_there and bool(renamed) == bool(legacy):
        found, said = sorted((next(iter(spellings)), next(iter(spellings.values()))))
        found, said = (said, found) if renamed else (found, said)
        notes.append(
            f"The vocabulary head lies under {found}*, where config.json (legacy {legacy}) says "
            f"{said}*; it was read from there."
        )
    return weights, renamed, notes


def _buffers(family: Family) -> tuple[str, ...]:
    """Beginnings of whole keys that carry nothing for us."""
    return tuple(family.prefix + beginning for beginning in family.unused)


def _tokenizer(directory: Path, config: EncoderConfig) -> Tokenizer | None:
    if not any(any(directory.glob(pattern)) for pattern in _TOKENIZER_FILES):
        return None
    hint = "import_hf(..., tokenizer='ignore') reads the weights alone"
    try:
        tokenizer = Tokenizer.load(directory)
    except ValueError as error:
        raise ValueError(
            f"{str(error).rstrip('.')} (saving the tokenizer with transformers writes a "
            f"tokenizer.json, which is read; {hint})."
        ) from error
    if tokenizer.vocab_size > config.vocab_size:
        raise ValueError(
            f"the tokenizer has {tokenizer.vocab_size} entries, the model's vocabulary "
            f"{config.vocab_size}; they are not of one checkpoint, or entries were added: {hint}, "
            f"resize_vocabulary makes room for them."
        )
    return tokenizer

"""Which class of transformers a checkpoint is of, and which model of ours it becomes."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from dataclasses import dataclass

from bert_jax.interop.family import Family, HeadMap, Json
from bert_jax.interop.keys import Entry
from bert_jax.models.config import EncoderConfig
from bert_jax.models.model import EncoderModel
from bert_jax.models.task_heads import SequenceClassifier, TokenClassifier


@dataclass(frozen=True)
class Target:
    """What a checkpoint is read as.

    Attributes:
        family: Of the checkpoint.
        stated: Class of transformers the checkpoint is of.
        name: Class whose key map is read; the base class where the model has none there.
        model: Our class.
        notes: What is worth telling, in sentences.
    """

    family: Family
    stated: str
    name: str
    model: type[EncoderModel]
    notes: tuple[str, ...] = ()

    @property
    def head(self) -> HeadMap | None:
        """Key map of the head; None where it has none."""
        return self.family.heads.get(self.name)

    @property
    def promised(self) -> bool:
        """Whether the checkpoint says that it holds this head."""
        return self.name == self.stated

    def body(self, config: EncoderConfig) -> list[Entry]:
        """Key map of the encoder, with the prefix."""
        return [
            dataclasses.replace(entry, theirs=self.family.prefix + entry.theirs)
            for entry in self.family.body(config)
        ]

    def entries(self, config: EncoderConfig) -> list[Entry]:
        """Key map of the model."""
        return self.body(config) + ([] if self.head is None else self.head.entries(config))

    def tied(self, config: EncoderConfig) -> dict[str, str]:
        """Copies the checkpoint may hold; the token table is no original where it is untied."""
        heads = (self.head, self.family.heads.get(self.stated))
        pairs = {copy: key for head in heads if head is not None for copy, key in head.tied.items()}
        if config.heads.vocabulary.decoder == "tied":
            return pairs
        tables = {key for entry in self.body(config) for key in entry.keys(config)}
        return {copy: original for copy, original in pairs.items() if original not in tables}


def choose(
    family: Family,
    raw: Json,
    keys: Collection[str],
    config: EncoderConfig,
    model: type[EncoderModel] | None,
) -> Target:
    """What to read a checkpoint as.

    Args:
        family: Of the checkpoint.
        raw: Contents of config.json; ``architectures`` names the class.
        keys: Of the checkpoint, which tell the class where config.json does not.
        config: Of the encoder.
        model: The class asked for, or None: that of the checkpoint.

    Raises:
        ValueError: The checkpoint is of a class we do not have, and no other was asked for.
    """
    notes = []
    named = raw.get("architectures") or ()
    if not isinstance(named, list | tuple):
        raise ValueError(f"config.json has architectures {named!r}; it is a list of class names.")
    stated = str(named[0]) if named else _recognised(family, keys, config)
    if not named:
        notes.append(f"config.json names no architecture; the keys are those of {stated}.")
    known = {family.base: EncoderModel} | {n: head.model for n, head in family.heads.items()}
    if model is None:
        if stated not in known:
            raise ValueError(
                f"config.json names the architecture {stated}; implemented are {', '.join(known)}. "
                f"import_hf(..., model=MaskedLM) reads the encoder of another into one of them."
            )
        return Target(family, stated, stated, known[stated], tuple(notes))
    if stated not in known:
        notes.append(f"config.json names {stated}, whose head is not implemented and was left.")
    fitting = [name for name, kind in known.items() if kind is model]
    name = stated if stated in fitting else (fitting or [family.base])[0]
    return Target(family, stated, name, model, tuple(notes))


def build(target: Target, raw: Json, config: EncoderConfig, num_labels: int | None) -> EncoderModel:
    """The module; ``num_labels`` None means that of config.json."""
    if issubclass(target.model, SequenceClassifier | TokenClassifier):
        return target.model(
            config, num_labels=stated_labels(raw) if num_labels is None else num_labels
        )
    if num_labels is not None:
        raise ValueError(
            f"num_labels is {num_labels}, but {target.model.__name__} has no labels; leave it out "
            f"or ask for a SequenceClassifier or TokenClassifier."
        )
    return target.model(config)


def known_keys(family: Family, config: EncoderConfig) -> set[str]:
    """Every key of the family's key maps, copies and other spellings included."""
    keys = {
        key
        for entry in Target(family, "", family.base, EncoderModel).entries(config)
        for key in entry.keys(config)
    }
    for head in family.heads.values():
        own = {key for entry in head.entries(config) for key in entry.keys(config)}
        own |= set(head.tied) | set(head.tied.values())
        for other, ours in head.spellings.items():
            own |= {other + key.removeprefix(ours) for key in own if key.startswith(ours)}
        keys |= own
    return keys


def _recognised(family: Family, keys: Collection[str], config: EncoderConfig) -> str:
    """The first class whose head is there whole; the base class if none is."""
    for name, head in family.heads.items():
        partners = {original: copy for copy, original in head.tied.items()} | dict(head.tied)
        needed = [key for entry in head.entries(config) for key in entry.keys(config)]
        if all(key in keys or partners.get(key) in keys for key in needed):
            return name
    return family.base


def stated_labels(raw: Json) -> int:
    """As transformers counts them: labels with a name, else ``num_labels``, else 2."""
    named = raw.get("id2label")
    if named is not None and not isinstance(named, dict):
        raise ValueError(f"config.json has id2label {named!r}; it is an object of names.")
    return len(named) if named else int(raw.get("num_labels") or 2)

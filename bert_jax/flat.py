"""Nested dataclasses as flat dicts of dotted names, and back; every value checked by its type.

A field holds one of three things, by its annotation:

* a value: number, string, `Literal`, tuple of these, or None where that is allowed;
* a record, that is another dataclass: its fields follow under ``field.``;
* one of several records (a union of dataclasses, perhaps with None): the entry ``field`` is its
  tag, the name of the one it holds (None for None), and the fields of that one follow.
"""

import dataclasses
import difflib
import functools
import math
import numbers
import operator
import re
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeGuard, TypeVar, get_args, get_origin

Scalar = str | int | float | bool | None | tuple["Scalar", ...]
Flat = dict[str, Any]  # of `Scalar`; tuples are lists after a journey through JSON

_Record = TypeVar("_Record")
_MISFIT = object()
_FIELDS = "it is no field of this version."


# --- types of fields -----------------------------------------------------------------------------


@functools.cache
def field_types(cls: type) -> dict[str, Any]:
    """Names and resolved annotations of a dataclass's fields, in their order."""
    hints = typing.get_type_hints(cls)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


def is_record(annotation: Any) -> TypeGuard[type]:
    """Whether a field's type is a dataclass."""
    return isinstance(annotation, type) and dataclasses.is_dataclass(annotation)


def alternatives(annotation: Any) -> tuple[Any, ...]:
    """Members of a union; else the annotation alone."""
    if get_origin(annotation) in (typing.Union, types.UnionType):
        return get_args(annotation)
    return (annotation,)


@functools.cache
def members(field: str, annotation: Any) -> dict[str, type]:
    """Records that a field of a union type may hold, by tag; empty for any other type."""
    found = alternatives(annotation)
    if len(found) == 1:
        return {}
    return {tag(field, cls): cls for cls in found if is_record(cls)}


def tag(field: str, cls: type) -> str:
    """Short name of a record in a field: `RotaryPositions` in ``positions`` is ``rotary``."""
    name = cls.__name__
    name = name.removesuffix(field.title().replace("_", "")) or name
    return re.sub(r"(?<!^)(?=[A-Z][a-z])", "-", name).lower()


@functools.cache
def tag_type(field: str, annotation: Any) -> Any:
    """Type of the tag of a union field."""
    names: Any = Literal[tuple(members(field, annotation))]  # pyright: ignore[reportInvalidTypeForm]
    return names | None if type(None) in alternatives(annotation) else names


def schema(cls: type, tags: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Names and types of the entries of a flat record.

    Args:
        cls: The record's dataclass.
        tags: A flat dict of which the tags are read: they decide which fields a union has. A union
            without a tag there has no fields.
        prefix: Put before every name.

    Raises:
        ValueError: A tag names no member of its union.
    """
    entries: dict[str, Any] = {}
    for field, annotation in field_types(cls).items():
        name = prefix + field
        if is_record(annotation):
            entries |= schema(annotation, tags, name + ".")
            continue
        choices = members(field, annotation)
        entries[name] = tag_type(field, annotation) if choices else annotation
        if choices and name in tags:
            chosen = check(name, entries[name], tags[name])
            if chosen is not None:
                entries |= schema(choices[chosen], tags, name + ".")
    return entries


def unions(cls: type, tags: Mapping[str, Any], prefix: str = "") -> dict[str, dict[str, type]]:
    """The unions of a flat record by the names of their tags, with their members."""
    found: dict[str, dict[str, type]] = {}
    for field, annotation in field_types(cls).items():
        name = prefix + field
        choices = members(field, annotation)
        if is_record(annotation):
            found |= unions(annotation, tags, name + ".")
        elif choices:
            found[name] = choices
            if tags.get(name) in choices:
                found |= unions(choices[tags[name]], tags, name + ".")
    return found


# --- records and flat dicts ----------------------------------------------------------------------


def flatten(record: Any, prefix: str = "") -> Flat:
    """Flat form of a record.

    Raises:
        ValueError: A field holds what its type does not allow.
    """
    flat: Flat = {}
    for field, annotation in field_types(type(record)).items():
        flat |= _flatten_field(prefix, field, annotation, getattr(record, field))
    return flat


def _flatten_field(prefix: str, field: str, annotation: Any, value: Any) -> Flat:
    name = prefix + field
    choices = members(field, annotation)
    if not choices and not is_record(annotation):
        return {name: check(name, annotation, value)}
    if value is None and type(None) in alternatives(annotation):
        return {name: None}
    if type(value) not in (choices.values() if choices else (annotation,)):
        wanted = " or ".join(getattr(cls, "__name__", "None") for cls in alternatives(annotation))
        raise ValueError(f"{name} is {value!r}; expected {wanted}.")
    tagged = {name: tag(field, type(value))} if choices else {}
    return tagged | flatten(value, name + ".")


def unflatten(cls: type[_Record], flat: Mapping[str, Any]) -> _Record:
    """The record of a flat dict; the inverse of `flatten`.

    Raises:
        ValueError: An entry is missing, unknown or of the wrong type; or the record refuses it.
    """
    entries = schema(cls, flat)
    missing = [name for name in entries if name not in flat]
    untagged = [name for name in missing if name in unions(cls, flat)]
    if untagged:
        raise ValueError(f"the field {untagged[0]!r} is missing.")
    for name in flat:
        if name not in entries:
            raise ValueError(
                f"the field {name!r} is unknown; {did_you_mean(name, entries, _FIELDS)}"
            )
    if missing:
        raise ValueError(f"the field {missing[0]!r} is missing.")
    values = {name: check(name, annotation, flat[name]) for name, annotation in entries.items()}
    return _build(cls, values, "")


def _build(cls: type[_Record], values: Mapping[str, Any], prefix: str) -> _Record:
    arguments = {}
    for field, annotation in field_types(cls).items():
        name = prefix + field
        choices = members(field, annotation)
        if is_record(annotation):
            arguments[field] = _build(annotation, values, name + ".")
        elif choices and values[name] is not None:
            arguments[field] = _build(choices[values[name]], values, name + ".")
        else:
            arguments[field] = values[name]
    return cls(**arguments)


def switch(cls: type, flat: Mapping[str, Any], name: str, chosen: str | None) -> Flat:
    """Makes a union of a flat record hold another member.

    Fields that the old and the new member share (same name, and the value fits) keep their values;
    the others get their defaults. A field without a default is left out.

    Args:
        cls: The record's dataclass.
        flat: The flat record.
        name: The union's tag.
        chosen: Its new value.
    """
    kept = {key: value for key, value in flat.items() if not key.startswith(name + ".")}
    kept[name] = chosen
    if chosen is None:
        return kept
    member = unions(cls, flat)[name][chosen]
    new = defaults(member, name + ".")
    entries = schema(member, new, name + ".")
    plain = entries.keys() - unions(member, new, name + ".").keys()
    for key in plain & flat.keys():
        if _fit(entries[key], flat[key]) is not _MISFIT:
            new[key] = flat[key]
    return kept | new


def defaults(cls: type, prefix: str = "") -> Flat:
    """Flat form of a record's defaults; fields without one are left out."""
    flat: Flat = {}
    for field in dataclasses.fields(cls):
        annotation = field_types(cls)[field.name]
        if field.default is not dataclasses.MISSING:
            flat |= _flatten_field(prefix, field.name, annotation, field.default)
        elif field.default_factory is not dataclasses.MISSING:
            flat |= _flatten_field(prefix, field.name, annotation, field.default_factory())
        elif is_record(annotation):
            flat |= defaults(annotation, f"{prefix}{field.name}.")
    return flat


# --- values --------------------------------------------------------------------------------------


def check(name: str, annotation: Any, value: Any) -> Any:
    """A value as its type has it: an int for a float becomes one, a list for a tuple too.

    Raises:
        ValueError: It does not fit.
    """
    fitted = _fit(annotation, value)
    if fitted is _MISFIT:
        raise ValueError(f"{name} is {value!r}; expected {describe(annotation)}.")
    return fitted


def _fit(annotation: Any, value: Any) -> Any:
    """The value in the annotation's type, or `_MISFIT`."""
    if annotation in (None, type(None)):
        return value if value is None else _MISFIT
    if annotation in (bool, str, Path):
        return value if isinstance(value, annotation) else _MISFIT
    if annotation is int:
        whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
        return operator.index(value) if whole else _MISFIT
    if annotation is float:
        real = isinstance(value, numbers.Real) and not isinstance(value, bool)
        return float(value) if real and math.isfinite(value) else _MISFIT
    if get_origin(annotation) is Literal:
        same = [arg for arg in get_args(annotation) if type(arg) is type(value) and arg == value]
        return same[0] if same else _MISFIT
    if get_origin(annotation) is tuple:
        return _fit_tuple(get_args(annotation), value)
    if len(alternatives(annotation)) > 1:
        fitted = (_fit(one, value) for one in alternatives(annotation))
        return next((one for one in fitted if one is not _MISFIT), _MISFIT)
    raise TypeError(f"a field of type {annotation} cannot be written flat")


def _fit_tuple(args: tuple[Any, ...], value: Any) -> Any:
    if not isinstance(value, list | tuple):
        return _MISFIT
    if args[-1] is Ellipsis:
        args = (args[0],) * len(value)
    if len(args) != len(value):
        return _MISFIT
    fitted = tuple(_fit(arg, item) for arg, item in zip(args, value, strict=True))
    return _MISFIT if any(item is _MISFIT for item in fitted) else fitted


def describe(annotation: Any) -> str:
    """A type in words: "an integer or None"."""
    plain = {
        int: "an integer",
        float: "a finite number",
        str: "a string",
        bool: "True or False",
        Path: "a path",
        type(None): "None",
    }
    if annotation in plain:
        return plain[annotation]
    args = list(get_args(annotation))
    if get_origin(annotation) is Literal:
        return "one of " + ", ".join(map(str, args)) if len(args) > 1 else str(args[0])
    if get_origin(annotation) is tuple:
        if args[-1] is Ellipsis:
            return f"values, each {describe(args[0])}"
        return f"{len(args)} values ({', '.join(map(describe, args))})"
    found = alternatives(annotation)
    return " or ".join(map(describe, found)) if len(found) > 1 else str(annotation)


# --- names ---------------------------------------------------------------------------------------


def did_you_mean(name: str, known: Iterable[str], otherwise: str) -> str:
    """The end of a sentence about an unknown name: the nearest known ones.

    A name whose last part is known elsewhere (``learning_rate``) is completed
    (``optimizer.learning_rate``).

    Args:
        name: The unknown name.
        known: The known ones.
        otherwise: What to say if none is near.
    """
    known = list(known)
    last = _last_part(name)
    namesakes = [one for one in known if _last_part(one) == last]
    near = difflib.get_close_matches(name, namesakes, n=1, cutoff=0.85) or namesakes
    near = near or difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return f"did you mean {join(near)}?" if near else otherwise


def _last_part(name: str) -> str:
    return name.lstrip("-").rpartition(".")[2]


def join(names: Sequence[str]) -> str:
    """``a, b or c``."""
    return " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))

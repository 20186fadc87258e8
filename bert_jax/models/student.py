"""A student's first parameters: layers and tables of a trained teacher (DistilBERT)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from jaxtyping import Array

from bert_jax.models.config import EncoderConfig
from bert_jax.models.growth import select_layers
from bert_jax.models.heads import MaskedLM
from bert_jax.models.paths import by_path, from_paths

# What may differ: it gives the student fewer parameters, or none of another shape.
_FREE = ("num_layers", "type_vocab_size", "activation", "dropout", "initializer", "heads",
         "compute_dtype", "execution")  # fmt: skip


def student_params(
    teacher: EncoderConfig,
    params: Mapping[str, Any],
    student: EncoderConfig,
    layers: Sequence[int],
) -> dict[str, Any]:
    """Parameters of ``MaskedLM(student)``, each a teacher's array, bit for bit.

    As transformers' research_projects/distillation/scripts/extract_distilbert.py with
    --vocab_transform: token and position tables, their norm, some layers and the vocabulary head.
    Whatever the student lacks (types, a pooler, a head of pairs) is dropped and not made up for, so
    the student starts off as a rough sketch of its teacher.

    Args:
        teacher: Config of ``params``.
        params: Of a `MaskedLM`, or of a class that adds to it.
        student: The student's config. It may differ in ``num_layers``, ``type_vocab_size`` (0, or
            the teacher's), activation, dropout, heads, and in how it runs.
        layers: Teacher's layer for each of the student's; DistilBERT's are 0, 2, 4, 7, 9, 11.

    Raises:
        ValueError: If the student differs in more, has a parameter the teacher lacks, or
            ``layers`` does not name one layer for each of the student's.
    """
    free = {name: getattr(student, name) for name in _FREE}
    if dataclasses.replace(teacher, **free) != student:
        differing = [
            field.name
            for field in dataclasses.fields(EncoderConfig)
            if field.name not in _FREE
            and getattr(teacher, field.name) != getattr(student, field.name)
        ]
        raise ValueError(
            f"the student differs from its teacher in {', '.join(differing)}; it may differ in "
            f"{', '.join(_FREE)} only."
        )
    if len(layers) != student.num_layers:
        raise ValueError(
            f"layers is {list(layers)}; name one of the teacher's for each of the student's "
            f"{student.num_layers} layers."
        )
    _, shallower = select_layers(teacher, params, layers)
    available = by_path(shallower)
    wanted = by_path(jax.eval_shape(MaskedLM(student).init, jax.random.key(0))["params"])
    taken: dict[str, Array] = {}
    for path, shape in wanted.items():
        found = available.get(path)
        if found is None or found.shape != shape.shape:
            there = "no such parameter" if found is None else f"the shape {found.shape}"
            raise ValueError(
                f"the student's {path} has the shape {shape.shape} and its teacher has {there}; "
                f"give the student the teacher's axis, or leave it out of the student."
            )
        taken[path] = found
    return from_paths(taken)

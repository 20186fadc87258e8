"""Where a run's first parameters come from: random numbers, or a model trained before."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from bert_jax.config import load_config
from bert_jax.data.tokenizer import Tokenizer
from bert_jax.flat import flatten
from bert_jax.interop import huggingface
from bert_jax.models.config import EncoderConfig, RotaryPositions
from bert_jax.models.growth import extend_context, resize_vocabulary
from bert_jax.models.paths import by_path, from_paths
from bert_jax.objectives.base import Task
from bert_jax.train.state import initial_key
from bert_jax.train.task import is_run, restore_run, run_tokenizer

# Fields of a config that say how it is trained or run, not what it computes.
_TRAINING_FIELDS = ("dropout", "initializer", "compute_dtype", "execution")


class Initial(NamedTuple):
    """Parameters of a model trained before.

    Attributes:
        config: Its encoder.
        params: Its parameters, on the host.
        tokenizer: Its tokenizer, or None.
        notes: What was done to them, one sentence each.
        whole: All parameters of the run's task, generator or teacher included; None for a Hugging
            Face directory.
    """

    config: EncoderConfig
    params: Mapping[str, Any]
    tokenizer: Tokenizer | None
    notes: tuple[str, ...] = ()
    whole: Mapping[str, Any] | None = None


def initial_params(
    source: str | None,
    task: Task,
    seed: int,
    tokenizer: Tokenizer | None,
    step: int | None = None,
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """First parameters of a run, laid out on the mesh in force; and notes for the log.

    Args:
        source: A Hugging Face directory, or a run directory of `bert_jax.train`; None draws random
            numbers.
        task: What is going to be trained.
        seed: Of random numbers.
        tokenizer: Of the run's data; None for synthetic data.
        step: Checkpoint of a run directory; None: the newest.

    Returns:
        Parameters, and sentences about what was changed to make them fit.

    Raises:
        ValueError: If the source is none, or its encoder, its size or its tokenizer do not fit.
    """
    if source is None:
        return task.start(jax.jit(lambda: task.init(initial_key(seed)))()), ()
    loaded = _adapted(_load(Path(source), task, seed, step), task.model.config, source)
    notes = loaded.notes
    if tokenizer is not None and loaded.tokenizer is None:
        notes += (f"{source} has no tokenizer: that its ids are those of the data is not checked",)
    elif tokenizer is not None and loaded.tokenizer is not None:
        _check_tokenizers(tokenizer, loaded.tokenizer, source)
        added = tokenizer.vocab_size - loaded.tokenizer.vocab_size
        if added > 0:
            notes += (f"the data's tokenizer has {added} entries more than that of {source}",)
    shapes = jax.eval_shape(lambda: task.init(initial_key(seed)))
    if loaded.whole is not None and _same_shapes(loaded.whole, shapes):
        return _placed(loaded.whole, shapes), notes
    params = task.start(jax.jit(lambda: task.init(initial_key(seed)))())
    wanted = by_path(jax.eval_shape(task.extract, params))
    kept, more = _kept(by_path(loaded.params), wanted)
    fresh = by_path(jax.jit(task.extract)(params))
    placed = _placed(from_paths(kept), from_paths({path: wanted[path] for path in kept}))
    whole = from_paths({**fresh, **by_path(placed)})
    if by_path(shapes).keys() != wanted.keys():  # a generator, a teacher
        more += ("what else the objective has starts as in a fresh run",)
    return jax.jit(task.insert)(whole, params), notes + more


def _same_shapes(params: Mapping[str, Any], shapes: Any) -> bool:
    ours, theirs = by_path(shapes), by_path(params)
    return ours.keys() == theirs.keys() and all(
        ours[path].shape == theirs[path].shape for path in ours
    )


def _placed(params: Any, shapes: Any) -> dict[str, Any]:
    """Arrays of the host in the layout of equal shapes."""
    return jax.tree.map(
        lambda shape, x: jax.device_put(np.asarray(x), shape.sharding.spec), shapes, dict(params)
    )


def _kept(
    leaves: Mapping[str, Any], wanted: Mapping[str, Any]
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The parameters that the model to be trained has too, and what is said of the others."""
    kept = {p: x for p, x in leaves.items() if p in wanted and wanted[p].shape == x.shape}
    notes = []
    for text, paths in (
        ("new, drawn at random", wanted.keys() - kept.keys()),
        ("not used", leaves.keys() - kept.keys()),
    ):
        if paths:
            notes.append(f"{text}: {', '.join(sorted(paths))}")
    return kept, tuple(notes)


def encoder_config_of(directory: str | os.PathLike[str]) -> EncoderConfig:
    """The encoder of a Hugging Face directory or of a run directory.

    Raises:
        ValueError: If the directory is neither, or of a model that is not implemented.
    """
    directory = Path(directory)
    if is_run(directory):
        return load_config(directory).model
    return huggingface.encoder_config_of(directory)


def _load(source: Path, task: Task, seed: int, step: int | None) -> Initial:
    if is_run(source):
        found = restore_run(source, step)
        notes = (f"initial parameters: step {found.step:,} of {source}",)
        params = jax.tree.map(np.asarray, found.task.extract(found.params))
        return Initial(found.task.model.config, params, run_tokenizer(source), notes, found.params)
    if step is not None:
        raise ValueError(f"carry.step is {step}, but {source} is no run directory with steps.")
    if not (source / "config.json").exists():
        raise ValueError(
            f"init_from {source} is neither a Hugging Face directory (config.json) nor a run "
            f"directory (checkpoints/); it must be a local directory, nothing is fetched."
        )
    loaded = huggingface.import_hf(source, model=type(task.model), seed=seed)
    notes = [f"initial parameters: {loaded.report.model_type} of {source}"]
    if loaded.report.new:
        notes.append(f"new, drawn at random: {', '.join(loaded.report.new)}")
    return Initial(loaded.model.config, loaded.params, loaded.tokenizer, tuple(notes))


def _adapted(loaded: Initial, wanted: EncoderConfig, source: str) -> Initial:
    """A larger vocabulary and longer context are made here; other differences are refused."""
    config, params, notes = loaded.config, loaded.params, list(loaded.notes)
    if wanted.vocab_size > config.vocab_size:
        notes.append(
            f"vocabulary grown from {config.vocab_size} to {wanted.vocab_size} entries; new ones "
            f"start as the mean of the old"
        )
        config, params = resize_vocabulary(config, params, wanted.vocab_size)
    old, new = config.positions, wanted.positions
    if isinstance(old, RotaryPositions) and isinstance(new, RotaryPositions) and old != new:
        # They hold no parameters; another theta is how their context is extended.
        notes.append(f"positions were {old}, are {new}")
        config = dataclasses.replace(config, positions=new)
    elif type(old) is type(new) and new.max_length > old.max_length:
        notes.append(f"context extended from {old.max_length} to {new.max_length} positions")
        config, params = extend_context(config, params, new.max_length)
    if config.attention.direction != wanted.attention.direction:
        # The switch from causal to masked modelling: no parameter hangs on it.
        notes.append(f"attention was {config.attention.direction}, is {wanted.attention.direction}")
        turned = dataclasses.replace(config.attention, direction=wanted.attention.direction)
        config = dataclasses.replace(config, attention=turned)
    aside = {name: getattr(wanted, name) for name in _TRAINING_FIELDS}
    theirs, ours = flatten(dataclasses.replace(config, **aside)), flatten(wanted)
    differing = [
        f"{name} is {theirs.get(name)!r} there and {ours.get(name)!r} here"
        for name in theirs | ours
        if theirs.get(name) != ours.get(name)
    ]
    if differing:
        more = f" (and {len(differing) - 4} more)" if len(differing) > 4 else ""
        raise ValueError(
            f"init_from {source} is another encoder than the experiment's: "
            f"{'; '.join(differing[:4])}{more}; set model to that of the checkpoint "
            f"(bert_jax.encoder_config_of), or change it with bert_jax.models.growth first."
        )
    return loaded._replace(config=config, params=params, notes=tuple(notes))


def _check_tokenizers(run: Tokenizer, source: Tokenizer, where: str) -> None:
    """Every id of the checkpoint's tokenizer must be the same token in the data's."""
    for index in range(min(run.vocab_size, source.vocab_size)):
        ours, theirs = run.id_to_token(index), source.id_to_token(index)
        if ours != theirs:
            raise ValueError(
                f"id {index} is {theirs!r} in the tokenizer of {where} and {ours!r} in that of the "
                f"data; prepare the data with the checkpoint's tokenizer "
                f"(bert-jax prepare --tokenizer {where})."
            )

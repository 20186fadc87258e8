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
from bert_jax.models.heads import MaskedLM
from bert_jax.parallel.mesh import MeshShape, make_mesh
from bert_jax.train.checkpoint import Checkpointer
from bert_jax.train.state import abstract_params, init_params

# Fields of a config that say how it is trained or run, not what it computes.
_TRAINING_FIELDS = ("dropout", "initializer", "compute_dtype", "execution")


class Initial(NamedTuple):
    """Parameters of a model trained before.

    Attributes:
        config: Its encoder.
        params: Its parameters, on the host.
        tokenizer: Its tokenizer, or None.
        notes: What was done to them, one sentence each.
    """

    config: EncoderConfig
    params: Mapping[str, Any]
    tokenizer: Tokenizer | None
    notes: tuple[str, ...] = ()


def initial_params(
    source: str | None, model: MaskedLM, seed: int, tokenizer: Tokenizer | None
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """First parameters of a run, laid out on the mesh in force; and notes for the log.

    Args:
        source: A Hugging Face directory, or a run directory of `bert_jax.train`; None draws random
            numbers.
        model: What is going to be trained.
        seed: Of random numbers.
        tokenizer: Of the run's data; None for synthetic data.

    Returns:
        Parameters, and sentences about what was changed to make them fit.

    Raises:
        ValueError: If the source is none, or its encoder, its size or its tokenizer do not fit.
    """
    if source is None:
        return jax.jit(lambda: init_params(model, seed))(), ()
    loaded = _adapted(_load(Path(source), seed), model.config, source)
    notes = loaded.notes
    if tokenizer is not None and loaded.tokenizer is None:
        notes += (f"{source} has no tokenizer: that its ids are those of the data is not checked",)
    elif tokenizer is not None and loaded.tokenizer is not None:
        _check_tokenizers(tokenizer, loaded.tokenizer, source)
        added = tokenizer.vocab_size - loaded.tokenizer.vocab_size
        if added > 0:
            notes += (f"the data's tokenizer has {added} entries more than that of {source}",)
    shapes = jax.eval_shape(lambda: init_params(model, seed))
    placed = jax.tree.map(
        lambda shape, x: jax.device_put(np.asarray(x), shape.sharding.spec),
        shapes,
        dict(loaded.params),
    )
    return placed, notes


def restored_params(
    run_dir: Path, model: MaskedLM, step: int | None = None
) -> tuple[dict[str, Any], int]:
    """Parameters of a run's checkpoint on the host, and its step.

    Args:
        run_dir: Directory that `train` wrote.
        model: The run's model.
        step: Checkpoint to read; the newest sound one by default.

    Raises:
        ValueError: If the directory holds no such checkpoint.
    """
    mesh = make_mesh(MeshShape(), jax.devices()[:1])
    with jax.set_mesh(mesh), Checkpointer(run_dir / "checkpoints") as saved:
        like = {"params": abstract_params(model, mesh)}
        restored = saved.restore_latest(like) if step is None else saved.restore(step, like)
    if restored is None:
        raise ValueError(f"{run_dir} holds no checkpoint yet; train it first.")
    return jax.tree.map(np.asarray, restored.state["params"]), restored.step


def encoder_config_of(directory: str | os.PathLike[str]) -> EncoderConfig:
    """The encoder of a Hugging Face directory or of a run directory.

    Raises:
        ValueError: If the directory is neither, or of a model that is not implemented.
    """
    directory = Path(directory)
    if (directory / "checkpoints").is_dir():
        return load_config(directory).model
    return huggingface.encoder_config_of(directory)


def _load(source: Path, seed: int) -> Initial:
    if (source / "checkpoints").is_dir():
        experiment = load_config(source)
        params, step = restored_params(source, MaskedLM(experiment.model))
        directory = source / "tokenizer"
        tokenizer = Tokenizer.load(directory) if directory.exists() else None
        notes = (f"initial parameters: step {step:,} of {source}",)
        return Initial(experiment.model, params, tokenizer, notes)
    if not (source / "config.json").exists():
        raise ValueError(
            f"init_from {source} is neither a Hugging Face directory (config.json) nor a run "
            f"directory (checkpoints/); it must be a local directory, nothing is fetched."
        )
    loaded = huggingface.import_hf(source, model=MaskedLM, seed=seed)
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
    return Initial(config, params, loaded.tokenizer, tuple(notes))


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

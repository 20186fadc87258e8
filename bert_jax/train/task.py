"""From an experiment to its task: the objective with its models; and models trained before."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Int

from bert_jax.config import load_config
from bert_jax.data.tokenizer import Tokenizer
from bert_jax.data.tokenizer_parts import SpecialTokens
from bert_jax.experiment import Experiment
from bert_jax.interop import huggingface
from bert_jax.models.config import EncoderConfig
from bert_jax.models.heads import MaskedLM
from bert_jax.objectives.base import Params, Setting, Task
from bert_jax.objectives.masking import Masking
from bert_jax.parallel.mesh import MeshShape, make_mesh
from bert_jax.train.checkpoint import Checkpointer
from bert_jax.train.state import abstract_state, initial_key

SYNTHETIC = "synthetic"


class Vocabulary(NamedTuple):
    """What an objective must know of the run's tokens.

    Attributes:
        special: Special ids.
        size: Entries that texts can have: those of the tokenizer. A model may have more, which are
            never drawn as replacements.
        counts: Frequencies in the training data; None if unknown or not needed.
    """

    special: SpecialTokens
    size: int
    counts: Int[np.ndarray, "vocab"] | None = None


class Restored(NamedTuple):
    """Parameters of a run's checkpoint, on the host.

    Attributes:
        task: Of the run.
        params: All parameters of the task.
        step: Of the checkpoint.
    """

    task: Task
    params: Any
    step: int


def make_task(experiment: Experiment, vocabulary: Vocabulary, masking: Masking) -> Task:
    """The task of an experiment under a masking policy (training's or evaluation's)."""
    return experiment.objective.task(
        Setting(
            experiment.model,
            masking,
            vocabulary.special,
            vocabulary.size,
            experiment.steps,
            vocabulary.counts,
            trained_model,
        )
    )


def synthetic_vocabulary(model: EncoderConfig) -> Vocabulary:
    """Special ids in the order of the model's family, for data without a tokenizer."""
    if model.pad_id == 1:
        special = SpecialTokens(pad=1, unk=3, cls=0, sep=2, mask=4, family="roberta")
    else:
        unk, cls, sep, mask = [i for i in range(1, 6) if i != model.pad_id][:4]
        special = SpecialTokens(model.pad_id, unk, cls, sep, mask)
    return Vocabulary(special, model.vocab_size)


def run_tokenizer(run_dir: Path) -> Tokenizer | None:
    """The tokenizer beside a run's checkpoints; None for synthetic data."""
    directory = run_dir / "tokenizer"
    return Tokenizer.load(directory) if directory.exists() else None


def run_task(run_dir: Path) -> Task:
    """The task of a run directory, without its data."""
    experiment, tokenizer = load_config(run_dir), run_tokenizer(run_dir)
    vocabulary = (
        synthetic_vocabulary(experiment.model)
        if tokenizer is None
        else Vocabulary(tokenizer.special, tokenizer.vocab_size)
    )
    return make_task(experiment, vocabulary, experiment.masking)


def restore_run(run_dir: Path, step: int | None = None) -> Restored:
    """Reads parameters of a run's checkpoint.

    Args:
        run_dir: Directory that `train` wrote.
        step: Checkpoint to read; the newest sound one by default.

    Raises:
        ValueError: If the directory holds no such checkpoint.
    """
    task = run_task(run_dir)
    mesh = make_mesh(MeshShape(), jax.devices()[:1])
    with jax.set_mesh(mesh), Checkpointer(run_dir / "checkpoints") as saved:
        like = {"params": abstract_state(lambda: task.init(initial_key(0)), mesh)}
        found = saved.restore_latest(like) if step is None else saved.restore(step, like)
    if found is None:
        raise ValueError(f"{run_dir} holds no checkpoint yet; train it first.")
    return Restored(task, jax.tree.map(np.asarray, found.state["params"]), found.step)


def is_run(source: Path) -> bool:
    """Whether a directory is one that `train` wrote."""
    return (source / "checkpoints").is_dir()


def trained_model(source: str) -> tuple[EncoderConfig, Callable[[], Params]]:
    """The encoder of a Hugging Face directory or a run, and a reader of its `MaskedLM`.

    Raises:
        ValueError: If it is neither; and when read, if it has no trained vocabulary head.
    """
    path = Path(source)
    if is_run(path):
        return load_config(path).model, lambda: _masked_lm_of_run(path)
    return huggingface.encoder_config_of(path), lambda: _masked_lm_of_directory(path)


def _masked_lm_of_run(path: Path) -> Params:
    task, params, _ = restore_run(path)
    if not isinstance(task.model, MaskedLM):
        raise ValueError(
            f"{path} trained a {type(task.model).__name__}, which predicts no words; give the run "
            f"of a masked language model."
        )
    extracted: Mapping[str, Any] = task.extract(params)
    wanted = jax.eval_shape(lambda: MaskedLM(task.model.config).init(jax.random.key(0)))
    return {name: extracted[name] for name in wanted["params"]}


def _masked_lm_of_directory(path: Path) -> Params:
    loaded = huggingface.import_hf(path, model=MaskedLM)
    if loaded.report.new:
        raise ValueError(
            f"{path} has no trained vocabulary head ({', '.join(loaded.report.new)} are missing), "
            f"so it cannot teach; give a masked language model."
        )
    return loaded.params

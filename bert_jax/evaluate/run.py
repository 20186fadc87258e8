"""A finished (or stopped) run, opened for use: its model, parameters and tokenizer."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import jax

from bert_jax.config import load_config
from bert_jax.data.frequencies import token_counts
from bert_jax.data.store import Store
from bert_jax.data.tokenizer import Tokenizer
from bert_jax.experiment import Experiment
from bert_jax.models.heads import MaskedLM
from bert_jax.models.model import EncoderModel
from bert_jax.parallel.mesh import MeshShape, make_mesh
from bert_jax.train.average import averaged_run
from bert_jax.train.held_out import Scores, held_out, make_scorer
from bert_jax.train.inputs import eval_task, open_inputs, validation_batches
from bert_jax.train.task import SYNTHETIC, is_run, restore_run, run_tokenizer


@runtime_checkable
class LanguageModel(Protocol):
    """What fill-mask and pseudo-perplexity need: a `Run`, or what `import_hf` has loaded."""

    @property
    def model(self) -> EncoderModel:
        """The module; a `MaskedLM`."""
        ...

    @property
    def params(self) -> Mapping[str, Any]:
        """Its parameters."""
        ...

    @property
    def tokenizer(self) -> Tokenizer | None:
        """Its tokenizer."""
        ...


@dataclass(frozen=True)
class Run:
    """A run directory, opened.

    Attributes:
        experiment: What was run.
        model: The module that is kept: of replaced-token detection the discriminator, of a
            distillation the student.
        params: Its parameters of one checkpoint, whole on one device.
        tokenizer: Of the run; None for synthetic data.
        step: Step of the checkpoint.
        whole: All parameters of the objective, those of a generator or teacher included.
    """

    experiment: Experiment
    model: EncoderModel
    params: Mapping[str, Any]
    tokenizer: Tokenizer | None
    step: int
    whole: Mapping[str, Any]


def load_run(run_dir: str | os.PathLike[str], *, step: int | None = None, average: int = 1) -> Run:
    """Opens a run directory on one device.

    Args:
        run_dir: Directory that `train` wrote.
        step: Checkpoint to read; the newest sound one by default.
        average: Take the mean of this many of the last checkpoints.

    Raises:
        ValueError: If the directory holds no run or no such checkpoint, or not as many.
    """
    run_dir = Path(run_dir)
    experiment = load_config(run_dir)
    if average != 1 and step is not None:
        raise ValueError(f"step is {step} and average {average}; give one of the two.")
    restored = restore_run(run_dir, step) if average == 1 else averaged_run(run_dir, average)
    task, whole, step = restored
    # The layout of a mesh of one device is dropped, so that the parameters work without a mesh.
    whole = jax.tree.map(jax.numpy.asarray, whole)
    tokenizer = run_tokenizer(run_dir)
    return Run(experiment, task.model, task.extract(whole), tokenizer, step, whole)


def open_model(path: str | os.PathLike[str]) -> LanguageModel:
    """The masked language model of a run directory or of a Hugging Face directory.

    Raises:
        ValueError: If it holds none, or a model without a trained vocabulary head.
    """
    path = Path(path)
    if is_run(path) or not (path / "config.json").exists():
        run = load_run(path)
        if not isinstance(run.model, MaskedLM):
            raise ValueError(
                f"{path} trained a {type(run.model).__name__}, which predicts no words; give the "
                f"run of a masked language model."
            )
        return run
    from bert_jax.interop.huggingface import import_hf

    loaded = import_hf(path, model=MaskedLM)
    if loaded.report.new:
        raise ValueError(
            f"{path} holds no trained vocabulary head ({', '.join(loaded.report.new)} are "
            f"missing), so it cannot predict words; train it first (--init-from {path})."
        )
    return loaded


def evaluate(run: Run, *, max_rows: int | None = None) -> Scores:
    """Held-out scores of a run, its cross-entropy against the unigram floor of its training part.

    The masks are fixed: twice the same number, and the same targets for every run over a store
    with the same packing and masking.

    Args:
        run: Of `load_run`.
        max_rows: Use only the first held-out rows.
    """
    e = run.experiment
    inputs = open_inputs(e)
    counts = None
    if e.data != SYNTHETIC:
        counts = token_counts(Store.open(e.data).split("train"), e.model.vocab_size)
    with jax.set_mesh(make_mesh(MeshShape(), jax.devices()[:1])):
        task = eval_task(e, inputs)
        score = make_scorer(task.objective, task.apply)
        rows = validation_batches(inputs, e, 1)
        return held_out(score, run.whole, rows, max_rows=max_rows, unigram_counts=counts)

"""A finished (or stopped) run, opened for use: its model, parameters and tokenizer."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import jax

from bert_jax.config import load_config
from bert_jax.data.store import Split, Store
from bert_jax.data.tokenizer import Tokenizer
from bert_jax.experiment import Experiment
from bert_jax.models.heads import MaskedLM
from bert_jax.models.model import EncoderModel
from bert_jax.parallel.mesh import MeshShape, make_mesh
from bert_jax.train.held_out import Scores, held_out, make_scorer, unigram_counts
from bert_jax.train.initial import restored_params
from bert_jax.train.inputs import (
    SYNTHETIC,
    eval_masking,
    open_inputs,
    run_objective,
    validation_batches,
)

_BLOCK = 1 << 22  # tokens read at a time


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
        model: The module.
        params: Parameters of one checkpoint, whole on one device.
        tokenizer: Of the run; None for synthetic data.
        step: Step of the checkpoint.
    """

    experiment: Experiment
    model: MaskedLM
    params: Mapping[str, Any]
    tokenizer: Tokenizer | None
    step: int


def load_run(run_dir: str | os.PathLike[str], *, step: int | None = None) -> Run:
    """Opens a run directory on one device.

    Args:
        run_dir: Directory that `train` wrote.
        step: Checkpoint to read; the newest sound one by default.

    Raises:
        ValueError: If the directory holds no run or no such checkpoint.
    """
    run_dir = Path(run_dir)
    experiment = load_config(run_dir)
    model = MaskedLM(experiment.model)
    params, step = restored_params(run_dir, model, step)
    # The layout of a mesh of one device is dropped, so that the parameters work without a mesh.
    params = jax.tree.map(jax.numpy.asarray, params)
    directory = run_dir / "tokenizer"
    tokenizer = Tokenizer.load(directory) if directory.exists() else None
    return Run(experiment, model, params, tokenizer, step)


def open_model(path: str | os.PathLike[str]) -> LanguageModel:
    """The masked language model of a run directory or of a Hugging Face directory.

    Raises:
        ValueError: If it holds none, or a model without a trained vocabulary head.
    """
    path = Path(path)
    if (path / "checkpoints").is_dir() or not (path / "config.json").exists():
        return load_run(path)
    from bert_jax.interop.huggingface import import_hf

    loaded = import_hf(path, model=MaskedLM)
    if loaded.report.new:
        raise ValueError(
            f"{path} holds no trained vocabulary head ({', '.join(loaded.report.new)} are "
            f"missing), so it cannot predict words; train it first (--init-from {path})."
        )
    return loaded


def evaluate(run: Run, *, max_rows: int | None = None) -> Scores:
    """Held-out masked cross-entropy of a run against the unigram floor of its training part.

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
        train = Store.open(e.data).split("train")
        counts = unigram_counts(_blocks(train), e.model.vocab_size)
    with jax.set_mesh(make_mesh(MeshShape(), jax.devices()[:1])):
        score = make_scorer(run.model, run_objective(e, inputs, eval_masking(e)))
        rows = validation_batches(inputs, e, 1)
        return held_out(score, run.params, rows, max_rows=max_rows, unigram_counts=counts)


def _blocks(split: Split):
    for start in range(0, split.num_tokens, _BLOCK):
        yield split.read(start, min(start + _BLOCK, split.num_tokens))

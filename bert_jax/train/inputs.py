"""What a run reads: packed rows of the store it names (or synthetic ones), and their tokenizer."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import jax

from bert_jax.data.frequencies import token_counts
from bert_jax.data.packing import Rows
from bert_jax.data.pairs import HELD_OUT_SEED, PairRows, build_rows
from bert_jax.data.pipeline import Batches, HostSlice, ValidationBatches
from bert_jax.data.store import Store
from bert_jax.data.synthetic import synthetic_rows
from bert_jax.data.tokenizer import Tokenizer
from bert_jax.experiment import Experiment
from bert_jax.models.config import EncoderConfig, LearnedPositions
from bert_jax.objectives.base import Task
from bert_jax.objectives.masking import Masking
from bert_jax.train.task import SYNTHETIC, Vocabulary, make_task, synthetic_vocabulary

_EVAL_ROWS = 64  # rows a batch at evaluation, rounded up to what the mesh divides


@dataclass(frozen=True)
class RunInputs:
    """Rows and vocabulary of a run.

    Attributes:
        vocabulary: Special ids, size, and frequencies where the masking policy asks for them.
        train: Packed training rows.
        validation: Packed held-out rows; None if the store holds none out.
        tokenizer: None for synthetic data.
        digests: ``tokenizer`` and ``store``, for the checkpoint; empty strings for synthetic data.
    """

    vocabulary: Vocabulary
    train: Rows | PairRows
    validation: Rows | PairRows | None
    tokenizer: Tokenizer | None
    digests: dict[str, str]


def open_inputs(experiment: Experiment) -> RunInputs:
    """Opens the data of an experiment and checks it against the model.

    Raises:
        ValueError: Naming the difference, if the model does not fit the store's tokenizer.
    """
    if experiment.data == SYNTHETIC:
        return _synthetic(experiment)
    store = Store.open(experiment.data)
    tokenizer = store.tokenizer()
    check_model_fits(experiment.model, tokenizer, experiment.data)
    splits = {
        # Held-out pairs do not depend on the run's seed: runs are compared on them.
        name: build_rows(
            store.split(name),
            experiment.packing,
            tokenizer.special,
            seed=experiment.seed if name == "train" else HELD_OUT_SEED,
        )
        for name in store.splits
    }
    counts = None
    if experiment.masking.frequency_power or eval_masking(experiment).frequency_power:
        counts = token_counts(store.split("train"), tokenizer.vocab_size)
    return RunInputs(
        Vocabulary(tokenizer.special, tokenizer.vocab_size, counts),
        splits["train"],
        splits.get("validation"),
        tokenizer,
        {"tokenizer": tokenizer.digest(), "store": store.digest},
    )


def check_model_fits(
    model: EncoderConfig, tokenizer: Tokenizer, where: str | os.PathLike[str]
) -> None:
    """ValueError if vocabulary size, padding id or position offset are not the tokenizer's.

    A model may have more entries than its tokenizer (ModernBERT, DeBERTa v3: unused ones fill the
    table up).
    """
    if model.vocab_size < tokenizer.vocab_size:
        raise ValueError(
            f"model.vocab_size is {model.vocab_size} but the tokenizer of {where} has "
            f"{tokenizer.vocab_size} entries; set --model.vocab-size {tokenizer.vocab_size}."
        )
    if model.pad_id != tokenizer.special.pad:
        raise ValueError(
            f"model.pad_id is {model.pad_id} but the tokenizer of {where} pads with "
            f"{tokenizer.special.pad}; set --model.pad-id {tokenizer.special.pad}, or prepare the "
            f"data with the tokenizer of the model that the run continues."
        )
    positions = model.positions
    if isinstance(positions, LearnedPositions) and positions.offset not in (0, model.pad_id + 1):
        raise ValueError(
            f"model.positions.offset is {positions.offset}; it is 0 (BERT) or pad_id + 1 = "
            f"{model.pad_id + 1} (RoBERTa)."
        )


def batches(inputs: RunInputs, experiment: Experiment) -> Batches:
    """This process's share of every training batch."""
    return Batches(
        inputs.train,
        batch_size=experiment.batch_size,
        seed=experiment.seed,
        steps=experiment.steps,
        sizes=None if experiment.batch_warmup is None else experiment.sizes,
        host=_this_host(),
        words=experiment.masking.needs_words,
    )


def validation_batches(
    inputs: RunInputs, experiment: Experiment, batch_shards: int
) -> ValidationBatches:
    """All held-out rows once, in batches the mesh divides.

    Args:
        inputs: Of the run; must hold validation rows.
        experiment: Of the run.
        batch_shards: Pieces a batch is cut into by the mesh.
    """
    if inputs.validation is None:
        raise ValueError(
            f"{experiment.data} holds no validation split; prepare it with a validation fraction "
            f"above 0 to evaluate."
        )
    return ValidationBatches(
        inputs.validation,
        batch_size=-(-_EVAL_ROWS // batch_shards) * batch_shards,
        host=_this_host(),
        words=eval_masking(experiment).needs_words,
    )


def run_task(experiment: Experiment, inputs: RunInputs) -> Task:
    """What a run trains."""
    return make_task(experiment, inputs.vocabulary, experiment.masking)


def eval_task(experiment: Experiment, inputs: RunInputs) -> Task:
    """The same under the masking policy of evaluation."""
    return make_task(experiment, inputs.vocabulary, eval_masking(experiment))


def eval_masking(experiment: Experiment) -> Masking:
    """The masking policy of evaluation."""
    return experiment.eval_masking or experiment.masking


def save_tokenizer(inputs: RunInputs, run_dir: Path) -> None:
    """Puts the tokenizer beside the checkpoints, so that a run directory is complete by itself."""
    directory = run_dir / "tokenizer"
    if inputs.tokenizer is not None and not directory.exists():
        inputs.tokenizer.save(directory)


def _this_host() -> HostSlice:
    return HostSlice(jax.process_index(), jax.process_count())


def _synthetic(experiment: Experiment) -> RunInputs:
    """Rows without a store."""
    vocabulary, packing = synthetic_vocabulary(experiment.model), experiment.packing
    train, validation = (
        synthetic_rows(vocabulary.size, vocabulary.special, packing, seed)
        for seed in (experiment.seed, 2**31)
    )
    return RunInputs(vocabulary, train, validation, None, {"tokenizer": "", "store": ""})

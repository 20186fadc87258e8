"""What a run reads: packed rows of the store it names (or synthetic ones), and their tokenizer."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import jax

from bert_jax.data.packing import Rows
from bert_jax.data.pipeline import Batches, HostSlice, ValidationBatches
from bert_jax.data.store import Store
from bert_jax.data.synthetic import SyntheticRows
from bert_jax.data.tokenizer import Tokenizer
from bert_jax.data.tokenizer_parts import SpecialTokens
from bert_jax.experiment import Experiment
from bert_jax.models.config import EncoderConfig, LearnedPositions
from bert_jax.objectives.masked_lm import MaskedLanguageModel
from bert_jax.objectives.masking import Masking

SYNTHETIC = "synthetic"
_EVAL_ROWS = 64  # rows a batch at evaluation, rounded up to what the mesh divides


@dataclass(frozen=True)
class RunInputs:
    """Rows and vocabulary of a run.

    Attributes:
        special: Special ids.
        train: Packed training rows.
        validation: Packed held-out rows; None if the store holds none out.
        tokenizer: None for synthetic data.
        digests: ``tokenizer`` and ``store``, for the checkpoint; empty strings for synthetic data.
    """

    special: SpecialTokens
    train: Rows
    validation: Rows | None
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
        name: Rows.build(store.split(name), experiment.packing, tokenizer.special)
        for name in store.splits
    }
    return RunInputs(
        tokenizer.special,
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
        host=_this_host(),
        words=experiment.masking.unit == "word",
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
        words=eval_masking(experiment).unit == "word",
    )


def run_objective(
    experiment: Experiment, inputs: RunInputs, masking: Masking
) -> MaskedLanguageModel:
    """The objective of a run under a masking policy (training's or evaluation's)."""
    vocab_size = experiment.model.vocab_size
    if inputs.tokenizer is not None:  # entries that no text has are never drawn as replacements
        vocab_size = inputs.tokenizer.vocab_size
    return MaskedLanguageModel(masking, inputs.special, vocab_size)


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
    """Rows without a store, with the special ids in the order of the model's family."""
    pad = experiment.model.pad_id
    special = (
        SpecialTokens(pad=1, unk=3, cls=0, sep=2, mask=4, family="roberta")
        if pad == 1
        else SpecialTokens(pad=0, unk=1, cls=2, sep=3, mask=4)
    )
    if pad not in (0, 1):
        raise ValueError(f"synthetic data has padding id 0 (BERT) or 1 (RoBERTa), not {pad}.")
    vocab_size, packing = experiment.model.vocab_size, experiment.packing
    train, validation = (
        SyntheticRows(vocab_size, special, packing, seed) for seed in (experiment.seed, 2**31)
    )
    return RunInputs(special, train, validation, None, {"tokenizer": "", "store": ""})

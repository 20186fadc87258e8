"""An experiment: everything that varies a pre-training run, as one nested frozen record."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal

from bert_jax.data.packing import Packing
from bert_jax.models.config import ComputeDtype, EncoderConfig
from bert_jax.objectives.masking import Masking
from bert_jax.parallel.mesh import MeshShape
from bert_jax.train.optimizer import AdamW
from bert_jax.train.schedule import Linear, Schedule

MAX_EXAMPLES = 2**32  # the global example index is one 32-bit word


@dataclass(frozen=True)
class Evaluation:
    """Held-out evaluation during training, always with the same masks.

    Attributes:
        every: Steps between evaluations; 0 means only at the end.
        max_rows: Rows of the validation split that are used, from its start; None means all.
    """

    every: int = 1000
    max_rows: int | None = None


@dataclass(frozen=True)
class Checkpoints:
    """When the state is saved, and what is kept.

    Attributes:
        every: Steps between checkpoints; the last step is always saved.
        keep_last: How many of the newest are kept.
        keep_every: Steps whose multiples are kept for ever; None keeps none but the newest.
    """

    every: int = 1000
    keep_last: int = 2
    keep_every: int | None = None

    def __post_init__(self) -> None:
        for name in ("every", "keep_last"):
            if getattr(self, name) < 1:
                raise ValueError(f"checkpoints.{name} is {getattr(self, name)}; at least 1.")


@dataclass(frozen=True)
class Logging:
    """What is written while training.

    Attributes:
        every: Steps between lines of ``metrics.jsonl``, TensorBoard events and the progress line.
        wandb_project: Also log to this Weights & Biases project (extra ``wandb``); None: do not.
    """

    every: int = 10
    wandb_project: str | None = None


@dataclass(frozen=True)
class Experiment:
    """A pre-training run. `recipe` gives the published ones; `dataclasses.replace` varies them.

    Attributes:
        name: For titles and run directories.
        model: The encoder. Its ``pad_id`` must be that of the data's tokenizer, its ``vocab_size``
            at least as large.
        init_from: Trained model to start from: a Hugging Face directory or a run directory. A
            larger vocab_size grows its vocabulary, a larger max_length of positions its context;
            the rest of the model must be equal. None: random numbers.
        data: Directory of a prepared store (`bert-jax prepare`), or ``synthetic``.
        masking: Masking policy in training.
        packing: How rows are filled.
        batch_size: Rows a step, over all devices and microbatches.
        microbatches: Pieces of a batch whose gradients are accumulated.
        steps: Steps of the run.
        seed: Of initial weights, order, masks, dropout.
        optimizer: Optimizer and peak learning rate.
        schedule: Course of the learning rate.
        gradient_dtype: Type in which gradients cross between devices.
        max_skipped_steps: Stop after this many steps in a row with gradients that are not finite.
        mesh: Device mesh.
        evaluation: Held-out evaluation.
        eval_masking: Policy at evaluation; None means that of training.
        checkpoints: Checkpoints.
        logging: Logs.
    """

    name: str
    model: EncoderConfig
    init_from: str | None = None
    data: str = "synthetic"
    masking: Masking = dataclasses.field(default_factory=Masking)
    packing: Packing = dataclasses.field(default_factory=Packing)
    batch_size: int = 256
    microbatches: int = 1
    steps: int = 1000
    seed: int = 0
    optimizer: AdamW = dataclasses.field(default_factory=AdamW)
    schedule: Schedule = dataclasses.field(default_factory=Linear)
    gradient_dtype: ComputeDtype = "float32"
    max_skipped_steps: int = 20
    mesh: MeshShape = dataclasses.field(default_factory=MeshShape)
    evaluation: Evaluation = dataclasses.field(default_factory=Evaluation)
    eval_masking: Masking | None = None
    checkpoints: Checkpoints = dataclasses.field(default_factory=Checkpoints)
    logging: Logging = dataclasses.field(default_factory=Logging)

    def __post_init__(self) -> None:
        for name in ("batch_size", "microbatches", "steps", "max_skipped_steps"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1.")
        if self.batch_size % self.microbatches:
            raise ValueError(
                f"batch_size {self.batch_size} is not divisible by microbatches "
                f"{self.microbatches}; choose a divisor."
            )
        if self.steps * self.batch_size >= MAX_EXAMPLES:
            raise ValueError(
                f"steps {self.steps} x batch_size {self.batch_size} is "
                f"{self.steps * self.batch_size} examples, and a run numbers fewer than "
                f"{MAX_EXAMPLES} (2**32); continue in a second run."
            )
        longest = self.model.positions.max_length
        if self.packing.seq_length > longest:
            raise ValueError(
                f"packing.seq_length {self.packing.seq_length} exceeds the {longest} "
                f"positions of the model; raise model.positions.max_length or shorten the rows."
            )


Split = Literal["train", "validation"]

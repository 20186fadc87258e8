"""An experiment: everything that varies a pre-training run, as one nested frozen record."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal

from bert_jax.data.batch_size import BatchSizes, BatchWarmup
from bert_jax.data.packing import Packing
from bert_jax.data.pairs import Pairs
from bert_jax.models.config import ComputeDtype, EncoderConfig
from bert_jax.objectives.causal_lm import CausalLmObjective
from bert_jax.objectives.custom import CustomObjective
from bert_jax.objectives.distillation import DistillationObjective
from bert_jax.objectives.masked_lm import MaskedLmObjective
from bert_jax.objectives.masking import Masking
from bert_jax.objectives.replaced_tokens import ReplacedTokensObjective
from bert_jax.objectives.sentence_pairs import SentencePairsObjective
from bert_jax.parallel.mesh import MeshShape
from bert_jax.train.optimizer import AdamW, Optimizer
from bert_jax.train.schedule import Clock, Linear, Schedule

MAX_EXAMPLES = 2**32  # the global example index is one 32-bit word

AnyObjective = (
    MaskedLmObjective
    | CausalLmObjective
    | SentencePairsObjective
    | ReplacedTokensObjective
    | DistillationObjective
    | CustomObjective
)


@dataclass(frozen=True)
class Carry:
    """What a run that starts from another run takes over beside the parameters.

    Attributes:
        step: The other run's checkpoint to start from; None: its newest.
        optimizer: Its moments: ``kept``, or ``fresh`` ones.
        clock: ``kept``: the run counts on from the other's steps, examples and schedule, up to
            ``steps`` in all, and reads on in the data; ``reset``: it counts from 0. With the same
            data, packing and seed a reset clock repeats the other's order, masks and dropout:
            give another seed.
    """

    step: int | None = None
    optimizer: Literal["fresh", "kept"] = "fresh"
    clock: Literal["reset", "kept"] = "reset"


@dataclass(frozen=True)
class Evaluation:
    """Held-out evaluation during training, always with the same masks.

    Attributes:
        every: Steps between evaluations; 0 means only at the end.
        max_rows: Rows of the validation split that are used, from its start; None means all.
    """

    every: int = 1000
    max_rows: int | None = None

    def __post_init__(self) -> None:
        if self.every < 0:
            raise ValueError(
                f"evaluation.every is {self.every}; it is 0 (at the end only) or more."
            )
        if self.max_rows is not None and self.max_rows < 1:
            raise ValueError(
                f"evaluation.max_rows is {self.max_rows}; at least 1, or None for all."
            )


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
        if self.keep_every is not None and self.keep_every < 1:
            raise ValueError(
                f"checkpoints.keep_every is {self.keep_every}; at least 1, or None for none."
            )


@dataclass(frozen=True)
class Logging:
    """What is written while training.

    Attributes:
        every: Steps between lines of ``metrics.jsonl``, TensorBoard events and the progress line.
        wandb_project: Also log to this Weights & Biases project (extra ``wandb``); None: do not.
    """

    every: int = 10
    wandb_project: str | None = None

    def __post_init__(self) -> None:
        if self.every < 1:
            raise ValueError(f"logging.every is {self.every}; at least 1.")


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
        carry: What is taken over from a run directory beside the parameters.
        data: Directory of a prepared store (`bert-jax prepare`), or ``synthetic``.
        objective: What is learned.
        masking: Masking policy in training.
        packing: How rows are filled: with running text, or with a pair of texts each.
        batch_size: Rows a step, over all devices and microbatches.
        batch_warmup: Smaller batches at the beginning; None: none.
        microbatches: Pieces of a batch whose gradients are accumulated.
        steps: Steps of the run.
        seed: Of initial weights, order, masks, dropout.
        optimizer: Optimizer and peak learning rate.
        schedule: Course of the learning rate, in units of the clock.
        clock: What the schedule counts: steps; tokens (positions of the rows seen so far, padding
            included); or seconds of training since the run began, evaluations left out. By the
            seconds no run can be repeated exactly.
        total: Where the schedule ends, in units of the clock; None: with the last step. A run by
            the seconds must give it, and ends there at the latest.
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
    carry: Carry = dataclasses.field(default_factory=Carry)
    data: str = "synthetic"
    objective: AnyObjective = dataclasses.field(default_factory=MaskedLmObjective)
    masking: Masking = dataclasses.field(default_factory=Masking)
    packing: Packing | Pairs = dataclasses.field(default_factory=Packing)
    batch_size: int = 256
    batch_warmup: BatchWarmup | None = None
    microbatches: int = 1
    steps: int = 1000
    seed: int = 0
    optimizer: Optimizer = dataclasses.field(default_factory=AdamW)
    schedule: Schedule = dataclasses.field(default_factory=Linear)
    clock: Clock = "steps"
    total: float | None = None
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
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"seed is {self.seed}; it must lie in [0, 2**63).")
        if self.batch_size % self.microbatches:
            raise ValueError(
                f"batch_size {self.batch_size} is not divisible by microbatches "
                f"{self.microbatches}; choose a divisor."
            )
        examples = self.sizes.first_example(self.steps)
        if examples >= MAX_EXAMPLES:
            raise ValueError(
                f"steps {self.steps} x batch_size {self.batch_size} is {examples} examples, and a "
                f"run numbers fewer than {MAX_EXAMPLES} (2**32); continue in a second run."
            )
        if self.total is not None and self.total <= 0:
            raise ValueError(f"total is {self.total}; it must be positive, or None.")
        if self.clock == "seconds" and self.total is None:
            raise ValueError(
                "clock is 'seconds' and total is None; say how long the run may take: total."
            )
        if self.clock == "seconds" and self.masking.final_rate is not None:
            raise ValueError(
                f"masking.final_rate {self.masking.final_rate} is reached at the last step, and "
                f"with clock 'seconds' nobody knows which that is; set it to None."
            )
        if isinstance(self.objective, SentencePairsObjective) and not (
            isinstance(self.packing, Pairs) and self.packing.labelled
        ):
            raise ValueError(
                "objective sentence-pairs needs rows of pairs with labels; set packing to "
                "Pairs(kind='next' or 'order') (--packing pairs)."
            )
        longest = self.model.positions.max_length
        if self.packing.seq_length > longest:
            raise ValueError(
                f"packing.seq_length {self.packing.seq_length} exceeds the {longest} "
                f"positions of the model; raise model.positions.max_length or shorten the rows."
            )

    @property
    def sizes(self) -> BatchSizes:
        """How many rows each step has."""
        return BatchSizes(self.batch_size, self.packing.seq_length, self.batch_warmup)

    @property
    def schedule_end(self) -> float:
        """Where the schedule ends, in units of the clock."""
        if self.total is not None:
            return self.total
        return float(self.steps if self.clock == "steps" else self.sizes.tokens_before(self.steps))

    def factor(self, step: int, seconds: float = 0.0) -> float:
        """Factor of the peak learning rate at a step (from 0), ``seconds`` after the beginning."""
        now = {"steps": step, "tokens": self.sizes.tokens_before(step), "seconds": seconds}
        return self.schedule.factor(float(now[self.clock]), self.schedule_end)


Split = Literal["train", "validation"]

"""The training loop, top to bottom: mesh, data, model, state, steps, and the end."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import signal
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np

from bert_jax.config import CONFIG, diff, digest, flatten, load_config, save_config
from bert_jax.data.pipeline import prefetch
from bert_jax.experiment import Experiment
from bert_jax.objectives.base import Task, means, select
from bert_jax.parallel import specs
from bert_jax.parallel.mesh import make_mesh, put_batch
from bert_jax.train.carry import carried
from bert_jax.train.checkpoint import Checkpointer
from bert_jax.train.held_out import Scores, held_out, make_scorer
from bert_jax.train.initial import initial_params
from bert_jax.train.inputs import (
    RunInputs,
    batches,
    eval_task,
    open_inputs,
    run_task,
    save_tokenizer,
    validation_batches,
)
from bert_jax.train.log import METRICS, RunLog, read_metrics
from bert_jax.train.metrics import peak_flops
from bert_jax.train.optimizer import decay_table
from bert_jax.train.optimizers.base import OptimizerBase
from bert_jax.train.report import write_report
from bert_jax.train.state import TrainState, abstract_state, init_state, initial_key
from bert_jax.train.step import Pace, StepConfig, make_train_step, replica_clip_norm

NON_FINITE_FILE = "non_finite.json"
_now = time.monotonic  # by its own name, so that a test may stop the clock


class TrainingStopped(RuntimeError):
    """The run cannot go on; the message says why and what to do."""


@dataclass(frozen=True)
class TrainResult:
    """How a call of `train` ended.

    Attributes:
        run_dir: The run directory.
        step: Steps done, over all calls.
        scores: Last held-out scores of this call; None without a validation split, or if the
            run was finished already.
        interrupted: Name of the signal that ended the call early (the state is saved); else None.
        report: The run's ``report.html``.
    """

    run_dir: Path
    step: int
    scores: Scores | None
    interrupted: str | None
    report: Path


def train(
    experiment: Experiment,
    run_dir: str | Path,
    *,
    examples: Literal["record", "show"] = "record",
) -> TrainResult:
    """Trains, or resumes, the run in ``run_dir``.

    A run that was interrupted goes on where its newest sound checkpoint stands, bit for bit as if
    it had not stopped. SIGTERM and SIGINT save the state before the call returns.

    Args:
        experiment: What to run.
        run_dir: Directory of the run; made if missing.
        examples: What is written down of the examples of steps that were not finite: their
            indices (``record``), or their text too (``show``).

    Raises:
        ValueError: For an experiment that contradicts its data, its mesh, or an earlier run in the
            same directory.
        TrainingStopped: After too many steps in a row whose gradients were not finite.
    """
    run_dir = Path(run_dir)

    # 1. Mesh and data.
    mesh = make_mesh(experiment.mesh)
    with jax.set_mesh(mesh):
        _check_divisible(experiment, specs.batch_shards())
        inputs = open_inputs(experiment)
        task = run_task(experiment, inputs)
        start = None
        if not (run_dir / "checkpoints").exists():  # read it before anything is written
            start = _initial(experiment, task, inputs)
        _claim(run_dir, experiment)
        save_tokenizer(inputs, run_dir)

        # 2. Step.
        config = StepConfig(experiment.optimizer, experiment.seed, experiment.gradient_dtype)
        step_fn = jax.jit(make_train_step(task.objective, task.apply, config), donate_argnums=0)
        scorer = make_scorer(eval_task(experiment, inputs).objective, task.apply)

        # 3. State: the newest sound checkpoint, or a fresh one.
        def state_of(params: dict[str, Any]) -> TrainState:
            return init_state(params, task.objective, experiment.optimizer)

        def fresh() -> TrainState:
            return state_of(task.init(initial_key(experiment.seed)))

        with contextlib.ExitStack() as stack:
            saved = stack.enter_context(
                Checkpointer(
                    run_dir / "checkpoints",
                    keep_last=experiment.checkpoints.keep_last,
                    keep_every=experiment.checkpoints.keep_every,
                )
            )
            like = abstract_state(fresh, mesh)
            restored = saved.restore_latest(like)
            notes, seconds = (), 0.0
            if restored is not None:
                state, first = restored.state, restored.step
                seconds = float(restored.meta.get("seconds", 0.0))
            else:
                params, notes = start or _initial(experiment, task, inputs)
                state = jax.jit(state_of, donate_argnums=0)(params)
                state, first, seconds, more = carried(experiment, state, like)
                notes += more
            del start
            log = stack.enter_context(_open_log(run_dir, experiment, inputs, task, first))
            if restored is None:
                log.note("\n".join([*notes, _opening(experiment, inputs, task, state)]))
            else:
                log.note(f"resumed at step {first:,} of {experiment.steps:,}; data position ok")

            # 4. Steps.
            fresh_run = restored is None
            run = _Run(
                experiment, run_dir, mesh, inputs, saved, log, scorer, examples, fresh_run, seconds
            )
            return run.steps(step_fn, state, first)


def _initial(experiment: Experiment, task: Task, inputs: RunInputs):
    e = experiment
    return initial_params(e.init_from, task, e.seed, inputs.tokenizer, e.carry.step)


@dataclass
class _Run:
    """The parts of a run that its steps use."""

    experiment: Experiment
    run_dir: Path
    mesh: jax.sharding.Mesh
    inputs: RunInputs
    saved: Checkpointer
    log: RunLog
    scorer: Any
    examples: Literal["record", "show"]
    fresh: bool
    seconds: float  # of training in earlier calls
    scores: Scores | None = None
    non_finite: list[int] = dataclasses.field(default_factory=list)

    def steps(self, step_fn, state: TrainState, first: int) -> TrainResult:
        """Runs the steps from ``first``; the host reads the metrics of a step one step late."""
        e = self.experiment
        make, put = batches(self.inputs, e), self._put
        pending: tuple[int, Mapping[str, Any]] | None = None
        window, watch = _Window(first), _Watch(self.seconds)
        done, evaluated = first, -1
        if self.fresh and e.init_from is not None:
            self._evaluate(state, done, watch.seconds)  # what the model was worth before
        with _signals() as caught, prefetch(make.batch, first, e.steps, put) as feed:
            for step, batch in feed:
                if e.clock == "seconds" and watch.seconds >= e.schedule_end:
                    break
                pace = self._pace(step, watch.seconds)
                state, metrics = step_fn(state, batch, pace)
                if pending is not None:
                    self._read(window, *pending)
                pending, done = (step, metrics), step + 1
                window.data_wait += feed.data_wait
                window.factor = float(pace.factor)
                if done % e.logging.every == 0 or done == e.steps:
                    self._read(window, *pending)
                    pending = None
                    window = self._write(window, done)
                if e.evaluation.every and done % e.evaluation.every == 0:
                    with watch.stopped():
                        self._evaluate(state, done, watch.seconds)
                    evaluated = done
                if done % e.checkpoints.every == 0 or done == e.steps or caught:
                    if pending is not None:  # never save a state that nobody has looked at
                        self._read(window, *pending)
                        pending = None
                    self._save(state, done, watch.seconds)
                if caught:
                    break
        if pending is not None:  # the time was over
            self._read(window, *pending)
            window = self._write(window, done)
        if done not in self.saved.steps():
            self._save(state, done, watch.seconds)
        interrupted = caught[0] if caught and done < e.steps else None
        if interrupted is None and evaluated != done and not self._is_evaluated(done):
            self._evaluate(state, done, watch.seconds)
        self.saved.wait()
        if interrupted:
            self.log.note(f"{interrupted}: saved step {done:,}; the same command goes on from here")
        return TrainResult(self.run_dir, done, self.scores, interrupted, write_report(self.run_dir))

    def _pace(self, step: int, seconds: float) -> Pace:
        """Learning-rate factor, and with a warm-up of the batch how many microbatches are full."""
        e = self.experiment
        factor = np.float32(e.factor(step, seconds))
        if e.batch_warmup is None:
            return Pace(factor)
        rows = e.batch_size // e.microbatches
        return Pace(factor, np.int32(-(-e.sizes.batch_size_at(step) // rows)))

    def _put(self, batch: Mapping[str, np.ndarray]) -> dict[str, jax.Array]:
        return put_batch(batch, self.mesh, self.experiment.microbatches)

    def _read(self, window: _Window, step: int, metrics: Mapping[str, Any]) -> None:
        """Takes a finished step's metrics; stops the run after too many that were not finite."""
        values = jax.device_get(metrics)
        window.add(values)
        if values["finite"]:
            self.non_finite.clear()
            return
        self.non_finite.append(step)
        in_a_row, most = len(self.non_finite), self.experiment.max_skipped_steps
        self.log.note(
            f"step {step:,} skipped: its gradients are not finite ({in_a_row} in a row; the run "
            f"stops at {most})",
            step=step + 1,
        )
        if in_a_row >= most:
            self._stop()

    def _stop(self) -> None:
        e = self.experiment
        record: dict[str, Any] = {
            "steps": self.non_finite,
            "example_indices": [
                [e.sizes.first_example(step), e.sizes.first_example(step + 1) - 1]
                for step in self.non_finite
            ],
        }
        if self.examples == "show" and self.inputs.tokenizer is not None:
            ids = batches(self.inputs, e).batch(self.non_finite[-1])["input_ids"]
            record["text_of_last"] = [self.inputs.tokenizer.decode(row.tolist()) for row in ids]
        path = self.run_dir / NON_FINITE_FILE
        path.write_text(json.dumps(record, indent=1))
        raise TrainingStopped(
            f"{len(self.non_finite)} steps in a row up to step {self.non_finite[-1]:,} had "
            f"gradients that are not finite; their example indices are in {path}. Lower "
            f"--optimizer.learning-rate {e.optimizer.learning_rate:g} or change --seed, and start "
            f"from an earlier checkpoint."
        )

    def _write(self, window: _Window, done: int) -> _Window:
        e = self.experiment
        values = window.means()
        values["learning_rate"] = window.factor * e.optimizer.learning_rate
        positions = e.sizes.tokens_before(done) - e.sizes.tokens_before(window.first)
        if e.batch_warmup is not None:
            values["batch_size"] = float(e.sizes.batch_size_at(done - 1))
        self.log.log(done, values, tokens=positions * self.inputs.train.efficiency)
        return _Window(done)

    def _evaluate(self, state: TrainState, done: int, seconds: float) -> None:
        if self.inputs.validation is None:
            return
        e = self.experiment
        held = validation_batches(self.inputs, e, specs.batch_shards())
        with self.log.untimed():
            self.scores = held_out(self.scorer, state.params, held, max_rows=e.evaluation.max_rows)
        values = {name: score.mean for name, score in self.scores.values.items()}
        if "loss" in self.scores.values:
            values |= {
                "standard_error": self.scores.standard_error,
                "targets": self.scores.targets,
            }
        self.log.evaluation(done, values | {"seconds": round(seconds, 3)})

    def _is_evaluated(self, done: int) -> bool:
        """Whether an earlier call has evaluated this step (the run was finished already)."""
        records = read_metrics(self.run_dir)
        return any(r["kind"] == "evaluation" and r["step"] == done for r in records)

    def _save(self, state: TrainState, done: int, seconds: float) -> None:
        e = self.experiment
        self.saved.save(
            state,
            {
                "step": done,
                "examples_seen": e.sizes.first_example(done),
                "seconds": seconds,
                "experiment": digest(e),
                "seed": e.seed,
                **self.inputs.digests,
            },
        )


class _Window:
    """Sums of the steps since the last line of the log."""

    def __init__(self, first: int) -> None:
        self.first = first
        self.factor = 0.0
        self.sums: dict[str, tuple[float, float]] = {}
        self.last: Mapping[str, Any] = {}
        self.skipped = 0
        self.data_wait = 0.0

    def add(self, metrics: Mapping[str, Any]) -> None:
        """Adds one step; a skipped one counts as skipped only."""
        self.last = metrics
        if not metrics["finite"]:
            self.skipped += 1
            return
        for name, (total, weight) in metrics["sums"].items():
            old = self.sums.get(name, (0.0, 0.0))
            self.sums[name] = (old[0] + float(total), old[1] + float(weight))

    def means(self) -> dict[str, float]:
        """Means over the window, and the last step's gradient norm."""
        return {
            **means(self.sums),
            "gradient_norm": float(self.last["gradient_norm"]),
            "skipped_steps": float(self.skipped),
            "data_wait": self.data_wait,
        }


class _Watch:
    """Seconds of training, over all calls."""

    def __init__(self, before: float) -> None:
        self._start = _now() - before

    @property
    def seconds(self) -> float:
        """Seconds so far."""
        return _now() - self._start

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """Time inside does not count."""
        begin = _now()
        yield
        self._start += _now() - begin


def _check_divisible(experiment: Experiment, shards: int) -> None:
    rows = experiment.batch_size // experiment.microbatches
    if rows % shards:
        raise ValueError(
            f"batch_size {experiment.batch_size} / microbatches {experiment.microbatches} is "
            f"{rows} rows, which the {shards} batch shards of the mesh do not divide; choose a "
            f"batch_size that is a multiple of {shards * experiment.microbatches}."
        )
    model = experiment.model
    for name, size, axis, ways in (
        ("model.hidden_size", model.hidden_size, "fsdp", experiment.mesh.fsdp),
        ("model.num_heads", model.num_heads, "tensor", experiment.mesh.tensor),
        ("model.intermediate_size", model.intermediate_size, "tensor", experiment.mesh.tensor),
    ):
        if size % ways:
            raise ValueError(f"{name} {size} is not divisible by mesh.{axis} {ways}.")


def _claim(run_dir: Path, experiment: Experiment) -> None:
    """Makes the run directory this experiment's, or refuses one that is another's.

    A directory whose run was refused before its first step holds no run: it may be taken.
    """
    if (run_dir / "phase-1").exists():
        raise ValueError(
            f"{run_dir} holds the phases of a run, and this one has none; give another run "
            f"directory."
        )
    if (run_dir / CONFIG).exists():
        earlier = load_config(run_dir)
        changed = digest(earlier) != digest(experiment)
        if changed and _has_trained(run_dir):
            changes = "; ".join(
                f"{name} was {old!r}, is {new!r}" for name, old, new in diff(earlier, experiment)
            )
            raise ValueError(
                f"{run_dir} holds a run of another experiment ({changes}); give another run "
                f"directory, or the experiment as it was."
            )
        if changed:
            (run_dir / METRICS).unlink(missing_ok=True)  # why the other one was refused
    run_dir.mkdir(parents=True, exist_ok=True)
    save_config(experiment, run_dir)


def _has_trained(run_dir: Path) -> bool:
    """Whether a run has saved or logged a step."""
    if any((run_dir / "checkpoints").glob("*")):
        return True
    records = read_metrics(run_dir) if (run_dir / METRICS).exists() else []
    return any(record["kind"] == "train" for record in records)


def _open_log(
    run_dir: Path, experiment: Experiment, inputs: RunInputs, task: Task, first: int
) -> RunLog:
    e = experiment
    length = e.packing.seq_length
    tokens = e.batch_size * length * inputs.train.efficiency  # real ones: padding does not count
    devices = jax.devices()
    one = peak_flops(devices[0])
    return RunLog(
        run_dir,
        logging=e.logging,
        total_steps=e.steps,
        tokens_per_step=tokens,
        flops_per_token=task.flops(e.batch_size, length) / tokens,
        peak_flops=None if one is None else one * len(devices),
        steps_done=first,
        process_index=jax.process_index(),
        name=e.name,
        config=flatten(e),
    )


def _opening(experiment: Experiment, inputs: RunInputs, task: Task, state: TrainState) -> str:
    """What is said before the first step of a fresh run."""
    lines = [inputs.train.summary()]
    if replica_clip_norm(experiment.optimizer) is not None:
        lines.append(
            f"gradients are clipped on each of {specs.batch_shards()} devices by itself, so the "
            f"run depends on how many there are (optimizer.clip)"
        )
    for stage in task.objective.stages:
        optimizer = stage.optimizer or experiment.optimizer
        if isinstance(optimizer, OptimizerBase):
            lines.append(decay_table(optimizer, select(state.params, stage.trains)[0]))
    return "\n".join(lines)


@contextlib.contextmanager
def _signals() -> Iterator[list[str]]:
    """Collects SIGTERM and SIGINT instead of dying of them; a second one acts as usual."""
    caught: list[str] = []
    previous = {}

    def note(number: int, _frame: Any) -> None:
        caught.append(signal.Signals(number).name)
        signal.signal(number, previous[number])

    try:
        for number in (signal.SIGTERM, signal.SIGINT):
            previous[number] = signal.signal(number, note)
    except ValueError:  # not the main thread: signals are the caller's business
        previous.clear()
    try:
        yield caught
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)

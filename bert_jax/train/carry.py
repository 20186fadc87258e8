"""What a run takes over from the run it starts from: moments, and the clock."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp

from bert_jax.config import diff, load_config
from bert_jax.experiment import Experiment
from bert_jax.train.checkpoint import Checkpointer
from bert_jax.train.record import CheckpointMismatch
from bert_jax.train.schedule import Budget
from bert_jax.train.state import TrainState
from bert_jax.train.task import is_run

_SAME = ("data", "packing", "seed")  # what the order of examples hangs on


class Carried(NamedTuple):
    """The beginning of a run.

    Attributes:
        state: Its state.
        step: Steps that count as done.
        seconds: Seconds of training that count as spent.
        notes: Sentences for the log.
    """

    state: TrainState
    step: int
    seconds: float
    notes: tuple[str, ...]


def carried(experiment: Experiment, state: TrainState, like: Any) -> Carried:
    """A fresh state with what the experiment carries over put in.

    Args:
        experiment: Of the run that begins.
        state: Its state, with parameters taken over already.
        like: Shapes and layouts of the state.

    Raises:
        ValueError: If what is to be carried over is not there, or does not fit.
    """
    carry, source = experiment.carry, experiment.init_from
    if source is None or not is_run(Path(source)):
        _refuse_without_run(experiment)
        fresh = f"moments are fresh; the clock starts at 0; {_rate_note(experiment, 0, 0.0)}"
        return Carried(state, 0, 0.0, () if source is None else (fresh,))
    earlier = load_config(source)
    if carry.optimizer == "kept" and type(earlier.optimizer) is not type(experiment.optimizer):
        raise ValueError(_misfit(experiment, earlier))
    moments = state.opt_states
    wanted = {"opt_states": like.opt_states} if carry.optimizer == "kept" else {"step": like.step}
    with Checkpointer(Path(source) / "checkpoints") as saved:
        try:
            if carry.step is None:
                found = saved.restore_latest(wanted)
            else:
                found = saved.restore(carry.step, wanted)
        except CheckpointMismatch as error:
            raise ValueError(_misfit(experiment, earlier)) from error
    if found is None:
        raise ValueError(f"{source} holds no checkpoint yet; train it first.")
    moments_note = "moments are fresh"
    if carry.optimizer == "kept":
        moments, moments_note = found.state["opt_states"], f"moments are those of {source}"
    first, seconds = 0, 0.0
    if carry.clock == "kept":
        first, seconds = found.step, float(found.meta.get("seconds", 0.0))
    _check_end(experiment, first, seconds)
    _check_counts(experiment, earlier, first)
    clock = f"the clock goes on from step {first:,}" if first else "the clock starts at 0"
    state = dataclasses.replace(state, opt_states=moments, step=jnp.zeros_like(state.step) + first)
    begins = f"{moments_note}; {clock}; {_rate_note(experiment, first, seconds)}"
    return Carried(state, first, seconds, (begins, *_repeats(experiment, earlier)))


def _refuse_without_run(experiment: Experiment) -> None:
    carry = experiment.carry
    kept = [name for name in ("optimizer", "clock") if getattr(carry, name) == "kept"]
    if kept or carry.step is not None:
        what = f"carry.{kept[0]} is 'kept'" if kept else f"carry.step is {carry.step}"
        raise ValueError(
            f"{what}, but init_from is {experiment.init_from}, which is no run directory; only "
            f"runs have moments, a clock and steps: give one (--init-from), or start afresh "
            f"(--carry.optimizer fresh --carry.clock reset --carry.step none)."
        )


def _misfit(experiment: Experiment, earlier: Experiment) -> str:
    """Why kept moments do not fit: what of model, objective and optimizer is another."""
    parts = ("model", "objective", "optimizer")
    changes = [
        f"{name} was {old!r}, is {new!r}"
        for name, old, new in diff(earlier, experiment)
        if name.partition(".")[0] in parts
    ]
    return (
        f"carry.optimizer is 'kept', but the moments of {experiment.init_from} do not fit the run "
        f"({'; '.join(changes)}); keep model, objective and optimizer as they were, or set "
        f"--carry.optimizer fresh."
    )


def _check_end(experiment: Experiment, first: int, seconds: float) -> None:
    source = experiment.init_from
    if first >= experiment.steps:
        raise ValueError(
            f"carry.clock is 'kept' and {source} stands at step {first}, but steps is "
            f"{experiment.steps}; steps counts the earlier run's too: raise it."
        )
    if experiment.clock == "seconds" and seconds >= experiment.schedule_end:
        raise ValueError(
            f"carry.clock is 'kept' and {source} has trained for {seconds:.0f} seconds, but total "
            f"is {experiment.schedule_end:g}; total counts the earlier run's too: raise it."
        )


def _check_counts(experiment: Experiment, earlier: Experiment, first: int) -> None:
    """A kept clock counts the earlier run's steps by the sizes of this one: they must be equal."""
    now, then = experiment.sizes, earlier.sizes
    counts = [("examples", now.first_example(first), then.first_example(first))]
    kept = "batch_size and batch_warmup"
    if experiment.clock == "tokens":
        counts.append(("tokens", now.tokens_before(first), then.tokens_before(first)))
        kept = "batch_size, batch_warmup and packing.seq_length"
    for what, ours, theirs in counts:
        if ours != theirs:
            raise ValueError(
                f"carry.clock is 'kept' and {experiment.init_from} had read {theirs:,} {what} by "
                f"step {first:,}, where the batches of this run make it {ours:,}; keep {kept} "
                f"(batch_size was {earlier.batch_size}, is {experiment.batch_size}), or set "
                f"--carry.clock reset."
            )


def _rate_note(experiment: Experiment, first: int, seconds: float) -> str:
    """Whether the learning rate warms up (again), and from where."""
    factor = experiment.factor(first, seconds)
    begins = f"the learning rate begins at {factor:.3g} of its peak"
    schedule = experiment.schedule
    if isinstance(schedule, Budget):
        return f"{begins} and peaks at {schedule.peak:g} of the {experiment.clock}"
    if schedule.warmup == 0:
        return f"{begins}, without a warm-up"
    warmup = f"{schedule.warmup:,.10g} {experiment.clock}"
    if experiment.carry.clock == "kept" and first:
        return f"{begins}; the warm-up is that of the whole run, {warmup}"
    return f"{begins} and warms up over {warmup}"


def _repeats(experiment: Experiment, earlier: Experiment) -> tuple[str, ...]:
    """A warning where a reset clock would show the same examples in the same way again."""
    same = all(getattr(earlier, name) == getattr(experiment, name) for name in _SAME)
    if experiment.carry.clock == "kept" or not same:
        return ()
    return (
        f"data, packing and seed are those of {experiment.init_from} and the clock is reset: "
        f"order, masks and dropout repeat it; set another --seed to see other ones",
    )

"""Checks of a recipe's course: steps, batches, tokens, learning rates, what phases carry over."""

from __future__ import annotations

import dataclasses

from bert_jax.experiment import Experiment
from bert_jax.models.config import RotaryPositions
from bert_jax.recipes.checks.expectation import Expectation, Phase
from bert_jax.recipes.checks.findings import Finding, close, equal, within
from bert_jax.recipes.record import Recipe


def check_course(recipe: Recipe, expected: Expectation) -> list[Finding]:
    """Every phase's length and learning rates, and the tokens of all."""
    found = [equal("phases", len(expected.phases), len(recipe.phases))]
    for number, (phase, wanted) in enumerate(zip(recipe.phases, expected.phases, strict=False)):
        before = recipe.phases[number - 1] if number else None
        found += _phase(phase, wanted, before, f"phase {number + 1}")
    found.append(close("tokens stated", expected.tokens, recipe.tokens, 0.0))
    # A clock of tokens ends with the step that reaches the total.
    found.append(close("tokens of the phases", expected.tokens, _tokens(recipe), 1e-4))
    return found


def _tokens(recipe: Recipe) -> float:
    """Positions of all phases; one that counts on from the phase before has only what it adds."""
    total, before = 0.0, 0
    for phase in recipe.phases:
        first = before if phase.carry.clock == "kept" else 0
        total += phase.sizes.tokens_before(phase.steps) - phase.sizes.tokens_before(first)
        before = phase.steps
    return total


def _phase(phase: Experiment, wanted: Phase, before: Experiment | None, name: str) -> list[Finding]:
    found = [
        equal(f"{name}: steps", wanted.steps, phase.steps),
        equal(f"{name}: rows a step", wanted.batch_size, phase.batch_size),
        equal(f"{name}: positions a row", wanted.seq_length, phase.packing.seq_length),
    ]
    for now, rate in wanted.rates:
        factor = phase.schedule.factor(now, phase.schedule_end)
        label = f"{name}: learning rate at {now:,.0f} {phase.clock}"
        value = factor * phase.optimizer.learning_rate
        # Written out to ten digits at most; near the end of a line to fewer.
        found.append(close(label, rate, value, 1e-5) if rate else within(label, 0.0, value, 1e-12))
    for step, rows in wanted.batches:
        found.append(equal(f"{name}: rows of step {step:,}", rows, phase.sizes.batch_size_at(step)))
    if wanted.theta is not None and isinstance(phase.model.positions, RotaryPositions):
        positions = phase.model.positions
        local = positions.theta if positions.local_theta is None else positions.local_theta
        found.append(equal(f"{name}: theta", wanted.theta, (positions.theta, local)))
    if wanted.carries is not None and before is not None:
        carry = (phase.carry.optimizer, phase.carry.clock)
        found.append(equal(f"{name}: moments, clock", wanted.carries, carry))
        again = carry[1] == "reset" and before.seed == phase.seed
        found.append(equal(f"{name}: repeats the order before", False, again))
        # Rows, masking and optimizer of each phase are looked at by themselves.
        model = dataclasses.replace(phase.model, positions=before.model.positions)
        same = model == before.model and phase.objective == before.objective
        found.append(equal(f"{name}: the model and objective before", True, same))
    return found

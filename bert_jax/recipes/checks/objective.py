"""Checks of objectives: what is minimised, and what a generator or a teacher adds."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.experiment import Experiment
from bert_jax.models.heads import MaskedLM
from bert_jax.models.paths import by_path
from bert_jax.models.sizes import parameter_count
from bert_jax.objectives.base import Setting, Task, split_passed
from bert_jax.objectives.base import Stage as TrainingStage
from bert_jax.objectives.distillation import DistillationObjective
from bert_jax.objectives.replaced_tokens import ReplacedTokensObjective
from bert_jax.recipes.checks.expectation import Distilled, Expectation, Stage
from bert_jax.recipes.checks.findings import Finding, equal, within
from bert_jax.recipes.checks.initial import PROJECTION, Start, check_initial
from bert_jax.recipes.checks.quick import narrowed, quickly, rolled
from bert_jax.recipes.checks.selection import SPECIALS, short_rows
from bert_jax.recipes.checks.shape import decayed

_WORDS = "encoder/embeddings/word/embedding"


def check_objective(phase: Experiment, expected: Expectation) -> list[Finding]:
    """Losses, their factors and what they train; then the generator, or the teacher."""
    task = phase.objective.task(_setting(phase))
    paths = _paths(task)
    found = [equal("stages of a step", len(expected.stages), len(task.objective.stages))]
    for number, (stage, wanted) in enumerate(
        zip(task.objective.stages, expected.stages, strict=False), start=1
    ):
        label = f"stage {number}"
        trained = [path for path in paths if stage.trains(path)]
        models = tuple(sorted({path.split("/")[0] for path in trained}))
        seen = Stage(stage.coefficients, () if len(trained) == len(paths) else models)
        found.append(equal(f"{label}: losses", dict(wanted.losses), dict(seen.losses)))
        found.append(equal(f"{label}: trains", wanted.trains or "all", seen.trains or "all"))
    objective = phase.objective
    if expected.generator is not None:
        if not isinstance(objective, ReplacedTokensObjective):
            return [*found, equal("objective", "replaced tokens", type(objective).__name__)]
        found += _generator(phase, objective, task, expected)
    if expected.distilled is not None:
        if not isinstance(objective, DistillationObjective):
            return [*found, equal("objective", "distillation", type(objective).__name__)]
        found += _distilled(objective, task, expected.distilled)
    return found


def _setting(phase: Experiment) -> Setting:
    """The phase's, with a narrow model; a teacher has twice its layers."""
    layers = None if isinstance(phase.objective, DistillationObjective) else 4
    model, vocab_size = narrowed(phase.model, 96, layers), phase.model.vocab_size
    teacher = dataclasses.replace(model, num_layers=2 * model.num_layers)
    return Setting(
        model,
        phase.masking,
        SPECIALS[vocab_size],
        vocab_size,
        token_counts=np.full(vocab_size, 100),
        trained=lambda _: (teacher, dict),
    )


def _paths(task: Task) -> tuple[str, ...]:
    """Paths of all parameters that a step works on."""
    return tuple(by_path(jax.eval_shape(task.init, jax.random.key(0))))


def _generator(
    phase: Experiment, objective: ReplacedTokensObjective, task: Task, expected: Expectation
) -> list[Finding]:
    """Size, initial values, embeddings and samples of the generator.

    Which decoder it predicts by is a field that is compared; the table of absolute positions that
    the enhanced one reads is among the parameters counted.
    """
    wanted = expected.generator
    assert wanted is not None
    config = rolled(objective.generator(phase.model))
    model = MaskedLM(config)
    size = (config.hidden_size, config.num_layers, config.num_heads)
    samples, judged = _sampled(task, phase)
    limit = wanted.projection_limit
    start = Start(
        expected.shape.matrix_std,
        expected.shape.residual_std,
        {} if limit is None else {PROJECTION: limit},
    )
    return [
        equal("generator", wanted.size, size),
        equal("generator: parameters", wanted.parameters, parameter_count(model)),
        equal("generator: parameters decayed", wanted.decayed, decayed(phase, model)),
        equal("generator: decoder", wanted.decoder, config.heads.vocabulary.mask_decoder),
        equal("generator: embeddings", wanted.embeddings, _embeddings(task)),
        within("generator: samples of a token of 3/4", wanted.samples, samples, 0.02),
        equal("tokens that the detector judges", "all", "all" if judged == 1 else judged),
        *check_initial(model, start, "generator: "),
    ]


def _embeddings(task: Task) -> str:
    """Whose table of words the generator reads, and what the discriminator's begins as."""
    if f"generator/{_WORDS}" not in _paths(task):
        return "shared"

    def table(key):
        return by_path(task.init(key))[f"discriminator/{_WORDS}"]

    drawn = np.asarray(quickly(table)(jax.random.key(0)))  # nothing else is computed
    return "own" if drawn.any() else "lent"


def _sampled(task: Task, phase: Experiment) -> tuple[float, float]:
    """Runs the losses on a generator that gives 3/4 and 1/4 to two tokens.

    Returns:
        The share of the first among its samples, and of all real tokens that of those which the
        discriminator's loss counts.
    """
    masked = short_rows(phase.masking, phase.model.vocab_size)
    keys = jax.random.split(jax.random.key(1, impl="threefry2x32"), len(masked["input_ids"]))
    batch = {**masked, "sample_keys": jax.random.key_data(keys)}

    def apply(variables, ids, *, part: str, **arguments):
        del variables
        if part == "discriminator":
            return {"logits": jnp.zeros(ids.shape)}
        logits = jnp.log(jnp.array([0.75, 0.25]))
        return {"logits": jnp.broadcast_to(logits, (*arguments["positions"].shape, 2))}

    def step(batch):
        weight = jnp.zeros(())
        for stage in task.objective.stages:
            sums, passed = split_passed(stage.loss(apply, {}, batch, None, {}))
            batch = {**batch, **passed}
            weight = sums["detection_loss"][1] if "detection_loss" in sums else weight
        return batch, weight

    batch, weight = jax.device_get(quickly(step)(batch))
    once = []  # a position that was selected twice has the mean of two samples
    for positions, valid, ids in zip(
        batch["positions"], batch["weights"] > 0, batch["replaced_ids"], strict=True
    ):
        different, count = np.unique(positions[valid], return_counts=True)
        once.append(ids[different[count == 1]])
    real = (batch["segment_ids"] != 0).sum()
    return float((np.concatenate(once) == 0).mean()), float(weight / real)


def _distilled(objective: DistillationObjective, task: Task, wanted: Distilled) -> list[Finding]:
    """Which layers a student starts from, what stays as it is, and the loss of its distribution."""
    (stage,) = task.objective.stages
    student = [path for path in _paths(task) if path.startswith("student/")]
    frozen = tuple(p.removeprefix("student/") for p in student if not stage.trains(p))
    return [
        equal("layers of the teacher", wanted.layers, objective.layers),
        equal("parameters of the student that stay", wanted.frozen, frozen),
        within("loss of a distribution", wanted.soft_loss, _soft_loss(stage), 1e-5),
    ]


def _soft_loss(stage: TrainingStage) -> float:
    """The loss where the teacher gives 3/4 and 1/4 to two tokens, and the student 1/2 to each."""
    ones = jnp.ones((1, 2), jnp.int32)
    batch = {
        "input_ids": ones,
        "segment_ids": ones,
        "position_ids": ones,
        "example_ids": ones[0, :1],
        "positions": ones[:, :1],
        "targets": ones[:, :1],
        "weights": jnp.ones((1, 1)),
        "dropped": ones[0, :1],
    }

    def apply(variables, ids, *, part: str, **arguments):
        del variables, arguments
        given = jnp.array([0.75, 0.25] if part == "teacher" else [0.5, 0.5])
        logits = jnp.broadcast_to(jnp.log(given), (*ids.shape, 2))
        return {"logits": logits, "hidden": logits}

    total, weight = split_passed(stage.loss(apply, {}, batch, None, {})).sums["soft_loss"]
    return float(total / weight)

"""Distillation of a masked language model into a smaller one: DistilBERT's three losses.

Sanh et al. 2019 (arXiv:1910.01108), and distiller.py of huggingface/transformers'
research_projects/distillation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bert_jax.models.config import EncoderConfig
from bert_jax.models.flops import forward_flops, head_flops
from bert_jax.models.heads import MaskedLM
from bert_jax.models.student import student_params
from bert_jax.objectives.base import Apply, Batch, Params, Setting, Stage, Sums, Task, merge
from bert_jax.objectives.masked_lm import MaskedLanguageModel, masked_lm_sums, predict
from bert_jax.ops.cross_entropy import token_losses

STUDENT, TEACHER = "student", "teacher"


@dataclass(frozen=True)
class DistillationObjective:
    """Masked language modelling with a teacher; the experiment's model is the student.

    The weights and the temperature are DistilBERT's.

    Attributes:
        teacher: Hugging Face directory or run directory of a masked language model over the same
            vocabulary.
        layers: Layers of the teacher, from 0, that the student's layers start as, with the
            teacher's embeddings and vocabulary head; none: the student starts at random.
        frozen: Paths (or their beginnings) of the student's parameters that are not trained but
            stay as the teacher's (DistilBERT: ``encoder/embeddings/position``); needs ``layers``.
        temperature: Of the soft targets; their loss is scaled by its square.
        soft_weight: Factor of the divergence of the student's distribution from the teacher's,
            over all real tokens.
        hard_weight: Factor of the masked-LM loss.
        cosine_weight: Factor of one minus the cosine of the last hidden states, over all real
            tokens; above 0 it needs equal widths.
    """

    teacher: str
    layers: tuple[int, ...] = ()
    frozen: tuple[str, ...] = ()
    temperature: float = 2.0
    soft_weight: float = 5.0
    hard_weight: float = 2.0
    cosine_weight: float = 1.0

    def __post_init__(self) -> None:
        if self.temperature <= 0:
            raise ValueError(f"objective.temperature is {self.temperature}; it must be positive.")
        if self.frozen and not self.layers:
            raise ValueError(
                f"objective.frozen is {self.frozen} and objective.layers is empty: what is frozen "
                f"would stay at random; name the teacher's layers to start from, or freeze nothing."
            )
        for name in ("soft_weight", "hard_weight", "cosine_weight"):
            if getattr(self, name) < 0:
                raise ValueError(f"objective.{name} is {getattr(self, name)}; it is 0 or more.")

    def task(self, setting: Setting) -> Task:
        """The objective with student and teacher.

        Raises:
            ValueError: If the two do not fit together.
        """
        teacher_config, load = setting.trained(self.teacher)
        self._check(setting.model, teacher_config)
        student, teacher = MaskedLM(setting.model), MaskedLM(teacher_config)
        objective = Distillation(MaskedLanguageModel.of(setting), self)

        def init(key: jax.Array) -> dict[str, Any]:
            first: Any = student.init(jax.random.fold_in(key, 1))
            second: Any = teacher.init(jax.random.fold_in(key, 2))
            return {STUDENT: first["params"], TEACHER: second["params"]}

        def start(params: Any) -> Any:
            trained = load()
            if self.layers:
                chosen = student_params(teacher_config, trained, setting.model, self.layers)
                params = {**params, STUDENT: _like(params[STUDENT], chosen)}
            return {**params, TEACHER: _like(params[TEACHER], trained)}

        def apply(variables, input_ids, *, part: str, **arguments) -> Any:
            model = student if part == STUDENT else teacher
            return model.apply({"params": variables["params"][part]}, input_ids, **arguments)

        return Task(
            objective,
            student,
            init,
            apply,
            _flops(setting, teacher_config),
            extract=lambda params: params[STUDENT],
            insert=lambda model_params, params: {**params, STUDENT: model_params},
            start=start,
        )

    def _check(self, student: EncoderConfig, teacher: EncoderConfig) -> None:
        if student.vocab_size != teacher.vocab_size:
            raise ValueError(
                f"model.vocab_size is {student.vocab_size} and the teacher {self.teacher} has "
                f"{teacher.vocab_size} entries; distillation compares distributions over one "
                f"vocabulary: set --model.vocab-size {teacher.vocab_size}."
            )
        if self.cosine_weight and student.hidden_size != teacher.hidden_size:
            raise ValueError(
                f"model.hidden_size is {student.hidden_size} and the teacher {self.teacher} is "
                f"{teacher.hidden_size} wide; the cosine of their states needs equal widths: set "
                f"--objective.cosine-weight 0, or the width."
            )
        if self.layers and len(self.layers) != student.num_layers:
            raise ValueError(
                f"objective.layers names {len(self.layers)} layers of the teacher and the student "
                f"has {student.num_layers}; name one for each."
            )


@dataclass(frozen=True)
class Distillation:
    """The objective.

    Attributes:
        masked: Selection and masking; both models see the same masked rows.
        config: Weights, temperature, what is frozen.
    """

    masked: MaskedLanguageModel
    config: DistillationObjective

    @property
    def stages(self) -> tuple[Stage, ...]:
        """One stage over the student's parameters."""
        c = self.config
        factors = {
            "loss": c.hard_weight,
            "soft_loss": c.soft_weight,
            "cosine_loss": c.cosine_weight,
        }
        frozen = tuple(f"{STUDENT}/{path}" for path in c.frozen)

        def trains(path: str) -> bool:
            return path.startswith(f"{STUDENT}/") and not path.startswith(frozen)

        return (Stage("distillation", self._loss, factors, trains),)

    def corrupt(self, key: jax.Array, step: jax.Array, batch: Batch) -> Batch:
        """Masks a batch."""
        return self.masked.corrupt(key, step, batch)

    def _loss(self, apply: Apply, params: Params, batch: Batch, key, frozen: Params) -> Sums:
        """The three losses; ``agreement``: how often both choose the same token."""
        whole = merge(params, frozen)
        everywhere = {"positions": None, "targets": None}
        ours = predict(apply, whole, batch, key, part=STUDENT, **everywhere)
        theirs = jax.lax.stop_gradient(
            predict(apply, whole, batch, None, part=TEACHER, **everywhere)
        )
        logits = jnp.take_along_axis(ours["logits"], batch["positions"][..., None], axis=1)
        nll, correct = token_losses(logits, batch["targets"])
        sums = masked_lm_sums({"nll": nll, "correct": correct}, batch)
        real = (batch["segment_ids"] != 0).astype(jnp.float32)
        soft = divergence(theirs["logits"], ours["logits"], self.config.temperature)
        agree = jnp.argmax(theirs["logits"], -1) == jnp.argmax(ours["logits"], -1)
        values = {"soft_loss": soft, "agreement": agree}
        if self.config.cosine_weight:
            values["cosine_loss"] = 1 - cosine(theirs["hidden"], ours["hidden"])
        else:
            values["cosine_loss"] = jnp.zeros_like(soft)
        count = jnp.sum(real, axis=-1)
        return sums | {n: (jnp.sum(x * real, axis=-1), count) for n, x in values.items()}


def divergence(
    teacher: Float[Array, "*batch vocab"], student: Float[Array, "*batch vocab"], temperature: float
) -> Float[Array, "*batch"]:
    """T^2 KL(teacher || student) of the distributions at temperature T, in nats."""
    theirs = jax.nn.log_softmax(teacher.astype(jnp.float32) / temperature)
    ours = jax.nn.log_softmax(student.astype(jnp.float32) / temperature)
    return temperature**2 * jnp.sum(jnp.exp(theirs) * (theirs - ours), axis=-1)


def cosine(a: Float[Array, "*batch d"], b: Float[Array, "*batch d"]) -> Float[Array, "*batch"]:
    """Cosine of the angle between vectors, float32; 0 where one is zero."""
    a, b = a.astype(jnp.float32), b.astype(jnp.float32)
    lengths = jnp.sum(a * a, axis=-1) * jnp.sum(b * b, axis=-1)
    return jnp.sum(a * b, axis=-1) * jax.lax.rsqrt(jnp.maximum(lengths, 1e-24))


def _like(placed: Any, values: Any) -> Any:
    """Values of the host in the layout of an equal tree on devices."""
    return jax.tree.map(
        lambda p, x: jax.device_put(np.asarray(x), p.sharding), placed, dict(values)
    )


def _flops(setting: Setting, teacher: EncoderConfig) -> Callable[[int, int], float]:
    """Heads run at every position; the teacher has no backward pass."""

    def everywhere(config: EncoderConfig, length: int) -> float:
        return forward_flops(config, length) + length * head_flops(config)

    def flops(rows: int, length: int) -> float:
        return rows * (3.0 * everywhere(setting.model, length) + everywhere(teacher, length))

    return flops

"""How far an imported model is from the outputs, loss and gradients another library gave for it.

A reference is a ``reference.npz``: ``in.*`` inputs; ``label.*`` labels (-100: not counted);
``out.*`` outputs, among them ``out.loss``; ``gradnorm.KEY``: the L2 norm of the loss's gradient for
each parameter under its key in the checkpoint. All but ``in.input_ids`` may be absent.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Integer

from bert_jax.interop.arrays import to_checkpoint, whole_entries
from bert_jax.interop.families import FAMILIES
from bert_jax.interop.family import HeadMap
from bert_jax.interop.huggingface import Loaded
from bert_jax.models.config import LearnedPositions
from bert_jax.models.heads import MaskedLM, PreTraining, ReplacedTokenDetector
from bert_jax.models.model import EncoderModel
from bert_jax.models.task_heads import (
    MultipleChoice,
    SequenceClassifier,
    SpanExtractor,
    TokenClassifier,
)

Reference = Mapping[str, np.ndarray]

OUTPUT_BOUND = 1e-4  # of the largest magnitude; float32 sums in another order differ by about 1e-6
LOSS_BOUND = 1e-5  # nats or squared units; relative for losses above 1
GRADIENT_BOUND = 1e-3  # of the norm
# Gradients that are zero by algebra (a key's bias) are rounding in both libraries: norms below this
# share of the largest one are measured against that share.
_NEGLIGIBLE = 1e-3
_IGNORED = -100

_INPUTS = ("input_ids", "attention_mask", "token_type_ids", "position_ids")
_OUTPUTS = {
    "logits": "logits",
    "prediction_logits": "logits",
    "seq_relationship_logits": "pair_logits",
    "sop_logits": "pair_logits",
    "start_logits": "start_logits",
    "end_logits": "end_logits",
    "last_hidden_state": "hidden",
    "embeddings": "embeddings",
}
# References that hold the model's inputs and outputs under bare names.
_BARE = {
    "labels": "label.labels",
    "logits": "out.logits",
    "hidden_last": "out.last_hidden_state",
    "loss": "out.loss",
} | {name: f"in.{name}" for name in _INPUTS}


@dataclass(frozen=True)
class Check:
    """One comparison.

    Attributes:
        name: What was compared.
        error: How far apart the two are.
        bound: How far apart they may be.
    """

    name: str
    error: float
    bound: float

    @property
    def passed(self) -> bool:
        """Whether the error is a number within the bound."""
        return self.error <= self.bound


@dataclass(frozen=True)
class ParityReport:
    """All comparisons with a reference.

    Attributes:
        checks: What was compared.
        left_out: Names in the reference that have no counterpart in the model.
    """

    checks: tuple[Check, ...]
    left_out: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether every comparison passed, and there was one."""
        return bool(self.checks) and all(check.passed for check in self.checks)

    def table(self) -> str:
        """The comparisons, a line each."""
        lines = [
            f"{'pass' if check.passed else 'FAIL'}  {check.error:8.1e}  (at most "
            f"{check.bound:.0e})  {check.name}"
            for check in self.checks
        ]
        if self.left_out:
            lines.append(f"not compared: {', '.join(self.left_out)}")
        return "\n".join(lines)


def read_reference(path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    """The arrays of a ``reference.npz``, by name; nothing pickled is read."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            return {name: stored[name] for name in stored.files}
    except (ValueError, AttributeError, zipfile.BadZipFile) as error:
        raise ValueError(
            f"{path} is no archive of numpy arrays; write it with numpy.savez."
        ) from error


def parity(loaded: Loaded, reference: Reference) -> ParityReport:
    """Compares a model with a reference, in float32 with exact products.

    Outputs are compared where tokens are real, relative to their largest magnitude there; the loss
    absolutely, or relatively above 1; gradient norms each relative to its own, of which the worst
    is reported.

    Args:
        loaded: The model, as `bert_jax.interop.import_hf` gives it.
        reference: See the module.

    Raises:
        ValueError: The reference has no inputs, or some this model does not take.
    """
    reference = {_BARE.get(name, name): value for name, value in reference.items()}
    scheme = loaded.model.config.positions
    offset = scheme.offset if isinstance(scheme, LearnedPositions) else 0
    inputs = _inputs(reference, offset)
    loaded = _with_choices(loaded, reference)
    labels = _section(reference, "label.")
    expected = _section(reference, "out.")
    loss = expected.pop("loss", None)
    with jax.default_matmul_precision("highest"):
        outputs = _run(loaded.model)(loaded.params, inputs)
        checks, left_out = _output_checks(loaded.model, outputs, expected, inputs)
        if loss is not None and labels:
            of_labels = functools.partial(_total_loss, loaded.model)
            value, gradients = jax.jit(jax.value_and_grad(of_labels))(loaded.params, inputs, labels)
            error = abs(float(value) - float(loss)) / max(1.0, abs(float(loss)))
            checks.append(Check("loss", error, LOSS_BOUND))
            norms = _section(reference, "gradnorm.")
            found, unknown = _gradient_check(loaded, gradients, norms)
            checks += found
            left_out += unknown
        elif loss is not None:
            left_out.append("out.loss (the reference holds no labels)")
    return ParityReport(tuple(checks), tuple(left_out))


def _section(reference: Reference, prefix: str) -> dict[str, np.ndarray]:
    return {
        name.removeprefix(prefix): value
        for name, value in reference.items()
        if name.startswith(prefix)
    }


def _inputs(reference: Reference, offset: int) -> dict[str, np.ndarray]:
    """Rows of tokens; the choices of a question become consecutive rows.

    Positions of a model with an offset are rows of its table in the reference, and count from 0
    here.
    """
    inputs = _section(reference, "in.")
    if "input_ids" not in inputs:
        raise ValueError(
            "the reference holds no in.input_ids; store the inputs as in.*, the labels as label.* "
            "and the outputs as out.*."
        )
    unknown = sorted(set(inputs) - set(_INPUTS))
    if unknown:
        raise ValueError(
            f"the reference holds the inputs {', '.join(unknown)}, which no model here takes; "
            f"known are {', '.join(_INPUTS)}."
        )
    rows = {name: value.astype(np.int32) for name, value in inputs.items()}
    if "position_ids" in rows:
        rows["position_ids"] -= offset
    return {name: value.reshape(-1, value.shape[-1]) for name, value in rows.items()}


def _with_choices(loaded: Loaded, reference: Reference) -> Loaded:
    """config.json does not say how many choices a question has; the reference's inputs do."""
    ids = reference["in.input_ids"]
    if isinstance(loaded.model, MultipleChoice) and ids.ndim == 3:
        model = loaded.model.clone(num_choices=ids.shape[1])
        return dataclasses.replace(loaded, model=model)
    return loaded


def _run(model: EncoderModel):
    def run(params, inputs):
        output = model.apply({"params": params}, **inputs, capture=("hidden_states",))
        assert isinstance(output, dict)
        return {**output, "embeddings": output["hidden_states"][0]}

    return jax.jit(run)


def _output_checks(
    model: EncoderModel,
    outputs: Mapping[str, Array],
    expected: Reference,
    inputs: Mapping[str, np.ndarray],
) -> tuple[list[Check], list[str]]:
    shape = inputs["input_ids"].shape
    mask = inputs.get("attention_mask", inputs["input_ids"] != model.config.pad_id)
    checks, left_out = [], []
    for name, theirs in expected.items():
        ours = outputs.get(_OUTPUTS.get(name, ""))
        if ours is None:
            left_out.append(f"out.{name}")
            continue
        ours = np.asarray(ours, np.float32)
        if theirs.shape == ours.shape[:-1] and ours.shape[-1] == 1:
            ours = ours[..., 0]  # scores of DeBERTa, which drops the axis
        if ours.shape != theirs.shape:
            raise ValueError(
                f"out.{name} has the shape {theirs.shape} in the reference; the model gives "
                f"{ours.shape}; is the reference of this model?"
            )
        if ours.shape[:2] == shape:  # of every token
            ours, theirs = ours[mask != 0], theirs[mask != 0]
        error = np.abs(ours - theirs).max() / np.abs(theirs).max()
        checks.append(Check(f"{name}, largest relative error", float(error), OUTPUT_BOUND))
    return checks, left_out


def _gradient_check(
    loaded: Loaded, gradients: Mapping[str, Any], expected: Reference
) -> tuple[list[Check], list[str]]:
    report, config = loaded.report, loaded.model.config
    family = FAMILIES[report.model_type]
    arrays = to_checkpoint(gradients, whole_entries(family, report.architecture, config), config)
    head = family.heads.get(report.architecture)
    ours = {key: key if key in arrays else _spelled(key, head) for key in expected}
    known = [key for key in expected if ours[key] in arrays]
    left_out = [f"gradnorm.{key}" for key in expected if key not in known]
    if not known:
        return [], left_out
    least = max(_NEGLIGIBLE * max(float(expected[key]) for key in known), 1e-30)
    errors = {
        key: abs(float(np.linalg.norm(arrays[ours[key]])) - float(expected[key]))
        / max(float(expected[key]), least)
        for key in known
    }
    # Of a number and a nan, the nan is the worse.
    worst = max(errors, key=lambda key: np.inf if np.isnan(errors[key]) else errors[key])
    name = f"gradient norms of {len(known)} parameters, worst {worst}"
    return [Check(name, errors[worst], GRADIENT_BOUND)], left_out


def _spelled(key: str, head: HeadMap | None) -> str:
    """A key of the reference as the key map has it: another spelling, or a tied copy."""
    if head is None:
        return key
    for other, ours in head.spellings.items():
        if key.startswith(other):
            return ours + key.removeprefix(other)
    return head.tied.get(key, key)


# ---------------------------------------------------------------------------------------- losses


def _total_loss(
    model: EncoderModel,
    params: Mapping[str, Any],
    inputs: Mapping[str, Any],
    labels: Mapping[str, Any],
) -> Float[Array, ""]:
    """The loss transformers computes for a model of this kind (5.24, ``modeling_*.py``)."""
    output: Any = model.apply({"params": params}, **inputs)
    if isinstance(model, PreTraining):
        pair = labels["next_sentence_label" if "next_sentence_label" in labels else _ORDER]
        tokens = _cross_entropy(output["logits"], labels["labels"])
        return tokens + _cross_entropy(output["pair_logits"], pair)
    if isinstance(model, SpanExtractor):
        ends = [
            _cross_entropy(output[f"{end}_logits"], _inside(labels[f"{end}_positions"], inputs))
            for end in ("start", "end")
        ]
        return (ends[0] + ends[1]) / 2
    if isinstance(model, ReplacedTokenDetector):
        return _binary_cross_entropy(output["logits"], labels["labels"], inputs)
    if isinstance(model, SequenceClassifier) and model.num_labels == 1:
        return jnp.mean((output["logits"][:, 0] - jnp.reshape(labels["labels"], (-1,))) ** 2)
    floating = jnp.issubdtype(jnp.asarray(labels["labels"]).dtype, jnp.floating)
    if isinstance(model, SequenceClassifier) and floating:
        raise ValueError(
            "the labels are floating-point numbers for several classes: losses of several labels "
            "a text are not compared; leave out.loss out."
        )
    if isinstance(model, MaskedLM | SequenceClassifier | TokenClassifier | MultipleChoice):
        return _cross_entropy(output["logits"], labels["labels"])
    raise ValueError(
        f"the reference holds a loss, and {type(model).__name__} has none in transformers; leave "
        f"out.loss out."
    )


_ORDER = "sentence_order_label"


def _cross_entropy(
    logits: Float[Array, "*batch classes"], labels: Integer[Array | np.ndarray, "*batch"]
) -> Float[Array, ""]:
    """Mean over labels that are counted, in nats."""
    labels = jnp.asarray(labels)
    counted = labels != _IGNORED
    places = jnp.where(counted, labels, 0)[..., None]
    picked = jnp.take_along_axis(jax.nn.log_softmax(logits, axis=-1), places, axis=-1)[..., 0]
    return -jnp.sum(jnp.where(counted, picked, 0)) / jnp.sum(counted)


def _inside(places: Any, inputs: Mapping[str, Any]) -> Int[Array, "rows"]:
    """Places of answers; those behind the row's end are not counted."""
    places = jnp.maximum(jnp.reshape(jnp.asarray(places), (-1,)), 0)
    return jnp.where(places < inputs["input_ids"].shape[1], places, _IGNORED)


def _binary_cross_entropy(
    logits: Float[Array, "rows length"],
    labels: Any,
    inputs: Mapping[str, Any],
) -> Float[Array, ""]:
    """Mean over attended tokens of the loss of "was replaced", in nats."""
    attended = inputs.get("attention_mask", jnp.ones_like(inputs["input_ids"])) != 0
    losses = jax.nn.softplus(jnp.where(jnp.asarray(labels) != 0, -logits, logits))
    return jnp.sum(jnp.where(attended, losses, 0)) / jnp.sum(attended)

"""Imported checkpoints against the outputs, losses and gradient norms of transformers itself.

Losses are written here once more, from the classes of transformers 5.24, and gradients go back
through the key map, shares of one array joined.
"""

import dataclasses
import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.interop import import_hf
from bert_jax.interop.arrays import to_checkpoint, whole_entries
from bert_jax.interop.families import FAMILIES
from bert_jax.models.config import Execution
from bert_jax.models.heads import PreTraining, ReplacedTokenDetector
from bert_jax.models.model import EncoderModel
from bert_jax.models.task_heads import SequenceClassifier, SpanExtractor
from bert_jax.parallel.mesh import MeshShape, make_mesh

pytestmark = pytest.mark.sweep

PARITY = Path(__file__).parents[1] / "data" / "parity"
CASES = sorted(path.parent.name for path in PARITY.glob("*/meta.json"))
OUTPUTS = {
    "logits": "logits",
    "prediction_logits": "logits",
    "seq_relationship_logits": "pair_logits",
    "sop_logits": "pair_logits",
    "start_logits": "start_logits",
    "end_logits": "end_logits",
    "last_hidden_state": "hidden",
    "embeddings": "embeddings",
}
FAST_COMPILE = {"xla_backend_optimization_level": 0}


def reference(case):
    with np.load(PARITY / case / "reference.npz") as stored:
        return {name: stored[name] for name in stored.files}


def section(arrays, prefix):
    return {n.removeprefix(prefix): x for n, x in arrays.items() if n.startswith(prefix)}


# ---------------------------------------------------------------------------------------- losses


def terms(model, given):
    """{output: (target, weight)}: one-hot classes, or numbers where the output is no choice."""
    labels = section(given, "label.")
    if isinstance(model, SpanExtractor):
        length = given["in.input_ids"].shape[1]
        places = [("start_logits", "start_positions"), ("end_logits", "end_positions")]
        return {out: classes(labels[name], length) for out, name in places}
    if isinstance(model, ReplacedTokenDetector):
        weight = given["in.attention_mask"].astype(np.float32)
        return {"logits": (labels["labels"].astype(np.float32), weight)}
    if isinstance(model, SequenceClassifier) and model.num_labels == 1:
        return {"logits": (labels["labels"], np.ones(len(labels["labels"]), np.float32))}
    count = getattr(model, "num_labels", model.config.vocab_size)
    first = {"logits": classes(labels["labels"], count)}
    if isinstance(model, PreTraining):
        (pair,) = set(labels) - {"labels"}
        return first | {"pair_logits": classes(labels[pair], 2)}
    return first


def classes(labels, count):
    return np.eye(count, dtype=np.float32)[np.maximum(labels, 0)], (labels != -100).astype("f4")


def loss(model, outputs, parts):
    """The sum of the parts; of starts and ends, the mean."""
    total = 0.0
    for name, (target, weight) in parts.items():
        scores = outputs[name]
        if isinstance(model, ReplacedTokenDetector):
            costs = jax.nn.softplus(scores) - target * scores
        elif target.ndim == scores.ndim:
            costs = -jnp.sum(target * jax.nn.log_softmax(scores, axis=-1), axis=-1)
        else:
            costs = (scores.sum(-1) - target) ** 2
        total += jnp.sum(costs * weight) / jnp.sum(weight)
    return total / 2 if isinstance(model, SpanExtractor) else total


# -------------------------------------------------------------------------------------- the runs


@functools.partial(jax.jit, static_argnums=0, compiler_options=FAST_COMPILE)
def run(model: EncoderModel, params, inputs, parts):
    def both(params):
        outputs = model.apply({"params": params}, **inputs, capture=("hidden_states",))
        states = outputs.pop("hidden_states")
        return loss(model, outputs, parts), outputs | {"embeddings": states[0]}

    return jax.value_and_grad(both, has_aux=True)(params)


def padded(x, rows):
    return np.pad(x, [(0, rows - len(x))] + [(0, 0)] * (x.ndim - 1))


def compute(case, execution, mesh_shape):
    """(reference, loaded, loss, outputs, gradients); a mesh gets a fourth, empty row."""
    given, loaded = reference(case), import_hf(PARITY / case)
    model = loaded.model.clone(config=dataclasses.replace(loaded.model.config, execution=execution))
    inputs = {name: x.astype(np.int32) for name, x in section(given, "in.").items()}
    parts = terms(model, given)
    with jax.default_matmul_precision("highest"):
        if mesh_shape is None:
            (value, outputs), gradients = run(model, loaded.params, inputs, parts)
        else:
            with jax.set_mesh(make_mesh(mesh_shape)):
                shapes = jax.eval_shape(model.init, jax.random.key(0))["params"]
                params = jax.tree.map(
                    lambda x, s: jax.device_put(x, s.sharding.spec), loaded.params, shapes
                )
                inputs, parts = jax.tree.map(spread, (inputs, parts))
                (value, outputs), gradients = run(model, params, inputs, parts)
    outputs, gradients = jax.tree.map(np.asarray, (outputs, gradients))
    return given, loaded, float(value), outputs, gradients


def spread(x):
    """Rows split over the batch axes, with one more of zeros."""
    layout = jax.P(("data", "fsdp"), *[None] * (x.ndim - 1))
    return jax.device_put(padded(x, 4), layout)


def check(case, execution=Execution(), mesh_shape=None):  # noqa: B008
    given, loaded, value, outputs, gradients = compute(case, execution, mesh_shape)
    real = given["in.attention_mask"] != 0
    expected = section(given, "out.")
    assert value == pytest.approx(float(expected.pop("loss")), abs=1e-5)
    for name, theirs in expected.items():
        ours = outputs[OUTPUTS[name]][: len(real)]
        if theirs.shape[:2] == real.shape:
            ours, theirs = ours[real], theirs[real]
        # Sums in another order differ by about 1e-6; the bound is 1e-4.
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5 * np.abs(theirs).max())
    check_gradients(loaded, gradients, section(given, "gradnorm."))


def check_gradients(loaded, gradients, expected):
    """Every norm of the reference, under its name there."""
    family, config = FAMILIES[loaded.report.model_type], loaded.model.config
    entries = whole_entries(family, loaded.report.architecture, config)
    arrays = to_checkpoint(gradients, entries, config)
    head = family.heads[loaded.report.architecture]
    # What is zero by algebra (a key's bias moves all scores of a query alike) is rounding in both.
    zero = 1e-6 * max(map(float, expected.values()))
    found = set()
    for key, norm in expected.items():
        name = head.tied.get(key, key)
        for other, ours in head.spellings.items():
            name = ours + name.removeprefix(other) if name.startswith(other) else name
        found.add(name)
        assert np.linalg.norm(arrays[name]) == pytest.approx(float(norm), rel=1e-3, abs=zero), key
    assert found == set(arrays)


def in_default_run(case):
    """Every vocabulary head, and BERT's others; those of the other families with the slow tests."""
    return case.startswith("bert_") or not case.endswith(("classify", "span", "tag", "lm_head"))


@pytest.mark.parametrize(
    "case",
    [c if in_default_run(c) else pytest.param(c, marks=pytest.mark.slow) for c in CASES],
)
def test_outputs_loss_and_gradient_norms(case):
    check(case)


@pytest.mark.slow
@pytest.mark.parametrize("mesh", [None, MeshShape(2, 2, 2)], ids=["one", "mesh"])
@pytest.mark.parametrize("loop", ["scan", "unroll"])
@pytest.mark.parametrize("case", CASES)
def test_every_execution(case, loop, mesh):
    check(case, Execution(loop=loop, remat="none"), mesh)


def test_a_really_pretrained_roberta_gives_its_own_logits_and_loss():
    loaded, stored = import_hf(PARITY / "sapiens_vh"), reference("sapiens_vh")
    inputs = {name: stored[name] for name in ("input_ids", "attention_mask")}
    parts = {"logits": classes(stored["labels"], 25)}
    (value, output), _ = run(loaded.model, loaded.params, inputs, parts)
    real = stored["attention_mask"] != 0
    for ours, theirs in (("hidden", "hidden_last"), ("logits", "logits")):
        # 1e-4 by the issue; logits reach 15.
        np.testing.assert_allclose(np.asarray(output[ours])[real], stored[theirs][real], atol=1e-4)
    assert float(value) == pytest.approx(0.924522, abs=1e-5)
    assert output["logits"].shape[-1] == 25  # 128 rows inside


def test_padding_is_found_by_its_id_when_no_mask_is_given():
    loaded, stored = import_hf(PARITY / "roberta_mlm"), reference("roberta_mlm")
    mask = stored["in.attention_mask"] != 0
    ids = np.where(mask, stored["in.input_ids"], loaded.model.config.pad_id).astype(np.int32)
    logits = jax.jit(loaded.model.apply)({"params": loaded.params}, ids)["logits"]
    np.testing.assert_allclose(np.asarray(logits)[mask], stored["out.logits"][mask], atol=1e-4)

"""A student of some of its teacher's layers: every array is the teacher's."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.models.config import Norm
from bert_jax.models.heads import MaskedLM, PreTraining
from bert_jax.models.model import EncoderModel
from bert_jax.models.paths import by_path
from bert_jax.models.student import student_params

DISTILBERT = (0, 2, 4, 7, 9, 11)  # extract_distilbert.py


def trained(model):
    """Parameters of a model, every number another."""
    shapes = jax.eval_shape(model.init, jax.random.key(0))["params"]
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape), jnp.float32), shapes)


@pytest.fixture
def teacher(tiny_preset):
    return dataclasses.replace(tiny_preset("bert-base"), num_layers=12)


@pytest.fixture
def student(tiny_preset):
    return dataclasses.replace(tiny_preset("distilbert-base"), num_layers=6)


@pytest.mark.parametrize("model", [MaskedLM, PreTraining])
def test_distilbert_from_bert(teacher, student, model):
    """Tables but the types', their norm, six layers and the head; no pooler, no pairs."""
    params = by_path(trained(model(teacher)))
    made = student_params(teacher, trained(model(teacher)), student, DISTILBERT)
    shapes = by_path(jax.eval_shape(MaskedLM(student).init, jax.random.key(0))["params"])
    taken = by_path(made)
    assert {p: x.shape for p, x in taken.items()} == {p: x.shape for p, x in shapes.items()}
    dropped = {path for path in params if path not in taken}
    more = {f"{name}/{word}" for name in ("pooler", "pair") for word in ("kernel", "bias")}
    types = {"encoder/embeddings/type/embedding"}
    assert dropped == types | (more if model is PreTraining else set())
    for path, value in taken.items():
        right = np.asarray(params[path])
        if "/layers/" in path:
            right = right[list(DISTILBERT)]
        np.testing.assert_array_equal(value, right, err_msg=path)
    out = MaskedLM(student).apply({"params": made}, np.arange(8)[None] + 5)
    assert np.isfinite(out["logits"]).all()


def test_a_student_may_keep_the_types(teacher):
    student = dataclasses.replace(teacher, num_layers=2)
    params = trained(MaskedLM(teacher))
    made = student_params(teacher, params, student, (3, 8))
    table = made["encoder"]["embeddings"]["type"]["embedding"]
    np.testing.assert_array_equal(table, params["encoder"]["embeddings"]["type"]["embedding"])


@pytest.mark.parametrize(
    ("change", "layers", "message"),
    [
        ({"hidden_size": 32}, DISTILBERT, "differs from its teacher in hidden_size; it may differ"),
        ({"norm": Norm("pre", 1e-12)}, DISTILBERT, "differs from its teacher in norm; it may"),
        ({}, (0, 2, 4), "name one of the teacher's for each of the student's 6 layers"),
        ({}, (0, 2, 4, 7, 9, 12), "layer 12 is not one of the 12 layers"),
        ({"type_vocab_size": 3}, DISTILBERT, r"has the shape \(3, 16\) and its teacher has the sh"),
    ],
)
def test_what_is_no_student_is_refused(teacher, student, change, layers, message):
    with pytest.raises(ValueError, match=message):
        params = trained(MaskedLM(teacher))
        student_params(teacher, params, dataclasses.replace(student, **change), layers)


def test_a_teacher_without_a_head_is_refused(teacher, student):
    params = trained(EncoderModel(teacher))
    with pytest.raises(ValueError, match=r"head_bias .* its teacher has no such param"):
        student_params(teacher, params, student, DISTILBERT)

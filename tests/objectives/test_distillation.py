"""Distillation: divergences in closed form, the three losses against loops, student and teacher."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.data.tokenizer import SpecialTokens
from bert_jax.interop import huggingface
from bert_jax.models.config import Dropout, EncoderConfig, LearnedPositions, Normal
from bert_jax.models.flops import forward_flops, head_flops
from bert_jax.models.heads import MaskedLM
from bert_jax.models.paths import by_path
from bert_jax.objectives.base import Setting, select
from bert_jax.objectives.distillation import DistillationObjective, cosine, divergence
from bert_jax.objectives.masking import Masking
from bert_jax.testing import example_rows
from bert_jax.train.task import trained_model

PARITY = Path(__file__).parents[1] / "data" / "parity"
SPECIAL = SpecialTokens(pad=9, cls=7, sep=3, mask=0, unk=5)
VOCAB, ROWS, LENGTH, WIDTH = 20, 4, 10, 6
TEACHER = EncoderConfig(
    VOCAB,
    hidden_size=16,
    num_layers=3,
    num_heads=2,
    intermediate_size=24,
    type_vocab_size=2,
    positions=LearnedPositions(LENGTH),
    initializer=Normal(0.2),
    pad_id=SPECIAL.pad,
)
STUDENT = dataclasses.replace(TEACHER, num_layers=2, type_vocab_size=0)
OBJECTIVE = DistillationObjective("somewhere", (0, 2), ("encoder/embeddings/position",))
KEY = jax.random.key(3, impl="threefry2x32")


def task_of(objective=OBJECTIVE, student=STUDENT, teacher=TEACHER, load: Callable[[], Any] = dict):
    trained = lambda source: (teacher, load)  # noqa: E731
    return objective.task(Setting(student, Masking(0.4), SPECIAL, VOCAB, trained=trained))


# --------------------------------------------------------------------------------- closed forms


@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_divergence_of_two_classes(temperature):
    """p ln(p/q) + (1-p) ln((1-p)/(1-q)), times T^2, for logits that make p = .8 and q = .4 at T."""
    p, q = 0.8, 0.4
    logits = [temperature * np.log([x, 1 - x]) for x in (p, q)]
    theirs, ours = (jnp.asarray(x, jnp.float32) for x in logits)
    got = divergence(theirs, ours, temperature)
    right = temperature**2 * (p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q)))
    np.testing.assert_allclose(got, right, rtol=1e-5)


def test_the_square_keeps_the_gradient_s_size():
    """For small logits the gradient is (student - teacher) / V at any temperature (Hinton 2015)."""
    rng = np.random.default_rng(0)
    theirs, ours = (jnp.asarray(rng.normal(0, 1e-2, 8), jnp.float32) for _ in range(2))
    right = np.asarray(ours - ours.mean()) - np.asarray(theirs - theirs.mean())
    for temperature in (1.0, 2.0, 5.0):
        got = jax.grad(lambda x, t=temperature: divergence(theirs, x, t))(ours)
        # Terms of second order are a hundredth of the first.
        assert np.linalg.norm(got - right / 8) < 0.05 * np.linalg.norm(right / 8)


def test_equal_distributions_do_not_diverge():
    x = jnp.asarray(np.random.default_rng(1).normal(0, 3, (4, 9)), jnp.float32)
    np.testing.assert_array_equal(divergence(x, x, 2.0), np.zeros(4))
    # The softmax ignores what is the same for all classes.
    np.testing.assert_allclose(divergence(x, x + 3, 2.0), np.zeros(4), atol=1e-5)


def test_cosine():
    a = jnp.asarray([[3.0, 4.0], [1.0, 0.0], [1.0, 1.0], [0.0, 0.0]])
    b = jnp.asarray([[6.0, 8.0], [0.0, 2.0], [-2.0, -2.0], [1.0, 1.0]])
    np.testing.assert_allclose(cosine(a, b), [1, 0, -1, 0], atol=1e-6)
    gradient = jax.grad(lambda x: jnp.sum(cosine(x, b)))(a)
    assert np.isfinite(gradient).all()


# --------------------------------------------------------------------------------------- losses


def outputs() -> dict[str, dict[str, np.ndarray]]:
    rng = np.random.default_rng(4)
    draw = lambda n: rng.normal(0, 2, (ROWS, LENGTH, n)).astype(np.float32)  # noqa: E731
    return {part: {"logits": draw(VOCAB), "hidden": draw(WIDTH)} for part in ("student", "teacher")}


def losses(given, objective=OBJECTIVE, key=None, seen=None):
    """What the objective makes of given outputs of the two models; and the batch."""
    task = task_of(objective)
    rows = example_rows(SPECIAL, VOCAB, count=ROWS, length=LENGTH)
    batch = task.objective.corrupt(
        KEY, jnp.int32(0), {name: jnp.asarray(x) for name, x in rows.items()}
    )

    def apply(variables, ids, *, part, **inputs):
        if seen is not None:
            seen[part] = {"ids": ids, **inputs}
        return {name: jnp.asarray(x) for name, x in given[part].items()}

    (stage,) = task.objective.stages
    sums = stage.loss(apply, {}, batch, key, {})
    return jax.tree.map(np.asarray, sums), jax.tree.map(np.asarray, dict(batch))


def softmax(x):
    return np.exp(x) / np.exp(x).sum()


def test_the_three_losses_against_loops():
    given = outputs()
    sums, batch = losses(given)
    (ours, hidden), (theirs, right_hidden) = (
        [given[part][n].astype(np.float64) for n in ("logits", "hidden")]
        for part in ("student", "teacher")
    )
    for row in range(ROWS):
        soft = angle = agree = hard = hits = 0.0
        real = [t for t in range(LENGTH) if batch["segment_ids"][row, t]]
        for t in real:
            p, q = softmax(theirs[row, t] / 2), softmax(ours[row, t] / 2)
            soft += 4 * (p * np.log(p / q)).sum()
            a, b = hidden[row, t], right_hidden[row, t]
            angle += 1 - a @ b / np.sqrt((a @ a) * (b @ b))
            agree += theirs[row, t].argmax() == ours[row, t].argmax()
        for place, target, weight in zip(
            *(batch[n][row] for n in ("positions", "targets", "weights")), strict=True
        ):
            hard -= weight * np.log(softmax(ours[row, place])[target])
            hits += weight * (ours[row, place].argmax() == target)
        for name, value in {"soft_loss": soft, "cosine_loss": angle, "agreement": agree}.items():
            # Sums of ten float32 numbers.
            np.testing.assert_allclose(sums[name][0][row], value, rtol=1e-5, err_msg=name)
            assert sums[name][1][row] == len(real)  # special tokens too
        np.testing.assert_allclose(sums["loss"][0][row], hard, rtol=1e-5)
        assert sums["loss"][1][row] == batch["weights"][row].sum() > 0
        assert sums["accuracy"][0][row] == hits


def test_a_student_that_is_its_teacher_has_nothing_to_learn_from_it():
    given = outputs()
    sums, _ = losses({"student": given["teacher"], "teacher": given["teacher"]})
    np.testing.assert_array_equal(sums["soft_loss"][0], np.zeros(ROWS))
    # 1 - cos is rounded at 1e-7 for each of ten tokens.
    np.testing.assert_allclose(sums["cosine_loss"][0], np.zeros(ROWS), atol=2e-6)
    np.testing.assert_array_equal(sums["agreement"][0], sums["agreement"][1])
    assert (sums["loss"][0] > 0).all()


def test_both_read_the_masked_row_and_the_teacher_has_no_dropout():
    seen = {}
    _, batch = losses(outputs(), key=KEY, seen=seen)
    for part in ("student", "teacher"):
        np.testing.assert_array_equal(seen[part]["ids"], batch["input_ids"])
        assert seen[part]["positions"] is None and seen[part]["targets"] is None
    assert seen["student"]["deterministic"] is False
    assert seen["teacher"]["deterministic"] is True and seen["teacher"]["rngs"] is None


def test_widths_may_differ_without_the_cosine():
    objective = dataclasses.replace(OBJECTIVE, layers=(), frozen=(), cosine_weight=0.0)
    given = outputs()
    given["student"]["hidden"] = given["student"]["hidden"][..., :2]
    sums, _ = losses(given, objective)
    np.testing.assert_array_equal(sums["cosine_loss"][0], np.zeros(ROWS))
    narrow = dataclasses.replace(STUDENT, hidden_size=8)
    assert task_of(objective, student=narrow).model.config == narrow


# ----------------------------------------------------------------------------------- parameters


def test_the_defaults_are_distilbert_s():
    (stage,) = task_of().objective.stages
    assert stage.coefficients == {"soft_loss": 5.0, "loss": 2.0, "cosine_loss": 1.0}
    assert DistillationObjective("x").temperature == 2.0


def test_only_the_student_is_trained_and_not_its_positions():
    task = task_of()
    (stage,) = task.objective.stages
    shapes = jax.eval_shape(task.init, KEY)
    trained, frozen = (set(by_path(part)) for part in select(shapes, stage.trains))
    positions = "student/encoder/embeddings/position/embedding"
    teacher = {path for path in by_path(shapes) if path.startswith("teacher/")}
    assert frozen == teacher | {positions}
    assert all(path.startswith("student/") for path in trained)
    free = task_of(dataclasses.replace(OBJECTIVE, frozen=())).objective.stages[0]
    assert positions in by_path(select(shapes, free.trains)[0])


def test_start_takes_over_tables_head_and_the_chosen_layers():
    model = MaskedLM(TEACHER)
    rng = np.random.default_rng(5)
    shapes = jax.eval_shape(model.init, KEY)["params"]
    trained = jax.tree.map(lambda x: rng.normal(0, 1, x.shape).astype(np.float32), shapes)
    task = task_of(load=lambda: trained)
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(task.init, KEY))
    params = task.start(zeros)
    theirs = by_path(trained)
    for path, leaf in by_path(params["teacher"]).items():
        np.testing.assert_array_equal(leaf, theirs[path])
    student = by_path(task.extract(params))
    assert theirs.keys() - student.keys() == {"encoder/embeddings/type/embedding"}
    for path, leaf in student.items():
        right = theirs[path][[0, 2]] if "/layers/" in path else theirs[path]
        np.testing.assert_array_equal(leaf, right)
    at_random = task_of(dataclasses.replace(OBJECTIVE, layers=(), frozen=()), load=lambda: trained)
    started = at_random.start(zeros)
    assert not any(np.any(leaf) for leaf in by_path(started["student"]).values())
    np.testing.assert_array_equal(
        by_path(started["teacher"])["head_dense/kernel"], theirs["head_dense/kernel"]
    )
    inserted = task.insert(zeros["student"], params)
    assert not any(np.any(leaf) for leaf in by_path(inserted["student"]).values())
    assert inserted["teacher"] is params["teacher"]


def test_a_teacher_out_of_a_hugging_face_directory():
    """BERT of three layers teaches one of two; what is loaded is what import gives."""
    source = str(PARITY / "bert_mlm")
    config, _ = trained_model(source)
    student = dataclasses.replace(
        config, num_layers=2, type_vocab_size=0, dropout=Dropout(0.0, 0.0)
    )
    objective = DistillationObjective(source, (0, 2), ("encoder/embeddings/position",))
    setting = Setting(student, Masking(), SPECIAL, config.vocab_size, trained=trained_model)
    task = objective.task(setting)
    shapes = jax.eval_shape(task.init, KEY)
    params = task.start(jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes))
    loaded = by_path(huggingface.import_hf(source, model=MaskedLM).params)
    for path, leaf in by_path(params["teacher"]).items():
        np.testing.assert_array_equal(leaf, loaded[path])
    kernel = "encoder/layers/query/kernel"
    np.testing.assert_array_equal(
        by_path(params["student"])[kernel], np.asarray(loaded[kernel])[[0, 2]]
    )


def test_a_teacher_without_a_vocabulary_head_is_refused():
    source = str(PARITY / "electra_discriminator")
    config, load = trained_model(source)
    with pytest.raises(ValueError, match="has no trained vocabulary head"):
        load()
    assert config.hidden_size


def test_the_teacher_costs_a_forward_pass():
    rows = 3
    whole = lambda c: forward_flops(c, LENGTH) + LENGTH * head_flops(c)  # noqa: E731
    assert task_of().flops(rows, LENGTH) == rows * (3 * whole(STUDENT) + whole(TEACHER))


@pytest.mark.parametrize(
    ("changes", "student", "message"),
    [
        (
            {},
            {"vocab_size": 21},
            "model.vocab_size is 21 and the teacher somewhere has 20 entries; distillation "
            "compares distributions over one vocabulary: set --model.vocab-size 20.",
        ),
        (
            {},
            {"hidden_size": 8},
            "model.hidden_size is 8 and the teacher somewhere is 16 wide; the cosine of their "
            "states needs equal widths: set --objective.cosine-weight 0, or the width.",
        ),
        (
            {"layers": (0,)},
            {},
            "objective.layers names 1 layers of the teacher and the student has 2; name one for "
            "each.",
        ),
    ],
)
def test_what_does_not_fit_is_refused(changes, student, message):
    with pytest.raises(ValueError) as caught:
        task_of(dataclasses.replace(OBJECTIVE, **changes), dataclasses.replace(STUDENT, **student))
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"temperature": 0.0}, "objective.temperature is 0.0; it must be positive."),
        ({"hard_weight": -1.0}, "objective.hard_weight is -1.0; it is 0 or more."),
    ],
)
def test_settings_out_of_range(changes, message):
    with pytest.raises(ValueError) as caught:
        dataclasses.replace(OBJECTIVE, **changes)
    assert str(caught.value) == message


def test_nothing_random_is_frozen():
    with pytest.raises(ValueError, match="what is frozen would stay at random"):
        DistillationObjective("x", frozen=("encoder/embeddings/position",))

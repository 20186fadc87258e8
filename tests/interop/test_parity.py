"""The comparison with a reference: passes where it should, and sees a fault."""

import dataclasses
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.interop import import_hf
from bert_jax.interop.parity import Check, ParityReport, parity, read_reference
from bert_jax.models.config import EncoderConfig
from bert_jax.models.model import EncoderModel
from bert_jax.models.task_heads import MultipleChoice, SequenceClassifier

PARITY = Path(__file__).parents[1] / "data" / "parity"


@pytest.fixture(scope="module")
def bert():
    return import_hf(PARITY / "bert_mlm"), read_reference(PARITY / "bert_mlm" / "reference.npz")


def test_a_reference_of_transformers_is_met(bert):
    report = parity(*bert)
    assert [check.name.partition(",")[0] for check in report.checks] == [
        "logits",
        "embeddings",
        "last_hidden_state",
        "loss",
        "gradient norms of 58 parameters",
    ]
    assert report.passed and report.left_out == ()
    # float32 rounding, far below the bounds.
    assert all(check.error < check.bound / 10 for check in report.checks)


def test_names_without_a_prefix_are_understood():
    directory = PARITY / "sapiens_vh"
    report = parity(import_hf(directory), read_reference(directory / "reference.npz"))
    assert report.passed and len(report.checks) == 3


@pytest.mark.parametrize(
    ("name", "change", "failing"),
    [
        ("out.logits", lambda x: x + 2e-4 * np.abs(x).max(), "logits"),
        ("out.loss", lambda x: x + 2e-4, "loss"),
        ("out.loss", lambda x: x * np.nan, "loss"),
        ("out.embeddings", lambda x: x * np.nan, "embeddings"),
        ("gradnorm.cls.predictions.bias", lambda x: x * 1.002, "gradient"),
        ("gradnorm.cls.predictions.bias", lambda x: x * np.nan, "gradient"),
    ],
)
def test_a_number_out_of_its_bound_fails_alone(bert, name, change, failing):
    loaded, reference = bert
    report = parity(loaded, reference | {name: np.asarray(change(reference[name]))})
    assert not report.passed
    assert [check.name.split(",")[0].split()[0] for check in report.checks if not check.passed] == [
        failing
    ]
    assert "FAIL" in report.table()


def test_padding_is_not_compared(bert):
    loaded, reference = bert
    mask = reference["in.attention_mask"] != 0
    spoiled = np.where(mask[..., None], reference["out.logits"], 1e6)
    assert parity(loaded, reference | {"out.logits": spoiled}).passed


def test_a_parameter_that_was_turned_is_seen(bert):
    loaded, reference = bert
    layers = loaded.params["encoder"]["layers"]
    turned = {**layers, "query": {**layers["query"], "kernel": layers["query"]["kernel"].mT}}
    params = {**loaded.params, "encoder": {**loaded.params["encoder"], "layers": turned}}
    report = parity(dataclasses.replace(loaded, params=params), reference)
    failed = [check.name for check in report.checks if not check.passed]
    assert len(failed) == 4  # all but the embeddings


def test_what_the_model_does_not_give_is_told(bert):
    _, reference = bert
    encoder = import_hf(PARITY / "bert_mlm", model=EncoderModel)
    small = {k: v for k, v in reference.items() if not k.startswith(("label.", "gradnorm."))}
    report = parity(encoder, small)
    assert report.passed
    assert report.left_out == ("out.logits", "out.loss (the reference holds no labels)")
    assert "not compared: out.logits" in report.table()
    with pytest.raises(ValueError, match="EncoderModel has none in transformers"):
        parity(encoder, reference)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"in.input_ids": None}, r"holds no in\.input_ids"),
        ({"in.inputs_embeds": np.zeros((3, 17, 48))}, "the inputs inputs_embeds, which no model"),
        ({"out.logits": np.zeros((3, 17, 96), np.float32)}, r"out\.logits has the shape \(3, 17"),
    ],
)
def test_a_reference_of_something_else_is_refused(bert, change, message):
    loaded, reference = bert
    changed = {k: v for k, v in (reference | change).items() if v is not None}
    with pytest.raises(ValueError, match=message):
        parity(loaded, changed)


def test_nothing_compared_is_not_a_pass():
    assert not ParityReport(()).passed
    assert ParityReport((Check("x", 0.1, 0.2),)).passed
    assert not ParityReport((Check("x", float("nan"), 0.2),)).passed


def test_losses_of_closed_form(monkeypatch):
    """Each head's loss against numpy, on logits given by hand."""
    from bert_jax.interop import parity as module
    from bert_jax.models import heads, task_heads

    rng = np.random.default_rng(0)
    config = EncoderConfig(vocab_size=8, hidden_size=4, num_layers=1, num_heads=1)
    inputs = {"input_ids": np.ones((2, 5), np.int32)}
    inputs["attention_mask"] = np.array([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]], np.int32)

    def loss(kind, outputs, labels, **arguments):
        model = kind(config, **arguments)
        given = {name: jnp.asarray(value, jnp.float32) for name, value in outputs.items()}
        monkeypatch.setattr(kind, "apply", lambda *_, **__: given)
        return float(module._total_loss(model, {}, inputs, labels))

    def nll(logits, label):
        return np.log(np.exp(logits).sum()) - logits[label]

    tokens, pair = rng.normal(size=(2, 5, 8)), rng.normal(size=(2, 2))
    labels = np.full((2, 5), -100)
    labels[0, 1], labels[1, 0] = 3, 7
    masked = (nll(tokens[0, 1], 3) + nll(tokens[1, 0], 7)) / 2
    order = (nll(pair[0], 1) + nll(pair[1], 0)) / 2
    starts, ends = rng.normal(size=(2, 5)), rng.normal(size=(2, 5))
    scores = rng.normal(size=(2, 1))
    replaced = np.array([[1, 0, 0, 1, 0], [0, 1, 1, 1, 1]])
    signed = np.where(replaced == 1, -starts, starts)[inputs["attention_mask"] == 1]
    found = [
        (loss(heads.MaskedLM, {"logits": tokens}, {"labels": labels}), masked),
        (
            loss(
                heads.PreTraining,
                {"logits": tokens, "pair_logits": pair},
                {"labels": labels, "sentence_order_label": np.array([1, 0])},
            ),
            masked + order,
        ),
        (
            loss(
                task_heads.SpanExtractor,
                {"start_logits": starts, "end_logits": ends},
                # The second answer ends behind the row: it is not counted.
                {"start_positions": np.array([2, 0]), "end_positions": np.array([3, 5])},
            ),
            ((nll(starts[0], 2) + nll(starts[1], 0)) / 2 + nll(ends[0], 3)) / 2,
        ),
        (
            loss(heads.ReplacedTokenDetector, {"logits": starts}, {"labels": replaced}),
            np.log1p(np.exp(signed)).mean(),
        ),
        (
            loss(
                task_heads.SequenceClassifier,
                {"logits": scores},
                {"labels": np.array([0.5, 2.0])},
                num_labels=1,
            ),
            ((scores[:, 0] - [0.5, 2.0]) ** 2).mean(),
        ),
        (
            loss(task_heads.MultipleChoice, {"logits": pair[:1]}, {"labels": np.array([1])}),
            nll(pair[0], 1),
        ),
    ]
    for ours, expected in found:
        assert ours == pytest.approx(expected, rel=1e-6)  # float32


def drawn(model, case):
    """The model of a fixture's family with drawn parameters, as if imported."""
    loaded = import_hf(PARITY / case, model=type(model))
    params = jax.jit(model.init)(jax.random.key(0))["params"]
    return dataclasses.replace(loaded, model=model, params=params)


def test_the_number_of_choices_is_that_of_the_reference(bert):
    """config.json does not say it; three choices of two questions here."""
    model = MultipleChoice(bert[0].model.config, num_choices=3)
    ids = np.arange(24, dtype=np.int32).reshape(2, 3, 4) + 5
    loaded = drawn(model, "bert_mlm")
    logits = model.apply({"params": loaded.params}, ids.reshape(6, 4))["logits"]
    as_read = dataclasses.replace(loaded, model=model.clone(num_choices=2))
    report = parity(as_read, {"in.input_ids": ids, "out.logits": np.asarray(logits)})
    assert report.passed and logits.shape == (2, 3)


def test_scores_without_their_axis_are_compared():
    """transformers' DeBERTa drops it when labels are given."""
    config = import_hf(PARITY / "deberta_v3_classify").model.config
    loaded = drawn(SequenceClassifier(config, num_labels=1), "deberta_v3_mlm")
    ids = np.arange(8, dtype=np.int32).reshape(2, 4) + 5
    scores = np.asarray(loaded.model.apply({"params": loaded.params}, ids)["logits"])[:, 0]
    assert parity(loaded, {"in.input_ids": ids, "out.logits": scores}).passed
    assert not parity(loaded, {"in.input_ids": ids, "out.logits": scores + 1}).passed


def test_positions_of_a_reference_are_rows_of_the_table():
    """RoBERTa's first position is row pad + 1 there, and 0 here."""
    loaded = import_hf(PARITY / "roberta_mlm")
    reference = read_reference(PARITY / "roberta_mlm" / "reference.npz")
    mask = reference["in.attention_mask"]
    places = np.cumsum(mask, axis=1) - 1
    rows = np.maximum(places, 0) + loaded.model.config.pad_id + 1
    few = {name: reference[name] for name in ("in.input_ids", "in.attention_mask", "out.logits")}
    assert parity(loaded, few | {"in.position_ids": rows}).passed
    assert not parity(loaded, few | {"in.position_ids": rows + 1}).passed

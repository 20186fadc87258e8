"""Fidelity: every recipe against what its sources say; and the checks see what is wrong."""

import dataclasses
from typing import Any

import pytest

from bert_jax.models.config import Normal, TruncatedNormal
from bert_jax.recipes import checks, list_recipes, published
from bert_jax.recipes.checks import check, checked_recipes, table
from bert_jax.recipes.checks.findings import Finding, close, equal, within
from bert_jax.train.optimizer import AdamW, Lamb
from bert_jax.train.schedule import Constant, Linear

pytestmark = pytest.mark.sweep

# One of each optimizer and way of masking; the others are run with the slow tests.
KINDS = (
    "bert-base",
    "roberta-base",
    "albert-base-v1",
    "electra-small-owt",
    "deberta-v3-base",
    "modernbert-base",
)
REST = tuple(name for name in list_recipes() if name not in KINDS)


def test_every_recipe_has_expectations():
    assert checked_recipes() == list_recipes()


@pytest.mark.parametrize("name", [*KINDS, *(pytest.param(n, marks=pytest.mark.slow) for n in REST)])
def test_fidelity(name):
    found = check(name)
    assert len(found) >= 25
    failed = [finding for finding in found if not finding.passed]
    assert not failed, f"\n{table(failed)}"


def _optimizer(**changes: Any):
    return lambda e: dataclasses.replace(e, optimizer=dataclasses.replace(e.optimizer, **changes))


def _masking(**changes: Any):
    return lambda e: dataclasses.replace(e, masking=dataclasses.replace(e.masking, **changes))


def _model(**changes: Any):
    return lambda e: dataclasses.replace(e, model=dataclasses.replace(e.model, **changes))


def _norm(**changes: Any):
    return lambda e: _model(norm=dataclasses.replace(e.model.norm, **changes))(e)


# A recipe with one mistake, and the finding that must fail for it. The first list has one of
# most kinds of finding; the second runs with the slow tests.
WRONG = [
    (
        "bert-base",
        "updates",
        lambda e: dataclasses.replace(e, optimizer=AdamW(1e-4, b2=0.999, eps=1e-6)),
    ),
    ("bert-base", "decayed", _optimizer(decay="all")),
    ("bert-base", "bound of the gradient", _optimizer(clip_norm=None)),
    (
        "bert-base",
        "learning rate at 10,000",
        lambda e: dataclasses.replace(e, schedule=Linear(1e4)),
    ),
    ("bert-base", "steps", lambda e: dataclasses.replace(e, steps=1_000_000)),
    ("bert-base", "predictions a row", _masking(rate=0.3)),
    ("bert-base", "[CLS] or [SEP]", _masking(candidates="all")),
    ("bert-base", "to [MASK]", _masking(mask_prob=0.9)),
    ("bert-base", "range of random", _masking(random_ids=None)),
    ("bert-base", "norm", _norm(placement="pre")),
    ("bert-base", "initial std", _model(initializer=Normal(0.02))),
    ("bert-base", "parameters", _model(type_vocab_size=0)),
    ("electra-small-owt", "different positions", _masking(with_replacement=False)),
    ("deberta-v3-base", "last position", _masking(windowed=False)),
    ("modernbert-base:2", "updates", _optimizer(max_learning_rate=None)),
    ("modernbert-base", "rows of step", lambda e: dataclasses.replace(e, batch_warmup=None)),
]
MORE = [
    ("bert-base", "updates", lambda e: dataclasses.replace(e, optimizer=Lamb(1e-4))),
    ("bert-base", "updates", _optimizer(b2=0.98)),
    ("bert-base", "updates", _optimizer(eps=1e-8)),
    ("bert-base", "updates", _optimizer(weight_decay=0.1)),
    ("bert-base", "whose gradient", _optimizer(clip="global")),
    ("bert-base", "learning rate at 5,000", lambda e: dataclasses.replace(e, schedule=Constant())),
    ("bert-base", "predictions a row", _masking(count_base="maskable", rate=0.14)),
    ("bert-base", "epsilon", _norm(eps=1e-5)),
    ("bert-base", "activation", _model(activation="gelu")),
    ("roberta-base", "[CLS] or [SEP]", _masking(candidates="text")),
    (
        "roberta-base",
        "updates, small",
        lambda e: dataclasses.replace(e, optimizer=AdamW(6e-4, 0.9, 0.98, 1e-6, 0.01, "all", None)),
    ),
    ("modernbert-base", "updates", _optimizer(tensors="separate")),
    ("modernbert-base", "first attention", _norm(skip_first=False)),
    ("modernbert-base", "initial std of attention_out", _model(initializer=TruncatedNormal(0.02))),
]


@pytest.mark.parametrize(
    ("name", "seen", "change"),
    [*WRONG, *(pytest.param(*case, marks=pytest.mark.slow) for case in MORE)],
    ids=lambda value: str(value)[:24],
)
def test_what_is_wrong_is_seen(name, seen, change, monkeypatch):
    base, _, number = name.partition(":")
    right = published(base)
    at = int(number or 1) - 1
    phases = (*right.phases[:at], change(right.phases[at]), *right.phases[at + 1 :])
    wrong = dataclasses.replace(right, phases=phases)
    monkeypatch.setattr(checks, "published", lambda _: wrong)
    failed = [finding.name for finding in check(base) if not finding.passed]
    assert any(seen in one for one in failed), failed


def test_findings():
    assert equal("a", 1_000, 1_000) == Finding("a", "1,000", "1,000", True)
    assert not equal("a", True, False).passed
    assert close("a", 2.0, 2.01, 0.01).passed and not close("a", 2.0, 2.03, 0.01).passed
    assert within("a", 0.0, 0.09, 0.1).passed and not within("a", 0.0, -0.11, 0.1).passed
    text = table([equal("one", 1, 1), equal("another", 1, 2)])
    assert text == "ok    one      1\nFAIL  another  2; expected 1"
    assert table([]) == ""


def test_a_recipe_that_is_not_there():
    with pytest.raises(
        ValueError, match="no recipe is called 'bert-bse'; did you mean 'bert-base'"
    ):
        check("bert-bse")

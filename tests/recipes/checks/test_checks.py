"""Fidelity: every recipe against what its sources say; and the checks see what is wrong."""

import dataclasses
from typing import Any

import pytest

from bert_jax.data.pairs import Pairs
from bert_jax.models import embeddings, heads, layer
from bert_jax.models.config import (
    DisentangledPositions,
    GlobalAttention,
    LocalAttention,
    NoPositions,
    Normal,
    Pooler,
    TruncatedNormal,
    VocabularyHead,
)
from bert_jax.models.layers import Dense, Table, norm_layer
from bert_jax.objectives.masked_lm import MaskedLmObjective
from bert_jax.objectives.masking import Masking
from bert_jax.recipes import checks, list_recipes, published
from bert_jax.recipes.checks import check, checked_recipes, initial, shape, table
from bert_jax.recipes.checks.expected import EXPECTED
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
    assert len(found) >= 55
    failed = [finding for finding in found if not finding.passed]
    assert not failed, f"\n{table(failed)}"


def _optimizer(**changes: Any):
    return lambda e: dataclasses.replace(e, optimizer=dataclasses.replace(e.optimizer, **changes))


def _masking(**changes: Any):
    return lambda e: dataclasses.replace(e, masking=dataclasses.replace(e.masking, **changes))


def _model(**changes: Any):
    return lambda e: dataclasses.replace(e, model=dataclasses.replace(e.model, **changes))


def _packing(**changes: Any):
    return lambda e: dataclasses.replace(e, packing=dataclasses.replace(e.packing, **changes))


def _objective(**changes: Any):
    return lambda e: dataclasses.replace(e, objective=dataclasses.replace(e.objective, **changes))


def _of(**changes: Any):
    return lambda e: dataclasses.replace(e, **changes)


def _dropout(**changes: Any):
    return lambda e: _model(dropout=dataclasses.replace(e.model.dropout, **changes))(e)


def _heads(**changes: Any):
    return lambda e: _model(heads=dataclasses.replace(e.model.heads, **changes))(e)


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
    ("bert-base", "norm", _norm(placement="pre")),
    ("bert-base", "initial std", _model(initializer=Normal(0.02))),
    ("bert-base", "parameters", _model(type_vocab_size=0)),
    ("electra-small-owt", "different positions", _masking(with_replacement=False)),
    ("deberta-v3-base", "last position", _masking(windowed=False)),
    ("modernbert-base:2", "updates", _optimizer(max_learning_rate=None)),
    ("modernbert-base", "rows of step", lambda e: dataclasses.replace(e, batch_warmup=None)),
    ("bert-base", "[UNK] predicted", _masking(candidates="text")),
    ("bert-base", "predictions in 24 tokens", _masking(count_base="maskable")),
    ("bert-base", "second segments other", _packing(kind="order_or_next")),
    ("bert-base", "losses", _objective(pair_weight=0.5)),
    ("bert-base", "epsilon", _norm(eps=1e-5)),
    ("bert-base:2", "the model and objective before", _objective(pair_weight=0.5)),
    ("roberta-base", "attention between documents", _packing(attend="document")),
    ("electra-small-owt", "samples of a token", _objective(temperature=2.0)),
    ("electra-small-owt", "initial bound of projection", _model(initializer=TruncatedNormal(0.02))),
    ("modernbert-base", "held out: share predicted", _of(eval_masking=None)),
]
MORE = [
    ("bert-base", "to [MASK]", _masking(mask_prob=0.9)),
    ("bert-base", "range of random", _masking(random_ids=None)),
    ("bert-base", "updates", lambda e: dataclasses.replace(e, optimizer=Lamb(1e-4))),
    ("bert-base", "updates", _optimizer(b2=0.98)),
    ("bert-base", "updates", _optimizer(eps=1e-8)),
    ("bert-base", "updates", _optimizer(weight_decay=0.1)),
    ("bert-base", "whose gradient", _optimizer(clip="global")),
    ("bert-base", "learning rate at 5,000", lambda e: dataclasses.replace(e, schedule=Constant())),
    ("bert-base", "predictions a row", _masking(count_base="maskable", rate=0.14)),
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
    # what is selected, and how many
    ("albert-base-v1", "[UNK] predicted", _masking(candidates="text")),
    ("albert-base-v1", "predictions in 24 tokens", _masking(count_base="maskable")),
    ("albert-base-v1", "words predicted whole", _masking(unit="token")),
    ("albert-base-v1", "words with the next one", _masking(unit="word")),
    ("albert-base-v1", "words with the next one", _masking(max_ngram=2)),
    ("bert-base-wwm", "words predicted whole", _masking(unit="token")),
    ("bert-base", "words predicted whole", _masking(unit="word")),
    ("bert-base", "share predicted", _masking(final_rate=0.3)),
    ("bert-base", "tokens with the next one", _masking(unit="span")),
    ("distilbert-base", "predictions in 28 tokens", _masking(count="fixed")),
    ("distilbert-base", "chance of a rare token", _masking(frequency_power=0.0)),
    ("distilbert-base", "predictions in 28 tokens", _masking(count_base="maskable")),
    ("electra-small-owt", "[UNK] predicted", _masking(candidates="text")),
    ("electra-small-owt", "[MASK] predicted", _masking(candidates="all")),
    ("electra-small-owt", "predictions in 24 tokens", _masking(count_base="maskable")),
    ("electra-large", "predictions in 28 tokens", _masking(count_base="maskable")),
    ("deberta-v3-base", "[UNK] predicted", _masking(candidates="text_and_unk")),
    ("deberta-v3-base", "predictions in 24 tokens", _masking(candidates="text_and_unk")),
    ("deberta-v3-base", "predictions in 28 tokens", _masking(count_base="maskable")),
    ("modernbert-base", "[UNK] predicted", _masking(candidates="text")),
    ("ettin-17m", "[UNK] predicted", _masking(candidates="text_and_unk")),
    ("neobert", "predictions in 28 tokens", _masking(candidates="text_and_unk")),
    # held-out rows
    ("bert-base", "held out: masking", _of(eval_masking=Masking(rate=0.2))),
    ("mosaicbert-base", "held out: share predicted", _of(eval_masking=Masking(rate=0.3))),
    ("modernbert-base:3", "held out: share predicted", _of(eval_masking=None)),
    ("crammed-bert", "held out: [UNK] predicted", _of(eval_masking=Masking())),
    # rows
    ("bert-base", "labels of second segments", _packing(kind="contiguous")),
    ("bert-base", "second segment to one sentence", _packing(kind="order")),
    ("bert-base", "documents in short rows", _packing(short_prob=0.05)),
    ("bert-base", "copies of the corpus", _packing(copies=5)),
    ("bert-base", "masks of a pair", _packing(masks="fresh")),
    ("albert-base-v1", "second segments before", _packing(kind="next")),
    ("albert-base-v1", "second segment to one sentence", _packing(kind="order")),
    ("electra-small-owt", "second segments none", _packing(single_prob=0.0)),
    ("electra-small-owt", "documents in short rows", _packing(short_prob=0.1)),
    ("electra-small-owt", "masks of a pair", _packing(masks="fixed")),
    ("roberta-base", "rows end", _packing(mode="fill")),
    ("roberta-base", "several documents", _packing(mode="document")),
    ("roberta-base", "rows", _of(packing=Pairs(seq_length=512))),
    ("deberta-v3-base", "attention between documents", _packing(attend="document")),
    ("modernbert-base", "attention between documents", _packing(attend="row")),
    ("modernbert-base:2", "attention between documents", _packing(attend="row")),
    ("ettin-17m", "several documents", _packing(mode="fill")),
    ("mosaicbert-base", "ends of documents lost", _packing(mode="document")),
    ("distilbert-base", "ends of documents lost", _packing(mode="truncate")),
    # objectives
    ("bert-base", "losses", _of(objective=MaskedLmObjective())),
    ("distilbert-base", "losses", _objective(soft_weight=1.0)),
    ("distilbert-base", "losses", _objective(cosine_weight=0.0)),
    ("distilbert-base", "loss of a distribution", _objective(temperature=1.0)),
    ("distilbert-base", "parameters of the student that stay", _objective(frozen=())),
    ("distilbert-base", "layers of the teacher", _objective(layers=(0, 2, 4, 6, 8, 10))),
    ("electra-small-owt", "losses", _objective(generator_weight=2.0)),
    ("electra-small-owt", "losses", _objective(discriminator_weight=10.0)),
    ("electra-small-owt", "generator: embeddings", _objective(sharing="none")),
    ("electra-small-owt", "initial bound of projection", _objective(sharing="none")),
    ("electra-small-owt", "generator: parameters", _objective(generator_width=0.5)),
    ("electra-small-owt", "generator: parameters", _objective(generator_depth=0.5)),
    ("electra-small-owt", "generator: parameters decayed", _optimizer(decay="all")),
    ("electra-base", "generator: initial bound", _model(initializer=TruncatedNormal(0.02))),
    ("deberta-v3-base", "losses", _objective(discriminator_weight=50.0)),
    ("deberta-v3-base", "stages of a step", _objective(sharing="tied")),
    ("deberta-v3-base", "generator: embeddings", _objective(sharing="none")),
    ("deberta-v3-base", "generator: decoder", _objective(generator_decoder="none")),
    ("deberta-v3-base", "generator: parameters", _objective(generator_decoder="none")),
    # the model
    ("albert-base-v1", "parameters", _model(embedding_size=None)),
    ("bert-base", "heads", _model(num_heads=16)),
    ("bert-base", "attention", _model(attention=GlobalAttention("left"))),
    ("bert-base", "pooler", _heads(pooler=Pooler(activation="gelu"))),
    ("bert-base", "the vocabulary's head", _heads(vocabulary=VocabularyHead(activation="gelu"))),
    ("modernbert-base", "attention", _model(attention=LocalAttention(window=256))),
    ("mosaicbert-base", "positions", _model(positions=NoPositions(512))),
    ("deberta-v3-base", "positions", _model(positions=DisentangledPositions(max_distance=256))),
    ("electra-small-owt", "initial bound of detector", _model(initializer=Normal(0.02))),
    ("mosaicbert-base", "dropout", _dropout(mlp_inner=0.0)),
    ("neobert", "epsilon", _norm(eps=1e-6)),
    ("deberta-v3-base", "epsilon", _norm(eps=1e-12)),
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


def _drawn(make, **wrong: Any):
    """``make``, a module's class, with other values for some fields."""

    names = [field.name for field in dataclasses.fields(make)]

    def wrongly(*arguments: Any, **more: Any):
        return make(**dict(zip(names, arguments, strict=False)) | more | wrong)

    return wrongly


THIN, WIDE = {"initializer": TruncatedNormal(0.003)}, {"initializer": Normal(0.04)}


def _larger(norm, name=None):
    """A norm with another epsilon than the config's."""
    return norm_layer(dataclasses.replace(norm, eps=1e-6), name)


def _slow(*case: Any):
    return pytest.param(*case, marks=pytest.mark.slow)


# A mistake in the code, not the recipe: where it is, what stands there, and what must fail for it.
@pytest.mark.parametrize(
    ("name", "seen", "module", "attribute", "wrong"),
    [
        ("bert-base", "last norm", layer, "norm_layer", _larger),
        ("modernbert-base", "initial std of head_dense", heads, "Dense", _drawn(Dense, **THIN)),
        ("roberta-base", "padding's embedding", embeddings, "Table", _drawn(Table, zero_row=None)),
        _slow("neobert", "initial std of decoder", heads, "Table", _drawn(Table, **WIDE)),
        _slow("bert-base", "initial std of position", embeddings, "Table", _drawn(Table, **WIDE)),
        _slow("bert-base", "initial std of type", embeddings, "Table", _drawn(Table, **WIDE)),
        _slow("albert-base-v1", "std of projection", embeddings, "Dense", _drawn(Dense, **WIDE)),
        _slow("bert-base", "initial std of mlp_out", layer, "Dense", _drawn(Dense, **THIN)),
    ],
    ids=lambda value: str(value)[:24] if isinstance(value, str) else "",
)
def test_wrong_code_is_seen(name, seen, module, attribute, wrong, monkeypatch):
    cached = (initial._drawn, initial._map, shape._shares, shape._program, shape._init)
    for function in cached:
        function.cache_clear()
    monkeypatch.setattr(module, attribute, wrong)
    phase, expected = published(name).phases[0], EXPECTED[name]
    found = initial.check_start(phase, expected) + shape.check_shape(phase, expected.shape)
    for function in cached:
        function.cache_clear()
    failed = [finding.name for finding in found if not finding.passed]
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

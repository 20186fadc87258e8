"""Experiments as files, options, flat dicts and config.json."""

import dataclasses
import itertools
import json
from typing import Any

import hypothesis
import hypothesis.strategies as st
import pytest

from bert_jax import flat as nested
from bert_jax.config import (
    ABSENT,
    NO_NUMBERS,
    diff,
    digest,
    flatten,
    format_flat,
    override,
    unflatten,
)
from bert_jax.data.batch_size import BatchWarmup
from bert_jax.data.packing import Packing
from bert_jax.data.pairs import Pairs
from bert_jax.experiment import Carry, Checkpoints, Evaluation, Experiment, Logging
from bert_jax.models.config import (
    Biases,
    Convolution,
    DisentangledPositions,
    Dropout,
    EncoderConfig,
    Execution,
    Heads,
    LayerSharing,
    LearnedPositions,
    LocalAttention,
    Norm,
    Normal,
    Pooler,
    RotaryPositions,
    TruncatedNormal,
    VocabularyHead,
)
from bert_jax.objectives.masking import Masking
from bert_jax.objectives.replaced_tokens import ReplacedTokensObjective
from bert_jax.parallel.mesh import MeshShape
from bert_jax.train.optimizer import AdamW, BertAdam
from bert_jax.train.schedule import Constant, Cosine, Linear, Trapezoid

MASKING = Masking(
    0.3, 0.7, 0.2, "word", "stochastic", "tokens", "all", 10, (5, 500), 2, 4.0, final_rate=0.1
)
PLAIN = Experiment(name="plain", model=EncoderConfig(vocab_size=1000))
# Differs from PLAIN in every field, and in the kind of every field that has kinds.
OTHER = Experiment(
    name="other",
    model=EncoderConfig(
        vocab_size=500,
        hidden_size=64,
        num_layers=2,
        num_heads=4,
        intermediate_size=96,
        embedding_size=32,
        embedding_projection="before_norm",
        type_vocab_size=2,
        positions=RotaryPositions(max_length=64, theta=500.0, local_theta=50.0),
        attention=LocalAttention(8, 2, "left"),
        norm=Norm("pre", 1e-5, "rms", False, True, True),
        activation="gelu_tanh",
        mlp="gated",
        biases=Biases("query_value", "none"),
        dropout=Dropout(0.0, 0.2, 0.3, 0.4, 0.5, 0.6),
        initializer=Normal(0.03),
        heads=Heads(
            VocabularyHead("none", "silu", False, "untied", False),
            Pooler("mean", "relu", False, "encoder", 0.1, 0.2, "transform"),
            "token_and_context",
        ),
        pad_id=1,
        compute_dtype="bfloat16",
        execution=Execution("scan", "full", "fast"),
    ),
    init_from="model",
    data="store",
    carry=Carry(4, "kept", "kept"),
    objective=ReplacedTokensObjective(0.5, 0.5, 32, "enhanced", "none", 2.0, 3.0, 10.0),
    masking=dataclasses.replace(MASKING, max_predictions=20),
    packing=Packing(32, "complete", "row"),
    batch_size=30,
    batch_warmup=BatchWarmup(10, 10, 500),
    microbatches=5,
    steps=17,
    seed=3,
    optimizer=AdamW(3e-4, 0.8, 0.98, 1e-6, 0.1, "all", None, "relative", 0.1),
    schedule=Trapezoid(5.0, 0.1, 4.0, "1-sqrt", 0.2),
    clock="tokens",
    total=99.0,
    gradient_dtype="bfloat16",
    max_skipped_steps=2,
    mesh=MeshShape(2, 2, 2),
    evaluation=Evaluation(7, 100),
    eval_masking=MASKING,
    checkpoints=Checkpoints(9, 4, 100),
    logging=Logging(1, "project"),
)

# What does not go with OTHER's axes.
THIRD = dataclasses.replace(
    PLAIN,
    model=EncoderConfig(
        1000,
        positions=DisentangledPositions(),
        convolution=Convolution(),
        heads=Heads(VocabularyHead(mask_decoder="enhanced")),
    ),
)
SHARED = dataclasses.replace(
    PLAIN,
    model=EncoderConfig(1000, sharing=LayerSharing(2, 2)),
    masking=Masking(random_prob=0.0, with_replacement=True),
    packing=Pairs(64),
)
BY_FREQUENCY = dataclasses.replace(
    PLAIN, masking=Masking(frequency_power=0.7), optimizer=BertAdam()
)
WINDOWED = dataclasses.replace(PLAIN, masking=Masking(windowed=True))


def fractions(low: float = 0.0, high: float = 1.0) -> st.SearchStrategy[float]:
    return st.floats(low, high, exclude_max=True)


def some(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | strategy


@st.composite
def maskings(draw: st.DrawFn) -> Masking:
    count = draw(st.sampled_from(["fixed", "stochastic", "bernoulli"]))
    low = draw(st.integers(0, 99))
    return Masking(
        rate=draw(fractions(0.01)),
        mask_prob=draw(fractions(0, 0.5)),
        random_prob=draw(fractions(0, 0.5)),
        unit=draw(st.sampled_from(["token", "word"])),
        count=count,
        count_base="maskable" if count == "bernoulli" else "tokens",
        candidates=draw(st.sampled_from(["text", "all"])),
        max_predictions=draw(some(st.integers(1, 99))),
        random_ids=draw(some(st.just((low, low + 7)))),
    )


@st.composite
def models(draw: st.DrawFn) -> EncoderConfig:
    heads = draw(st.integers(1, 16))
    length = draw(st.integers(64, 10_000))
    rotary = st.floats(1.5, 1e6).map(lambda theta: RotaryPositions(length, theta))
    learned = st.integers(0, 2).map(lambda offset: LearnedPositions(length, offset))
    kinds = st.sampled_from([TruncatedNormal, Normal])
    return EncoderConfig(
        vocab_size=draw(st.integers(10, 2**31)),
        hidden_size=heads * 2 * draw(st.integers(1, 50)),
        num_heads=heads,
        embedding_size=draw(some(st.integers(1, 99))),
        positions=draw(rotary | learned),
        norm=Norm(draw(st.sampled_from(["pre", "post"])), draw(fractions(1e-12))),
        dropout=Dropout(draw(fractions()), draw(fractions())),
        initializer=draw(kinds)(draw(fractions())),
        pad_id=draw(st.integers(0, 9)),
        execution=Execution(draw(st.sampled_from(["auto", "scan"])), "none"),
    )


@st.composite
def schedules(draw: st.DrawFn) -> Linear | Cosine | Constant | Trapezoid:
    warmup: dict[str, Any] = {
        "warmup": float(draw(st.integers(0, 99))),
        "warmup_from": draw(fractions()),
    }
    final = draw(fractions())
    kind = draw(st.sampled_from([Linear, Cosine, Constant, Trapezoid]))
    if kind is Constant:
        return Constant(**warmup)
    if kind is Trapezoid:
        return Trapezoid(**warmup, decay_length=float(draw(st.integers(0, 99))), final=final)
    return kind(**warmup, final=final)


@st.composite
def experiments(draw: st.DrawFn) -> Experiment:
    microbatches = draw(st.integers(1, 9))
    return Experiment(
        # As a word behind an option; `--name=--x` would do for others.
        name=draw(st.text().filter(lambda text: not text.startswith("-"))),
        model=draw(models()),
        data=draw(st.sampled_from(["synthetic", "stores/a b", "none", "None"])),
        masking=draw(maskings()),
        packing=Packing(draw(st.integers(3, 64)), draw(st.sampled_from(["fill", "document"]))),
        batch_size=microbatches * draw(st.integers(1, 99)),
        microbatches=microbatches,
        steps=draw(st.integers(1, 10**6)),
        optimizer=AdamW(draw(fractions(1e-9)), clip_norm=draw(some(fractions(0.1)))),
        schedule=draw(schedules()),
        mesh=MeshShape(draw(st.just(-1) | st.integers(1, 9))),
        evaluation=Evaluation(max_rows=draw(some(st.integers(1, 9)))),
        eval_masking=draw(some(maskings())),
        # None and "None" cannot be told apart on a command line.
        logging=Logging(3, draw(some(st.sampled_from(["project", "a b"])))),
    )


many = hypothesis.settings(max_examples=40, deadline=None)  # the machine may be busy


# --- flat dicts ----------------------------------------------------------------------------------


def test_a_field_of_several_kinds_has_an_entry_for_its_kind() -> None:
    flat = flatten(OTHER)
    assert flat["schedule"] == "trapezoid"
    assert flat["schedule.decay_length"] == 4
    assert flat["model.positions"] == "rotary"
    assert flat["model.initializer"] == "normal"
    assert flat["eval_masking"] == "masking"
    assert flatten(PLAIN)["eval_masking"] is None
    assert flatten(PLAIN)["model.initializer"] == "truncated-normal"
    assert flatten(PLAIN)["optimizer.learning_rate"] == 1e-4


def nested_to_flat(nested: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat = {}
    for name, value in nested.items():
        if isinstance(value, dict):
            flat |= nested_to_flat(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat


@many
@hypothesis.given(experiments())
def test_flat_names_and_values_are_those_of_the_nested_fields(experiment: Experiment) -> None:
    model = {"model.positions", "model.attention", "model.initializer"}
    absent = {"eval_masking", "batch_warmup"}
    kinds = model | absent | {"schedule", "objective", "packing", "optimizer"}
    expected = nested_to_flat(dataclasses.asdict(experiment))
    flat = flatten(experiment)
    assert {name: value for name, value in flat.items() if name not in kinds} == {
        name: value for name, value in expected.items() if name not in absent
    }
    assert flat.keys() == expected.keys() | kinds


@many
@hypothesis.given(experiments())
def test_unflatten_is_the_inverse_also_through_json(experiment: Experiment) -> None:
    flat = flatten(experiment)
    assert unflatten(flat) == experiment
    assert unflatten(dict(reversed(flat.items()))) == experiment
    assert unflatten(json.loads(json.dumps(flat, allow_nan=False))) == experiment
    assert flatten(unflatten(flat)) == flat


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"optimizer.learning_rat": 1.0}, "'optimizer.learning_rat' is unknown; did you mean opt"),
        ({"qqq": 1}, "the field 'qqq' is unknown; it is no field of this version."),
        ({"steps": ...}, "the field 'steps' is missing."),
        ({"schedule": ...}, "the field 'schedule' is missing."),
        ({"schedule": "linearr"}, "schedule is 'linearr'; expected one of linear, cosine, const"),
        ({"schedule": None}, "schedule is None; expected one of linear"),
        ({"schedule": "trapezoid"}, "the field 'schedule.decay_length' is missing."),
        ({"schedule": "constant"}, "the field 'schedule.final' is unknown"),
        ({"steps": "10"}, "steps is '10'; expected an integer."),
        ({"steps": 10.0}, "steps is 10.0; expected an integer."),
        ({"steps": True}, "steps is True; expected an integer."),
        ({"name": 3}, "name is 3; expected a string."),
        ({"optimizer.b1": "x"}, "optimizer.b1 is 'x'; expected a finite number."),
        ({"optimizer.b1": float("nan")}, "optimizer.b1 is nan; expected a finite number."),
        ({"optimizer.clip_norm": []}, "clip_norm is []; expected a finite number or None."),
        ({"packing.mode": "full"}, "'full'; expected one of fill, complete, document, truncate."),
        ({"masking.random_ids": [1]}, "[1]; expected 2 values (an integer, an integer) or None."),
        ({"masking.random_ids": [1, "a"]}, "expected 2 values (an integer, an integer) or None."),
        ({"batch_size": 0}, "batch_size is 0; it must be at least 1."),
    ],
)
def test_a_bad_flat_dict_is_refused_with_a_sentence(change: dict[str, Any], message: str) -> None:
    flat = {n: v for n, v in {**flatten(PLAIN), **change}.items() if v is not ...}
    with pytest.raises(ValueError) as caught:
        unflatten(flat)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_whole_numbers_in_fields_of_numbers_are_the_same_experiment() -> None:
    whole = dataclasses.replace(PLAIN, optimizer=AdamW(learning_rate=1, clip_norm=2))
    point = dataclasses.replace(PLAIN, optimizer=AdamW(learning_rate=1.0, clip_norm=2.0))
    assert [type(flatten(whole)[f"optimizer.{n}"]) for n in ("learning_rate", "clip_norm")] == [
        float,
        float,
    ]
    assert digest(whole) == digest(point)
    assert diff(whole, point) == []


def test_format_flat_is_one_aligned_line_a_field() -> None:
    lines = format_flat(OTHER).splitlines()
    flat = flatten(OTHER)
    width = max(map(len, flat))
    assert [line[:width].rstrip() for line in lines] == list(flat)
    assert [line[width + 2 :] for line in lines] == [str(value) for value in flat.values()]
    assert f"{'eval_masking.max_predictions':<{width}}  10" in lines


# --- options -------------------------------------------------------------------------------------


def negated(flag: str) -> str:
    """``model.norm.no-bias`` for ``model.norm.bias``."""
    record, _, field = flag.rpartition(".")
    return f"{record}.no-{field}"


def as_words(experiment: Experiment) -> list[str]:
    """The options that spell an experiment out."""
    words = []
    for name, value in flatten(experiment).items():
        flag = name.replace("_", "-")
        if isinstance(value, bool) and name != "model.norm.after_embeddings":
            words.append(f"--{flag}" if value else f"--{negated(flag)}")
            continue
        words.append("--" + flag)
        words += map(str, value) if isinstance(value, tuple) else [str(value)]
    return words


@many
@hypothesis.given(experiments(), experiments())
def test_every_field_can_be_overridden(a: Experiment, b: Experiment) -> None:
    assert override(a, as_words(b)) == b


@pytest.mark.parametrize(("a", "b"), list(itertools.permutations([PLAIN, OTHER, THIRD, SHARED], 2)))
def test_every_field_and_kind_can_be_changed(a: Experiment, b: Experiment) -> None:
    assert override(a, as_words(b)) == b
    assert override(a, []) == a


def changed(**changes: Any) -> Experiment:
    return dataclasses.replace(PLAIN, **changes)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--steps 5 --optimizer.learning-rate 3e-4", changed(steps=5, optimizer=AdamW(3e-4))),
        ("--optimizer.learning_rate=1", changed(optimizer=AdamW(1.0))),
        ("--steps 5 --steps 6", changed(steps=6)),
        # Valid only together.
        ("--batch-size 30 --microbatches 5", changed(batch_size=30, microbatches=5)),
        ("--microbatches 5 --batch-size 30", changed(batch_size=30, microbatches=5)),
        ("--mesh.data -1 --mesh.fsdp 2", changed(mesh=MeshShape(-1, 2))),
        ("--optimizer.clip-norm None", changed(optimizer=AdamW(clip_norm=None))),
        ("--optimizer.clip-norm none", changed(optimizer=AdamW(clip_norm=None))),
        ("--masking.random-ids 5 100", changed(masking=Masking(random_ids=(5, 100)))),
        ("--masking.random-ids=5 100", changed(masking=Masking(random_ids=(5, 100)))),
        ("--masking.random-ids none --seed 2", changed(seed=2)),
        ("--schedule cosine", changed(schedule=Cosine())),
        (
            "--schedule.warmup 100 --schedule cosine",
            changed(schedule=Cosine(warmup=100)),
        ),
        ("--schedule=constant", changed(schedule=Constant())),
        (
            "--schedule trapezoid --schedule.decay 1-sqrt --schedule.decay-length 9",
            changed(schedule=Trapezoid(decay="1-sqrt", decay_length=9)),
        ),
        ("--schedule cosine --schedule linear", PLAIN),
        ("--eval-masking masking", changed(eval_masking=Masking())),
        (
            "--eval-masking masking --eval-masking.rate .3",
            changed(eval_masking=Masking(rate=0.3)),
        ),
        ("--eval-masking none", PLAIN),
        (
            "--model.positions rotary --model.positions.theta 5",
            changed(model=EncoderConfig(1000, positions=RotaryPositions(theta=5.0))),
        ),
        (
            "--model.initializer normal --model.initializer.std .1",
            changed(model=EncoderConfig(1000, initializer=Normal(0.1))),
        ),
    ],
)
def test_options(words: str, expected: Experiment) -> None:
    assert override(PLAIN, words.split()) == expected


def test_changing_the_kind_keeps_what_both_kinds_have() -> None:
    assert override(OTHER, ["--schedule", "cosine"]).schedule == Cosine(5, 0.1, 0.2)
    assert override(OTHER, ["--schedule", "constant"]).schedule == Constant(5, 0.1)
    kept = override(OTHER, ["--model.positions", "learned"]).model.positions
    assert kept == LearnedPositions(max_length=64, offset=0)
    kept = override(OTHER, ["--model.initializer", "truncated-normal"]).model.initializer
    assert kept == TruncatedNormal(0.03)
    assert override(OTHER, ["--schedule", "trapezoid"]) == OTHER
    assert override(OTHER, ["--eval-masking", "none"]).eval_masking is None


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "--optimizer.learning-rat 1",
            "unknown option --optimizer.learning-rat; did you mean --optimizer.learning-rate?",
        ),
        ("--learning-rate 1", "unknown option --learning-rate; did you mean --optimizer.learning-"),
        ("--optimiser.b1 1", "unknown option --optimiser.b1; did you mean --optimizer.b1?"),
        ("--batchsize 1", "unknown option --batchsize; did you mean --batch-size?"),
        (
            "--every 1",
            "did you mean --evaluation.every, --checkpoints.every or --logging.every?",
        ),
        ("--checkpoint.every 1", "did you mean --checkpoints.every?"),
        ("--zzz", "unknown option --zzz; --help lists the options."),
        ("-s 3", "unknown option -s; "),
        ("--steps 1e6", "--steps is '1e6'; expected an integer."),
        ("--steps", "--steps needs a value: an integer."),
        ("--steps --seed 1", "--steps needs a value: an integer."),
        ("--steps=", "--steps is ''; expected an integer."),
        ("--steps none", "--steps is 'none'; expected an integer."),
        ("--optimizer.clip-norm big", "--optimizer.clip-norm is 'big'; expected a finite number o"),
        ("--optimizer.b1 inf", "--optimizer.b1 is 'inf'; expected a finite number."),
        ("--packing.mode full", "'full'; expected one of fill, complete, document, truncate."),
        ("--masking.random-ids 5", "--masking.random-ids is '5'; expected 2 values (an integer, a"),
        ("--masking.random-ids 5 b", "--masking.random-ids is '5 b'; expected 2 values"),
        ("--schedule cosin", "--schedule is 'cosin'; expected one of linear, cosine, constant, t"),
        ("--schedule", "--schedule needs a value: one of linear, cosine, constant, trapezoid,"),
        ("--schedule none", "--schedule is 'none'; expected one of linear"),
        (
            "--schedule.decay-length 5",
            "--schedule.decay-length is an option of --schedule trapezoid, and schedule is linear; "
            "add --schedule trapezoid.",
        ),
        ("--eval-masking.rate .1", "and eval_masking is None; add --eval-masking masking."),
        ("stray --steps 5", "unexpected argument 'stray'"),
        # What the dataclasses refuse.
        ("--microbatches 7", "batch_size 256 is not divisible by microbatches 7"),
        ("--packing.seq-length 600", "packing.seq_length 600 exceeds the 512 positions"),
    ],
)
def test_a_bad_option_is_refused_with_a_sentence(words: str, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        override(PLAIN, words.split())
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_value_may_begin_with_hyphens_behind_an_equals_sign() -> None:
    assert override(PLAIN, ["--name=--x=y"]).name == "--x=y"
    assert override(PLAIN, ["--name", "-x"]).name == "-x"


# --- differences and identity --------------------------------------------------------------------


def test_diff_names_what_differs() -> None:
    assert diff(PLAIN, PLAIN) == []
    other = dataclasses.replace(PLAIN, steps=7, schedule=Constant(warmup=3))
    assert diff(PLAIN, other) == [
        ("steps", 1000, 7),
        ("schedule", "linear", "constant"),
        ("schedule.warmup", 0, 3),
        ("schedule.final", 0.0, ABSENT),
    ]
    assert ("schedule.final", ABSENT, 0.0) in diff(other, PLAIN)
    others = (OTHER, THIRD, SHARED, BY_FREQUENCY, WINDOWED)
    assert {name for other in others for name, _, _ in diff(PLAIN, other)} == {
        name for one in (PLAIN, *others) for name in flatten(one)
    }


def test_digest_depends_on_every_field_that_determines_the_weights_and_on_no_other() -> None:
    names = [name for name, _, new in diff(PLAIN, OTHER) if new is not ABSENT]
    left_out = 0
    # One in which each of OTHER's values is valid by itself.
    model = EncoderConfig(1000, hidden_size=32, num_heads=2)
    small = dataclasses.replace(PLAIN, model=model, packing=Packing(16), batch_size=250)
    words, unions = as_words(OTHER), set(nested.unions(Experiment, flatten(OTHER)))
    for name in names:
        flag = "--" + name.replace("_", "-")
        if flag not in words:
            flag = "--" + negated(flag.removeprefix("--"))
        start = words.index(flag)
        stop = next(
            (i for i in range(start + 1, len(words)) if words[i].startswith("--")), len(words)
        )
        kind = {
            "model.positions": "rotary",
            "model.attention": "local",
            "schedule": "trapezoid",
            "eval_masking": "masking",
            "objective": "replaced-tokens",
        }
        given = words[start:stop]
        grown = "--batch-warmup batch-warmup --batch-warmup.start 5 --batch-warmup.increment 5 "
        needs = {
            "model.norm.skip_first": "--model.norm.placement pre",
            "batch_warmup": grown + "--batch-warmup.tokens 99",
        }
        needed = needs.get(name if name in needs else name.partition(".")[0], "").split()
        context = needed + [
            word
            for union, member in kind.items()
            if name.startswith(f"{union}.")
            for word in (f"--{union.replace('_', '-')}", member)
        ]
        if name == "batch_warmup":  # its fields have no defaults
            given, context = context, []
        base = override(small, context)
        if name not in unions and flatten(base).get(name) == flatten(OTHER)[name]:
            continue  # of a record that PLAIN lacks, and as its default
        varied = override(base, given)
        assert varied != base, name
        counts = not any(name == one or name.startswith(one + ".") for one in NO_NUMBERS)
        left_out += not counts
        assert (digest(varied) != digest(base)) == counts, name
    assert left_out >= 15
    assert len(names) - left_out >= 30
    assert digest(PLAIN) == digest(unflatten(flatten(PLAIN)))


@pytest.mark.parametrize(
    "words",
    [
        "--mesh.data 2 --mesh.fsdp 4 --microbatches 8",
        "--model.execution.loop scan --model.execution.remat full",
        "--checkpoints.every 7 --logging.every 1 --name other --max-skipped-steps 1",
        "--evaluation.every 7 --eval-masking masking --eval-masking.rate .3",
    ],
)
def test_a_run_that_moves_or_is_watched_otherwise_is_the_same_run(words: str) -> None:
    assert digest(override(PLAIN, words.split())) == digest(PLAIN)


def test_the_fields_left_out_of_the_digest_exist() -> None:
    names = flatten(OTHER)
    for one in NO_NUMBERS:
        assert any(name == one or name.startswith(one + ".") for name in names), one

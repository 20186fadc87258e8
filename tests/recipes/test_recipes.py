"""The published recipes: what there is, their phases, and two steps of each kind on a CPU."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from bert_jax.config import flatten, load_experiment, load_phases, override, unflatten
from bert_jax.recipes import Recipe, Score, list_recipes, published, recipe
from bert_jax.train.log import read_metrics
from bert_jax.train.loop import train
from bert_jax.train.phases import train_phases

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
TINY = (
    "--data synthetic --steps 2 --batch-size 8 --microbatches 1 --model.num-layers 2 "
    "--model.hidden-size 32 --model.num-heads 2 --model.intermediate-size 64 "
    "--model.vocab-size 512 --model.pad-id 0 --model.compute-dtype float32 "
    "--packing.seq-length 32 --mesh.data 1 --logging.every 1 --evaluation.max-rows 16"
)


def test_names():
    names = list_recipes()
    families = ("bert", "roberta", "albert", "distilbert", "electra", "deberta-v3", "modernbert")
    for family in (*families, "mosaicbert", "ettin", "neobert", "crammed-bert", "wettig"):
        assert any(name.startswith(family) for name in names), family
    assert len(set(names)) == len(names) >= 35
    with pytest.raises(ValueError, match="no recipe is called 'roberta-bse'; did you mean 'robe"):
        recipe("roberta-bse")


@pytest.mark.parametrize("name", list_recipes())
def test_a_recipe_says_where_it_is_from(name):
    one = published(name)
    assert one.name == name
    assert one.sources and one.hardware and one.deviations
    assert len(one.carries) == len(one.phases) - 1
    for sentence in (*one.deviations, *one.unsourced, *one.carries):
        assert sentence.endswith("."), sentence
    for phase in one.phases:
        assert unflatten(flatten(phase)) == phase
        assert phase.init_from is None
    assert len({phase.name for phase in one.phases}) == len(one.phases)


@pytest.mark.parametrize("name", list_recipes())
def test_later_phases_say_what_they_take_over(name):
    one = published(name)
    assert one.phases[0].carry == type(one.phases[0].carry)()
    for before, phase in zip(one.phases, one.phases[1:], strict=False):
        if phase.carry.clock == "kept":
            assert phase.steps > before.steps
        else:  # else it would repeat the order, masks and dropout before
            assert phase.seed != before.seed
        if phase.carry.optimizer == "kept":
            assert type(phase.optimizer) is type(before.optimizer)


# Of a sentence on a change of phase: what it must speak of, and by which words it may.
CARRIED = {
    "parameters": ("parameters", "weights"),
    "moments": ("moments",),
    "clock": ("clock",),
    "data": ("data",),
}


@pytest.mark.parametrize("name", [n for n in list_recipes() if published(n).carries])
def test_a_change_of_phase_says_all_that_is_carried_over(name):
    one = published(name)
    for sentence, phase in zip(one.carries, one.phases[1:], strict=True):
        for what, words in CARRIED.items():
            assert any(word in sentence for word in words), (what, sentence)
        kept, _, rest = sentence.partition("Reset: ")
        assert ("moments" in kept) == (phase.carry.optimizer == "kept"), sentence
        assert ("clock" in rest.partition(".")[0]) == (phase.carry.clock == "reset"), sentence
        if getattr(phase.optimizer, "max_learning_rate", None) is not None:
            assert "max_lr" in kept, sentence


def test_scores_of_other_runs_say_whose_they_are():
    others = [n for n in list_recipes() if n.startswith("deberta-v3-")]
    for name in ("electra-base", "electra-large", *others):
        for score in published(name).scores:
            assert " (of " in score.benchmark, (name, score)
    assert published("electra-base").scores[5].benchmark == "MNLI (of Base++)"
    # Of ELECTRA's published scores these alone are of the released defaults.
    assert not any(" (of " in s.benchmark for s in published("electra-small-owt").scores)


def test_phases_by_number():
    one = published("modernbert-base")
    assert recipe("modernbert-base") == recipe("modernbert-base:1") == one.phases[0]
    assert recipe("modernbert-base", 3) == recipe("modernbert-base:3") == one.phases[2]
    with pytest.raises(ValueError, match="modernbert-base has no phase 4; it has phases 1 to 3"):
        recipe("modernbert-base:4")
    with pytest.raises(ValueError, match="roberta-base has no phase 2; it has one phase"):
        recipe("roberta-base", 2)
    with pytest.raises(ValueError, match="'bert-base:two' names no phase; write bert-base:1 to"):
        recipe("bert-base:two")


def test_a_record_is_refused_if_it_does_not_fit_together():
    one = published("bert-base")
    with pytest.raises(ValueError, match="has 2 phases and 0 sentences on what they carry"):
        dataclasses.replace(one, carries=())
    with pytest.raises(ValueError, match="has no phase; give it at least one"):
        dataclasses.replace(one, phases=(), carries=())
    with pytest.raises(ValueError, match="names no source"):
        dataclasses.replace(one, sources=())
    assert Recipe("x", one.phases[:1], ("s",), "h", 1.0, (Score("MNLI", 84.0, "s"),)).scores


def test_the_pieces_of_a_long_run_follow_one_line():
    """ALBERT's 3M steps in three pieces: the learning rate of each begins where the last ended."""
    peak, total = 1.76e-3, 3_000_000
    for piece, phase in enumerate(published("albert-large-v2").phases):
        for step in (10_000, 500_000, 999_999):
            whole = peak * (1 - (piece * 1_000_000 + step) / total)
            rate = phase.optimizer.learning_rate * phase.factor(step)
            # The last is a difference of numbers 1e9 times as large.
            np.testing.assert_allclose(rate, whole, rtol=1e-12, atol=1e-18)


def test_variants_differ_in_what_their_sources_say():
    paper, script = recipe("deberta-v3-base-paper"), recipe("deberta-v3-base")
    weights = [flatten(one)["objective.discriminator_weight"] for one in (paper, script)]
    assert weights == [50.0, 10.0]
    assert dataclasses.replace(paper, name=script.name, objective=script.objective) == script
    words, tokens = recipe("bert-base-wwm"), recipe("bert-base")
    assert (words.masking.unit, tokens.masking.unit) == ("word", "token")
    paper, script = recipe("neobert-paper"), recipe("neobert")
    assert (paper.optimizer.learning_rate, script.optimizer.learning_rate) == (6e-4, 1e-4)


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.mark.usefixtures("one_device")
@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("albert-base-v1", "--masking.random-ids 0 512 --model.embedding-size 16"),
        slow("bert-base", "--masking.random-ids 0 512 --total 10"),
        slow("roberta-base", "--masking.random-ids 4 512"),
        slow("electra-small-owt", "--objective.generator-head-size 8 --model.embedding-size 16"),
        slow("deberta-v3-base", "--model.num-layers 4"),  # the generator has half
        slow("crammed-bert", "--masking.random-ids 0 512 --batch-warmup none"),
        slow("neobert", ""),
    ],
)
def test_two_steps_on_synthetic_data(name, more, tmp_path):
    tiny = override(recipe(name), [*TINY.split(), *more.split()])
    train(tiny, tmp_path / "run")
    losses = [r["loss"] for r in read_metrics(tmp_path / "run") if r["kind"] == "train"]
    assert len(losses) == 2
    # Untrained: near the entropy of a uniform guess (random weights of .02 move it little).
    assert losses[0] == pytest.approx(np.log(512), rel=0.02)


@pytest.mark.slow
@pytest.mark.usefixtures("one_device")
def test_the_phases_of_bert_follow_each_other(tmp_path):
    first, second = (
        override(phase, [*TINY.split(), "--masking.random-ids", "0", "512"])
        for phase in published("bert-base").phases
    )
    long = dataclasses.replace(second.packing, seq_length=64)
    first = dataclasses.replace(first, steps=4, total=6.0)
    second = dataclasses.replace(second, steps=6, packing=long)
    train_phases((first, second), tmp_path / "run")
    lines = [r for r in read_metrics(tmp_path / "run" / "phase-2") if r["kind"] == "train"]
    # The clock goes on: two more steps, on one line to 0 (the warm-up is 10,000 steps long).
    assert [line["step"] for line in lines] == [5, 6]


@pytest.mark.parametrize("file", sorted(EXPERIMENTS.glob("*.py")), ids=lambda path: path.stem)
def test_experiments_load(file):
    assert load_experiment(file).name
    assert load_phases(file)[0] == load_experiment(file)

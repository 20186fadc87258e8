"""``bert-jax recipes``: the list, one, a difference, a check."""

import re
from pathlib import Path

import pytest

from bert_jax import recipes_command
from bert_jax.config import flatten
from bert_jax.recipes import list_presets, list_recipes, recipe
from bert_jax.recipes.checks.findings import equal
from bert_jax.recipes_command import checks, differences, listing, run, shown

ROOT = Path(__file__).parents[1]


def test_the_list_has_every_recipe_on_a_line():
    lines = listing().splitlines()
    encoders = next(i for i, line in enumerate(lines) if line.startswith("encoders: "))
    assert [line.split()[0] for line in lines[1:encoders]] == list(list_recipes())
    assert " ".join(lines[encoders:]).count(",") == len(list_presets()) - 1

    def cells(name):
        return re.split(r"\s{2,}", next(line for line in lines if line.startswith(f"{name} ")))

    assert cells("recipe")[1:3] == ["parameters", "layers x width"]
    assert cells("bert-base") == [
        "bert-base",
        "110.1 M",
        "12 x 768",
        "42.6 B at 128, 512",
        "2",
        "4 Cloud TPUs",
        "MNLI 84.7",
    ]
    assert cells("neobert")[-1] == "none"


def test_one_recipe_is_shown_with_all_that_is_known_of_it():
    text, code = run(("bert-base",))
    assert code == 0
    assert "\nparameters:\n  - 110,106,428 (pre-training)\n" in text
    for title in ("sources:", "scores:", "known deviations:", "from phase 1 to 2:"):
        assert f"\n{title}\n" in text
    assert "phase 2 differs from phase 1:" in text
    assert "packing.seq_length" in text.partition("phase 2 differs")[2]
    fields = text.partition("phase 1:\n")[2].partition("\n\n")[0]
    wanted = {name: str(value) for name, value in flatten(recipe("bert-base")).items()}
    assert dict(line.split(maxsplit=1) for line in fields.splitlines()) == wanted
    assert "stated by no source:" in shown("bert-tiny")


def test_one_phase_is_shown_by_its_fields():
    shown_fields = dict(line.split(maxsplit=1) for line in shown("bert-base:2").splitlines())
    assert shown_fields["steps"] == "1000000"
    assert shown_fields["carry.clock"] == "kept"


def test_differences_field_by_field():
    lines = differences("deberta-v3-base", "deberta-v3-base-paper").splitlines()
    assert lines[0].strip() == "deberta-v3-base -> deberta-v3-base-paper"
    assert [line.split() for line in lines[1:]] == [
        ["objective.discriminator_weight", "10.0", "->", "50.0"]
    ]
    kinds = differences("bert-base", "roberta-base")
    assert kinds.splitlines()[0].strip() == "bert-base (phase 1 of 2) -> roberta-base"
    assert "optimizer" in kinds and "bert-adam -> fairseq-adam" in kinds
    assert "optimizer.clip " in kinds and "(no such field)" in kinds
    assert "do not differ" in differences("electra-small", "electra-small-owt")


def test_a_difference_to_a_file(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "import dataclasses\nfrom bert_jax.recipes import recipe\n"
        "experiment = dataclasses.replace(recipe('roberta-base'), batch_size=256, microbatches=1)\n"
    )
    lines = differences("roberta-base", str(file)).splitlines()[1:]
    assert [line.split() for line in lines] == [
        ["batch_size", "8192", "->", "256"],
        ["microbatches", "16", "->", "1"],
    ]
    assert "do not differ" in differences("bert-base", str(ROOT / "experiments" / "bert_base.py"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("diff", "bert-base"), "recipes diff compares two recipes or files; got 1"),
        (("check",), "recipes check needs a recipe's name, or all"),
        (("bert-base", "roberta-base"), "bert-jax recipes diff bert-base roberta-base"),
        (("bert-bse",), "no recipe is called 'bert-bse'; did you mean 'bert-base'"),
        (("check", "bert-base", "bert-bse"), "no recipe is called 'bert-bse'"),
        (("diff", "bert-base", "bert-base:3"), "bert-base has no phase 3"),
    ],
)
def test_mistakes(words, message):
    with pytest.raises(ValueError, match=message):
        run(words)


def test_checks_and_their_exit_code(monkeypatch):
    from bert_jax.recipes import checks as package

    good, bad = equal("steps", 1, 1), equal("rows", 1, 2)
    monkeypatch.setattr(package, "check", lambda name: (good,))
    text, code = checks(["roberta-base"])
    assert code == 0
    assert text.startswith(
        "roberta-base: all 1 hold\nok    steps  1\nknown deviations, not checked:"
    )
    monkeypatch.setattr(package, "check", lambda name: (good, bad)[: 1 + (name == "neobert")])
    text, code = checks([recipes_command.ALL])
    assert code == 1
    lines = text.splitlines()
    assert len(lines) == len(list_recipes()) + 1
    assert lines[lines.index("neobert: 1 of 2 failed") + 1] == "FAIL  rows  2; expected 1"

"""The files of experiments/: they load, and the commands of their docstrings are right."""

import ast
import re
import shlex
from pathlib import Path

import pytest

from bert_jax.config import load_config, load_experiment, save_config
from bert_jax.train.command import find_phases, train_command

ROOT = Path(__file__).parents[1]
FILES = sorted(ROOT.glob("experiments/*.py"))


def commands(file: Path) -> list[list[str]]:
    """The words of each `bert-jax train` command of a file's docstring."""
    text = re.sub(r"\\\n\s*", "", ast.get_docstring(ast.parse(file.read_text())) or "")
    lines = re.findall(r"^ {4}bert-jax train (.*)$", text, flags=re.MULTILINE)
    return [shlex.split(line, comments=True) for line in lines]


COMMANDS = [words for file in FILES for words in commands(file)]
SYNTHETIC = {
    file.name: found
    for file in FILES
    if (found := [words for words in commands(file) if "synthetic" in words])
}


@pytest.fixture(autouse=True)
def root(monkeypatch):
    monkeypatch.chdir(ROOT)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_the_experiments_of_the_project_load(file, tmp_path):
    experiment = load_experiment(file)
    assert load_config(save_config(experiment, tmp_path).parent) == experiment
    assert find_phases(str(file))[0] == experiment


def test_every_file_says_how_to_run_it():
    """A command that trains; and where that needs a corpus of one's own, one that needs none."""
    assert len(SYNTHETIC) >= 12
    for file in FILES:
        name = f"experiments/{file.name}"
        named = [words for words in commands(file) if words[0].partition(":")[0] == name]
        if file.name.startswith("fixed_compute"):  # `bert-jax compare`
            assert not named
        else:
            assert named, name
            assert not any("stores/" in word for words in named for word in words) or any(
                "synthetic" in words for words in named
            ), name


def test_mask_rates_in_stages():
    """Three phases, as the guide to masking says."""
    phases = find_phases("experiments/ettin_tiny.py")
    assert [phase.masking.rate for phase in phases] == [0.3, 0.15, 0.05]
    assert {phase.eval_masking.rate for phase in phases if phase.eval_masking} == {0.15}


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_the_commands_of_the_files_are_understood(words, capsys):
    assert train_command([*words, "--print"], "bert-jax train") == 0
    shown = capsys.readouterr().out
    assert "optimizer" in shown


@pytest.mark.slow
@pytest.mark.usefixtures("one_device")  # a laptop has no eight
@pytest.mark.parametrize("file", SYNTHETIC)
def test_two_steps_on_a_laptop(file, tmp_path, capsys):
    """As they stand there, but for where the runs go."""
    for number, (name, *words) in enumerate(SYNTHETIC[file]):
        there = [word.replace("runs/", f"{tmp_path}/") for word in words]
        if not there[0].startswith(str(tmp_path)):
            there = [str(tmp_path / f"run-{number}"), *there]
        assert train_command([name, *there], "bert-jax train") == 0
        assert "step 2/2" in capsys.readouterr().out

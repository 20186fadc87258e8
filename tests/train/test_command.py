"""`bert-jax train` and phases: which experiments a name stands for, and options for all of them."""

import dataclasses

import pytest

from bert_jax.recipes import published
from bert_jax.train.command import find_phases, train_command

FILE = """
import dataclasses
from bert_jax import EncoderConfig, Experiment
first = Experiment(name="mine", model=EncoderConfig(vocab_size=100), steps=5)
phases = {phases}
"""


@pytest.fixture
def file(tmp_path):
    def write(phases):
        path = tmp_path / "mine.py"
        path.write_text(FILE.format(phases=phases))
        return str(path)

    return write


def test_a_recipe_stands_for_its_phases():
    assert find_phases("bert-base") == published("bert-base").phases
    assert find_phases("bert-base:2") == (published("bert-base").phases[1],)
    assert len(find_phases("roberta-base")) == 1
    with pytest.raises(ValueError, match=r"there is no file bert-bse, and no recipe .*'bert-base'"):
        find_phases("bert-bse")
    with pytest.raises(ValueError, match="bert-base has no phase 3; it has phases 1 to 2"):
        find_phases("bert-base:3")


def test_a_file_may_define_phases(file):
    first, second = find_phases(file("(first, dataclasses.replace(first, seed=3))"))
    assert second == dataclasses.replace(first, seed=3)


def test_a_colon_names_one_phase_of_a_file(file, tmp_path):
    path = file("(first, dataclasses.replace(first, seed=3))")
    first, second = find_phases(path)
    assert find_phases(f"{path}:1") == (first,)
    assert find_phases(f"{path}:2") == (second,)
    with pytest.raises(ValueError, match=r"mine\.py has no phase 3; it has phases 1 to 2\."):
        find_phases(f"{path}:3")
    with pytest.raises(ValueError, match=r"mine\.py:two' names no phase; write .*mine\.py:1 to "):
        find_phases(f"{path}:two")
    (tmp_path / "a:2").mkdir()
    (tmp_path / "a:2" / "mine.py").write_text(FILE.format(phases="(first,)"))
    assert find_phases(str(tmp_path / "a:2" / "mine.py")) == (first,)
    with pytest.raises(FileNotFoundError, match=r"a:2/yours\.py"):
        find_phases(str(tmp_path / "a:2" / "yours.py"))


@pytest.mark.parametrize(
    ("phases", "message"),
    [
        ("[first]", r"`phases` in .*mine.py is \[Experiment.*expected a tuple of experiments"),
        ("()", r"`phases` in .*mine.py is \(\); expected a tuple"),
        ("(first, 3)", r"`phases\[1\]` in .*mine.py is of type int; expected bert_jax.Experiment"),
    ],
)
def test_phases_of_another_kind_are_refused(phases, message, file):
    with pytest.raises(ValueError, match=message):
        find_phases(file(phases))


def test_options_are_for_all_phases(file, capsys):
    path = file("(first, dataclasses.replace(first, seed=3))")
    assert train_command([path, "--print", "--steps", "7"], "bert-jax train") == 0
    one, two = capsys.readouterr().out.split("\n\n")
    assert one.startswith("phase 1\n") and two.startswith("phase 2\n")
    for text, seed in ((one, 0), (two, 3)):
        fields = dict(line.split(None, 1) for line in text.splitlines()[1:])
        assert (fields["steps"], fields["seed"]) == ("7", str(seed))


def test_an_option_that_a_phase_lacks_names_the_phase(file):
    path = file(
        "(first, dataclasses.replace(first, schedule=__import__('bert_jax.train.schedule')"
        ".train.schedule.Constant()))"
    )
    with pytest.raises(ValueError, match=r"phase 2 of 2: --schedule.final is an option of"):
        train_command([path, "--print", "--schedule.final", "0.1"], "bert-jax train")

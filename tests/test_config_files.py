"""Experiments on disk: the Python files users write, and config.json of a run."""

import dataclasses
import json
import sys
from pathlib import Path

import pytest

import bert_jax
from bert_jax import config
from bert_jax.config import (
    digest,
    flatten,
    load_config,
    load_experiment,
    save_config,
)
from bert_jax.experiment import Experiment
from bert_jax.models.config import EncoderConfig, Normal, RotaryPositions
from bert_jax.objectives.masking import Masking
from bert_jax.train.schedule import Trapezoid

PLAIN = Experiment(name="plain", model=EncoderConfig(vocab_size=1000))
OTHER = dataclasses.replace(
    PLAIN,
    model=EncoderConfig(500, positions=RotaryPositions(), initializer=Normal()),
    masking=Masking(random_ids=(5, 500)),
    eval_masking=Masking(0.2),
    schedule=Trapezoid(5),
)


# --- config.json ---------------------------------------------------------------------------------


@pytest.mark.parametrize("experiment", [PLAIN, OTHER])
def test_config_json_holds_every_field_sorted_and_what_computed(
    experiment: Experiment, tmp_path: Path
) -> None:
    path = save_config(experiment, tmp_path / "runs" / "a", {"store": "abc"})
    assert path == tmp_path / "runs" / "a" / "config.json"
    saved = json.loads(path.read_text())
    assert list(saved) == sorted(saved)
    about = {n: saved.pop(n) for n in list(saved) if n.startswith(("run.", "versions."))}
    assert saved == json.loads(json.dumps(flatten(experiment)))
    assert about["run.store"] == "abc"
    assert about["run.digest"] == digest(experiment)
    assert about["run.device"] and about["run.devices"] == 8
    assert about["versions.bert_jax"] == bert_jax.__version__
    assert about["versions.python"] == ".".join(map(str, sys.version_info[:3]))
    assert {"versions.jax", "versions.flax", "versions.optax"} <= about.keys()
    assert load_config(path.parent) == experiment
    assert [one.name for one in path.parent.iterdir()] == ["config.json"]


def test_no_field_of_an_experiment_is_named_like_what_stands_beside_them() -> None:
    assert not [name for name in flatten(OTHER) if name.startswith(config._ABOUT)]


def test_a_config_that_cannot_be_written_leaves_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_config(PLAIN, tmp_path)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match=r"cannot write .*config\.json \(No space left on device\)"):
        save_config(OTHER, tmp_path)
    assert load_config(tmp_path) == PLAIN


def test_what_is_no_run_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"is no run directory: it holds no config\.json"):
        load_config(tmp_path / "missing")
    file = tmp_path / "config.json"
    for contents, message in [
        ("{", r"config\.json cannot be read: Expecting property name"),
        ("[1]", r"config\.json cannot be read: it is not a JSON object\."),
        ("{}", r"config\.json cannot be read: the field 'model\.positions' is missing\."),
    ]:
        file.write_text(contents)
        with pytest.raises(ValueError, match=message):
            load_config(tmp_path)


# --- files ---------------------------------------------------------------------------------------

HEADER = "from bert_jax import EncoderConfig, Experiment\n"


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


def test_an_experiment_file_is_run(tmp_path: Path) -> None:
    file = write(
        tmp_path / "x.py", HEADER + "experiment = Experiment('plain', EncoderConfig(1000))\n"
    )
    assert load_experiment(file) == PLAIN
    assert load_experiment(str(file)) == PLAIN
    assert list(tmp_path.iterdir()) == [file]  # no byte code: an edited file is read again


def test_a_file_edited_within_a_moment_is_read_again(tmp_path: Path) -> None:
    for steps in (111, 222, 333):
        text = f"experiment = Experiment('x', EncoderConfig(9), steps={steps})\n"
        assert load_experiment(write(tmp_path / "x.py", HEADER + text)).steps == steps


def test_a_file_may_import_its_neighbours_and_leaves_no_trace(tmp_path: Path) -> None:
    before = list(sys.path)
    for directory, steps in (("a", 11), ("b", 22), ("a", 33)):
        write(tmp_path / directory / "shared_numbers.py", f"STEPS = {steps}\n")
        text = (
            HEADER
            + "import shared_numbers\n"
            + "experiment = Experiment('x', EncoderConfig(9), steps=shared_numbers.STEPS)\n"
        )
        file = write(tmp_path / directory / "x.py", text)
        # The neighbour's byte code is cached by its time in seconds and its size.
        for cache in tmp_path.rglob("*.pyc"):
            cache.unlink()
        assert load_experiment(file).steps == steps
        assert sys.path == before
        assert "shared_numbers" not in sys.modules


def test_a_file_may_define_dataclasses(tmp_path: Path) -> None:
    text = (
        "from __future__ import annotations\nimport dataclasses\n"
        + HEADER
        + "@dataclasses.dataclass\nclass Size:\n    width: int = 64\n"
        "experiment = Experiment('x', EncoderConfig(9, hidden_size=Size().width, num_heads=1))\n"
    )
    assert load_experiment(write(tmp_path / "x.py", text)).model.hidden_size == 64


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("experiments = 3\n", r"x\.py defines no `experiment`; end it with experiment = Exp"),
        ("experiment = 3\n", r"`experiment` in .*x\.py is of type int; expected bert_jax\.Exp"),
        ("\n\nexperiment = nonsense\n", r"x\.py:3: NameError: name 'nonsense' is not defined"),
        ("\nimport nonsense_module\n", r"x\.py:2: ModuleNotFoundError: No module named 'nonsense_"),
        ("\nexperiment = (\n", r"x\.py:2: SyntaxError: '\(' was never closed"),
        ("def f():\n    raise RuntimeError('so')\nf()\n", r"x\.py:2: RuntimeError: so"),
        ("import sys\nsys.exit(3)\n", r"x\.py:2: SystemExit: 3"),
        (
            HEADER + "experiment = Experiment('x', EncoderConfig(9), batch_size=30,"
            " microbatches=4)\n",
            r"x\.py:2: batch_size 30 is not divisible by microbatches 4",
        ),
        (
            HEADER + "experiment = Experiment('x', EncoderConfig(9), steps=1e6)\n",
            r"x\.py: steps is 1000000\.0; expected an integer\.",
        ),
        (
            HEADER + "experiment = Experiment('x', EncoderConfig(9), data=__import__('pathlib')"
            ".Path('a'))\n",
            r"x\.py: data is PosixPath\('a'\); expected a string\.",
        ),
        (
            HEADER + "experiment = Experiment('x', EncoderConfig(9), schedule='linear')\n",
            r"x\.py: schedule is 'linear'; expected Linear or Cosine or Constant or",
        ),
        (
            HEADER + "experiment = Experiment('x', EncoderConfig(9), optimizer='adamw')\n",
            r"x\.py: optimizer is 'adamw'; expected AdamW or BertAdam or",
        ),
    ],
)
def test_a_bad_file_is_refused_with_a_sentence(
    text: str, message: str, tmp_path: Path, unchecked: None
) -> None:
    before = list(sys.path), set(sys.modules)
    with pytest.raises(ValueError, match=message) as caught:
        load_experiment(write(tmp_path / "x.py", text))
    assert "\n" not in str(caught.value)
    assert sys.path == before[0]


def test_a_missing_file_is_refused_with_the_nearest_name(tmp_path: Path) -> None:
    write(tmp_path / "quickstart.py", "")
    with pytest.raises(
        FileNotFoundError, match=r"quickstrat\.py; did you mean .*/quickstart\.py\?"
    ):
        load_experiment(tmp_path / "quickstrat.py")
    with pytest.raises(FileNotFoundError, match=r"give the path of a Python file\."):
        load_experiment(tmp_path / "nowhere" / "x.py")

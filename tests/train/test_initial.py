"""Runs that start from a model trained before."""

import dataclasses
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest

from bert_jax.data.tokenizer import SpecialTokens, Tokenizer
from bert_jax.evaluate.run import load_run
from bert_jax.interop import import_hf
from bert_jax.models.paths import by_path
from bert_jax.objectives.base import Setting
from bert_jax.objectives.masked_lm import MaskedLmObjective
from bert_jax.objectives.masking import Masking
from bert_jax.parallel.mesh import MeshShape, make_mesh
from bert_jax.train.initial import initial_params
from bert_jax.train.inputs import open_inputs, run_task
from bert_jax.train.log import read_metrics
from bert_jax.train.loop import train

SPECIAL = SpecialTokens(pad=0, unk=1, cls=2, sep=3, mask=4)
PARITY = Path(__file__).parents[1] / "data" / "parity"


@pytest.fixture(scope="module")
def imported():
    return import_hf(PARITY / "bert_mlm")


def start(source, config, mesh=None, tokenizer=None):
    with jax.set_mesh(make_mesh(mesh or MeshShape(1), jax.devices()[: 8 if mesh else 1])):
        task = MaskedLmObjective().task(Setting(config, Masking(), SPECIAL, config.vocab_size))
        params, notes = initial_params(str(source), task, 0, tokenizer)
    return jax.tree.map(np.asarray, params), notes


@pytest.mark.parametrize("mesh", [None, MeshShape(2, 2, 2)], ids=["1", "2x2x2"])
def test_an_imported_checkpoint_is_the_start(imported, mesh):
    params, notes = start(PARITY / "bert_mlm", imported.model.config, mesh)
    jax.tree.map(np.testing.assert_array_equal, params, imported.params)
    assert "bert_mlm" in notes[0]


def test_dropout_and_execution_are_the_experiment_s(imported):
    config = dataclasses.replace(imported.model.config, compute_dtype="bfloat16")
    params, _ = start(PARITY / "bert_mlm", config)
    jax.tree.map(np.testing.assert_array_equal, params, imported.params)


def test_vocabulary_and_context_grow(imported):
    config = imported.model.config
    longer = dataclasses.replace(config.positions, max_length=100)
    larger = dataclasses.replace(config, vocab_size=150, positions=longer)
    params, notes = start(PARITY / "bert_mlm", larger)
    old = by_path(imported.params)
    table = params["encoder"]["embeddings"]["word"]["embedding"]
    word = "encoder/embeddings/word/embedding"
    np.testing.assert_array_equal(table[:97], old[word][:97])
    np.testing.assert_allclose(table[97:150], np.tile(old[word][:97].mean(0), (53, 1)), atol=1e-6)
    assert table.shape == (256, 48)
    position = params["encoder"]["embeddings"]["position"]["embedding"]
    np.testing.assert_array_equal(position[64:], old["encoder/embeddings/position/embedding"][:36])
    assert any("from 97 to 150 entries" in note for note in notes)
    assert any("from 64 to 100 positions" in note for note in notes)


def test_another_theta_is_taken_and_said():
    config = import_hf(PARITY / "modernbert_mlm").model.config
    positions = dataclasses.replace(config.positions, max_length=512, theta=500_000.0)
    _, notes = start(PARITY / "modernbert_mlm", dataclasses.replace(config, positions=positions))
    assert any("theta=500000.0" in note for note in notes)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"activation": "relu"}, "activation is 'gelu' there and 'relu' here"),
        ({"num_layers": 4}, "num_layers is 3 there and 4 here"),
        ({"vocab_size": 96}, "vocab_size is 97 there and 96 here"),
    ],
)
def test_another_encoder_is_refused(imported, change, message):
    with pytest.raises(ValueError, match=message):
        start(PARITY / "bert_mlm", dataclasses.replace(imported.model.config, **change))


def test_a_directory_of_neither_kind_is_refused(imported, tmp_path):
    with pytest.raises(ValueError, match="neither a Hugging Face directory"):
        start(tmp_path, imported.model.config)


def test_relative_positions_that_mean_something_else_are_refused():
    """The same table read by one term instead of two: no shape would tell."""
    config = import_hf(PARITY / "deberta_v3_mlm").model.config
    terms = dataclasses.replace(config.positions, terms=("c2p",))
    with pytest.raises(ValueError, match=r"positions\.terms is"):
        start(PARITY / "deberta_v3_mlm", dataclasses.replace(config, positions=terms))


def test_a_source_without_a_tokenizer_is_told(imported):
    tokenizer = Tokenizer.train(texts=["some words"] * 9, kind="wordpiece", vocab_size=40)
    _, notes = start(PARITY / "bert_mlm", imported.model.config, tokenizer=tokenizer)
    assert any("has no tokenizer" in note for note in notes)


@pytest.mark.usefixtures("one_device")
def test_unused_vocabulary_is_never_drawn(experiment):
    """A model may have more entries than its tokenizer; random replacements are of the latter."""
    larger = dataclasses.replace(experiment.model, vocab_size=experiment.model.vocab_size + 50)
    larger_run = dataclasses.replace(experiment, model=larger)
    task = run_task(larger_run, open_inputs(larger_run))
    assert task.objective.vocab_size == experiment.model.vocab_size


@pytest.fixture(scope="module")
def earlier_run(experiment, tmp_path_factory):
    """The run directory of three steps on one device."""
    run_dir = tmp_path_factory.mktemp("runs") / "earlier"
    with pytest.MonkeyPatch.context() as patch:
        first = jax.devices()[:1]
        patch.setattr(jax, "devices", lambda *_: first)
        train(dataclasses.replace(experiment, steps=3), run_dir)
    return run_dir


@pytest.mark.usefixtures("one_device")
def test_a_run_starts_from_another_run(experiment, earlier_run, tmp_path):
    """It starts with the other's last parameters, and must have its tokenizer."""
    earlier = load_run(earlier_run)
    params, notes = start(earlier_run, experiment.model)
    jax.tree.map(np.testing.assert_array_equal, params, earlier.params)
    assert f"step {earlier.step:,}" in notes[0]
    longer = dataclasses.replace(
        experiment, name="next", init_from=str(earlier_run), steps=2, seed=5
    )
    result = train(longer, tmp_path / "run")
    # Evaluated before the first step too, and worth what it was worth at the end of the other.
    scores = [
        [(r["step"], r["loss"]) for r in read_metrics(run) if r["kind"] == "evaluation"]
        for run in (earlier_run, tmp_path / "run")
    ]
    assert [step for step, _ in scores[1]] == [0, 2]
    assert scores[1][0][1] == pytest.approx(scores[0][-1][1], rel=1e-6)
    log = (tmp_path / "run" / "metrics.jsonl").read_text()
    assert result.step == 2 and "initial parameters: step" in log
    other = Tokenizer.train(texts=["quite other words"] * 9, kind="wordpiece", vocab_size=40)
    with pytest.raises(ValueError, match=r"in the tokenizer of .* and .* in that of the data"):
        start(earlier_run, experiment.model, tokenizer=other)


@pytest.mark.usefixtures("one_device")
def test_a_start_that_does_not_fit_leaves_nothing(experiment, tmp_path):
    source = tmp_path / "model"
    shutil.copytree(PARITY / "bert_mlm", source)
    bad = dataclasses.replace(experiment, init_from=str(source))
    with pytest.raises(ValueError, match="is another encoder than the experiment's"):
        train(bad, tmp_path / "run")
    assert not (tmp_path / "run").exists()

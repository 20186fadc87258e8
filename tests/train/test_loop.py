"""The training loop: resuming bit for bit, signals, steps that are not finite, refusals."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

from bert_jax.config import save_config
from bert_jax.evaluate.run import load_run
from bert_jax.experiment import Evaluation
from bert_jax.models.config import Dropout
from bert_jax.parallel.mesh import MeshShape
from bert_jax.train.inputs import batches, open_inputs
from bert_jax.train.log import read_metrics
from bert_jax.train.loop import NON_FINITE_FILE, TrainingStopped, train

# Trains the run whose config.json lies in argv[1], as a user's process would: one device. With
# argv[2] it kills itself, without warning, when it has logged that step.
CHILD = """
import os, signal, sys
from bert_jax.config import load_config
from bert_jax.train import log
from bert_jax.train.loop import train

if len(sys.argv) > 2:
    write = log.RunLog.log
    def dying(self, step, values, **more):
        write(self, step, values, **more)
        if step == int(sys.argv[2]):
            os.kill(os.getpid(), signal.SIGKILL)
    log.RunLog.log = dying
train(load_config(sys.argv[1]), sys.argv[1])
"""


def _child(run_dir, *arguments, **options):
    command = [sys.executable, "-c", CHILD, str(run_dir), *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)


def _run(run_dir, *arguments):
    process = _child(run_dir, *arguments)
    _, errors = process.communicate(timeout=300)
    return process.returncode, errors.decode()


def _losses(run_dir):
    return {
        r["step"]: (r["loss"], r["gradient_norm"])
        for r in read_metrics(run_dir)
        if r["kind"] == "train"
    }


def _params(run_dir):
    return jax.tree.map(np.asarray, load_run(run_dir).params)


def _start(experiment, run_dir):
    run_dir.mkdir()
    save_config(experiment, run_dir)
    return run_dir


@pytest.fixture(scope="module")
def uninterrupted(experiment, tmp_path_factory):
    """The run directory of 20 steps in one go."""
    run_dir = _start(experiment, tmp_path_factory.mktemp("runs") / "whole")
    code, errors = _run(run_dir)
    assert code == 0, errors
    return run_dir


def _same(run_dir, uninterrupted):
    jax.tree.map(np.testing.assert_array_equal, _params(run_dir), _params(uninterrupted))
    assert _losses(run_dir) == _losses(uninterrupted)


def test_the_run_spans_epochs_and_learns(uninterrupted, experiment):
    rows = len(open_inputs(experiment).train)
    assert rows < experiment.steps * experiment.batch_size / 2  # more than two epochs
    losses = _losses(uninterrupted)
    assert list(losses) == list(range(1, 21))
    assert losses[20][0] < losses[1][0] - 0.15  # ln(90) = 4.5 falls as frequencies are learned


def test_twenty_steps_are_seven_then_a_kill_then_thirteen(experiment, uninterrupted, tmp_path):
    run_dir = _start(experiment, tmp_path / "killed")
    assert _run(run_dir, 10)[0] == -signal.SIGKILL
    # Died at step 10, three steps after the checkpoint; what was logged since is trained again.
    code, errors = _run(run_dir)
    assert code == 0, errors
    _same(run_dir, uninterrupted)


@pytest.mark.slow
def test_ten_random_kill_points_change_nothing(experiment, uninterrupted, tmp_path):
    often = dataclasses.replace(
        experiment, checkpoints=dataclasses.replace(experiment.checkpoints, every=2)
    )
    run_dir = _start(often, tmp_path / "killed")
    for step in sorted(np.random.default_rng(5).choice(np.arange(1, 20), 10, replace=False)):
        assert _run(run_dir, step)[0] == -signal.SIGKILL
    assert _run(run_dir)[0] == 0
    _same(run_dir, uninterrupted)


@pytest.mark.slow
def test_kills_at_random_moments_change_nothing(experiment, tmp_path):
    longer = dataclasses.replace(
        experiment,
        steps=300,
        checkpoints=dataclasses.replace(experiment.checkpoints, every=10),
    )
    whole = _start(longer, tmp_path / "whole")
    assert _run(whole)[0] == 0
    run_dir = _start(longer, tmp_path / "killed")
    rng = np.random.default_rng(6)
    for _ in range(10):
        process = _child(run_dir)
        time.sleep(float(rng.uniform(4, 12)))
        process.kill()
        process.communicate()
    assert _run(run_dir)[0] == 0
    _same(run_dir, whole)


@pytest.mark.usefixtures("one_device")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_before_leaving(number, experiment, tmp_path, monkeypatch):
    """In this process: the signal comes when step 5 is logged."""
    from bert_jax.train import log

    write = log.RunLog.log

    def interrupted(self, step, values, **more):
        write(self, step, values, **more)
        if step == 5:
            os.kill(os.getpid(), number)

    monkeypatch.setattr(log.RunLog, "log", interrupted)
    run_dir = tmp_path / "run"
    result = train(experiment, run_dir)
    assert result.interrupted == signal.Signals(number).name
    assert result.step in (5, 6)  # the step in flight may be finished
    assert load_run(run_dir).step == result.step
    assert signal.getsignal(number) in (signal.default_int_handler, signal.SIG_DFL)


@pytest.mark.usefixtures("one_device")
def test_a_finished_run_trains_no_further_step(experiment, uninterrupted):
    before = [r for r in read_metrics(uninterrupted) if r["kind"] in ("train", "evaluation")]
    assert [r["step"] for r in before if r["kind"] == "evaluation"] == [20]
    result = train(experiment, uninterrupted)
    assert (result.step, result.interrupted) == (20, None)
    after = [r for r in read_metrics(uninterrupted) if r["kind"] in ("train", "evaluation")]
    assert after == before


@pytest.mark.slow
def test_eight_devices_train_the_same_run(experiment, uninterrupted, tmp_path):
    """Losses, not parameters: Adam divides rounding by its root and makes it large."""
    spread = dataclasses.replace(experiment, mesh=MeshShape(data=2, fsdp=2, tensor=2), steps=20)
    run_dir = tmp_path / "spread"
    train(spread, run_dir)
    ours, theirs = (
        np.asarray([x for x, _ in _losses(r).values()]) for r in (run_dir, uninterrupted)
    )
    # Step 1 is the same sum in another order; later ones have passed through Adam.
    assert ours[0] == pytest.approx(theirs[0], rel=1e-6)
    np.testing.assert_allclose(ours, theirs, rtol=1e-3)


@pytest.mark.usefixtures("one_device")
def test_evaluation_is_the_same_number_twice_and_near_ln_v_untrained(experiment, tmp_path):
    still = dataclasses.replace(
        experiment,
        steps=2,
        optimizer=dataclasses.replace(experiment.optimizer, learning_rate=1e-12),
        evaluation=Evaluation(every=1),
    )
    train(still, tmp_path / "run")
    held_out = [r["loss"] for r in read_metrics(tmp_path / "run") if r["kind"] == "evaluation"]
    assert len(held_out) == 2
    assert held_out[0] == held_out[1]  # no learning: the same masks, the same targets
    # Small random weights: within 2 % of uniform (pitfall P10).
    assert held_out[0] == pytest.approx(np.log(experiment.model.vocab_size), rel=0.02)


@pytest.mark.usefixtures("one_device")
def test_steps_that_are_not_finite_stop_the_run_and_are_recorded(experiment, tmp_path):
    explosive = dataclasses.replace(
        experiment,
        max_skipped_steps=3,
        # float32 overflows: an update of 1e38 turns the next forward pass into infinities
        optimizer=dataclasses.replace(experiment.optimizer, learning_rate=3e38, weight_decay=0.0),
    )
    run_dir = tmp_path / "run"
    with pytest.raises(TrainingStopped, match=r"3 steps in a row.*example indices are in"):
        train(explosive, run_dir)
    record = json.loads((run_dir / NON_FINITE_FILE).read_text())
    assert len(record["steps"]) == 3
    first = record["steps"][0]
    assert record["example_indices"][0] == [first * 8, first * 8 + 7]
    assert "text_of_last" not in record

    shown = tmp_path / "shown"
    with pytest.raises(TrainingStopped):
        train(explosive, shown, examples="show")
    texts = json.loads((shown / NON_FINITE_FILE).read_text())["text_of_last"]
    ids = batches(open_inputs(explosive), explosive).batch(record["steps"][-1])["input_ids"]
    assert texts[0] == open_inputs(explosive).tokenizer.decode(ids[0].tolist())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda e: {"mesh": MeshShape(data=3, fsdp=1)}, "wants 3 devices"),
        (
            lambda e: {"model": dataclasses.replace(e.model, vocab_size=50)},
            "set --model.vocab-size",
        ),
        (lambda e: {"data": "/no/such/store"}, "/no/such/store"),
    ],
)
@pytest.mark.usefixtures("one_device")
def test_what_cannot_run_is_one_sentence_and_leaves_nothing(experiment, tmp_path, change, message):
    bad = dataclasses.replace(experiment, **change(experiment))
    with pytest.raises((ValueError, OSError), match=message):
        train(bad, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_rows_that_the_mesh_does_not_divide_are_refused(experiment, tmp_path):
    uneven = dataclasses.replace(experiment, batch_size=12, mesh=MeshShape())
    with pytest.raises(ValueError, match="6 rows, which the 8 batch shards"):
        train(uneven, tmp_path / "run")


@pytest.mark.usefixtures("one_device")
def test_another_experiment_in_the_same_directory_is_refused(experiment, uninterrupted):
    other = dataclasses.replace(
        experiment, model=dataclasses.replace(experiment.model, dropout=Dropout(0.0, 0.0))
    )
    with pytest.raises(ValueError, match=r"model\.dropout\.hidden was 0\.1, is 0\.0"):
        train(other, uninterrupted)

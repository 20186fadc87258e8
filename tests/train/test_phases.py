"""Phases, what is carried from one to the next, clocks, growing batches, averages."""

import dataclasses
import itertools
import json

import jax
import numpy as np
import pytest

from bert_jax.data.batch_size import BatchWarmup
from bert_jax.data.packing import Packing
from bert_jax.evaluate.run import load_run
from bert_jax.experiment import Carry, Checkpoints
from bert_jax.models.paths import by_path
from bert_jax.objectives.masking import Masking
from bert_jax.parallel.mesh import MeshShape, make_mesh
from bert_jax.recipes import list_recipes, published
from bert_jax.train.average import averaged_run
from bert_jax.train.carry import carried
from bert_jax.train.checkpoint import Checkpointer
from bert_jax.train.inputs import open_inputs, run_task
from bert_jax.train.log import read_metrics
from bert_jax.train.loop import train
from bert_jax.train.optimizer import BertAdam
from bert_jax.train.phases import chained, phase_dir, train_phases
from bert_jax.train.schedule import BertLinear, Budget, Linear, Trapezoid
from bert_jax.train.state import abstract_state, init_state, initial_key
from bert_jax.train.task import restore_run

pytestmark = pytest.mark.usefixtures("one_device")


def state_of(experiment, run_dir, step=None):
    """The whole state of a checkpoint."""
    mesh = make_mesh(MeshShape(), jax.devices()[:1])
    with jax.set_mesh(mesh), Checkpointer(run_dir / "checkpoints") as saved:
        task = run_task(experiment, open_inputs(experiment))
        like = abstract_state(
            lambda: init_state(task.init(initial_key(0)), task.objective, experiment.optimizer),
            mesh,
        )
        found = saved.restore_latest(like) if step is None else saved.restore(step, like)
    return jax.tree.map(np.asarray, found.state), found.meta


def notes(run_dir):
    return " ".join(r["text"] for r in read_metrics(run_dir) if r["kind"] == "note")


def learning_rates(run_dir):
    return {r["step"]: r["learning_rate"] for r in read_metrics(run_dir) if r["kind"] == "train"}


@pytest.fixture(scope="module")
def short(experiment):
    """Six steps, saved every two."""
    return dataclasses.replace(
        experiment, steps=6, checkpoints=Checkpoints(every=2, keep_last=9), schedule=Linear(2.0)
    )


@pytest.fixture(scope="module")
def first_run(short, tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("runs") / "first"
    with pytest.MonkeyPatch.context() as patch:
        one = jax.devices()[:1]
        patch.setattr(jax, "devices", lambda *_: one)
        train(short, run_dir)
    return run_dir


def test_two_phases_with_everything_kept_are_one_run(short, first_run, tmp_path):
    """Stopped at step 4 as a phase of its own, then carried on: the same weights, bit for bit."""
    begin = dataclasses.replace(short, steps=4, total=6.0)
    rest = dataclasses.replace(short, carry=Carry(optimizer="kept", clock="kept"))
    result = train_phases((begin, rest), tmp_path / "run")
    assert result.run_dir == phase_dir(tmp_path / "run", 2) and result.step == 6
    ours, theirs = state_of(rest, result.run_dir)[0], state_of(short, first_run)[0]
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)
    assert "the clock goes on from step 4" in notes(result.run_dir)
    # The whole is taken up again where it stood; nothing is left to do.
    before = (phase_dir(tmp_path / "run", 1) / "metrics.jsonl").read_text()
    assert train_phases((begin, rest), tmp_path / "run").step == 6
    assert (phase_dir(tmp_path / "run", 1) / "metrics.jsonl").read_text() == before


def test_a_decay_branches_off_a_stable_checkpoint(short, first_run, tmp_path):
    branch = dataclasses.replace(
        short,
        init_from=str(first_run),
        carry=Carry(step=4, optimizer="kept", clock="kept"),
        steps=8,
        schedule=Trapezoid(decay_length=4.0),
    )
    train(branch, tmp_path / "branch")
    peak = short.optimizer.learning_rate
    expected = {5: peak, 6: 0.75 * peak, 7: 0.5 * peak, 8: 0.25 * peak}
    assert learning_rates(tmp_path / "branch") == pytest.approx(expected)
    state, meta = state_of(branch, tmp_path / "branch")
    assert state.step == 8 and meta["examples_seen"] == 8 * short.batch_size
    assert "the clock goes on from step 4; the learning rate begins at 1 of its peak, without" in (
        notes(tmp_path / "branch")
    )


@pytest.mark.parametrize("kept", ["kept", pytest.param("fresh", marks=pytest.mark.slow)])
def test_moments_are_kept_or_fresh_and_the_clock_reset(kept, short, first_run, tmp_path):
    """With a rate of next to nothing the parameters stay, and the moments tell where they began."""
    still = dataclasses.replace(
        short,
        init_from=str(first_run),
        carry=Carry(optimizer=kept),
        steps=1,
        seed=9,
        optimizer=dataclasses.replace(short.optimizer, learning_rate=1e-30),
        schedule=Linear(),
    )
    train(still, tmp_path / "run")
    now, _ = state_of(still, tmp_path / "run")
    before, _ = state_of(short, first_run)
    path = "encoder/embeddings/word/embedding"
    mu = lambda state: by_path(state.opt_states[0][1].mu)[path]  # noqa: E731
    count = 6 if kept == "kept" else 0
    assert now.step == 1 and now.opt_states[0][1].count == count + 1
    # mu' = .9 mu + .1 g, and g is the same for both: their difference is .9 of the old moment.
    assert np.abs(mu(now)).max() > 0
    moved = np.linalg.norm(mu(now) - 0.9 * mu(before)) / np.linalg.norm(mu(before))
    assert (moved < np.linalg.norm(mu(now)) / np.linalg.norm(mu(before))) == (kept == "kept")
    assert ("moments are those of" if kept == "kept" else "moments are fresh") in notes(
        tmp_path / "run"
    )
    np.testing.assert_array_equal(by_path(now.params)[path], by_path(before.params)[path])


@pytest.mark.slow
def test_what_repeats_an_earlier_order_is_said(short, first_run, tmp_path):
    again = dataclasses.replace(short, init_from=str(first_run), steps=1)
    train(again, tmp_path / "same")
    assert "order, masks and dropout repeat it" in notes(tmp_path / "same")
    train(dataclasses.replace(again, seed=7), tmp_path / "other")
    assert "repeat it" not in notes(tmp_path / "other")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"carry": Carry(optimizer="kept")}, "carry.optimizer is 'kept', but init_from is None"),
        ({"carry": Carry(step=3)}, "carry.step is 3, but init_from is None"),
    ],
)
def test_nothing_is_carried_over_from_nothing(short, changes, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        train(dataclasses.replace(short, **changes), tmp_path / "run")


def test_a_clock_that_has_passed_the_end_is_refused(short, first_run, tmp_path):
    over = dataclasses.replace(short, init_from=str(first_run), carry=Carry(clock="kept"), steps=6)
    with pytest.raises(ValueError, match="stands at step 6, but steps is 6"):
        train(over, tmp_path / "run")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_size": 16}, "had read 48 examples by step 6, where .* this run make it 96; keep"),
        ({"batch_warmup": BatchWarmup(4, 4, 64), "microbatches": 2}, "had read 48 examples"),
        (
            {"packing": Packing(seq_length=16), "clock": "tokens", "steps": 9},
            r"had read [\d,]+ tokens by step 6, where .* this run make it 768; keep",
        ),
    ],
)
def test_a_clock_is_kept_only_where_both_runs_count_alike(
    changes, message, short, first_run, tmp_path
):
    assert short.batch_size == 8 and short.packing.seq_length != 16
    kept = Carry(clock="kept")
    other = dataclasses.replace(
        short, **{"init_from": str(first_run), "carry": kept, "steps": 8, "seed": 5} | changes
    )
    with pytest.raises(ValueError, match=message):
        train(other, tmp_path / "run")
    # By the steps rows of another length change nothing but where the data stands.
    if other.clock == "tokens":
        train(dataclasses.replace(other, clock="steps", steps=7), tmp_path / "run")


@pytest.mark.parametrize("name", list_recipes())
def test_recipes_keep_their_clock_only_where_phases_count_alike(name):
    phases = published(name).phases
    for before, phase in itertools.pairwise(phases):
        if phase.carry.clock == "kept":
            step = before.steps
            assert phase.sizes.first_example(step) == before.sizes.first_example(step)
            assert phase.clock == before.clock == "steps"


@pytest.mark.parametrize(
    ("schedule", "note"),
    [
        (Linear(3.0), "the learning rate begins at 0 of its peak and warms up over 3 steps"),
        (BertLinear(), "the learning rate begins at 1 of its peak, without a warm-up"),
        (Trapezoid(1200.0, 0.1), "begins at 0.1 of its peak and warms up over 1,200 steps"),
        (Budget(), "the learning rate begins at 0.25 of its peak and peaks at 0.75 of the steps"),
    ],
)
def test_who_starts_from_an_imported_model_is_told_of_moments_and_warm_up(
    short, first_run, schedule, note
):
    """A Hugging Face directory has neither moments nor a clock: the state stays as it was."""
    after = dataclasses.replace(short, init_from="models/imported", steps=2000, schedule=schedule)
    state, _ = state_of(short, first_run)
    begun = carried(after, state, None)
    assert begun.state is state and (begun.step, begun.seconds) == (0, 0.0)
    (said,) = begun.notes
    assert said.startswith("moments are fresh; the clock starts at 0; ") and said.endswith(note)


def test_moments_of_another_model_are_refused(short, first_run, tmp_path):
    longer = dataclasses.replace(short.model.positions, max_length=600)
    other = dataclasses.replace(
        short,
        init_from=str(first_run),
        model=dataclasses.replace(short.model, positions=longer),
        carry=Carry(optimizer="kept"),
    )
    with pytest.raises(ValueError, match=r"the moments of .* do not fit the run"):
        train(other, tmp_path / "run")


def test_kept_moments_are_of_the_same_optimizer(short, first_run, tmp_path):
    other = dataclasses.replace(
        short, init_from=str(first_run), carry=Carry(optimizer="kept"), optimizer=BertAdam()
    )
    with pytest.raises(
        ValueError, match=r"\(optimizer was 'adamw', is 'bert-adam'; .*\); keep model"
    ):
        train(other, tmp_path / "run")


def test_steps_that_a_kept_clock_has_passed_are_refused_before_anything_runs(short, tmp_path):
    later = dataclasses.replace(short, carry=Carry(clock="kept"))
    with pytest.raises(
        ValueError, match="phase 2 keeps the clock of phase 1, which ends at step 6"
    ):
        train_phases((short, later), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_refused_start_leaves_its_directory_free(short, first_run, tmp_path):
    """Whoever follows the advice of a refusal may do so in the same place."""
    refused = dataclasses.replace(short, masking=Masking(random_ids=(0, 10**6)))
    with pytest.raises(ValueError, match="random_ids"):
        train(refused, tmp_path / "run")
    assert train(dataclasses.replace(short, steps=1), tmp_path / "run").step == 1
    assert "random_ids" not in notes(tmp_path / "run")
    with pytest.raises(ValueError, match="holds a run of another experiment"):
        train(dataclasses.replace(short, steps=2), tmp_path / "run")


def test_a_run_and_phases_do_not_share_a_directory(short, first_run, tmp_path):
    phases = (short, dataclasses.replace(short, seed=5))
    with pytest.raises(ValueError, match="holds a run without phases, and this one has 2"):
        train_phases(phases, first_run)
    (tmp_path / "run" / "phase-1").mkdir(parents=True)
    with pytest.raises(ValueError, match="holds the phases of a run, and this one has none"):
        train(short, tmp_path / "run")


def test_a_phase_names_the_one_before(short):
    other = dataclasses.replace(short, init_from="models/other")
    linked = chained((short, short, other), "runs/x")
    assert [phase.init_from for phase in linked] == [None, "runs/x/phase-1", "models/other"]


# --------------------------------------------------------------------------------------- clocks


def test_batches_grow_and_the_schedule_counts_tokens(short, tmp_path):
    """Sizes 2, 4, 6, then 8; a factor for every step by hand."""
    length = short.packing.seq_length
    growing = dataclasses.replace(
        short,
        batch_warmup=BatchWarmup(2, 2, 12 * length),
        microbatches=4,
        clock="tokens",
        total=36.0 * length,
        schedule=Linear(warmup=6.0 * length),
        steps=6,
    )
    sizes = [growing.sizes.batch_size_at(step) for step in range(6)]
    assert sizes == [2, 4, 6, 8, 8, 8]
    train(growing, tmp_path / "run")
    rows = np.cumsum([0, *sizes[:-1]])
    factors = [min(n / 6, 1 - (n - 6) / 30) for n in rows]
    peak = short.optimizer.learning_rate
    expected = {i + 1: f * peak for i, f in enumerate(factors)}
    assert learning_rates(tmp_path / "run") == pytest.approx(expected)
    _, meta = state_of(growing, tmp_path / "run")
    assert meta["examples_seen"] == sum(sizes)
    logged = [r["batch_size"] for r in read_metrics(tmp_path / "run") if r["kind"] == "train"]
    assert logged == sizes


def test_a_run_by_the_clock_on_the_wall_ends_in_time(short, tmp_path, monkeypatch):
    """Every look at the clock is a second later: steps end when the budget is spent."""
    from bert_jax.train import loop

    now = iter(range(10**6))
    monkeypatch.setattr(loop, "_now", lambda: float(next(now)))
    timed = dataclasses.replace(
        short, clock="seconds", total=12.0, steps=1000, schedule=Linear(warmup=4.0)
    )
    result = train(timed, tmp_path / "run")
    assert 2 <= result.step < 12 and result.interrupted is None
    assert load_run(tmp_path / "run").step == result.step
    _, meta = state_of(timed, tmp_path / "run")
    assert meta["seconds"] >= 12
    # Taken up again, it has no time left; a kept clock has spent as much.
    assert train(timed, tmp_path / "run").step == result.step
    longer = dataclasses.replace(
        timed,
        init_from=str(tmp_path / "run"),
        carry=Carry(clock="kept"),
        total=24.0,
        optimizer=BertAdam(clip="replica"),
    )
    more = train(longer, tmp_path / "longer").step - result.step
    assert 2 <= more < 12  # twelve further seconds, not twenty-four
    assert "clipped on each of 1 devices by itself" in notes(tmp_path / "longer")


# ------------------------------------------------------------------------------------- averages


def test_the_mean_of_the_last_checkpoints(short, first_run):
    averaged = averaged_run(first_run, 3)
    ones = [restore_run(first_run, step).params for step in (2, 4, 6)]
    mean = jax.tree.map(lambda *x: np.mean(np.asarray(x, np.float64), 0), *ones)
    jax.tree.map(
        # Rounded once to float32.
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-7),
        averaged.params,
        mean,
    )
    assert averaged.step == 6
    run = load_run(first_run, average=3)
    jax.tree.map(np.testing.assert_array_equal, run.params, averaged.params)
    with pytest.raises(ValueError, match=r"average is 4, but .* holds 3 checkpoints"):
        averaged_run(first_run, 4)
    with pytest.raises(ValueError, match="average is 0"):
        averaged_run(first_run, 0)
    with pytest.raises(ValueError, match="step is 2 and average 3"):
        load_run(first_run, step=2, average=3)


def test_evaluations_say_how_long_was_trained(first_run):
    seconds = [r["seconds"] for r in read_metrics(first_run) if r["kind"] == "evaluation"]
    assert seconds and all(s > 0 for s in seconds)
    assert json.loads((first_run / "config.json").read_text())["clock"] == "steps"

"""Experiments at an equal budget: what it buys, what is refused, what is written."""

import csv
import dataclasses
import math
import statistics

import jax
import pytest

from bert_jax import compare_command
from bert_jax.compare import (
    PAGE,
    SHEET,
    TABLE,
    Budget,
    Comparison,
    compare,
    planned_runs,
    spent_by,
)
from bert_jax.data.batch_size import BatchWarmup
from bert_jax.data.packing import Packing
from bert_jax.experiment import Checkpoints, Evaluation, Experiment, Logging
from bert_jax.models.config import Dropout, EncoderConfig
from bert_jax.models.flops import forward_flops, head_flops, model_flops_per_step
from bert_jax.objectives.masking import Masking
from bert_jax.objectives.replaced_tokens import ReplacedTokensObjective
from bert_jax.train.log import read_metrics
from bert_jax.train.schedule import Linear

LENGTH, ROWS = 16, 4
MLM = Experiment(
    name="mlm",
    model=EncoderConfig(
        vocab_size=64,
        hidden_size=16,
        num_layers=2,
        num_heads=2,
        intermediate_size=32,
        dropout=Dropout(0.0, 0.0),
    ),
    packing=Packing(seq_length=LENGTH),
    batch_size=ROWS,
    steps=12,
    schedule=Linear(2.0),
    evaluation=Evaluation(every=6, max_rows=32),
    checkpoints=Checkpoints(every=100),
    logging=Logging(every=6),
)
RTD = dataclasses.replace(
    MLM,
    name="rtd",
    objective=ReplacedTokensObjective(generator_width=0.5, generator_head_size=8),
)
MASKED = model_flops_per_step(MLM.model, ROWS, LENGTH, MLM.masking.slots(LENGTH))


def detection_flops() -> float:
    """A step of replaced-token detection, by hand: both encoders, the generator's head, the
    discriminator's two maps at every position; three times for the backward pass."""
    generator = RTD.objective.generator(RTD.model)
    slots = RTD.masking.slots(LENGTH)
    filling = forward_flops(generator, LENGTH) + slots * head_flops(generator)
    detecting = forward_flops(RTD.model, LENGTH) + LENGTH * 2 * 16 * (16 + 1)
    return 3 * ROWS * (filling + detecting)


def test_what_a_step_costs():
    assert spent_by(MLM, 5, "tokens") == 5 * ROWS * LENGTH
    assert spent_by(MLM, 5, "flops") == pytest.approx(5 * MASKED)
    assert spent_by(RTD, 5, "flops") == pytest.approx(5 * detection_flops())
    assert detection_flops() > 1.2 * MASKED
    growing = dataclasses.replace(MLM, batch_warmup=BatchWarmup(2, 1, 5 * LENGTH), microbatches=4)
    rows = [growing.sizes.batch_size_at(step) for step in range(5)]
    assert rows[0] == 2 and rows[-1] == 4
    assert spent_by(growing, 5, "flops") == pytest.approx(sum(rows) / ROWS * MASKED)


def test_a_budget_buys_as_many_whole_steps_as_it_pays_for():
    planned = planned_runs({"mlm": MLM, "rtd": RTD}, Budget("flops", 12.5 * MASKED))
    assert planned["mlm"].steps == 12
    assert planned["rtd"].steps == math.floor(12.5 * MASKED / detection_flops())
    exact = planned_runs({"mlm": MLM, "rtd": RTD}, Budget("flops", 7 * MASKED))
    assert exact["mlm"].steps == 7
    tokens = planned_runs({"mlm": MLM, "rtd": RTD}, Budget("tokens", 9 * ROWS * LENGTH + 3))
    assert (tokens["mlm"].steps, tokens["rtd"].steps) == (9, 9)


def test_own_steps_that_cost_the_same_are_kept():
    steps = round(12 * MASKED / detection_flops())
    equal = dataclasses.replace(RTD, steps=steps)
    assert planned_runs({"mlm": MLM, "rtd": equal}, Budget("flops")) == {"mlm": MLM, "rtd": equal}


@pytest.mark.parametrize(
    ("changes", "budget", "message"),
    [
        ({}, Budget("flops"), "budgets are not equal: rtd spends .* flops and mlm .*; give mlm"),
        (
            {"steps": 13},
            Budget("tokens"),
            "budgets are not equal: rtd spends 832 tokens and mlm 768",
        ),
        (
            {"clock": "seconds", "total": 9.0},
            Budget("tokens"),
            r"time ends rtd \(clock is 'seconds'\), whatever its steps",
        ),
        (
            {},
            Budget("tokens", 1e30),
            r"is 1.563e\+28 steps of mlm, and a run has at most 1,073,741,823",
        ),
        ({}, Budget("flops", 10.0), "a budget of 10 flops does not pay for one step of mlm"),
        ({}, Budget("seconds", 10.0), "mlm counts steps .*set clock to 'seconds'"),
        (
            {"total": 99.0},
            Budget("tokens", 1e6),
            r"schedule of rtd ends at 99 steps \(total\), whatever the budget",
        ),
    ],
)
def test_unequal_or_empty_budgets_are_refused(changes, budget, message):
    other = dataclasses.replace(RTD, **changes)
    with pytest.raises(ValueError, match=message):
        planned_runs({"mlm": MLM, "rtd": other}, budget)


def test_by_the_seconds_every_run_gets_the_same_time():
    timed = dataclasses.replace(MLM, clock="seconds", total=5.0)
    planned = planned_runs({"a": timed, "b": timed}, Budget("seconds", 60.0))
    assert [e.total for e in planned.values()] == [60.0, 60.0]
    # Nothing but the time ends a run: its own number of steps would be another budget.
    assert all(e.steps == (2**32 - 1) // ROWS for e in planned.values())
    own = planned_runs({"a": timed, "b": dataclasses.replace(timed, steps=3)}, Budget("seconds"))
    assert [(e.total, e.steps) for e in own.values()] == [(5.0, (2**32 - 1) // ROWS)] * 2
    longer = dataclasses.replace(timed, total=6000.0)
    with pytest.raises(ValueError, match=r"not equal: b has 6000 seconds \(total\) and a 5; give"):
        planned_runs({"a": timed, "b": longer}, Budget("seconds"))


@pytest.mark.parametrize(
    ("other", "seeds", "message"),
    [
        (None, (0,), "there is 1 experiment"),
        ({"packing": Packing(seq_length=8)}, (0,), "rtd and mlm differ in packing"),
        ({"data": "elsewhere"}, (0,), "rtd and mlm differ in data"),
        ({"eval_masking": Masking(rate=0.3)}, (0,), "differ in their masks at evaluation"),
        ({"init_from": "models/x"}, (0,), r"rtd starts from a trained model \(init_from\), whose"),
        (
            {"evaluation": Evaluation(6, 9)},
            (0,),
            "rtd is measured on 9 held-out rows and mlm on 32",
        ),
        ({}, (), "seeds are "),
        ({}, (1, 1), r"seeds are \(1, 1\)"),
    ],
)
def test_what_does_not_compare_is_refused(other, seeds, message, tmp_path):
    experiments = {"mlm": MLM}
    if other is not None:
        experiments["rtd"] = dataclasses.replace(RTD, **other)
    with pytest.raises(ValueError, match=message):
        compare(experiments, tmp_path / "out", Budget("flops", 5 * MASKED), seeds=seeds)
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("one_device")
@pytest.mark.parametrize("continued", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_comparison_end_to_end(tmp_path, continued):
    """Two objectives, two seeds, a common continuation; every number from the runs' own logs."""
    after = dataclasses.replace(MLM, name="then", steps=2, evaluation=Evaluation(0, 32))
    then = after if continued else None
    arguments = ({"mlm": MLM, "rtd": RTD}, tmp_path / "out", Budget("flops", 7 * MASKED))
    result = compare(*arguments, seeds=(3, 4), then=then)
    assert result.interrupted is None and jax.device_count() == 8
    with (tmp_path / "out" / SHEET).open() as file:
        rows = list(csv.DictReader(file))
    spent = {name: {r["step"] for r in rows if r["experiment"] == name} for name in ("mlm", "rtd")}
    steps = math.floor(7 * MASKED / detection_flops())
    assert steps < 6 and spent == {"mlm": {"6", "7"}, "rtd": {str(steps)}}
    finals = []
    for seed in (3, 4):
        run_dir = tmp_path / "out" / f"mlm-seed-{seed}"
        last = [r for r in read_metrics(run_dir) if r["kind"] == "evaluation"][-1]
        row = next(
            r for r in rows if (r["experiment"], r["seed"], r["step"]) == ("mlm", str(seed), "7")
        )
        assert float(row["loss"]) == last["loss"]
        assert float(row["spent"]) == pytest.approx(7 * MASKED)
        if continued:
            later = [r for r in read_metrics(run_dir / "then") if r["kind"] == "evaluation"]
            assert later[0]["step"] == 0 and float(row["then loss"]) == later[-1]["loss"]
        finals.append(last["loss"])
    assert finals[0] != finals[1]
    error = statistics.stdev(finals) / math.sqrt(2)
    line = next(x for x in result.table.splitlines() if x.startswith("| mlm "))
    assert f"{statistics.fmean(finals):.4f} ± {error:.4f}" in line
    head = result.table.splitlines()[0]
    assert "detection_loss" in head and "targets" not in head
    assert ("then loss" in head) == continued
    assert (tmp_path / "out" / TABLE).read_text().strip() == result.table
    page = (tmp_path / "out" / PAGE).read_text()
    assert page.count("<svg") == 2 and "mlm, seed 3" in page
    mlm, detection = page.split("<h2>detection_loss</h2>")
    assert "<h2>loss</h2>" in mlm and "mlm, seed 3" not in detection and "rtd, seed 3" in detection
    # Once more: nothing is trained again, and the same is found.
    log = (tmp_path / "out" / "rtd-seed-4" / "metrics.jsonl").read_text()
    again = compare(*arguments, seeds=(3, 4), then=then)
    assert again.table == result.table
    assert (tmp_path / "out" / "rtd-seed-4" / "metrics.jsonl").read_text().startswith(log[:200])


@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143), (None, 0)])
def test_the_exit_code_says_what_ended_a_comparison(name, code, tmp_path, monkeypatch, capsys):
    """As that of `bert-jax train`: 128 and the number of the signal."""
    done = Comparison((), "| a table |", tmp_path, name)
    monkeypatch.setattr(compare_command, "compare", lambda *_, **__: done)
    told = {"unit": "flops", "amount": None, "seeds": (0,), "data": None, "then": None}
    assert compare_command.compare_files(["bert-tiny:1", "bert-mini:1"], out=tmp_path, **told) == (
        code
    )
    shown = capsys.readouterr()
    if name is None:
        assert "| a table |" in shown.out
    else:
        assert f"{name}: saved; the same command goes on from here" in shown.err

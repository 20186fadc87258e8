"""The logs of a run: each step once, whatever was interrupted, and readable on the way."""

import io
import json
import re
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

from bert_jax.experiment import Logging
from bert_jax.train import log as log_module
from bert_jax.train.log import RunLog, duration, read_metrics
from bert_jax.train.metrics import Throughput


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def open_log(run_dir: Path, **options: object) -> RunLog:
    defaults = {"logging": Logging(), "total_steps": 100, "tokens_per_step": 1000.0}
    return RunLog(run_dir, **{**defaults, "stream": io.StringIO(), **options})


def steps(run_dir: Path, kind: str = "train") -> list[int]:
    return [record["step"] for record in read_metrics(run_dir) if record["kind"] == kind]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """Seconds that pass only when the test says so."""
    now = [0.0]
    monkeypatch.setattr(log_module, "Throughput", lambda: Throughput(clock=lambda: now[0]))
    yield now


def test_lines_are_json_objects_written_at_once(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.log(10, {"loss": 3.5, "gradient_norm": float("nan"), "skipped_steps": 2})
    log.evaluation(10, {"loss": 3.25, "targets": 1234})
    log.note('said "so"\nin two lines <b>')
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()  # before it is closed
    records = [json.loads(line, parse_constant=lambda word: pytest.fail(word)) for line in lines]
    assert [r["kind"] for r in records] == ["start", "train", "evaluation", "note"]
    assert [r["step"] for r in records] == [0, 10, 10, 10]
    assert records[1]["loss"] == 3.5
    assert records[1]["gradient_norm"] is None
    assert records[1]["skipped_steps"] == 2
    assert (records[2]["loss"], records[2]["targets"]) == (3.25, 1234)
    assert records[3]["text"] == 'said "so"\nin two lines <b>'
    assert all(abs(r["time"] - records[0]["time"]) < 60 for r in records)
    log.close()
    assert read_metrics(tmp_path) == records


def test_resuming_drops_what_is_done_again(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        for step in (10, 20, 30):
            log.log(step, {"loss": 1.0})
            log.evaluation(step, {"loss": 1.0})
        log.note("step 25 was skipped", step=25)
    # Killed while it wrote a line.
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "train", "step": 4')
    with open_log(tmp_path, steps_done=20) as log:
        assert steps(tmp_path) == [10, 20]
        assert steps(tmp_path, "evaluation") == [10, 20]
        log.note("resumed")
        log.log(30, {"loss": 2.0})
    assert steps(tmp_path) == [10, 20, 30]
    assert steps(tmp_path, "start") == [0, 20]
    assert [r["text"] for r in read_metrics(tmp_path) if r["kind"] == "note"] == ["resumed"]
    assert [r["loss"] for r in read_metrics(tmp_path) if r["kind"] == "train"] == [1.0, 1.0, 2.0]
    with open_log(tmp_path):  # from the start again: nothing of the old history stays
        assert steps(tmp_path) == []


def test_a_failed_rewrite_leaves_the_old_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_log(tmp_path) as log:
        log.log(10, {"loss": 1.0})
        log.log(20, {"loss": 1.0})
    before = (tmp_path / "metrics.jsonl").read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="metrics"):
        open_log(tmp_path, steps_done=10)
    assert (tmp_path / "metrics.jsonl").read_bytes() == before


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        log.log(10, {"loss": 1.0})
    path = tmp_path / "metrics.jsonl"
    path.write_text(path.read_text().replace('"kind": "train"', '"kin'))
    with pytest.raises(ValueError, match=rf"{re.escape(str(path))}:2 is damaged .*; remove that"):
        read_metrics(tmp_path)
    with pytest.raises(FileNotFoundError, match="holds no metrics"):
        read_metrics(tmp_path / "elsewhere")


def test_speed_and_utilisation(tmp_path: Path, clock: list[float]) -> None:
    """10 steps of 1000 tokens in 2 s are 5000 tokens/s; 100 operations each, of 1e6: a half."""
    stream = io.StringIO()
    with open_log(tmp_path, flops_per_token=100.0, peak_flops=1e6, stream=stream) as log:
        log.log(10, {"loss": 4.0})
        for step in (20, 30):
            clock[0] += 2
            log.log(step, {"loss": 3.0, "accuracy": 0.25})
        with log.untimed():
            clock[0] += 100
        clock[0] += 2
        log.log(40, {"loss": 2.5}, tokens=4000)
    first, second, third, fourth = (r for r in read_metrics(tmp_path) if r["kind"] == "train")
    assert "tokens_per_second" not in first  # before it the step was compiled
    assert (second["tokens_per_second"], second["mfu"]) == (5000, 0.5)
    assert third["tokens_per_second"] == 5000
    assert fourth["tokens_per_second"] == 24000 / 6
    assert stream.getvalue().splitlines()[1] == (
        "step 20/100  loss 3.000  accuracy 0.250  5,000 tokens/s  MFU 50.0 %  16 s left"
    )


def test_unknown_chips_have_no_utilisation(tmp_path: Path, clock: list[float]) -> None:
    with open_log(tmp_path, flops_per_token=100.0, peak_flops=None) as log:
        for step in (10, 20):
            log.log(step, {"loss": 4.0})
            clock[0] += 1
    assert "mfu" not in read_metrics(tmp_path)[-1]
    assert "tokens_per_second" in read_metrics(tmp_path)[-1]


def test_terminal_gets_one_line_that_is_rewritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    terminal = Terminal()
    with open_log(tmp_path, stream=terminal) as log:
        log.note("hello")
        log.log(10, {"loss": 3.14159, "accuracy": 0.5})
        log.note("step 12 skipped")
        log.evaluation(20, {"loss": 2.0, "targets": 5000})
    line = "\r\x1b[Kstep 10/100  loss 3.142  accu"
    assert len(line) - len("\r\x1b[K") == 29
    assert terminal.getvalue() == (
        f"hello\n{line}\r\x1b[Kstep 12 skipped\n{line}"
        f"\r\x1b[Kheld out at step 20: loss 2.000, targets 5,000\n{line}\n"
    )


def test_elsewhere_lines_are_plain(tmp_path: Path) -> None:
    stream = io.StringIO()
    with open_log(tmp_path, stream=stream, total_steps=12000) as log:
        log.log(1000, {"loss": 3.14159})
        log.note("a sentence")
    assert stream.getvalue() == "step 1,000/12,000  loss 3.142\na sentence\n"


def test_tensorboard_has_the_same_numbers(tmp_path: Path) -> None:
    from tensorboardX.proto.event_pb2 import Event

    with open_log(tmp_path) as log:
        log.log(10, {"loss": 3.5})
        log.evaluation(10, {"loss": 3.0})
    with open_log(tmp_path, steps_done=10) as log:
        log.log(20, {"loss": 2.5})
    seen, purges = [], []
    for path in sorted((tmp_path / "tensorboard").iterdir()):
        data = path.read_bytes()
        while data:  # length (8 bytes), its CRC (4), event, CRC (4)
            size = int.from_bytes(data[:8], "little")
            event = Event.FromString(data[12 : 12 + size])
            data = data[16 + size :]
            seen += [(v.tag, event.step, v.simple_value) for v in event.summary.value]
            if event.HasField("session_log"):
                purges.append(event.step)
    assert sorted(seen) == [
        ("evaluation/loss", 10, 3.0),
        ("train/loss", 10, 3.5),
        ("train/loss", 20, 2.5),
    ]
    assert purges == [11]


def test_other_processes_write_nothing(tmp_path: Path) -> None:
    stream = io.StringIO()
    with open_log(tmp_path, process_index=1, stream=stream) as log:
        log.log(10, {"loss": 1.0})
        log.evaluation(10, {"loss": 1.0})
        log.note("hello")
        with log.untimed():
            pass
    assert stream.getvalue() == ""
    assert list(tmp_path.iterdir()) == []


def test_wandb_is_optional_and_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, object]] = []

    class Run:
        def log(self, values: dict, step: int) -> None:
            calls.append(("log", (values, step)))

        def finish(self) -> None:
            calls.append(("finish", None))

    fake = types.SimpleNamespace(init=lambda **options: calls.append(("init", options)) or Run())
    monkeypatch.setitem(sys.modules, "wandb", fake)
    for _ in range(2):
        with open_log(tmp_path, logging=Logging(wandb_project="p"), config={"seed": 1}) as log:
            log.log(10, {"loss": 3.5})
    (_, first), logged, finished, (_, second), *_ = calls
    assert isinstance(first, dict)
    assert first == second  # the same id: the run goes on
    assert first["project"] == "p"
    assert first["name"] == tmp_path.name
    assert first["config"] == {"seed": 1}
    assert re.fullmatch("[0-9a-f]{8}", first["id"])
    assert logged == ("log", ({"train/loss": 3.5}, 10))
    assert finished == ("finish", None)


def test_a_missing_wandb_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ValueError, match="'p' and the package wandb is not installed; pip install"):
        open_log(tmp_path, logging=Logging(wandb_project="p"))
    open_log(tmp_path).close()


def test_logging_alone_starts_no_backend() -> None:
    program = (
        "import bert_jax.train.log, jax; print(jax._src.xla_bridge.backends_are_initialized())"
    )
    path = {"PYTHONPATH": ":".join(p for p in sys.path if p)}
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=path, check=True
    )
    assert run.stdout == "False\n"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (59.4, "59 s"),
        (59.6, "1 min 0 s"),
        (200, "3 min 20 s"),
        (7260, "2 h 1 min"),
        (100_000, "1 d 3 h"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text

"""The report: complete, self-contained and harmless."""

import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from bert_jax.experiment import Logging
from bert_jax.train.log import RunLog
from bert_jax.train.report import write_report

CONFIG = {
    "name": "first",
    "steps": 40,
    "model.hidden_size": 128,
    "masking.random_ids": None,
    "data": "runs/a&b",
    "versions.jax": "0.10.2",
    "run.device": "cpu",
}


def make_run(run_dir: Path, config: dict | None = None, upto: int = 40) -> Path:
    (run_dir / "config.json").write_text(json.dumps(CONFIG | (config or {})))
    options = {"logging": Logging(), "total_steps": 40, "tokens_per_step": 100.0}
    with RunLog(run_dir, **options, stream=io.StringIO()) as log:
        log.note("2 rows\n<i>wide</i>")
        for step in range(10, upto + 1, 10):
            values = {"loss": 8.0 - step / 10, "accuracy": step / 100, "learning_rate": 1e-3 / step}
            skipped = {"gradient_norm": float("inf") if step == 20 else 1.5, "skipped_steps": 1.0}
            log.log(step, values | skipped)
            log.evaluation(
                step,
                {
                    "loss": 8.25 - step / 10,
                    "standard_error": 0.0123,
                    "accuracy": 0.2,
                    "targets": 4321,
                },
            )
    return run_dir


class Page(HTMLParser):
    """Tags, attributes and text of a page; checks that tags are closed."""

    VOID = ("meta", "circle", "path")

    def __init__(self, path: Path):
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text: list[str] = []
        self.open: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    def tile(self, name: str) -> str:
        return self.text[self.text.index(name) + 1]


def test_a_finished_run(tmp_path: Path) -> None:
    path = write_report(make_run(tmp_path))
    assert path == tmp_path / "report.html"
    page = Page(path)
    assert page.tags.count("svg") == 5
    titles = ("Loss", "Masked accuracy", "Learning rate", "Gradient norm", "Throughput")
    assert all(title in page.text for title in titles)
    assert any(text.startswith("finished: 40 steps") for text in page.text)
    assert page.tile("held-out loss (nats)") == "4.250 ± 0.012"
    assert page.tile("held-out targets") == "4,321"
    assert page.tile("training loss (nats)") == "4.000"
    assert page.tile("skipped steps") == "4"
    assert page.tile("times resumed") == "0"
    assert page.tile("model.hidden_size") == "128"
    assert page.tile("masking.random_ids") == "null"
    assert page.tile("data") == "runs/a&b"
    assert page.tile("versions.jax") == "0.10.2"
    assert "2 rows\n<i>wide</i>" in page.text


def test_an_unfinished_run(tmp_path: Path) -> None:
    path = write_report(make_run(tmp_path, upto=10))
    assert any(text.startswith("unfinished: step 10 of 40") for text in Page(path).text)


def test_a_run_that_was_killed_before_its_first_line(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "metrics.jsonl").write_text('{"kind": "sta')
    page = Page(write_report(tmp_path))
    assert page.text.count("no numbers yet") == 5


def test_nothing_outside_is_needed_and_nothing_runs(tmp_path: Path) -> None:
    path = write_report(make_run(tmp_path))
    page = Page(path)
    assert not {"script", "link", "img", "iframe", "object"} & set(page.tags)
    names = {name for name, _ in page.attributes}
    assert not {"src", "href", "xlink:href", "style"} & names
    assert not any(name.startswith("on") for name in names)
    assert not re.search(r"https?:|url\(|@import", path.read_text())


HOSTILE = """<script>alert(1)</script>"'&--></style><svg onload=x>"""


def test_words_of_others_stay_words(tmp_path: Path) -> None:
    config = {
        "name": HOSTILE,
        f"model.{HOSTILE}": HOSTILE,
        "versions.x": HOSTILE,
        "run.y": [HOSTILE],
    }
    run = make_run(tmp_path, config)
    options = {"logging": Logging(), "total_steps": 40, "tokens_per_step": 100.0}
    with RunLog(run, **options, steps_done=40, stream=io.StringIO()) as log:
        log.note(HOSTILE)
        log.evaluation(40, {HOSTILE: 1.0})
    page = Page(write_report(run))
    assert "script" not in page.tags
    assert page.tags.count("svg") == 5
    assert page.tile("times resumed") == "1"
    assert page.text.count(HOSTILE) >= 4  # title, heading, value, version, note


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"holds no config.json; give a run directory"):
        write_report(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    with pytest.raises(FileNotFoundError, match=r"holds no metrics.jsonl"):
        write_report(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"config.json is damaged \(Expecting"):
        write_report(tmp_path)
    assert not (tmp_path / "report.html").exists()

"""The command line: what each verb calls, what help says, what a mistake is told."""

import importlib
import inspect
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import bert_jax
from bert_jax.cli import VERBS, main
from bert_jax.config import flatten, override
from bert_jax.recipes import list_presets, list_recipes, published, recipe

ROOT = Path(__file__).parents[1]

Recorded = list[tuple[tuple[Any, ...], dict[str, Any]]]


@pytest.fixture
def replace(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Recorded]:
    """Puts a function that records its calls in the place of another of the same signature."""

    def put(module: str, function: str, result: Any, **others: Any) -> Recorded:
        calls: Recorded = []
        signature = inspect.signature(getattr(importlib.import_module(module), function))

        def record(*args: Any, **kwargs: Any) -> Any:
            signature.bind(*args, **kwargs)
            calls.append((args, kwargs))
            if isinstance(result, BaseException):
                raise result
            return result

        stub = ModuleType(module)
        stub.__dict__.update({function: record, **others})
        monkeypatch.setitem(sys.modules, module, stub)
        return calls

    return put


def run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """`bert-jax` as a user runs it."""
    return subprocess.run(
        [sys.executable, "-m", "bert_jax.cli", *words],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | environment,
    )


def page(capsys: pytest.CaptureFixture[str]) -> str:
    """Help on standard output, without boxes and line breaks, from the list of options on."""
    out, err = capsys.readouterr()
    assert err == ""
    plain = " ".join(re.sub("[─-]{3,}|[│╭╮╰╯]", " ", out).split())
    return plain.partition(" options -h, --help ")[2]


def call(line: str) -> int:
    """`bert-jax` in this process, with the words of a line."""
    return main(line.split())


def sentence(capsys: pytest.CaptureFixture[str]) -> str:
    """The one line on standard error, nothing being on standard output."""
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1 and err.endswith("\n"), err
    assert err.startswith("bert-jax: ")
    return err.removeprefix("bert-jax: ").removesuffix("\n")


# --- the command itself --------------------------------------------------------------------------


def test_help_is_quick_and_loads_nothing_heavy() -> None:
    program = (
        "import sys, time\n"
        "start = time.process_time()\n"
        "from bert_jax.cli import main\n"
        "assert main(['--help']) == 0\n"
        "heavy = {'jax', 'numpy', 'tyro', 'flax', 'optax', 'tokenizers'} & set(sys.modules)\n"
        "print(time.process_time() - start, *heavy)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    seconds, *heavy = done.stdout.splitlines()[-1].split()
    assert heavy == []
    assert float(seconds) < 1


def test_help_names_every_verb(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--help"], ["-h"]):
        assert main(words) == 0
        out = capsys.readouterr().out
        for name, verb in VERBS.items():
            assert f"{name:<11} {verb.line}" in out
    assert main([]) == 2
    assert capsys.readouterr().err == out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("--version") == 0
    assert capsys.readouterr().out == f"bert-jax {bert_jax.__version__}\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("trian", "unknown command trian; did you mean train?"),
        ("fill_mask", "unknown command fill_mask; did you mean fill-mask?"),
        ("zzz", "unknown command zzz; bert-jax --help lists what there is."),
        ("--verison", "unknown option --verison; did you mean --version?"),
        ("report", "RUN is missing; the command is bert-jax report RUN (bert-jax report --help ex"),
        ("report a b", "unexpected argument 'b'; the command is bert-jax report RUN."),
        ("fill-mask a", "TEXT is missing; the command is bert-jax fill-mask RUN TEXT... ("),
        ("fill-mask a b --topk 3", "unknown option --topk; did you mean --top-k?"),
        ("fill-mask a b --top-k many", "--top-k is 'many'; expected an integer."),
        ("fill-mask a b --top-k", "--top-k needs a value: an integer."),
        ("prepare a --out b", "--tokenizer (a path) is missing; bert-jax prepare --help explains"),
        ("prepare a --out b --tokenizer c --format gz", "--format is 'gz'; expected one of auto,"),
        ("tokenizer a --out b --lowercase=1", "--lowercase takes no value; '1' was given."),
        ("evaluate a --step last", "--step is 'last'; expected an integer or None."),
        ("recipes bert-bse", "no recipe is called 'bert-bse'; did you mean 'bert-base'?"),
        ("train", "the experiment comes first; the command is bert-jax train EXPERIMENT [RUN_DIR]"),
        ("train --steps 3 bert-base", "the experiment comes first;"),
        ("train bert-bsae", "there is no file bert-bsae, and no recipe is called 'bert-bsae'; did"),
        ("train experiments/bert_bse.py", "there is no experiment file experiments/bert_bse.py; d"),
        (
            "train bert-base --optimizer.learning-rat 3e-4",
            "unknown option --optimizer.learning-rat; did you mean --optimizer.learning-rate?",
        ),
        ("train bert-base --steps 1e6", "--steps is '1e6'; expected an integer."),
        ("train bert-base --print=yes", "--print takes no value; 'yes' was given."),
        ("train bert-base --microbatches 7", "batch_size 256 is not divisible by microbatches 7"),
        ("train bert-base runs/a runs/b", "unexpected argument 'runs/b'; the command is bert-jax"),
    ],
)
def test_a_mistake_is_told_in_a_sentence(
    words: str, message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    assert main(words.split()) == 2
    assert sentence(capsys).startswith(message)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ValueError("one\n  thing"), "one thing"),
        (FileNotFoundError(2, "No such file or directory", "x.txt"), "x.txt: No such file or dire"),
        (PermissionError("cannot write x: make it writable"), "cannot write x: make it writable"),
        (ValueError(), "ValueError"),
    ],
)
def test_errors_of_a_verb_are_told_in_a_sentence(
    error: Exception,
    message: str,
    replace: Callable[..., Recorded],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    replace("bert_jax.train.report", "write_report", error)
    assert call("report a") == 2
    assert sentence(capsys).startswith(message)
    monkeypatch.setenv("BERT_JAX_DEBUG", "1")
    with pytest.raises(type(error)):
        call("report a")


def test_faults_of_the_program_keep_their_traceback(replace: Callable[..., Recorded]) -> None:
    replace("bert_jax.train.report", "write_report", KeyError("x"))
    with pytest.raises(KeyError):
        call("report a")


def test_an_interruption_is_one_line(
    replace: Callable[..., Recorded], capsys: pytest.CaptureFixture[str]
) -> None:
    replace("bert_jax.train.report", "write_report", KeyboardInterrupt())
    assert call("report a") == 130
    assert sentence(capsys) == "interrupted"


def test_exit_codes_of_a_process() -> None:
    done = run("--version")
    assert (done.returncode, done.stderr) == (0, "")
    for words, message in [
        (["trian"], "bert-jax: unknown command trian; did you mean train?\n"),
        (["report", "a", "--foo"], "bert-jax: unknown option --foo; --help lists the options.\n"),
        (
            ["train", "bert-base", "--optimizer.learning-rat", "1"],
            "bert-jax: unknown option --optimizer.learning-rat; did you mean "
            "--optimizer.learning-rate?\n",
        ),
    ]:
        done = run(*words)
        assert (done.returncode, done.stdout, done.stderr) == (2, "", message)
    done = run("report", "a", "--foo", BERT_JAX_DEBUG="1")
    assert done.returncode == 1
    assert done.stderr.startswith("Traceback") and "UnknownOption" in done.stderr


def test_a_process_that_is_interrupted_says_so_and_exits_with_130() -> None:
    program = (
        "import sys, time, types\n"
        "stub = types.ModuleType('bert_jax.train.report')\n"
        "def write_report(run):\n    print('ready', flush=True)\n    time.sleep(60)\n"
        "stub.write_report = write_report\n"
        "sys.modules['bert_jax.train.report'] = stub\n"
        "from bert_jax.cli import main\n"
        "sys.exit(main(['report', 'a']))\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout and process.stderr
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
        assert process.stderr.read() == "bert-jax: interrupted\n"


def test_a_reader_that_leaves_early_is_no_error() -> None:
    program = (
        "import sys\n"
        "from bert_jax.cli import main\n"
        "sys.stdin.readline()\n"
        "sys.exit(main(['--help']))\n"
    )
    pipe = subprocess.PIPE
    environment = {n: v for n, v in os.environ.items() if n != "PYTHONUNBUFFERED"}
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
        text=True,
        env=environment,
    ) as process:
        assert process.stdin and process.stdout and process.stderr
        process.stdout.close()
        process.stdin.write("now\n")
        process.stdin.flush()
        assert process.stderr.read() == ""
        assert process.wait(30) == 141


# --- verbs ---------------------------------------------------------------------------------------


def test_tokenizer(replace: Callable[..., Recorded], capsys: pytest.CaptureFixture[str]) -> None:
    calls = replace("bert_jax.data.tokenizer_report", "train_tokenizer_command", "the report")
    words = "tokenizer a.txt b.txt --out tok --kind byte_bpe --vocab-size 99 --lowercase"
    assert main(words.split()) == 0
    assert calls == [
        (
            (("a.txt", "b.txt"), Path("tok")),
            {
                "kind": "byte_bpe",
                "vocab_size": 99,
                "lowercase": True,
                "strip_accents": None,
                "format": "auto",
                "field": "text",
            },
        )
    ]
    assert capsys.readouterr().out == "the report\n"


def test_prepare(
    replace: Callable[..., Recorded],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = replace("bert_jax.data.prepare", "prepare", "a store")
    monkeypatch.setattr("bert_jax.data.store.store_summary", lambda store: f"summary of {store}")
    words = "prepare --out store a.jsonl b.jsonl --tokenizer tok --workers 0 --field body"
    assert main([*words.split(), "--validation-fraction=.1"]) == 0
    assert calls == [
        (
            (("a.jsonl", "b.jsonl"), Path("store")),
            {
                "tokenizer": Path("tok"),
                "format": "auto",
                "field": "body",
                "validation_fraction": 0.1,
                "workers": 0,
            },
        )
    ]
    assert capsys.readouterr().out == "summary of a store\n"


def test_tokenizer_and_prepare_for_real(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = [f"the state of the union number {i} is strong and it will last" for i in range(60)]
    Path("corpus.txt").write_text("\n".join(lines) + "\n")
    assert call("tokenizer corpus.txt --out tok --vocab-size 120") == 0
    assert "vocabulary size    " in capsys.readouterr().out
    assert call("prepare corpus.txt --out store --tokenizer tok --workers 0") == 0
    assert "documents      60 read" in capsys.readouterr().out
    assert call("prepare nothing.txt --out other --tokenizer tok") == 2
    assert "nothing.txt" in sentence(capsys)


def test_evaluate(replace: Callable[..., Recorded], capsys: pytest.CaptureFixture[str]) -> None:
    calls = replace("bert_jax.evaluate.command", "evaluate_run", "scores")
    assert call("evaluate runs/a --sentences s.txt --step 7") == 0
    assert call("evaluate runs/a --step none") == 0
    assert calls == [
        ((Path("runs/a"),), {"sentences": Path("s.txt"), "step": 7, "average": 1}),
        ((Path("runs/a"),), {"sentences": None, "step": None, "average": 1}),
    ]
    assert capsys.readouterr().out == "scores\nscores\n"


def test_fill_mask(replace: Callable[..., Recorded], capsys: pytest.CaptureFixture[str]) -> None:
    calls = replace("bert_jax.evaluate.fill_mask", "fill_mask_run", "fills")
    assert main(["fill-mask", "runs/a", "The [MASK] of", "a [MASK]", "--top-k", "3"]) == 0
    assert main(["fill-mask", "runs/a", "--", "--x [MASK]"]) == 0
    assert calls == [
        ((Path("runs/a"), ("The [MASK] of", "a [MASK]")), {"top_k": 3}),
        ((Path("runs/a"), ("--x [MASK]",)), {"top_k": 5}),
    ]
    assert capsys.readouterr().out == "fills\nfills\n"


def test_report(replace: Callable[..., Recorded], capsys: pytest.CaptureFixture[str]) -> None:
    calls = replace("bert_jax.train.report", "write_report", Path("runs/a/report.html"))
    assert call("report runs/a") == 0
    assert calls == [((Path("runs/a"),), {})]
    assert capsys.readouterr().out == "runs/a/report.html\n"


def test_recipes(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("recipes") == 0
    lines = capsys.readouterr().out.splitlines()
    encoders = next(i for i, line in enumerate(lines) if line.startswith("encoders: "))
    assert [line.split()[0] for line in lines[1:encoders]] == list(list_recipes())
    assert " ".join(lines[encoders:]).count(",") == len(list_presets()) - 1
    assert call("recipes bert-base:1") == 0
    shown = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert shown == {name: str(value) for name, value in flatten(recipe("bert-base")).items()}
    assert call("recipes diff deberta-v3-base deberta-v3-base-paper") == 0
    assert "objective.discriminator_weight" in capsys.readouterr().out


@pytest.mark.parametrize("verb", VERBS)
def test_help_of_a_verb_explains_it(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    for words in ([verb, "--help"], [verb, "-h"]):
        assert main(words) == 0
        out, err = capsys.readouterr()
        assert err == ""
        assert out.startswith(f"usage: bert-jax {verb} ")
        assert f"Example:\n    bert-jax {verb} " in out
        for line in out.splitlines():
            assert "Args:" not in line


@pytest.mark.parametrize("verb", VERBS)
def test_every_option_is_explained(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The docstrings are in step with the signatures."""
    assert call(f"{verb} --help") == 0
    entries = re.split(r" (?=--[a-z]\S* )", page(capsys))
    assert entries[0] == "show this help message and exit"
    bare = [entry for entry in entries[1:] if re.fullmatch(r"\S+( \S+)? \(.*?\).*", entry)]
    assert bare == []


def test_help_of_a_verb_shows_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("prepare --help") == 0
    out = page(capsys)
    assert "--out PATH Directory to write: new, empty, or begun by the same command. (req" in out
    assert "--validation-fraction FLOAT Share of the documents to hold out. (default: 0.05)" in out


# --- train ---------------------------------------------------------------------------------------


class Stopped(RuntimeError):
    """Stands for `TrainingStopped`."""


def trained(interrupted: str | None = None) -> SimpleNamespace:
    return SimpleNamespace(
        run_dir=Path("runs/a"), report=Path("runs/a/report.html"), interrupted=interrupted
    )


def test_train(replace: Callable[..., Recorded], capsys: pytest.CaptureFixture[str]) -> None:
    calls = replace("bert_jax.train.loop", "train", trained(), TrainingStopped=Stopped)
    words = ["--optimizer.learning-rate", "3e-4", "--steps", "1000", "--schedule", "cosine"]
    assert main(["train", "roberta-base", *words]) == 0
    assert main(["train", "roberta-base", *words[:2], "runs/a", *words[2:], "--show-examples"]) == 0
    assert main(["train", "--show-examples", "roberta-base", "runs/a", *words]) == 0
    changed = override(recipe("roberta-base"), words)
    assert changed.steps == 1000
    assert calls == [
        ((changed, Path("runs/roberta-base")), {"examples": "record"}),
        ((changed, Path("runs/a")), {"examples": "show"}),
        ((changed, Path("runs/a")), {"examples": "show"}),
    ]
    assert capsys.readouterr().out.splitlines()[-1] == (
        "run directory runs/a, report runs/a/report.html"
    )


def test_train_in_phases(replace: Callable[..., Recorded]) -> None:
    """A recipe of two phases: one call for both, with the options in each."""
    calls = replace("bert_jax.train.phases", "train_phases", trained())
    replace("bert_jax.train.loop", "train", trained(), TrainingStopped=Stopped)
    assert main(["train", "bert-base", "runs/a", "--seed", "3"]) == 0
    phases = tuple(override(phase, ["--seed", "3"]) for phase in published("bert-base").phases)
    assert calls == [((phases, Path("runs/a")), {"examples": "record"})]


def test_train_runs_an_experiment_file(
    replace: Callable[..., Recorded], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = replace("bert_jax.train.loop", "train", trained(), TrainingStopped=Stopped)
    file = tmp_path / "x.py"
    file.write_text("from bert_jax import recipe\nexperiment = recipe('roberta-base')\n")
    assert main(["train", str(file), "--seed", "3"]) == 0
    (((experiment, run_dir), _),) = calls
    assert experiment == override(recipe("roberta-base"), ["--seed", "3"])
    assert run_dir == Path("runs/roberta-base")
    file.write_text("experiment = nonsense\n")
    capsys.readouterr()
    assert main(["train", str(file)]) == 2
    assert sentence(capsys) == f"{file}:1: NameError: name 'nonsense' is not defined"


@pytest.mark.parametrize(("signal_name", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_a_run_that_a_signal_ended_exits_as_the_signal_would(
    signal_name: str, code: int, replace: Callable[..., Recorded]
) -> None:
    replace("bert_jax.train.loop", "train", trained(signal_name), TrainingStopped=Stopped)
    assert call("train roberta-base runs/a") == code


def test_a_run_that_could_not_go_on_exits_with_1(
    replace: Callable[..., Recorded], capsys: pytest.CaptureFixture[str]
) -> None:
    replace("bert_jax.train.loop", "train", Stopped("too bad"), TrainingStopped=Stopped)
    assert call("train roberta-base runs/a") == 1
    assert sentence(capsys) == "too bad"


def test_train_print_shows_the_resolved_fields_and_trains_nothing(
    replace: Callable[..., Recorded], capsys: pytest.CaptureFixture[str]
) -> None:
    calls = replace("bert_jax.train.loop", "train", trained(), TrainingStopped=Stopped)
    assert call("train roberta-base --print --schedule trapezoid --steps 7") == 0
    shown = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    changed = override(recipe("roberta-base"), ["--schedule", "trapezoid", "--steps", "7"])
    assert shown == {name: str(value) for name, value in flatten(changed).items()}
    assert shown["schedule"] == "trapezoid" and shown["steps"] == "7"
    assert calls == []


def test_help_of_an_experiment_lists_every_field_with_its_value(
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = ["--schedule", "cosine", "--eval-masking", "masking", "--seed", "77"]
    assert main(["train", "bert-base", *options, "--help"]) == 0
    out = page(capsys)
    changed = override(recipe("bert-base"), options)
    for name, value in flatten(changed).items():
        flag = "--" + name.replace("_", "-")
        if value is True:  # what can be asked for is its opposite
            flag = ".no-".join(flag.rsplit(".", 1))
        assert f" {flag} " in out, flag
        if isinstance(value, bool):
            continue
        shown = " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
        entry = out.partition(f" {flag} ")[2].partition(" --")[0]
        assert f"(default: {shown})" in entry, (name, entry)
    assert "--print" in out and "--show-examples" in out

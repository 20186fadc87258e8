"""Killed at any point and run again, `prepare` ends with the bytes of an undisturbed run."""

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from bert_jax.data.prepare import prepare
from bert_jax.data.store import Store
from bert_jax.data.tokenizer import Tokenizer

ENVIRONMENT = os.environ | {
    "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    "TOKENIZERS_PARALLELISM": "false",
}


def tree(directory) -> dict[str, str]:
    """The hash of every file, by its name."""
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(Path(directory).rglob("*"))
        if path.is_file()
    }


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """A directory with `in.txt` and a saved tokenizer."""
    directory = tmp_path_factory.mktemp("corpus")
    generator = random.Random(2)
    sentence = "the state of the union is strong and its people are free"
    lines = [" ".join(generator.choices(sentence.split(), k=40)) + f" {n}." for n in range(120)]
    lines += lines[5:9]
    (directory / "in.txt").write_text("\n".join(lines))
    tokenizer = Tokenizer.train(texts=lines, kind="wordpiece", vocab_size=100)
    tokenizer.save(directory / "tokenizer")
    return directory


def options(corpus, **changes):
    return {
        "paths": corpus / "in.txt",
        "tokenizer": corpus / "tokenizer",
        "validation_fraction": 0.3,
        "shard_bytes": 5000,
        "workers": 0,
        "say": str,
    } | changes


# Forks one child a kill point (a process of its own: forking is only safe with a single thread).
# A child dies just before its k-th call of anything that changes the disk.
EVERYWHERE = """
    import itertools, os, shutil, signal, sys
    from pathlib import Path
    from bert_jax.data import prepare as module, shards
    from bert_jax.data.prepare import prepare
    from bert_jax.data.store import Store
    from bert_jax.data.tokenizer import Tokenizer
    from test_prepare_resume import options, tree

    corpus, work = Path(sys.argv[1]), Path(sys.argv[2])
    tokenizer = Tokenizer.load(corpus / "tokenizer")

    path_open = Path.open

    os.fsync = lambda descriptor: None  # a killed process, unlike a power failure, loses no writes

    def run(out, kill_at=None, **changes):
        child = os.fork()
        if child:
            status = os.waitpid(child, 0)[1]
            assert status in (0, signal.SIGKILL), status
            return status == 0
        count = itertools.count()

        def dangerous(function):
            def call(*args, **kwargs):
                reads = function is path_open and args[1:] in ((), ("rb",))
                if not reads and next(count) == kill_at:
                    os.kill(os.getpid(), signal.SIGKILL)
                return function(*args, **kwargs)
            return call

        for owner, name in [
            (os, "fsync"), (Path, "replace"), (Path, "unlink"), (Path, "mkdir"), (Path, "open"),
            (shutil, "rmtree"), (shards.ShardWriter, "append"), (Tokenizer, "save"),
        ]:
            setattr(owner, name, dangerous(getattr(owner, name)))
        try:
            prepare(out=out, **options(corpus, tokenizer=tokenizer, **changes))
        except BaseException as error:
            print("child failed:", repr(error), flush=True)
            os._exit(1)
        os._exit(0)

    def whole_or_refused(out, expected):
        try:
            Store.open(out).verify()
        except ValueError:
            return
        found = tree(out)
        found.pop("journal.jsonl", None)
        assert found == expected

    expected = {}
    for fraction in (0.3, 0.5):
        assert run(work / str(fraction), validation_fraction=fraction)
        expected[fraction] = tree(work / str(fraction))
    points = 0
    out = work / "out"
    mode, first = sys.argv[3], (0.3, None)
    for kill_at in range(0, 10_000, int(sys.argv[4])):
        shutil.rmtree(out, ignore_errors=True)
        if mode == "other":  # begins on what another call left unfinished
            assert not run(out, 40, validation_fraction=0.5)
        finished = run(out, kill_at)
        whole_or_refused(out, expected[0.3])
        if mode == "twice" and not finished and not run(out, kill_at // 3 + 1):
            whole_or_refused(out, expected[0.3])
        if mode == "other" and kill_at % 2 and not (out / "manifest.json").exists():
            assert run(out, validation_fraction=0.5)
            assert tree(out) == expected[0.5], kill_at
        else:
            assert run(out)
            assert tree(out) == expected[0.3], kill_at
        if finished:
            break
        points += 1
    print(points)
"""


@pytest.mark.parametrize(("mode", "step"), [("once", 1), ("twice", 4), ("other", 3)])
def test_killed_before_every_change_of_the_disk(corpus, tmp_path, mode, step):
    environment = ENVIRONMENT | {
        "PYTHONPATH": str(Path(__file__).parent) + os.pathsep + ENVIRONMENT["PYTHONPATH"]
    }
    arguments = [str(corpus), str(tmp_path), mode, str(step)]
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(EVERYWHERE), *arguments],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    assert done.returncode == 0, done.stdout
    assert int(done.stdout) > 50 // step  # points at which it was killed


PROGRAM = """
    import sys
    from pathlib import Path
    from bert_jax.data import chunks
    from bert_jax.data.prepare import prepare
    from test_prepare_resume import options

    chunks._CHUNK_BYTES = 1500
    prepare(out=sys.argv[2], **options(Path(sys.argv[1]), workers=2, say=print))
"""


def start(corpus, out) -> subprocess.Popen[str]:
    """Starts `prepare` with two processes of its own, as the leader of a process group."""
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(PROGRAM), str(corpus), str(out)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT
        | {"PYTHONPATH": str(Path(__file__).parent) + os.pathsep + ENVIRONMENT["PYTHONPATH"]},
        start_new_session=True,
    )


def wait_until_gone(group: int) -> None:
    """Waits for every process of a group to end."""
    for _ in range(600):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    raise AssertionError("a process was left behind")


@pytest.mark.parametrize("kill", [signal.SIGKILL, signal.SIGINT])
def test_killed_with_processes_at_work(corpus, tmp_path, kill):
    prepare(out=tmp_path / "expected", **options(corpus))
    out = tmp_path / "out"
    running = start(corpus, out)
    while not (out / "journal.jsonl").exists() or (out / "journal.jsonl").stat().st_size < 1000:
        assert running.poll() is None, running.communicate()
        time.sleep(0.001)
    if kill == signal.SIGINT:
        os.killpg(running.pid, kill)  # as a terminal does: to all of them
    else:
        running.kill()
    _, errors = running.communicate()
    # One exception, from the leader alone: it may have interrupted the handling of another, which
    # Python then prints above it.
    interrupted = errors.count("During handling of the above exception")
    assert errors.count("Traceback") - interrupted == (kill == signal.SIGINT), errors
    wait_until_gone(running.pid)
    with pytest.raises(ValueError, match="unfinished store"):
        Store.open(out)

    again = start(corpus, out)
    output, errors = again.communicate()
    assert again.returncode == 0, errors
    assert "going on behind" in output
    assert "120 documents (4 duplicates dropped)" in output
    assert tree(out) == tree(tmp_path / "expected")


@pytest.fixture
def unfinished(corpus, tmp_path):
    """A store that lacks nothing but its manifest."""
    out = tmp_path / "out"
    prepare(out=out, **options(corpus))
    manifest = json.loads((out / "manifest.json").read_text())
    (out / "manifest.json").unlink()
    return out, manifest["fingerprint"]


def write_journal(out, fingerprint, tail="") -> None:
    """A journal that knows of no shard."""
    header = {
        "format": "bert_jax token store journal, version 1",
        "fingerprint": fingerprint,
    }
    (out / "journal.jsonl").write_text(json.dumps(header) + "\n" + tail)


@pytest.mark.parametrize("tail", ["", '{"split": "train", "sha', "\0\0\0"])
def test_a_journal_cut_short(corpus, tmp_path, unfinished, tail):
    out, fingerprint = unfinished
    prepare(out=tmp_path / "expected", **options(corpus))
    write_journal(out, fingerprint, tail)
    (out / "train" / "00099.tokens").write_text("of no shard the journal knows")
    prepare(out=out, **options(corpus))
    assert tree(out) == tree(tmp_path / "expected")


def test_a_journal_of_others_is_left_alone(corpus, tmp_path):
    (tmp_path / "journal.jsonl").write_text('{"dear": "diary"}\n')
    with pytest.raises(ValueError, match="is not empty and holds no store"):
        prepare(out=tmp_path, **options(corpus))
    assert (tmp_path / "journal.jsonl").read_text() == '{"dear": "diary"}\n'


def test_going_on_only_does_what_is_missing(corpus, tmp_path, monkeypatch):
    """Also: a finished shard whose file was damaged meanwhile is made again."""
    from bert_jax.data import prepare as module

    expected, out = tmp_path / "expected", tmp_path / "out"
    prepare(out=expected, **options(corpus, shard_bytes=3000))
    append = module.Journal.append

    def give_up_at_the_fifth(journal, record):
        append(journal, record)
        if len(journal.records) == 5:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(module.Journal, "append", give_up_at_the_fifth)
        prepare(out=out, **options(corpus, shard_bytes=3000))
    lines = (out / "journal.jsonl").read_text().splitlines()
    finished = [json.loads(line) for line in lines[1:]]
    assert len(finished) == 5
    damaged = out / finished[2]["split"] / f"{finished[2]['shard']:05d}.flags"
    data = damaged.read_bytes()
    damaged.write_bytes(data[:-1] + bytes([data[-1] ^ 2]))

    made = []
    close = module.ShardWriter.close
    monkeypatch.setattr(
        module.ShardWriter, "close", lambda writer: made.append(close(writer)) or made[-1]
    )
    said = []
    prepare(out=out, **options(corpus, shard_bytes=3000, say=said.append))
    assert said[0] == f"{out}: going on behind 4 finished shards"
    intact = {(r["split"], r["shard"]) for r in finished} - {
        (finished[2]["split"], finished[2]["shard"])
    }
    assert not intact & {(record["split"], record["shard"]) for record in made}
    total = sum(len(list((expected / s).glob("*.tokens"))) for s in ("train", "validation"))
    assert len(made) == total - 4
    assert tree(out) == tree(expected)


FULL = """
    import resource, sys
    from pathlib import Path
    from bert_jax.data.prepare import prepare
    from test_prepare_resume import options

    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]), resource.RLIM_INFINITY))
    try:
        prepare(out=sys.argv[2], **options(Path(sys.argv[1]), shard_bytes=1 << 20))
    except OSError as error:
        print(error)
"""


@pytest.mark.parametrize(
    ("limit", "file"), [(10, "journal.jsonl"), (4000, "tokenizer"), (6000, "00000.tokens")]
)
def test_no_room_on_the_disk(corpus, tmp_path, limit, file):
    """A limit on the size of files stands for a full disk: both fail in the middle of a write."""
    out = tmp_path / "out"
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(FULL), str(corpus), str(out), str(limit)],
        capture_output=True,
        text=True,
        check=True,
        env=ENVIRONMENT
        | {"PYTHONPATH": str(Path(__file__).parent) + os.pathsep + ENVIRONMENT["PYTHONPATH"]},
    )
    assert done.stderr == ""
    assert done.stdout.count("\n") == 1
    assert "cannot write" in done.stdout
    assert file in done.stdout
    assert "make room and run the same command again" in done.stdout
    with pytest.raises(ValueError, match=r"unfinished store|is not a store"):
        Store.open(out)
    prepare(out=out, **options(corpus, shard_bytes=1 << 20)).verify()
    assert not list(out.rglob("*.partial"))

"""Making a store: documents are read, made unique, split, tokenised in processes, and written."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import math
import os
import shutil
import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bert_jax.data.chunks import SALT, Census, Chunk, keep_documents, make_chunks
from bert_jax.data.manifest import VERSION, check_splits, sum_up, token_dtype, write_manifest
from bert_jax.data.sentences import sentence_starts
from bert_jax.data.shards import (
    JOURNAL,
    MANIFEST,
    TOKENIZER,
    Journal,
    ShardWriter,
    Tokenised,
    hash_file,
    is_unfinished,
    said,
    sync_directory,
)
from bert_jax.data.sources import Format, Source, find_sources
from bert_jax.data.store import Store
from bert_jax.data.workers import EncoderSpec, SentenceStarts, encode_chunks, name_of_function

if TYPE_CHECKING:
    from bert_jax.data.tokenizer import Tokenizer

SHARD_BYTES = 1 << 27
"""Text in a shard: what an interruption may cost, a minute's work or so."""

_BYTES_A_WORKER = 1 << 20  # of input; for less, a process costs more than it helps
_MUCH_INPUT = 10**9  # bytes, that take more than a second to hash


def _print(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def prepare(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    *,
    tokenizer: Tokenizer | str | os.PathLike[str],
    format: Format = "auto",
    field: str = "text",
    validation_fraction: float = 0.05,
    sentences: SentenceStarts = sentence_starts,
    workers: int | None = None,
    shard_bytes: int = SHARD_BYTES,
    say: Callable[[str], None] = _print,
) -> Store:
    """Tokenises a corpus into a store.

    Blank documents, and documents whose text was met before, are dropped and counted. A hash of its
    text alone decides whether a document is held out (`chunks.split_of`): wherever it stands,
    whatever else is in the corpus. The store's bytes depend on the arguments up to `sentences` and
    on `shard_bytes`, not on `workers` or on interruptions.

    Interrupted at any point, the same call goes on behind the last finished shard; a call with
    other arguments begins again. A store that is whole is returned at once if it was made from the
    same (the input is hashed to see that), and never overwritten.

    Args:
        paths: Input, as in `sources.read_documents`.
        out: Directory to write; new, empty, or what an earlier call left.
        tokenizer: A tokenizer, or a path that `Tokenizer.load` takes; saved in the store.
        format: As in `sources.read_documents`.
        field: As in `sources.read_documents`.
        validation_fraction: Share of the documents to hold out, at least 0 and below 1.
        sentences: Finds the positions in a text at which sentences start. Other processes import
            it by name.
        workers: Tokenising processes; 0 or 1: none but this one. By default one a processor, fewer
            for a small input.
        shard_bytes: Bytes of text after which a shard is full.
        say: Given each line of news, such as the counts at the end. A progress bar is shown on
            standard error if that is a terminal.

    Returns:
        The store.

    Raises:
        ValueError: Bad input or arguments, or `out` holds something else.
        OSError: An input is missing, or `out` cannot be written.
    """
    out = Path(out)
    _check_arguments(validation_fraction, workers, shard_bytes)
    _check_output(out)
    sources = find_sources(paths, format)
    loaded = _load(tokenizer)
    settings = {
        "field": field,
        "validation_fraction": float(validation_fraction),
        "salt": SALT,
        "sentences": name_of_function(sentences),
        "shard_bytes": shard_bytes,
    }
    plan = _make_plan(sources, loaded, settings, say)
    if (out / MANIFEST).exists():
        return _whole_store(out, plan, say)
    with said(out):
        out.mkdir(parents=True, exist_ok=True)
    with _locked(out, say):
        if (out / MANIFEST).exists():  # made by another process since
            return _whole_store(out, plan, say)
        _build(out, plan, loaded, _count_workers(workers, sources), say)
    return Store.open(out)


@dataclasses.dataclass(frozen=True)
class _Plan:
    """All that determines a store.

    Attributes:
        sources: The inputs.
        states: Path, size and time of change of each file, to notice changes while it is read.
        inputs: Of each file its name, format, size and hash.
        tokenizer: Digest of the tokenizer.
        settings: The arguments.
    """

    sources: tuple[Source, ...]
    states: list[tuple[Path, int, int]]
    inputs: list[dict[str, Any]]
    tokenizer: str
    settings: dict[str, Any]

    @property
    def fingerprint(self) -> str:
        """Of what determines the store's contents."""
        parts = [VERSION, self.inputs, self.tokenizer, self.settings]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


# --- what is asked for ---------------------------------------------------------------------------


def _check_arguments(fraction: float, workers: int | None, shard_bytes: int) -> None:
    if not 0 <= fraction < 1:
        raise ValueError(
            f"validation_fraction is {fraction}: give the share of documents to hold out, at "
            "least 0 and below 1, such as 0.05"
        )
    if workers is not None and workers < 0:
        raise ValueError(f"workers is {workers}: give a number of processes, or 0 for none")
    if shard_bytes < 1:
        raise ValueError(f"shard_bytes is {shard_bytes}: give a size such as {SHARD_BYTES}")


def _check_output(out: Path) -> None:
    """Refuses a directory with something in it that is not an (unfinished) store."""
    if not out.exists():
        return
    if not out.is_dir():
        raise ValueError(f"{out} is a file: choose another output directory")
    if (out / MANIFEST).exists() or is_unfinished(out) or not any(out.iterdir()):
        return
    raise ValueError(
        f"{out} is not empty and holds no store: choose another output directory or empty it"
    )


def _load(tokenizer: Tokenizer | str | os.PathLike[str]) -> Tokenizer:
    if not isinstance(tokenizer, (str, os.PathLike)):
        return tokenizer
    from bert_jax.data.tokenizer import Tokenizer

    return Tokenizer.load(tokenizer)


def _make_plan(
    sources: tuple[Source, ...],
    tokenizer: Tokenizer,
    settings: dict[str, Any],
    say: Callable[[str], None],
) -> _Plan:
    """Hashes the input."""
    files = [(source, file) for source in sources for file in source.files]
    states = _states(file for _, file in files)
    num_bytes = sum(size for _, size, _ in states)
    if num_bytes >= _MUCH_INPUT:
        say(f"reading {num_bytes / 1e9:,.0f} GB of input once to hash it")
    inputs = []
    for (source, file), (_, size, _) in zip(files, states, strict=True):
        entry = {"name": file.name, "format": source.format, "bytes": size}
        if source.split:
            entry["split"] = source.split
        inputs.append(entry | {"sha256": hash_file(file)})
    return _Plan(sources, states, inputs, tokenizer.digest(), settings)


def _states(files: Iterable[Path]) -> list[tuple[Path, int, int]]:
    return [(file, (stat := file.stat()).st_size, stat.st_mtime_ns) for file in files]


def _count_workers(workers: int | None, sources: Sequence[Source]) -> int:
    if workers is not None:
        return workers
    affinity = getattr(os, "sched_getaffinity", None)
    processors = len(affinity(0)) if affinity else os.cpu_count() or 1
    num_bytes = sum(source.num_bytes for source in sources)
    return min(processors, math.ceil(num_bytes / _BYTES_A_WORKER))


def _whole_store(out: Path, plan: _Plan, say: Callable[[str], None]) -> Store:
    """Returns the store that is there if it is the one asked for."""
    found = Store.open(out)
    if found.manifest["fingerprint"] != plan.fingerprint:
        settings = found.manifest["settings"]
        differing = [
            *(["the input"] if found.manifest["inputs"] != plan.inputs else []),
            *(["the tokenizer"] if found.manifest["tokenizer"]["digest"] != plan.tokenizer else []),
            *(key for key, value in plan.settings.items() if settings.get(key) != value),
        ]
        raise ValueError(
            f"{out} is a store made from something else (different: {', '.join(differing)}): "
            "choose another output directory or delete it"
        )
    (out / JOURNAL).unlink(missing_ok=True)  # the last interruption came just before this
    say(f"{out} is whole and made from the same input: nothing to do")
    return found


@contextlib.contextmanager
def _locked(out: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Keeps a second process from writing to the directory; ends with the process that holds it."""
    descriptor = os.open(out, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ValueError(
                f"another process is writing {out}: wait for it or choose another directory"
            ) from error
        except OSError as error:
            say(f"{out} cannot be locked ({error.strerror}): start no second prepare into it")
        yield
    finally:
        os.close(descriptor)


# --- the work ------------------------------------------------------------------------------------


def _build(
    out: Path, plan: _Plan, tokenizer: Tokenizer, workers: int, say: Callable[[str], None]
) -> None:
    """Writes the shards that are missing, then the manifest."""
    journal = Journal(out, plan.fingerprint)
    if journal.records:
        say(f"{out}: going on behind {len(journal.records)} finished shards")
    _save_tokenizer(out, tokenizer)
    dtype = token_dtype(tokenizer.vocab_size)
    spec = EncoderSpec(out / TOKENIZER, plan.settings["sentences"], dtype)
    census = Census()
    documents = keep_documents(
        plan.sources, plan.settings["field"], plan.settings["validation_fraction"], census
    )
    with _progress(plan) as progress:
        chunks = make_chunks(
            documents, set(journal.records), plan.settings["shard_bytes"], progress.passed
        )
        _write_shards(
            out, journal, encode_chunks(chunks, spec, workers), tokenizer.special.unk, progress
        )
    if _states(file for file, _, _ in plan.states) != plan.states:
        raise ValueError("the input was changed while it was read: run the same command again")
    splits = sum_up(journal, census)
    check_splits(splits, plan.settings["validation_fraction"])
    described = {
        "fingerprint": plan.fingerprint,
        "vocab_size": tokenizer.vocab_size,
        "tokenizer": {"digest": plan.tokenizer, "kind": tokenizer.kind},
        "inputs": plan.inputs,
        "settings": plan.settings,
    }
    write_manifest(out, described, splits, census)
    (out / JOURNAL).unlink()
    say(
        f"{out}: {sum(split['documents'] for split in splits.values()):,} documents "
        f"({census.duplicates.total():,} duplicates dropped), "
        f"{sum(split['tokens'] for split in splits.values()):,} tokens, "
        f"{progress.tokens_per_second:,.0f} tokens/s"
    )


def _save_tokenizer(out: Path, tokenizer: Tokenizer) -> None:
    """Saves the tokenizer afresh and makes sure that it is the same when loaded."""
    directory = out / TOKENIZER
    with said(directory):
        if directory.exists():
            shutil.rmtree(directory)
        tokenizer.save(directory)
        for path in directory.iterdir():
            with path.open("rb") as file:
                os.fsync(file.fileno())
        sync_directory(directory)
    if type(tokenizer).load(directory).digest() != tokenizer.digest():
        raise ValueError(
            f"the tokenizer saved in {directory} is not the one given: load it from files of "
            "another kind"
        )


class _Progress:
    """A bar over the bytes of input, on standard error if that is a terminal, and a clock."""

    def __init__(self, bar: Any):
        self._bar = bar
        self._start = time.perf_counter()
        self._tokens = 0

    def passed(self, position: int) -> None:
        """The input up to here is done."""
        self._bar.update(max(0, position - self._bar.n))

    def tokenised(self, num_tokens: int, position: int) -> None:
        """So many tokens more, from the input up to here."""
        self._tokens += num_tokens
        self._bar.set_postfix_str(f"{self.tokens_per_second:,.0f} tokens/s", refresh=False)
        self.passed(position)

    @property
    def tokens_per_second(self) -> float:
        """Since the start, of the tokens made since."""
        return self._tokens / max(time.perf_counter() - self._start, 1e-9)


@contextlib.contextmanager
def _progress(plan: _Plan) -> Iterator[_Progress]:
    import tqdm

    total = sum(size for _, size, _ in plan.states)
    with tqdm.tqdm(total=total, unit="B", unit_scale=True, desc="tokenise", disable=None) as bar:
        yield _Progress(bar)


def _write_shards(
    out: Path,
    journal: Journal,
    encoded: Generator[tuple[Chunk, Tokenised]],
    unknown_id: int,
    progress: _Progress,
) -> None:
    """Writes chunks into their shards; notes each shard that is finished in the journal."""
    writers: dict[str, ShardWriter] = {}
    try:
        for chunk, tokenised in encoded:
            if chunk.split not in writers:
                writers[chunk.split] = ShardWriter(out, chunk.split, chunk.shard, unknown_id)
            writers[chunk.split].append(tokenised, chunk.sizes)
            if chunk.closes:
                journal.append(writers.pop(chunk.split).close())
            progress.tokenised(len(tokenised.tokens), chunk.position)
    finally:
        encoded.close()
        for writer in writers.values():
            writer.abandon()

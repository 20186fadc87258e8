"""How fast the data pipeline makes batches, on one core, from a store whose pages are warm.

The rows are taken in the shuffled order of an epoch, as in training; ``prefetch`` is the same
through the prefetching thread, whose consumer does nothing. Tokens are corpus tokens: neither
padding nor special tokens count. Seconds are of processor time, of all threads together, on one
core: the same as by the clock where the core does nothing else.
"""

import argparse
import contextlib
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bert_jax.data.packing import Packing, Rows
from bert_jax.data.pipeline import Batches, prefetch
from bert_jax.data.shards import SENTENCE_START, WORD_START, ShardWriter, Tokenised
from bert_jax.data.store import Split, Store
from bert_jax.data.tokenizer import SpecialTokens

GOAL = 50e6  # tokens a second: far more than a host's accelerators use, so data is never the limit
BATCH_SIZE = 256
PACKINGS = [
    Packing(128, "fill", "document"),
    Packing(128, "complete", "row"),
    Packing(512, "fill", "document"),
    Packing(512, "complete", "row"),
]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of ``bench data``."""
    parser.add_argument("--store", type=Path, help="a prepared store (default: a made-up one)")
    parser.add_argument("--tokens", type=int, default=100_000_000, help="of the made-up store")
    parser.add_argument("--repeats", type=int, default=7, help="measurements, of which the median")


def run(options: argparse.Namespace) -> None:
    """Measures each packing and prints a line for it."""
    print(
        f"{_pin_to_one_core()}, {_processor()}, Python {platform.python_version()}, "
        f"numpy {np.__version__}; medians of {options.repeats}, batches of {BATCH_SIZE} rows"
    )
    with contextlib.ExitStack() as stack:
        if options.store is None:
            directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="bert_jax_bench"))
            split = _made_up_split(Path(directory), options.tokens)
            special = SpecialTokens(pad=0, unk=1, cls=2, sep=3, mask=4)
        else:
            store = Store.open(options.store)
            split, special = store.split("train"), store.tokenizer().special
        print(f"{split.num_tokens:,} tokens, {split.num_documents:,} documents\n")
        for packing in PACKINGS:
            _measure(split, packing, special, options.repeats)


def _measure(split: Split, packing: Packing, special: SpecialTokens, repeats: int) -> None:
    """Times one packing: building its rows, making batches, and through the thread."""
    begin = time.perf_counter()
    rows = Rows.build(split, packing, special)
    print(f"{rows.summary()}; found in {time.perf_counter() - begin:.1f} s")
    steps = max(1, min(len(rows) // BATCH_SIZE, (1 << 24) // (BATCH_SIZE * packing.seq_length)))
    for words in (False, True):
        speeds = []
        for reader in (_straight, _prefetched):
            batches = Batches(rows, batch_size=BATCH_SIZE, seed=0, words=words)
            reader(batches, 0, steps)  # warms the pages
            # Every measurement reads rows that the ones before have not.
            rates = [
                _rate(lambda k=k, b=batches, r=reader: r(b, k * steps, (k + 1) * steps))
                for k in range(1, repeats + 1)
            ]
            speeds.append(statistics.median(rates) * steps * BATCH_SIZE * _tokens_a_row(rows))
        # The goal is for what every recipe needs; word ids are for whole-word masking only.
        missed = not words and min(speeds) < GOAL
        verdict = f"  BELOW THE GOAL of {GOAL / 1e6:.0f}" if missed else ""
        name = "with word ids" if words else "plain"
        print(
            f"    {name:13}  batches {speeds[0] / 1e6:6.1f}   prefetch {speeds[1] / 1e6:6.1f}   "
            f"million tokens a second{verdict}"
        )


def _tokens_a_row(rows: Rows) -> float:
    return rows.num_tokens / len(rows)


def _rate(work: Callable[[], Any]) -> float:
    """How often the work could be done in a second of processor time."""
    begin = time.process_time()
    work()
    return 1 / (time.process_time() - begin)


def _straight(batches: Batches, start: int, stop: int) -> None:
    for step in range(start, stop):
        batches.batch(step)


def _prefetched(batches: Batches, start: int, stop: int) -> None:
    with prefetch(batches.batch, start, stop, lambda batch: batch) as feed:
        for _ in feed:
            pass


def _made_up_split(directory: Path, num_tokens: int) -> Split:
    """Writes shards of random tokens in documents of 600 tokens (log-normal) and maps them."""
    rng = np.random.default_rng(0)
    shards = []
    for shard, tokens in enumerate(_shares(num_tokens, 1 << 25)):
        counts = np.maximum(1, rng.lognormal(np.log(364), 1, tokens // 100 + 10)).astype(np.int64)
        counts = counts[: np.searchsorted(np.cumsum(counts), tokens)]
        counts = np.append(counts, tokens - counts.sum())
        flags = (rng.random(tokens) < 1 / 1.4) * WORD_START
        flags += (rng.random(tokens) < 1 / 25) * SENTENCE_START
        ids = rng.integers(5, 30_000, tokens).astype(np.uint16)
        writer = ShardWriter(directory, "train", shard, unknown_id=1)
        writer.append(Tokenised(ids, flags.astype(np.uint8), counts), np.zeros_like(counts))
        shards.append(writer.close())
    # Only the shards are read here, so the store has no tokenizer and no manifest file.
    return Split(
        Store(directory, {"dtype": "uint16", "splits": {"train": {"shards": shards}}}), "train"
    )


def _shares(total: int, largest: int) -> Iterator[int]:
    while total > 0:
        yield min(total, largest)
        total -= largest


def _pin_to_one_core() -> str:
    if not hasattr(os, "sched_setaffinity"):
        return "not pinned to one core (this system cannot)"
    core = max(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {core})
    return f"pinned to core {core}"


def _processor() -> str:
    """The processor's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return platform.processor()
    return next((x.split(":")[1].strip() for x in lines if x.startswith("model name")), "")

"""pipeline: a batch is a function of the step; prefetching neither reorders nor lingers."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
import traceback

import numpy as np
import pytest

from bert_jax.data import pipeline
from bert_jax.data.batch_size import BatchSizes, BatchWarmup
from bert_jax.data.order import order
from bert_jax.data.packing import Packing, Rows
from bert_jax.data.pairs import PairRows, Pairs
from bert_jax.data.pipeline import Batches, HostSlice, ValidationBatches, prefetch, to_device
from bert_jax.data.tokenizer import SpecialTokens
from bert_jax.data.windows import MemorySplit

SPECIAL = SpecialTokens(pad=9, unk=5, cls=7, sep=3, mask=0)
NAMES = ("input_ids", "segment_ids", "position_ids", "word_ids")


def make_rows(num_rows, length=8):
    """Rows of which each holds the tokens of one document, all different."""
    counts = np.full(num_rows, length - 3)
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    tokens = np.arange(10, 10 + offsets[-1]).astype(np.uint32)
    split = MemorySplit(tokens, np.full(len(tokens), 1, np.uint8), offsets)
    return Rows.build(split, Packing(length, "document"), SPECIAL)


def row_of(batch):
    """Which row of ``make_rows`` each example is."""
    return (batch["input_ids"][:, 1] - 10) // (batch["input_ids"].shape[1] - 3)


@pytest.fixture(params=["many steps a block", "one step a block"])
def blocks(request, monkeypatch):
    if request.param == "one step a block":
        monkeypatch.setattr(pipeline, "_BLOCK_POSITIONS", 1)


@pytest.mark.parametrize("num_rows, batch_size", [(1, 4), (3, 8), (10, 4), (64, 16), (101, 7)])
@pytest.mark.usefixtures("blocks")
def test_batch_is_rows_in_the_order_of_the_epoch(num_rows, batch_size):
    rows = make_rows(num_rows)
    batches = Batches(rows, batch_size=batch_size, seed=5, words=True)
    for step in (0, 1, 2, 40, 3, 10**6):
        batch = batches.batch(step)
        examples = np.arange(step * batch_size, (step + 1) * batch_size)
        expected = [
            int(order(5, int(g // num_rows), num_rows, np.array(g % num_rows))) for g in examples
        ]
        assert batch["example_ids"].dtype == np.uint32
        assert batch["example_ids"].tolist() == examples.tolist()
        assert row_of(batch).tolist() == expected
        for name, array in rows.take(np.array(expected), words=True).items():
            assert np.array_equal(batch[name], array)


@pytest.mark.parametrize("batch_size", [1, 4, 6, 32, 50])
def test_every_row_once_an_epoch_whatever_the_batch_size(batch_size):
    num_rows, epochs = 24, 5
    batches = Batches(make_rows(num_rows), batch_size=batch_size, seed=0)
    steps = -(-num_rows * epochs // batch_size)
    seen = np.concatenate([row_of(batches.batch(step)) for step in range(steps)])
    seen = seen[: num_rows * epochs].reshape(epochs, num_rows)
    assert np.array_equal(np.sort(seen, axis=1), np.tile(np.arange(num_rows), (epochs, 1)))
    assert len({tuple(epoch) for epoch in seen.tolist()}) == epochs


def test_batches_do_not_depend_on_what_was_asked_before():
    steps = list(range(60))
    straight = Batches(make_rows(50), batch_size=4, seed=1)
    expected = [row_of(straight.batch(step)).tolist() for step in steps]
    random.Random(0).shuffle(steps)
    jumping = Batches(make_rows(50), batch_size=4, seed=1)
    assert all(row_of(jumping.batch(step)).tolist() == expected[step] for step in steps)
    other = Batches(make_rows(50), batch_size=4, seed=2)
    assert [row_of(other.batch(step)).tolist() for step in range(60)] != expected


@pytest.mark.parametrize("count", [1, 2, 3, 4, 6, 12])
@pytest.mark.usefixtures("blocks")
def test_hosts_together_make_the_batch_of_one(count):
    rows = make_rows(31)
    alone = Batches(rows, batch_size=12, seed=3, words=True)
    hosts = [
        Batches(rows, batch_size=12, seed=3, host=HostSlice(i, count), words=True)
        for i in range(count)
    ]
    for step in (0, 1, 7, 100):
        parts = [host.batch(step) for host in hosts]
        for name, array in alone.batch(step).items():
            assert all(len(part[name]) == 12 // count for part in parts)
            assert np.array_equal(np.concatenate([part[name] for part in parts]), array)


def test_batches_cannot_be_written_to():
    """They are views of a block that other steps share."""
    batch = Batches(make_rows(5), batch_size=2, seed=0).batch(0)
    for array in batch.values():
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0


def test_few_blocks_are_kept():
    batches = Batches(make_rows(300, length=256), batch_size=256, seed=0)
    for step in range(100):
        batches.batch(step)
    assert len(batches._blocks) == 2


def test_threads_may_share_batches():
    batches = Batches(make_rows(40), batch_size=4, seed=1)
    expected = [row_of(Batches(make_rows(40), batch_size=4, seed=1).batch(s)) for s in range(80)]
    wrong = []

    def read(steps):
        wrong.extend(s for s in steps if not np.array_equal(row_of(batches.batch(s)), expected[s]))

    threads = [threading.Thread(target=read, args=(range(i, 80, 4),)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: Batches(make_rows(0), batch_size=4, seed=0), "0 rows"),
        (lambda: Batches(make_rows(4), batch_size=0, seed=0), "batch_size .* got 0"),
        (lambda: Batches(make_rows(4), batch_size=6, seed=0, host=HostSlice(0, 4)), "6 .* 4 hosts"),
        (lambda: HostSlice(4, 4), "got 4 of 4"),
        (lambda: HostSlice(0, 0), "got 0 of 0"),
        (lambda: Batches(make_rows(4), batch_size=2**16, seed=0, steps=2**16), "4,294,967,296"),
        (lambda: Batches(make_rows(4), batch_size=4, seed=-3), "seed .* got -3"),
        (lambda: Batches(make_rows(4), batch_size=4, seed=0).batch(-1), "got -1"),
        (lambda: Batches(make_rows(4), batch_size=4, seed=0).batch(2**30), "got 1073741824"),
        (lambda: ValidationBatches(make_rows(0), batch_size=4), "0 rows"),
        (lambda: ValidationBatches(make_rows(5), batch_size=4).batch(2), "0 to 1"),
        (lambda: prefetch(int, 0, 1, int, depth=0), "depth .* got 0"),
    ],
)
def test_refuses(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_the_last_examples_that_have_a_number():
    batch = Batches(make_rows(7), batch_size=4, seed=0, steps=2**30 - 1).batch(2**30 - 1)
    assert batch["example_ids"].tolist() == [2**32 - 4, 2**32 - 3, 2**32 - 2, 2**32 - 1]


@pytest.mark.parametrize("num_rows, batch_size", [(10, 4), (12, 4), (1, 8), (10, 1)])
def test_validation_has_every_row_exactly_once(num_rows, batch_size):
    rows = make_rows(num_rows)
    batches = ValidationBatches(rows, batch_size=batch_size, words=True)
    made = list(batches)
    assert len(made) == len(batches) == -(-num_rows // batch_size)
    for name in NAMES:
        assert {batch[name].shape for batch in made} == {(batch_size, 8)}
    together = {name: np.concatenate([batch[name] for batch in made]) for name in made[0]}
    weights = together["example_weights"]
    assert weights.dtype == np.float32 and together["example_ids"].dtype == np.uint32
    assert np.array_equal(together["example_ids"], np.arange(len(weights)))
    assert weights.tolist() == [1.0] * num_rows + [0.0] * (len(weights) - num_rows)
    for name, array in rows.take(np.arange(num_rows), words=True).items():
        assert np.array_equal(together[name][:num_rows], array)
        empty = {"input_ids": 9, "word_ids": -1}.get(name, 0)
        assert np.all(together[name][num_rows:] == empty)


def test_validation_on_hosts_is_the_same_and_of_equal_length():
    rows = make_rows(9)
    hosts = [ValidationBatches(rows, batch_size=4, host=HostSlice(i, 4)) for i in range(4)]
    assert {len(host) for host in hosts} == {3}
    for index, whole in enumerate(ValidationBatches(rows, batch_size=4)):
        for name, array in whole.items():
            parts = [host.batch(index)[name] for host in hosts]
            assert np.array_equal(np.concatenate(parts), array)


# Epochs of unequal length


def make_pairs(seed=0, num_documents=12, **values):
    """Pairs of documents whose token ids are their places in the stream, plus 10."""
    rng = np.random.default_rng(1)
    offsets = np.concatenate([[0], np.cumsum(rng.integers(20, 80, num_documents))])
    flags = np.where(rng.random(offsets[-1]) < 0.2, 3, 1).astype(np.uint8)
    split = MemorySplit(np.arange(10, 10 + offsets[-1]), flags, offsets.astype(np.int64))
    return PairRows.build(split, Pairs(24, **values), SPECIAL, seed=seed)


@pytest.mark.parametrize(
    "values", [{"copies": 3}, {"copies": 1}, {"copies": None, "masks": "fresh"}]
)
@pytest.mark.parametrize("batch_size", [7, 300])
@pytest.mark.usefixtures("blocks")
def test_pairs_come_in_the_order_of_their_epoch(values, batch_size):
    """Against counting through the epochs one row after the other."""
    rows = make_pairs(**values)
    expected = []
    for epoch in range(8):
        of_epoch = rows.copy(epoch % values["copies"] if values["copies"] else epoch)
        permuted = order(5, epoch, len(of_epoch), np.arange(len(of_epoch)))
        taken = of_epoch.take(permuted, words=True)
        expected.append({**taken, "epoch": np.full(len(of_epoch), epoch)})
    expected = {name: np.concatenate([e[name] for e in expected]) for name in expected[0]}
    assert len({rows.size(c) for c in range(3)}) == 3  # unequal, else this shows little
    batches = Batches(rows, batch_size=batch_size, seed=5, words=True)
    last = len(expected["epoch"]) // batch_size - 1
    for step in (last, 0, last // 2, min(last, last // 2 + 1), last // 3):
        batch = batches.batch(step)
        examples = slice(step * batch_size, (step + 1) * batch_size)
        assert batch["example_ids"].tolist() == list(range(examples.start, examples.stop))
        for name, array in batch.items():
            if name != "example_ids":
                assert np.array_equal(array, expected[name][examples]), name


def test_pairs_resume_anywhere_without_replaying():
    """A far step needs the sizes of the copies, and the table of its own copy only."""
    rows = make_pairs(copies=3)
    batch = Batches(rows, batch_size=4, seed=0).batch(10**8)
    cycle = sum(make_pairs(copies=3).size(copy) for copy in range(3))
    total = 4 * 10**8
    fresh = make_pairs(copies=3)
    rest, copy = total % cycle, 0
    while rest >= fresh.size(copy):
        rest, copy = rest - fresh.size(copy), copy + 1
    epoch = total // cycle * 3 + copy
    of_copy = fresh.copy(copy)
    expected = of_copy.take(order(0, epoch, len(of_copy), np.array([rest])))
    for name, array in expected.items():
        assert np.array_equal(batch[name][:1], array)
    assert batch["mask_ids"].max() < cycle


def test_pairs_on_hosts_and_of_other_seeds():
    rows = make_pairs(copies=2)
    alone = Batches(rows, batch_size=12, seed=3)
    hosts = [
        Batches(make_pairs(copies=2), batch_size=12, seed=3, host=HostSlice(i, 3)) for i in range(3)
    ]
    for step in (0, 5, 40):
        parts = [host.batch(step) for host in hosts]
        for name, array in alone.batch(step).items():
            assert np.array_equal(np.concatenate([part[name] for part in parts]), array)
    other = Batches(rows, batch_size=12, seed=4).batch(0)
    assert not np.array_equal(other["input_ids"], alone.batch(0)["input_ids"])


def test_a_pair_of_a_copy_is_masked_by_one_number_whenever_it_comes():
    rows = make_pairs(copies=2)
    batches = Batches(rows, batch_size=10, seed=0)
    seen = {}
    for step in range(4 * (rows.size(0) + rows.size(1)) // 10):
        batch = batches.batch(step)
        for mask, ids in zip(batch["mask_ids"].tolist(), batch["input_ids"].tolist(), strict=True):
            assert seen.setdefault(mask, ids) == ids
    assert sorted(seen) == list(range(rows.size(0) + rows.size(1)))


def test_validation_of_pairs_has_every_pair_once_whatever_the_run():
    made = [list(ValidationBatches(make_pairs(), batch_size=16, words=True)) for _ in range(2)]
    together = [
        {n: np.concatenate([b[n] for b in batches]) for n in batches[0]} for batches in made
    ]
    num_rows = make_pairs().size(0)
    assert together[0]["example_weights"].sum() == num_rows < len(together[0]["example_weights"])
    for name, array in make_pairs().take(np.arange(num_rows), words=True).items():
        assert np.array_equal(together[0][name][:num_rows], array)
        empty = {"input_ids": 9, "word_ids": -1}.get(name, 0)
        assert np.all(together[0][name][num_rows:] == empty)
    for name, array in together[0].items():
        assert np.array_equal(together[1][name], array)


# Batches that grow


GROWING = BatchSizes(12, 8, BatchWarmup(2, 3, 8 * 200))


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.usefixtures("blocks")
def test_growing_batches_have_every_example_once(count):
    rows = make_rows(31)
    hosts = [
        Batches(rows, batch_size=12, seed=3, sizes=GROWING, host=HostSlice(i, count), words=True)
        for i in range(count)
    ]
    epochs, positions = np.divmod(np.arange(1000), 31)
    plain = rows.take(order(3, epochs, 31, positions), words=True)
    example, sizes = 0, []
    for step in range(60):
        parts = [host.batch(step) for host in hosts]
        batch = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        real = batch["segment_ids"].any(axis=1)
        sizes.append(int(real.sum()))
        assert batch["input_ids"].shape == (12, 8)
        assert real.tolist() == [True] * sizes[-1] + [False] * (12 - sizes[-1])
        assert batch["example_ids"].tolist() == list(range(example, example + 12))
        for name in NAMES:
            assert np.array_equal(batch[name][real], plain[name][example : example + sizes[-1]])
            assert np.all(batch[name][~real] == {"input_ids": 9, "word_ids": -1}.get(name, 0))
        example += sizes[-1]
    assert sizes == sorted(sizes) and set(sizes) == {2, 5, 8, 11, 12}
    assert sizes == [GROWING.batch_size_at(step) for step in range(60)]


def test_growing_batches_of_pairs():
    """Places without an example have label 0, and are seen by their segment of 0."""
    rows = make_pairs(copies=2)
    batches = Batches(rows, batch_size=12, seed=3, sizes=GROWING)
    plain = Batches(rows, batch_size=1, seed=3)
    batch = batches.batch(0)
    for name, array in batch.items():
        if name != "example_ids":
            both = np.concatenate([plain.batch(step)[name] for step in (0, 1)])
            assert np.array_equal(array[:2], both)
            assert np.all(array[2:] == (9 if name == "input_ids" else 0))
    assert np.all(batches.batch(59)["segment_ids"][:, 0] == 1)


def test_growing_batches_count_their_examples():
    steps = GROWING.step_of_example(2**32) - 1
    assert steps * 12 > 2**32  # so many full batches would be too many
    batches = Batches(make_rows(7), batch_size=12, seed=0, steps=steps, sizes=GROWING)
    assert batches.batch(steps - 1)["example_ids"][-1] < 2**32
    with pytest.raises(ValueError, match="after smaller batches"):
        Batches(make_rows(7), batch_size=12, seed=0, steps=steps + 2, sizes=GROWING)
    with pytest.raises(ValueError, match=f"got {steps + 2}"):
        batches.batch(steps + 2)
    with pytest.raises(ValueError, match="12 rows, but batch_size is 24"):
        Batches(make_rows(7), batch_size=24, seed=0, sizes=GROWING)


# Prefetch


def no_thread_left():
    return not any(thread.name == "bert_jax prefetch" for thread in threading.enumerate())


def identity(batch):
    return batch


def test_prefetch_keeps_the_order_whatever_the_timing():
    rng = random.Random(0)

    def slow(value):
        time.sleep(rng.choice([0, 0, 0.002]))
        return value * 10

    with prefetch(slow, 5, 60, lambda value: slow(value) + 1) as feed:
        seen = []
        for step, batch in feed:
            time.sleep(rng.choice([0, 0, 0.002]))
            seen.append((step, batch))
    assert seen == [(step, step * 100 + 1) for step in range(5, 60)]
    assert no_thread_left()


def test_prefetch_of_batches_equals_batches():
    batches = Batches(make_rows(30), batch_size=4, seed=0)
    with prefetch(batches.batch, 3, 40, identity) as feed:
        for step, batch in feed:
            expected = Batches(make_rows(30), batch_size=4, seed=0).batch(step)
            assert all(np.array_equal(batch[name], expected[name]) for name in expected)


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_prefetch_works_ahead_but_no_further_than_its_depth(depth):
    made = []
    with prefetch(lambda step: made.append(step), 0, 100, identity, depth=depth) as feed:
        next(feed)
        deadline = time.monotonic() + 5
        while len(made) < 1 + depth and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(0.02)  # long enough to run ahead, if it did
        assert len(made) == 1 + depth
    assert no_thread_left()


def test_data_wait_is_the_time_waited():
    late = threading.Event()

    def make(step):
        if step == 2:
            late.wait(timeout=0.5)
        return step

    waits = []
    with prefetch(make, 0, 5, identity) as feed:
        for step, _ in feed:
            waits.append(feed.data_wait)
            deadline = time.monotonic() + 5
            while step == 3 and not feed._finished and time.monotonic() < deadline:
                time.sleep(0.001)
        assert feed.total_data_wait >= sum(waits)
    assert waits[2] > 0.4
    assert waits[4] < 0.1  # it lay ready


@pytest.mark.parametrize("where", ["make", "put"])
def test_prefetch_raises_what_the_thread_raised_after_the_batches_before(where):
    def fails(step):
        if step == 3:
            raise KeyError("row 17")
        return step

    functions = (fails, identity) if where == "make" else (identity, fails)
    seen = []
    with (
        pytest.raises(KeyError, match="row 17") as caught,
        prefetch(functions[0], 0, 10, functions[1]) as feed,
    ):
        for step, _ in feed:
            time.sleep(0.005)  # the error happens while batches lie ready
            seen.append(step)
    assert seen == [0, 1, 2]
    frames = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert "fails" in frames  # the line in the thread
    assert no_thread_left()


@pytest.mark.parametrize("leave", ["break", "exception", "at once", "nothing to do"])
def test_leaving_prefetch_stops_its_thread(leave):
    begin = time.perf_counter()
    if leave == "exception":
        with pytest.raises(ZeroDivisionError), prefetch(identity, 0, 10**9, identity) as feed:
            next(feed)
            raise ZeroDivisionError
    elif leave == "nothing to do":
        with prefetch(identity, 3, 3, identity) as feed:
            assert list(feed) == []
    else:
        with prefetch(identity, 0, 10**9, identity) as feed:
            if leave == "break":
                for step, _ in feed:
                    if step == 3:
                        break
    assert no_thread_left()
    assert time.perf_counter() - begin < 5
    assert list(feed) == []  # closed: it ends, it does not hang


def test_prefetch_must_be_entered():
    """Else nothing would stop its thread."""
    feed = prefetch(identity, 0, 3, identity)
    with pytest.raises(RuntimeError, match="with"):
        next(feed)
    assert no_thread_left()


INTERRUPTED = """
import os, signal, sys, threading, time
from bert_jax.data.pipeline import prefetch

signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job's parent ignores it

def make(step):
    if step == 2:
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
        time.sleep(0.4)  # the consumer is waiting for this batch when the signal comes
    return step

try:
    with prefetch(make, 0, 10**9, lambda batch: batch) as feed:
        for step, _ in feed:
            pass
except KeyboardInterrupt:
    print("interrupted, left:", [t.name for t in threading.enumerate()])
    sys.exit(5)
"""


def test_an_interrupt_ends_the_wait_and_the_thread():
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", INTERRUPTED],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (5, "")
    assert done.stdout.strip() == "interrupted, left: ['MainThread']"


def test_to_device_makes_sharded_arrays_in_the_thread():
    import jax

    mesh = jax.make_mesh((len(jax.devices()),), ("data",))
    sharding = jax.sharding.NamedSharding(mesh, jax.P("data"))
    batch_size = 2 * len(jax.devices())
    batches = Batches(make_rows(30), batch_size=batch_size, seed=0, words=True)
    with prefetch(batches.batch, 0, 9, to_device(sharding)) as feed:
        for step, batch in feed:
            for name, array in batches.batch(step).items():
                assert batch[name].sharding.is_equivalent_to(sharding, array.ndim)
                assert batch[name].dtype == array.dtype
                assert np.array_equal(batch[name], array)

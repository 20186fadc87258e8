"""The train step on this CPU, against Hugging Face transformers + torch, interleaved.

Every peer is a process of its own (both libraries keep thread pools); the parent lets them make
one step in turn, so that a change of the machine's speed meets all of them. All see the same
initial weights, the same rows, the same masks, the same rates of dropout, AdamW, and the same
allocator. Ours draws its masks inside the step; the others are given them, made beforehand.

Peers: ``ours``; ``transformers``: BertForMaskedLM as its users run it (logits at all positions);
``gather``: the same with the head applied to the masked positions only, ten lines that a careful
user writes.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
LEARNING_RATE = 1e-4
RATE = 0.15


@dataclass(frozen=True)
class Size:
    """A model and a batch of the comparison."""

    layers: int
    width: int
    heads: int
    inner: int
    rows: int
    length: int
    vocab: int = 30522
    dropout: float = 0.1


SIZES = {
    "mini-128": Size(4, 256, 4, 1024, 32, 128),
    "base-128": Size(12, 768, 12, 3072, 8, 128),
    "base-512": Size(12, 768, 12, 3072, 2, 512),
    "tiny-test": Size(2, 64, 2, 128, 4, 32, 512),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of ``tools/bench.py step``."""
    parser.add_argument("--size", choices=SIZES, default="mini-128")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--peers", default="ours,transformers,gather")
    parser.add_argument("--rounds", type=int, default=7, help="counted steps of each peer")
    parser.add_argument("--threads", type=int, default=1, help="1 pins every peer to one core")
    parser.add_argument(
        "--allocator", choices=("default", "hugetlb", "tcmalloc"), default="tcmalloc"
    )


def run(options: argparse.Namespace) -> None:
    """Runs the comparison and prints a table of medians and ratios."""
    peers = options.peers.split(",")
    workers = {peer: _start(peer, options) for peer in peers}
    times = {peer: [] for peer in peers}
    cpu = {peer: [] for peer in peers}
    losses = {}
    for round_number in range(options.rounds + 2):
        for peer, worker in workers.items():
            answer = _ask(worker)
            if round_number >= 2:  # the first steps compile and warm up
                times[peer].append(answer["wall"])
                cpu[peer].append(answer["cpu"])
            losses.setdefault(peer, []).append(answer["loss"])
    for worker in workers.values():
        worker.communicate()  # closes its input, which ends it
    size = SIZES[options.size]
    tokens = size.rows * size.length
    print(
        f"{options.size} {options.dtype}, {options.threads} threads, allocator {options.allocator}"
    )
    print(f"{'peer':<14}{'wall ms':>9}{'cpu ms':>9}{'tok/s':>9}{'ours/peer':>11}{'cpu':>7}  losses")
    for peer in peers:
        wall = statistics.median(times[peer])
        busy = statistics.median(cpu[peer])
        ratio = statistics.median(p / o for p, o in zip(times[peer], times[peers[0]], strict=True))
        ratio_cpu = statistics.median(p / o for p, o in zip(cpu[peer], cpu[peers[0]], strict=True))
        print(
            f"{peer:<14}{wall * 1e3:>9.0f}{busy * 1e3:>9.0f}{tokens / wall:>9.0f}"
            f"{ratio:>10.2f}x{ratio_cpu:>6.2f}x  "
            + " ".join(f"{x:.4f}" for x in (losses[peer][0], losses[peer][-1]))
        )


def _start(peer: str, options: argparse.Namespace) -> subprocess.Popen:
    environment = dict(
        os.environ, PYTHONPATH=f"{ROOT}:{ROOT / 'tools'}", OMP_NUM_THREADS=str(options.threads)
    )
    if options.allocator == "hugetlb":
        environment["GLIBC_TUNABLES"] = "glibc.malloc.hugetlb=1"
    elif options.allocator == "tcmalloc":
        environment["LD_PRELOAD"] = "libtcmalloc_minimal.so.4"
    command = [sys.executable, __file__, peer, options.size, options.dtype, str(options.threads)]
    if options.threads == 1:
        command = ["taskset", "-c", "1", *command]
    return subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def _ask(worker: subprocess.Popen) -> dict:
    assert worker.stdin is not None and worker.stdout is not None  # pipes, see _start
    worker.stdin.write("step\n")
    worker.stdin.flush()
    line = worker.stdout.readline()
    if not line:
        raise RuntimeError(f"a peer ended with exit code {worker.wait()}; its error is above.")
    return json.loads(line)


def _serve(make_step) -> None:
    """A peer's loop: one step for every line on standard input."""
    step = make_step()
    for _ in sys.stdin:
        wall, used = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)
        loss = step()
        now = resource.getrusage(resource.RUSAGE_SELF)
        cpu = now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime
        answer = {"wall": time.perf_counter() - wall, "cpu": cpu, "loss": loss}
        print(json.dumps(answer), flush=True)


def _rows(size: Size) -> dict[str, np.ndarray]:
    """One batch of Zipf-like ids, full rows."""
    rng = np.random.default_rng(0)
    ranks = np.arange(1, size.vocab - 999 if size.vocab > 2000 else size.vocab - 4)
    chances = (1 / ranks) / (1 / ranks).sum()
    ids = size.vocab - len(ranks) + rng.choice(len(ranks), (size.rows, size.length), p=chances)
    ids = ids.astype(np.int32)
    positions = np.tile(np.arange(size.length, dtype=np.int32), (size.rows, 1))
    return {
        "input_ids": ids,
        "segment_ids": np.ones_like(ids),
        "position_ids": positions,
        "example_ids": np.arange(size.rows, dtype=np.uint32),
    }


class _Special:
    pad, unk, mask = 0, 1, 4
    ids = (0, 1, 2, 3, 4)


def _config(size: Size, dtype: Literal["float32", "bfloat16"]):
    from bert_jax.models.config import Dropout, EncoderConfig

    return EncoderConfig(
        vocab_size=size.vocab,
        hidden_size=size.width,
        num_layers=size.layers,
        num_heads=size.heads,
        intermediate_size=size.inner,
        type_vocab_size=2,
        dropout=Dropout(size.dropout, size.dropout),
        compute_dtype=dtype,
    )


def _objective(size: Size):
    from bert_jax.objectives.masked_lm import MaskedLanguageModel
    from bert_jax.objectives.masking import Masking

    return MaskedLanguageModel(Masking(rate=RATE), _Special(), size.vocab)


def ours(size: Size, dtype: Literal["float32", "bfloat16"]):
    """This project's step."""
    import jax

    from bert_jax.models.heads import MaskedLM
    from bert_jax.parallel.mesh import MeshShape, make_mesh, put_batch
    from bert_jax.train.optimizer import AdamW
    from bert_jax.train.state import init_params, init_state
    from bert_jax.train.step import Pace, StepConfig, make_train_step

    mesh = make_mesh(MeshShape())
    jax.set_mesh(mesh)
    model, objective, optimizer = (
        MaskedLM(_config(size, dtype)),
        _objective(size),
        AdamW(LEARNING_RATE, clip_norm=None),
    )
    state = jax.jit(lambda: init_state(init_params(model, 0), objective, optimizer))()
    config = StepConfig(optimizer, 0)
    step = jax.jit(make_train_step(objective, model.apply, config), donate_argnums=0)
    batch = put_batch(_rows(size), mesh, 1)

    def one() -> float:
        nonlocal state
        state, metrics = step(state, batch, Pace(np.float32(1)))
        total, weight = metrics["sums"]["loss"]
        return float(total) / float(weight)

    return one


def _torch_model(size: Size):
    """BertForMaskedLM with our initial weights."""
    import jax
    from torch_reference import bert_for_masked_lm

    from bert_jax.models.heads import MaskedLM
    from bert_jax.train.state import init_params

    config = _config(size, "float32")
    return bert_for_masked_lm(config, jax.jit(lambda: init_params(MaskedLM(config), 0))())


def _torch_batches(size: Size):
    """The same masks as ours, ready made: the objective draws them from the same key."""
    import jax
    import torch

    from bert_jax.train.step import Keys

    objective, rows = _objective(size), _rows(size)
    masked = jax.jit(objective.corrupt)(Keys.from_seed(0).masks, 0, rows)
    out = {
        name: np.asarray(masked[name]) for name in ("input_ids", "positions", "targets", "weights")
    }
    labels = np.full_like(rows["input_ids"], -100)
    np.put_along_axis(
        labels, out["positions"], np.where(out["weights"] > 0, out["targets"], -100), axis=1
    )
    tensors = {name: torch.from_numpy(value.copy()) for name, value in out.items()}
    for name in ("input_ids", "positions", "targets"):
        tensors[name] = tensors[name].long()
    return tensors | {
        "labels": torch.from_numpy(labels).long(),
        "attention_mask": torch.ones(size.rows, size.length, dtype=torch.long),
    }


def transformers(size: Size, dtype: str, *, gather: bool = False):
    """Hugging Face transformers on torch; bfloat16 by autocast, as its Trainer does."""
    import torch

    model = _torch_model(size)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=LEARNING_RATE, weight_decay=0.01, fused=True
    )
    batch = _torch_batches(size)

    def loss_of():
        if not gather:
            return model(
                input_ids=batch["input_ids"],
                attention_mask=batch["attention_mask"],
                labels=batch["labels"],
            ).loss
        hidden = model.bert(
            input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]
        ).last_hidden_state
        index = batch["positions"][..., None].expand(-1, -1, hidden.shape[-1])
        logits = model.cls(torch.gather(hidden, 1, index)).float()
        nll = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), batch["targets"].flatten(), reduction="none"
        )
        weights = batch["weights"].flatten()
        return (nll * weights).sum() / weights.sum()

    def one() -> float:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == "bfloat16"):
            loss = loss_of()
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return one


def main(peer: str, size_name: str, dtype: Literal["float32", "bfloat16"], threads: str) -> None:
    """A peer process."""
    size = SIZES[size_name]
    if peer == "ours":
        _serve(lambda: ours(size, dtype))
        return
    import torch

    torch.set_num_threads(int(threads))
    _serve(lambda: transformers(size, dtype, gather=peer == "gather"))


if __name__ == "__main__":
    _peer, _size, _dtype, _threads = sys.argv[1:]
    main(_peer, _size, "bfloat16" if _dtype == "bfloat16" else "float32", _threads)

"""Forms of disentangled and of local attention: on this CPU, and as the TPU compiler sees them.

What is timed is one attention (no projections), forward and backward, 12 heads of 64 in float32,
on one core. The forms of a comparison take turns call by call, so that a change of the machine's
speed meets both; ratios are medians of a turn's ratios.

With ``--tpu`` nothing is timed: each form is compiled ahead of time for one v5e chip in bfloat16,
and what the compiler says is printed: temporaries in HBM, gathers and scatters, and the sum of its
own cycle estimates (good for ranking only; gathers, scatters and sorts have none, so a form that
holds them costs more than its sum).
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import jax

    from bert_jax.ops.disentangled import Form

HEADS, WIDTH = 12, 64
BUCKETS, MAX_DISTANCE, RADIUS = 256, 512, 64  # DeBERTa v3; ModernBERT
CLOCK = 1.5e9  # of a v5e in Hz: peak FLOP/s over FLOP a cycle of its matrix units
CPU_CASES = "disentangled:4x128,disentangled:1x512,local:1x1024,local:1x4096"
TPU_CASES = "disentangled:16x128,disentangled:16x512,local:16x1024,local:2x8192"


@dataclass(frozen=True)
class Case:
    """A comparison: which attention, how many rows of how many tokens."""

    kind: str
    batch: int
    length: int

    @classmethod
    def parse(cls, text: str) -> Case:
        """From ``KIND:BATCHxLENGTH``; ValueError otherwise."""
        match = re.fullmatch(r"(disentangled|local):([1-9]\d*)x([1-9]\d*)", text)
        if not match:
            raise ValueError(f"case {text!r}: write disentangled:4x128 or local:1x1024.")
        return cls(match[1], int(match[2]), int(match[3]))

    def forms(self) -> dict[str, Callable[..., jax.Array]]:
        """By name; each takes query, key, value, segments and two relative tables."""
        if self.kind == "local":
            return {"dense": _dense, "halo": _halo}
        return {
            "none": _no_bias,
            "gather": lambda *arrays: _disentangled("gather", *arrays),
            "one_hot": lambda *arrays: _disentangled("one_hot", *arrays),
        }

    def shapes(self, dtype: str) -> list[jax.ShapeDtypeStruct]:
        """Of the forms' arguments."""
        import jax

        content = jax.ShapeDtypeStruct((self.batch, HEADS, self.length, WIDTH), dtype)
        table = jax.ShapeDtypeStruct((2 * BUCKETS, HEADS, WIDTH), dtype)
        segments = jax.ShapeDtypeStruct((self.batch, self.length), "int32")
        return [content, content, content, segments, table, table]


def _dense(query, key, value, segments, *_):
    from bert_jax.ops.attention import attention, local_mask

    return attention(query, key, value, local_mask(segments, RADIUS))


def _halo(query, key, value, segments, *_):
    from bert_jax.ops.local_attention import local_attention

    return local_attention(query, key, value, segments, radius=RADIUS)


def _no_bias(query, key, value, segments, *_):
    from bert_jax.ops.attention import attention, segment_mask

    return attention(query, key, value, segment_mask(segments))


def _disentangled(form: Form, query, key, value, segments, position_key, position_query):
    from bert_jax.ops.attention import attention, segment_mask
    from bert_jax.ops.disentangled import disentangled_bias, relative_buckets

    indices = relative_buckets(query.shape[2], buckets=BUCKETS, max_distance=MAX_DISTANCE)
    scale = (3 * WIDTH) ** -0.5
    bias = disentangled_bias(query, key, position_key, position_query, indices, form=form)
    return attention(query, key, value, segment_mask(segments), bias=bias * scale, scale=scale)


def _gradients(form: Callable[..., jax.Array]) -> Callable[..., Any]:
    """Forward and backward, with a cotangent that is no constant."""
    import jax

    def loss(floats, segments, weights):
        query, key, value, *tables = floats
        out = form(query, key, value, segments, *tables)
        return (out.astype("float32") * weights).sum()

    return jax.grad(loss)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of ``bench attention_forms``."""
    parser.add_argument("--cases", help=f"default: {CPU_CASES}; with --tpu: {TPU_CASES}")
    parser.add_argument("--rounds", type=int, default=7, help="counted turns of each form")
    parser.add_argument("--tpu", action="store_true", help="ask the TPU compiler instead")


def run(options: argparse.Namespace) -> None:
    """Prints a line for each form of each case."""
    default = TPU_CASES if options.tpu else CPU_CASES
    cases = [Case.parse(text) for text in (options.cases or default).split(",")]
    if not options.tpu:  # before jax starts its threads
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    import jax

    if options.tpu:
        print(f"jax {jax.__version__}, compiled for one v5e chip, bfloat16, forward + backward")
        for case in cases:
            _compile_for_tpu(case)
        return
    print(f"jax {jax.__version__}, one core, float32, medians of {options.rounds} turns")
    for case in cases:
        _time(case, options.rounds)


def _time(case: Case, rounds: int) -> None:
    import jax
    import jax.numpy as jnp

    rng = np.random.default_rng(0)
    shapes = case.shapes("float32")
    arrays = [jnp.asarray(rng.normal(0, 1, s.shape), s.dtype) for s in shapes]
    segments, weights = jnp.ones(shapes[3].shape, jnp.int32), arrays[0][:, :, ::-1]
    arguments = ([*arrays[:3], *arrays[4:]], segments, weights)
    compiled = {
        name: jax.jit(_gradients(form)).lower(*arguments).compile()
        for name, form in case.forms().items()
    }
    times: dict[str, list[float]] = {name: [] for name in compiled}
    for turn in range(rounds + 2):  # the first two warm up
        for name, program in compiled.items():
            start = time.perf_counter()
            jax.block_until_ready(program(*arguments))
            if turn >= 2:
                times[name].append(time.perf_counter() - start)
    base = next(reversed(times))
    for name, taken in times.items():
        ratio = statistics.median(a / b for a, b in zip(taken, times[base], strict=True))
        temporaries = _mebibytes(compiled[name])
        print(
            f"{case.kind:<13}{case.batch:>3} x {case.length:<5}{name:<9}"
            f"{statistics.median(taken) * 1e3:>9.1f} ms {ratio:>6.2f} x {base} "
            f"{temporaries:>8.1f} MiB of temporaries"
        )


def _compile_for_tpu(case: Case) -> None:
    import jax

    from bert_jax.parallel.mesh import MeshShape
    from bert_jax.parallel.topology import topology_mesh

    mesh = topology_mesh("v5e:1x1", MeshShape())
    query, key, value, segments, *tables = (
        shape.update(sharding=jax.NamedSharding(mesh, jax.P())) for shape in case.shapes("bfloat16")
    )
    arguments = ([query, key, value, *tables], segments, query.update(dtype="float32"))
    for name, form in case.forms().items():
        with jax.set_mesh(mesh):
            compiled = jax.jit(_gradients(form)).lower(*arguments).compile()
        text = str(compiled.as_text())
        counts = {op: len(re.findall(rf" {op}\(", text)) for op in ("gather", "scatter", "sort")}
        print(
            f"{case.kind:<13}{case.batch:>3} x {case.length:<5}{name:<9}"
            f"{_mebibytes(compiled):>8.1f} MiB of temporaries, "
            f"{_estimate(text) * 1e3:>7.2f} ms estimated, {counts}"
        )


def _mebibytes(compiled: jax.stages.Compiled) -> float:
    """Temporaries of a program."""
    memory: Any = compiled.memory_analysis()
    return memory.temp_size_in_bytes / 2**20


def _estimate(text: str) -> float:
    """Seconds: the compiler's cycles over the instructions of the entry computation."""
    entry = text[text.index("\nENTRY ") :]
    cycles = [int(c) for c in re.findall(r'"estimated_cycles":"(\d+)"', entry)]
    return sum(c for c in cycles if c < 1e12) / CLOCK  # greater ones mean "not known"

"""What every test runs under: 8 CPU devices, checked shapes, a cache of compiled programs."""

import dataclasses
import functools
import gc
import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import jaxtyping

# Before jax is imported, and inherited by the commands that tests start. The TPU_* variables let
# libtpu compile for a topology on a machine without chips, silently and in several processes.
os.environ |= {
    "JAX_PLATFORMS": "cpu",
    "TPU_ACCELERATOR_TYPE": "v5litepod-16",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_SKIP_MDS_QUERY": "1",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    # Compiling is most of what a test costs: a second run takes a seventh of the first. Loaded
    # programs give the same bits, HLO text and memory analysis as compiled ones.
    "JAX_COMPILATION_CACHE_DIR": str(Path(__file__).parents[1] / ".cache" / "jax"),
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.2",
    # LLVM without optimization: the same program of XLA's, compiled sooner into slower
    # code, which sizes as small as the tests' do not notice.
    "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} --xla_backend_optimization_level=0".strip(),
}

# Every call into bert_jax has its arguments' types, array shapes and dtypes checked against the
# annotations (an int may stand for a float, as for any type checker). Before its first import.
jaxtyping.install_import_hook(
    "bert_jax", "beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))"
)

import jax  # noqa: E402

# In this process only: a command started by a test sees what a user would see, one device.
jax.config.update("jax_num_cpu_devices", 8)
import pytest  # noqa: E402

MAPPINGS = Path("/proc/self/maps")
_LIMIT = 30_000  # of mappings, of the 65,530 that Linux gives a process by default
_tests_run = itertools.count(1)


@pytest.fixture(autouse=True)
def _room_for_programs() -> Iterator[None]:
    """A compiled program holds tens of memory mappings, and a process that has none left crashes.

    Programs are dropped before that; those still needed come back from the compilation cache.
    """
    yield
    if next(_tests_run) % 20 == 0 and MAPPINGS.exists():
        with MAPPINGS.open() as mappings:
            count = sum(1 for _ in mappings)
        if count > _LIMIT:
            jax.clear_caches()
            gc.collect()


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Annotations are not enforced, as in a user's process: for tests of what bad input is told."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


@pytest.fixture
def one_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Code that asks for the machine's devices is told of one, as on a laptop."""
    first = jax.devices()[:1]
    monkeypatch.setattr(jax, "devices", lambda *_: first)


@pytest.fixture(scope="session")
def tiny_preset():
    """``tiny_preset(name)``: the published encoder with every size small, all else as it is."""
    return shrunk


@functools.cache
def shrunk(name: str):
    from bert_jax.models.config import DisentangledPositions, LearnedPositions, LocalAttention
    from bert_jax.recipes import preset

    config = preset(name)
    positions = dataclasses.replace(config.positions, max_length=32)
    pad = positions.offset - 1 if isinstance(positions, LearnedPositions) else 0
    if isinstance(positions, DisentangledPositions):
        buckets = 8 if positions.buckets else 0
        positions = dataclasses.replace(positions, buckets=buckets, max_distance=12)
    sizes = {"positions": positions, "pad_id": max(pad, 0), "num_layers": 4, "num_heads": 2}
    if isinstance(config.attention, LocalAttention):
        sizes["attention"] = dataclasses.replace(config.attention, window=4)
        # Windows are computed in blocks from 66 tokens on.
        sizes |= {"num_layers": 8, "positions": dataclasses.replace(positions, max_length=96)}
    return dataclasses.replace(
        config,
        vocab_size=60,
        hidden_size=16,
        intermediate_size=24,
        embedding_size=None if config.embedding_size is None else 8,
        **sizes,
    )

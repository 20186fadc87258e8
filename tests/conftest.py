"""What every test runs under: 8 CPU devices, checked shapes, a cache of compiled programs."""

import os
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


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Annotations are not enforced, as in a user's process: for tests of what bad input is told."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


@pytest.fixture
def one_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Code that asks for the machine's devices is told of one, as on a laptop."""
    first = jax.devices()[:1]
    monkeypatch.setattr(jax, "devices", lambda *_: first)

"""What is done to have small programs, compiled soon."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax

from bert_jax.models.config import EncoderConfig, Execution


def quickly(function: Callable[..., Any]) -> Callable[..., Any]:
    """``jax.jit``, on a CPU without LLVM's optimization: XLA's program is the same.

    Args:
        function: What to compile.
    """
    cpu = jax.default_backend() == "cpu"
    options = {"xla_backend_optimization_level": 0} if cpu else None
    return jax.jit(function, compiler_options=options)


def rolled(config: EncoderConfig) -> EncoderConfig:
    """The same encoder as a loop over its layers, which is traced and compiled sooner.

    Args:
        config: Of any size.
    """
    return dataclasses.replace(config, execution=Execution(loop="scan", remat="none"))


def narrowed(config: EncoderConfig, width: int, layers: int | None = None) -> EncoderConfig:
    """A config of the same kind that is small enough to be run: one head, a short vocabulary.

    Args:
        config: Of any size.
        width: Of the residual stream and the feed-forward layer; factorised embeddings have half
            of it.
        layers: How many; None: as many as there are.
    """
    return dataclasses.replace(
        rolled(config),
        vocab_size=128,
        pad_id=0,
        hidden_size=width,
        embedding_size=None if config.embedding_size is None else width // 2,
        num_layers=config.num_layers if layers is None else layers,
        num_heads=1,
        intermediate_size=width,
        compute_dtype="float32",
    )

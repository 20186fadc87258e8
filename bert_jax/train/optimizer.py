"""The optimizers, and which parameters they decay.

Each is a frozen record. Its ``direction()`` is a transformation of optax whose result the train
step multiplies by minus the learning rate of the step; ``decay_mask`` names the decayed parameters.
The arithmetic of each, and its source, stand in its docstring.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bert_jax.models.paths import by_path
from bert_jax.train.optimizers.adam import AdamW, BertAdam, FairseqAdam
from bert_jax.train.optimizers.base import OptimizerBase
from bert_jax.train.optimizers.layerwise import Lamb, StableAdamW
from bert_jax.train.optimizers.matrix import Adafactor, Muon

__all__ = [
    "Adafactor",
    "AdamW",
    "BertAdam",
    "FairseqAdam",
    "Lamb",
    "Muon",
    "Optimizer",
    "StableAdamW",
    "decay_table",
]

Optimizer = AdamW | BertAdam | FairseqAdam | Lamb | StableAdamW | Adafactor | Muon


def decay_table(optimizer: OptimizerBase, params: Mapping[str, Any]) -> str:
    """Which parameters are decayed, as a table: path, shape, count, yes or no."""
    flat = by_path(params)
    decayed = by_path(optimizer.decay_mask(params))
    width = max(len(path) for path in flat)
    lines = [f"{'parameter':<{width}}  {'shape':<18}{'count':>12}  decay"]
    totals = {True: 0, False: 0}
    for path, leaf in flat.items():
        totals[decayed[path]] += leaf.size
        shape = "x".join(map(str, leaf.shape))
        answer = "yes" if decayed[path] else "no"
        lines.append(f"{path:<{width}}  {shape:<18}{leaf.size:>12,}  {answer}")
    lines.append(f"decayed {totals[True]:,}, not decayed {totals[False]:,}")
    return "\n".join(lines)

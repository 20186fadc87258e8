"""The mean of a run's last checkpoints: often better than the last alone, and as cheap to use."""

from __future__ import annotations

from pathlib import Path

import jax
import numpy as np

from bert_jax.train.checkpoint import Checkpointer
from bert_jax.train.task import Restored, restore_run


def averaged_run(run_dir: str | Path, last: int) -> Restored:
    """The mean of the parameters of a run's last checkpoints.

    It is the stochastic weight averaging of Izmailov et al. 2018 (arXiv:1803.05407). A run keeps as
    many checkpoints as its ``checkpoints.keep_last`` and ``keep_every`` say.

    Args:
        run_dir: Directory that `train` wrote.
        last: How many checkpoints.

    Returns:
        All parameters of the task, float32, added up in float64; the step is that of the last.

    Raises:
        ValueError: If there are fewer.
    """
    run_dir = Path(run_dir)
    if last < 1:
        raise ValueError(f"average is {last}; a mean needs 1 checkpoint or more.")
    with Checkpointer(run_dir / "checkpoints") as saved:
        steps = saved.steps()
    if len(steps) < last:
        raise ValueError(
            f"average is {last}, but {run_dir} holds {len(steps)} checkpoints; average fewer, or "
            f"keep more while training (--checkpoints.keep-last)."
        )
    newest = restore_run(run_dir, steps[-1])
    total = jax.tree.map(lambda x: x.astype(np.float64), newest.params)
    for step in steps[-last:-1]:
        other = restore_run(run_dir, step).params
        total = jax.tree.map(np.add, total, other)
    mean = jax.tree.map(lambda x, like: (x / last).astype(like.dtype), total, newest.params)
    return newest._replace(params=mean)

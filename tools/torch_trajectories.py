"""Makes tests/data/torch_trajectories.npz: optimizers and schedules of torch, update by update.

    pip install -e .[reference] && python tools/torch_trajectories.py

Parameters and gradients are small and random; torch computes in float64, so that the tests'
tolerances are those of our float32. Nothing of bert_jax is used. For every optimizer there are the
parameters after each update, as ``<name>/matrix`` (updates, 8, 6) and ``<name>/vector`` (updates,
6), and ``<name>/rates``; for every schedule, its factor at each update.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

OUT = Path(__file__).resolve().parents[1] / "tests" / "data" / "torch_trajectories.npz"
UPDATES = 24
SHAPES = {"matrix": (8, 6), "vector": (6,)}

Make = Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]
Schedule = Callable[[torch.optim.Optimizer], torch.optim.lr_scheduler.LRScheduler]


def draws() -> dict[str, np.ndarray]:
    """Initial parameters, and gradients whose size varies between updates and entries."""
    rng = np.random.default_rng(20)
    arrays = {}
    for name, shape in SHAPES.items():
        arrays[f"start/{name}"] = rng.normal(0, 0.5, shape).astype(np.float32)
        sizes = np.exp(rng.normal(0, 1, (UPDATES, *shape)))
        arrays[f"gradients/{name}"] = (sizes * rng.normal(size=(UPDATES, *shape))).astype(
            np.float32
        )
    return arrays


def trajectory(
    arrays: dict[str, np.ndarray], make: Make, schedule: Schedule, names: tuple[str, ...]
) -> dict[str, np.ndarray]:
    """Parameters and learning rate of every update."""
    params = {n: torch.nn.Parameter(torch.from_numpy(arrays[f"start/{n}"]).double()) for n in names}
    optimizer = make(list(params.values()))
    scheduler = schedule(optimizer)
    history: dict[str, list] = {name: [] for name in (*names, "rates")}
    for update in range(UPDATES):
        for name, parameter in params.items():
            parameter.grad = torch.from_numpy(arrays[f"gradients/{name}"][update]).double()
        history["rates"].append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
        for name, parameter in params.items():
            history[name].append(parameter.detach().numpy().copy())
    return {name: np.asarray(values, np.float64) for name, values in history.items()}


def factors(schedule: Schedule) -> np.ndarray:
    """A schedule's factor of the peak at every update."""
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    scheduler = schedule(optimizer)
    values = []
    for _ in range(UPDATES):
        values.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return np.asarray(values, np.float64)


def optimizers() -> dict[str, tuple[Make, Schedule, tuple[str, ...]]]:
    """What is run: optimizer, schedule, parameters."""
    rates = torch.optim.lr_scheduler
    both = ("matrix", "vector")

    def one_cycle(optimizer):
        return rates.OneCycleLR(
            optimizer, 0.1, total_steps=UPDATES + 1, pct_start=0.24, anneal_strategy="linear",
            cycle_momentum=False, div_factor=10.0, final_div_factor=10.0,
        )  # fmt: skip

    def warm_linear(optimizer):
        rise = lambda k: k / 6 if k < 6 else (UPDATES - k) / (UPDATES - 6)  # noqa: E731
        return rates.LambdaLR(optimizer, rise)

    return {
        "adamw": (
            lambda p: torch.optim.AdamW(p, 0.1, (0.9, 0.98), 1e-3, weight_decay=0.3),
            one_cycle,
            both,
        ),
        "adamw_linear": (
            lambda p: torch.optim.AdamW(p, 0.05, (0.8, 0.999), 1e-8, weight_decay=0.1),
            warm_linear,
            both,
        ),
        "adafactor": (
            lambda p: torch.optim.Adafactor(p, 0.1, weight_decay=0.2),
            warm_linear,
            both,
        ),
        "muon": (
            lambda p: torch.optim.Muon(p, 0.05, weight_decay=0.2, momentum=0.9),
            warm_linear,
            ("matrix",),
        ),
        "muon_rms": (
            lambda p: torch.optim.Muon(p, 0.05, 0.2, adjust_lr_fn="match_rms_adamw"),
            warm_linear,
            ("matrix",),
        ),
    }


def schedules() -> dict[str, Schedule]:
    """Schedules of torch whose form one of ours has."""
    rates = torch.optim.lr_scheduler
    return {
        "linear": lambda o: rates.LinearLR(o, 1.0, 0.1, total_iters=20),
        "polynomial": lambda o: rates.PolynomialLR(o, total_iters=20, power=2.0),
        "cosine": lambda o: rates.CosineAnnealingLR(o, T_max=UPDATES, eta_min=0.1),
        "warm_cosine": lambda o: rates.SequentialLR(
            o,
            [
                rates.LinearLR(o, 0.25, 1.0, total_iters=4),
                rates.CosineAnnealingLR(o, T_max=UPDATES - 4),
            ],
            milestones=[4],
        ),
        "one_cycle": lambda o: rates.OneCycleLR(
            o, 1.0, total_steps=UPDATES + 1, pct_start=7 / (UPDATES + 1), anneal_strategy="linear",
            cycle_momentum=False, div_factor=10.0, final_div_factor=10.0,
        ),
    }  # fmt: skip


def main() -> None:
    """Runs everything and writes the file."""
    # torch.optim.Muon iterates in bfloat16 whatever the parameters are; the arithmetic is compared.
    torch.Tensor.bfloat16 = lambda self: self
    arrays = draws()
    for name, (make, schedule, names) in optimizers().items():
        run = trajectory(arrays, make, schedule, names)
        arrays |= {f"{name}/{key}": values for key, values in run.items()}
    arrays |= {f"schedule/{name}": factors(make) for name, make in schedules().items()}
    assert all(math.isfinite(float(np.abs(a).max())) for a in arrays.values())
    arrays["version"] = np.asarray(f"torch {torch.__version__}")
    np.savez_compressed(OUT, allow_pickle=False, **arrays)
    print(f"{OUT}: {OUT.stat().st_size:,} bytes")


if __name__ == "__main__":
    sys.exit(main())

"""A small tree of parameters with two layers, gradients for it, and runs of an optimizer."""

import functools
from pathlib import Path

import jax
import numpy as np
import pytest

UPDATES = 24
SHAPES = {
    "encoder": {
        "embeddings": {"word": {"embedding": (7, 4)}, "norm": {"scale": (4,), "bias": (4,)}},
        "layers": {
            "query": {"kernel": (2, 4, 6), "bias": (2, 6)},
            "key": {"kernel": (2, 4, 2)},
            "value": {"kernel": (2, 4, 2)},
            "mlp_in": {"kernel": (2, 4, 5)},
            "mlp_gate": {"kernel": (2, 4, 5)},
            "mlp_out": {"kernel": (2, 5, 4)},
            "attention_norm": {"scale": (1, 4)},
        },
    },
    "head_dense": {"kernel": (4, 4)},
    "head_bias": (7,),
}


def draw(seed: int, size: float) -> dict:
    rng = np.random.default_rng(seed)
    return jax.tree.map(
        lambda shape: (size * np.exp(rng.normal()) * rng.normal(0, 1, shape)).astype(np.float32),
        SHAPES,
        is_leaf=lambda x: isinstance(x, tuple),
    )


def flat(tree) -> dict[str, np.ndarray]:
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): np.asarray(leaf, np.float64)
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


@functools.partial(jax.jit, static_argnums=0)
def _update(optimizer, params, state, gradients, rate):
    direction, state = optimizer.direction().update(gradients, state, params)
    return jax.tree.map(lambda p, d: p - rate * d, params, direction), state


@functools.partial(jax.jit, static_argnums=0)
def _first_moment(optimizer, params, gradients):
    direction = optimizer.direction()
    _, state = direction.update(gradients, direction.init(params), params)
    return state[1].mu


def follow(optimizer, params, gradients, rates) -> list:
    """Parameters after each update, as trees."""
    state = optimizer.direction().init(params)
    history = []
    for gradient, rate in zip(gradients, rates, strict=True):
        params, state = _update(optimizer, params, state, gradient, np.float32(rate))
        history.append(params)
    return history


@pytest.fixture(scope="session")
def trees():
    """(initial parameters, gradients of every update): tensors differ in size, and updates do."""
    return draw(0, 0.3), [draw(100 + step, 0.5) for step in range(UPDATES)]


@pytest.fixture(scope="session")
def factors():
    """A schedule with a warm-up from 0, and its end."""
    from bert_jax.train.schedule import BertLinear

    schedule = BertLinear(warmup=4)
    return [schedule.factor(float(step), float(UPDATES)) for step in range(UPDATES)]


@pytest.fixture(scope="session")
def run(trees, factors):
    """``run(optimizer)``: parameters after each update of `trees` under `factors`, by path."""

    def of(optimizer) -> list[dict[str, np.ndarray]]:
        rates = [optimizer.learning_rate * factor for factor in factors]
        return [flat(params) for params in follow(optimizer, *trees, rates)]

    return of


@pytest.fixture(scope="session")
def reference(trees, factors):
    """``reference(optimizer, update)``: the same in float64, tensor by tensor.

    ``update(p, gradients, rates, decayed)`` gives a tensor's values after each update. A layer of a
    stack is a tensor of its own.
    """

    def of(optimizer, update) -> list[dict[str, np.ndarray]]:
        params, gradients = trees
        rates = [optimizer.learning_rate * factor for factor in factors]
        decayed = flat(optimizer.decay_mask(params))
        per_step = [flat(g) for g in gradients]
        history = [{} for _ in rates]
        for path, start in flat(params).items():
            layers = range(len(start)) if "layers" in path else [...]
            values = [
                update(start[i], [g[path][i] for g in per_step], rates, bool(decayed[path]))
                for i in layers
            ]
            for step in range(len(rates)):
                tensors = [value[step] for value in values]
                history[step][path] = np.stack(tensors) if "layers" in path else tensors[0]
        return history

    return of


@pytest.fixture
def torch_run():
    """``torch_run(name)``: what ``tools/torch_trajectories.py`` has recorded of an optimizer.

    Returns (initial parameters, gradients, rates, parameters after each update), trees by name.
    """
    path = Path(__file__).parents[2] / "data" / "torch_trajectories.npz"
    with np.load(path) as file:
        recorded = dict(file)

    def of(name: str):
        names = [key for key in ("matrix", "vector") if f"{name}/{key}" in recorded]
        rates = recorded[f"{name}/rates"]
        part = lambda prefix, i: {n: recorded[f"{prefix}/{n}"][i] for n in names}  # noqa: E731
        steps = range(len(rates))
        return (
            {n: recorded[f"start/{n}"] for n in names},
            [part("gradients", i) for i in steps],
            rates,
            [part(name, i) for i in steps],
        )

    return of


@pytest.fixture
def close():
    """``close(ours, right, atol)``: histories equal, with the update and the path of a fault."""

    def check(ours, right, atol):
        assert len(ours) == len(right) >= 20
        for step, (a, b) in enumerate(zip(ours, right, strict=True)):
            assert a.keys() == b.keys()
            for path in a:
                np.testing.assert_allclose(
                    a[path], b[path], rtol=0, atol=atol, err_msg=f"{path}, update {step}"
                )

    return check


@pytest.fixture
def clip_of():
    """``clip_of(optimizer)``: the factor on a first gradient of norm 5; its first moment shows it.

    Half of the gradient's squared norm is in each of two leaves.
    """

    def of(optimizer) -> float:
        gradients = {
            "a": np.full((5, 5), np.sqrt(0.5), np.float32),
            "b": np.full(2, 2.5, np.float32),
        }
        params = jax.tree.map(np.ones_like, gradients)
        moments = _first_moment(optimizer, params, gradients)
        factors = jax.tree.map(lambda m, g: m / ((1 - optimizer.b1) * g), moments, gradients)
        first = float(factors["b"][0])
        jax.tree.map(lambda f: np.testing.assert_allclose(f, first, rtol=1e-5), factors)
        return first

    return of


@pytest.fixture
def trajectory():
    """``trajectory(optimizer, params, gradients, rates)``: trees after each update."""
    return follow

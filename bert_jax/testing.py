"""A test kit for objectives: what training takes for granted, checked on any of them.

    task = MyObjective().task(Setting(config, Masking(), special, vocab_size))
    check_objective(task, example_rows(special, vocab_size), special=special)

Each check raises AssertionError with one sentence that says what is broken. The one of devices
compares with all there are, so give a CPU several before jax starts
(``jax.config.update("jax_num_cpu_devices", 8)``). See docs/how-to/add-an-objective.md.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from bert_jax.models.paths import by_path, from_paths
from bert_jax.objectives.base import Batch, Objective, Params, Passed, Stage, Sums, Task, select
from bert_jax.objectives.contract import check_contract
from bert_jax.objectives.masking import SpecialIds
from bert_jax.parallel.mesh import MeshShape, make_mesh, put_batch
from bert_jax.train.state import init_state, initial_key
from bert_jax.train.step import Keys, Pace, StepConfig, make_train_step

Rows = Mapping[str, np.ndarray]
Changeable = Literal["text", "text_and_unk", "all"]

# float32 sums in another order differ by about 1e-6 of their size; a wrong denominator by a lot.
_CLOSE = 1e-4
_MOVE = 0.01  # how far every trained parameter goes in a step of the checks


def example_rows(
    special: SpecialIds, vocab_size: int, *, count: int = 16, length: int = 16, seed: int = 0
) -> dict[str, np.ndarray]:
    """Rows as the data pipeline gives them: two texts in a row, then padding, of many lengths.

    Args:
        special: Special ids; ``special.cls`` and ``special.sep`` frame the texts if there are such.
        vocab_size: Ids are drawn below it; some are the unknown one.
        count: Rows; for `check_objective` a multiple of twice the number of devices.
        length: Positions of a row, at least 8.
        seed: Of the texts.

    Returns:
        int32 (count, length): ``input_ids``, ``segment_ids`` (1, 2; 0 on padding),
        ``position_ids``, ``word_ids`` (words of up to two tokens; -1 on special tokens and
        padding); uint32 (count,): ``example_ids``.
    """
    rng = np.random.default_rng(seed)
    ordinary = np.setdiff1d(np.arange(vocab_size), special.ids)
    places, ends = np.arange(length), rng.integers(length // 2, length + 1, (count, 1))
    middle = rng.integers(3, length // 2 - 1, (count, 1))
    segments = np.where(places < middle, 1, 2) * (places < ends)
    positions = np.where(segments == 2, places - middle, places) * (segments != 0)
    ids = rng.choice(ordinary, (count, length))
    ids = np.where(rng.random(ids.shape) < 0.05, special.unk, ids)
    last = (places == middle - 1) | (places == ends - 1)
    first = (positions == 0) & (segments != 0)
    ids = np.where(last, getattr(special, "sep", special.unk), ids)
    ids = np.where(first, getattr(special, "cls", special.unk), ids)
    ids = np.where(segments == 0, special.pad, ids)
    words = np.where(np.isin(ids, special.ids), -1, places // 2)
    arrays = {"input_ids": ids, "segment_ids": segments, "position_ids": positions}
    return {
        **{name: x.astype(np.int32) for name, x in {**arrays, "word_ids": words}.items()},
        "example_ids": np.arange(count, dtype=np.uint32),
    }


def check_objective(
    task: Task,
    rows: Rows,
    *,
    special: SpecialIds,
    seed: int = 0,
    candidates: Changeable = "text",
    draws: Literal["by_example", "nothing"] = "by_example",
    inputs: tuple[str, ...] = ("input_ids",),
) -> None:
    """Runs every check of `ObjectiveChecks`; takes a few seconds for a tiny model.

    Args:
        task: Of the objective, with a tiny model.
        rows: A batch of the host, such as `example_rows`, a multiple of twice the number of
            devices.
        special: Special ids of the vocabulary.
        seed: Of parameters, masks and dropout.
        candidates: Which tokens ``corrupt`` may change, as `Masking.candidates`.
        draws: ``nothing``: ``corrupt`` is not random.
        inputs: Arrays with ids that models read: those of ``corrupt``, or that a loss passes on.

    Raises:
        AssertionError: Naming what is broken.
    """
    try:
        check_contract(task, {name: jnp.asarray(array) for name, array in rows.items()})
    except ValueError as error:
        raise AssertionError(str(error)) from error
    checks = ObjectiveChecks(task, rows, special, seed, candidates, draws, inputs)
    checks.model()
    checks.corruption()
    checks.randomness()
    checks.sums()
    checks.devices_and_microbatches()
    checks.no_targets()
    checks.trained_parameters()


def loss_reaches(
    task: Task, params: Params, rows: Rows, name: str, *, seed: int = 0
) -> frozenset[str]:
    """Paths of the parameters that get a gradient from one loss, of those its stage trains.

    Earlier stages are run for what they pass on; their updates are not.

    Args:
        task: Of the objective.
        params: All its parameters.
        rows: A batch of the host.
        name: Of the loss, as the stage's function names it.
        seed: Of the masks; there is no dropout.

    Raises:
        ValueError: No stage gives such a loss.
    """

    def gradients(params, rows):
        batch: Batch = task.objective.corrupt(Keys.from_seed(seed).masks, jnp.int32(0), rows)
        for stage in task.objective.stages:
            trained, frozen = select(params, stage.trains)
            given, passed = _loss(task, stage, trained, batch, None, frozen)
            if name in given:

                def summed(trained, stage=stage, batch=batch, frozen=frozen):
                    return jnp.sum(_loss(task, stage, trained, batch, None, frozen).sums[name][0])

                return jax.grad(summed)(trained)
            batch = {**batch, **passed}
        return None

    found = _jit(gradients)(params, _on_device(rows))
    if found is None:
        raise ValueError(f"no stage of the objective gives a loss {name!r}.")
    return frozenset(path for path, gradient in by_path(found).items() if np.any(gradient))


class _Run(NamedTuple):
    """What `ObjectiveChecks` sees of one batch, without dropout and updates.

    Attributes:
        corrupted: The batch as ``corrupt`` gives it.
        sums: Of all stages.
        batch: The corrupted batch and all that was passed on.
    """

    corrupted: Batch
    sums: Sums
    batch: Batch


class _Probed(NamedTuple):
    """One step's gradients by stage and path, its metrics, and the parameters after it."""

    gradients: tuple[dict[str, np.ndarray], ...]
    metrics: Mapping[str, Any]
    params: dict[str, np.ndarray]


@dataclass(frozen=True, eq=False)
class ObjectiveChecks:
    """The checks one by one; arguments as `check_objective` has them."""

    task: Task
    rows: Rows
    special: SpecialIds
    seed: int = 0
    candidates: Changeable = "text"
    draws: Literal["by_example", "nothing"] = "by_example"
    inputs: tuple[str, ...] = ("input_ids",)

    def model(self) -> None:
        """What is extracted are the model's parameters; inserting them again changes nothing."""
        extracted = by_path(self.task.extract(self.params))
        shapes = jax.eval_shape(self.task.model.init, jax.random.key(0))["params"]
        ours, wanted = ({p: x.shape for p, x in t.items()} for t in (extracted, by_path(shapes)))
        differing = sorted(p for p in ours | wanted if ours.get(p) != wanted.get(p))
        _check(not differing, f"extract and the model's init disagree about {differing[:1]}")
        before = by_path(self.params)
        after = by_path(self.task.insert(from_paths(extracted), self.params))
        _check(before.keys() == after.keys(), "insert does not give all parameters back")
        for path, leaf in before.items():  # a difference of float32 numbers may be rounded
            same = np.allclose(leaf, after[path], rtol=1e-6, atol=1e-6)
            _check(same, f"inserting what was extracted changes {path}")
        count, length = self.rows["input_ids"].shape
        _check(self.task.flops(count, length) > 0, "flops of a step are not above 0")

    def corruption(self) -> None:
        """``corrupt`` and the losses leave padding and special tokens alone."""
        ids, padding = self.rows["input_ids"], self.rows["segment_ids"] == 0
        kept = {"text": set(self.special.ids), "all": set()}
        kept["text_and_unk"] = kept["text"] - {self.special.unk}
        specials = np.isin(ids, list(kept[self.candidates])) & ~padding
        for step in range(4):
            corrupted, _, batch = self._run(
                self.params, self.rows, seed=self.seed + step, step=step
            )
            for name in self.inputs:
                _check(name in batch, f"no batch has the array {name!r} that inputs names")
                changed = np.asarray(batch[name]) != ids
                _check(not (changed & padding).any(), f"{name}: padding is changed")
                _check(not (changed & specials).any(), f"{name}: special tokens are changed")
            for name, array in corrupted.items():
                first = np.shape(array)[:1]
                _check(first == ids.shape[:1], f"corrupt gives {name!r} without rows first")
            same = np.array_equal(corrupted["example_ids"], self.rows["example_ids"])
            _check(same, "corrupt changes example_ids, on which dropout hangs")
            if {"positions", "weights"} <= corrupted.keys():
                there = np.take_along_axis(padding, np.asarray(corrupted["positions"]), axis=1)
                _check(not np.any(corrupted["weights"] * there), "padding is predicted")

    def randomness(self) -> None:
        """Draws are repeated by key and example index, and by nothing else."""
        rows = self.rows
        first = self._corrupt(rows)
        again = jax.jit(lambda *a: self.task.objective.corrupt(*a))(*self._arguments(rows))
        _check(
            _equal(first, again),
            "corrupt draws anew when it is traced again; draw from its key alone",
        )
        order = np.random.default_rng(0).permutation(len(rows["example_ids"]))
        moved = self._corrupt({name: x[order] for name, x in rows.items()})
        _check(
            _equal({name: x[order] for name, x in first.items()}, moved),
            "a row's draws hang on its place in the batch; fold its example index into the key",
        )
        alike = {name: np.repeat(x[:1], len(x), axis=0) for name, x in rows.items()}
        index = {n: rows[n] for n in ("example_ids", "mask_ids") if n in rows}
        alike = self._corrupt(alike | index)
        others = self._corrupt({**rows, **{n: x + np.uint32(1000) for n, x in index.items()}})
        other_key = self._corrupt(rows, seed=self.seed + 1)
        if self.draws == "nothing":
            _check(_equal(first, others, but=index), "corrupt draws by example")
            _check(_equal(first, other_key), "corrupt draws by its key")
            return
        one = {name: np.repeat(x[:1], len(x), axis=0) for name, x in alike.items()}
        _check(not _equal(one, alike, but=index), "all rows of a batch get the same draws")
        _check(not _equal(first, others, but=index), "other examples get the same draws")
        _check(not _equal(first, other_key), "another key gives the same draws")

    def sums(self) -> None:
        """Losses are sums with one number a row; no weight of a loss depends on parameters."""
        count = len(self.rows["example_ids"])
        whole = self._run(self.params, self.rows).sums
        for name, parts in whole.items():
            for part in parts:
                shape, dtype = np.shape(part), np.asarray(part).dtype
                _check(dtype == np.float32, f"{name!r} has sums of type {dtype}, not float32")
                _check(
                    shape == (count,),
                    f"{name!r} has the shape {shape}; held-out scores need one number a row",
                )
        halves = [{n: x[part] for n, x in self.rows.items()} for part in _halves(count)]
        first, second = (self._run(self.params, half).sums for half in halves)
        joined = {n: tuple(map(_joined, first[n], second[n])) for n in whole}
        _compare_sums(joined, whole, "over two halves of the batch")
        other = self._run(self._drawn(self.seed + 1), self.rows).sums
        for name in self._minimised:
            _check(name in whole, f"a stage minimises {name!r}, which its loss does not give")
            same = np.array_equal(whole[name][1], other[name][1])
            _check(same, f"the weight of {name!r} depends on parameters")

    def devices_and_microbatches(self) -> None:
        """A step on all devices, in two microbatches, is that of one device and the whole batch."""
        right = self._probe(1, 1, self.rows)
        _check(bool(right.metrics["finite"]), "gradients are not finite")
        devices, microbatches = len(jax.devices()), 2
        got = self._probe(devices, microbatches, self.rows)
        where = f"on {devices} devices in {microbatches} microbatches"
        _compare_sums(got.metrics["sums"], right.metrics["sums"], where)
        for ours, theirs in zip(got.gradients, right.gradients, strict=True):
            scale = np.sqrt(sum(float(np.sum(g * g)) for g in theirs.values()))
            for path, g in theirs.items():
                # Some are 0 but for rounding: those of key biases.
                allowed = _CLOSE * max(np.linalg.norm(g), 1e-3 * scale)
                error = np.linalg.norm(ours[path] - g)
                _check(error <= allowed, f"the gradient of {path} is another {where}")

    def no_targets(self) -> None:
        """A batch of empty rows has losses and weights of 0; nothing is infinite.

        Then all gradients are 0: the step leaves out a loss without weight.
        """
        probed = self._probe(1, 1, empty_rows(self.rows, self.special))
        for name, (total, weight) in probed.metrics["sums"].items():
            _check(np.isfinite(total), f"{name!r} is {total} in a batch of padding")
            if name in self._minimised:
                _check(weight == 0, f"{name!r} has weight {weight} in a batch of padding")
                _check(total == 0, f"{name!r} is {total}, not 0, in a batch of padding")
        _check(probed.metrics["finite"], "gradients of a batch of padding are not finite")

    def trained_parameters(self) -> None:
        """What a stage trains gets a gradient; what none trains stays as it is, bit for bit."""
        probed = self._probe(1, 1, self.rows)
        trained: set[str] = set()
        for stage, gradients in zip(self.task.objective.stages, probed.gradients, strict=True):
            _check(gradients, f"stage {stage.name!r} trains no parameter")
            for path, g in gradients.items():
                _check(
                    np.any(g),
                    f"stage {stage.name!r} trains {path}, which gets no gradient from it; weight "
                    f"decay would move it: leave it out of trains",
                )
            trained |= gradients.keys()
        for path, leaf in by_path(self.params).items():
            if path not in trained:
                same = np.array_equal(leaf, probed.params[path])
                _check(same, f"{path} moves, though no stage trains it")

    @functools.cached_property
    def params(self) -> dict[str, Any]:
        """Parameters of the checks, on the host."""
        return self._drawn(self.seed)

    def _drawn(self, seed: int) -> dict[str, Any]:
        """Initial parameters and noise, so that no gradient is 0 by some symmetry."""
        params = self.task.start(_jit(self.task.init)(initial_key(seed)))
        rng = np.random.default_rng(seed)
        noise = lambda x: np.asarray(x) + rng.normal(0, 0.1, np.shape(x)).astype(np.float32)  # noqa: E731
        return jax.tree.map(noise, dict(params))

    @property
    def _minimised(self) -> set[str]:
        return {name for stage in self.task.objective.stages for name in stage.coefficients}

    def _arguments(self, rows: Rows, seed: int | None = None, step: int = 0):
        masks = Keys.from_seed(self.seed if seed is None else seed).masks
        return masks, jnp.int32(step), _on_device(rows)

    @functools.cached_property
    def _jitted_corrupt(self) -> Callable[..., Any]:
        return _jit(self.task.objective.corrupt)

    def _corrupt(self, rows: Rows, seed: int | None = None) -> dict[str, np.ndarray]:
        out = self._jitted_corrupt(*self._arguments(rows, seed))
        return {name: np.asarray(x) for name, x in out.items()}

    @functools.cached_property
    def _jitted_run(self) -> Callable[..., _Run]:
        def run(params, key, step, rows):
            corrupted = batch = self.task.objective.corrupt(key, step, rows)
            sums: Sums = {}
            for stage in self.task.objective.stages:
                trained, frozen = select(params, stage.trains)
                given, passed = _loss(self.task, stage, trained, batch, None, frozen)
                sums, batch = sums | given, {**batch, **passed}
            return _Run(corrupted, sums, batch)

        return _jit(run)

    def _run(self, params: Params, rows: Rows, seed: int | None = None, step: int = 0) -> _Run:
        return jax.device_get(self._jitted_run(params, *self._arguments(rows, seed, step)))

    @functools.cached_property
    def _jitted_step(self) -> Callable[..., Any]:
        probe = _Probe()
        objective = _WithOptimizer(self.task.objective, probe)
        return _jit(make_train_step(objective, self.task.apply, StepConfig(probe, self.seed)))

    def _probe(self, devices: int, microbatches: int, rows: Rows) -> _Probed:
        mesh = make_mesh(MeshShape(), jax.devices()[:devices])
        with jax.set_mesh(mesh):
            shapes = jax.eval_shape(self.task.init, initial_key(self.seed))
            place = lambda x, like: jax.device_put(x, like.sharding.spec)  # noqa: E731
            params = jax.tree.map(place, self.params, shapes)
            state = init_state(params, _WithOptimizer(self.task.objective, _Probe()), _Probe())
            batch = put_batch(rows, mesh, microbatches)
            state, metrics = self._jitted_step(state, batch, Pace(np.float32(1)))
        state, metrics = jax.device_get((state, metrics))
        return _Probed(tuple(map(by_path, state.opt_states)), metrics, by_path(state.params))


def empty_rows(rows: Rows, special: SpecialIds) -> dict[str, np.ndarray]:
    """As many rows of nothing, as the data pipeline fills batches up with."""
    values = {"input_ids": special.pad, "word_ids": -1}
    empty = {name: np.full_like(x, values.get(name, 0)) for name, x in rows.items()}
    return {**empty, "example_ids": rows["example_ids"]}


@dataclass(frozen=True)
class _Probe:
    """An optimizer that moves all it trains by one number and keeps the gradients as its state."""

    learning_rate: float = _MOVE

    def direction(self) -> optax.GradientTransformation:
        def init(params: Any) -> Any:
            return jax.tree.map(jnp.zeros_like, params)

        def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
            del state, params
            return jax.tree.map(jnp.ones_like, updates), updates

        return optax.GradientTransformation(init, update)


@dataclass(frozen=True)
class _WithOptimizer:
    """An objective whose stages all have one optimizer."""

    objective: Objective
    optimizer: _Probe

    @property
    def stages(self) -> tuple[Stage, ...]:
        return tuple(
            dataclasses.replace(stage, optimizer=self.optimizer) for stage in self.objective.stages
        )

    def corrupt(self, key: jax.Array, step: jax.Array, batch: Batch) -> Batch:
        return self.objective.corrupt(key, step, batch)


def _check(holds: Any, sentence: str) -> None:
    if not holds:
        raise AssertionError(f"{sentence}.")


def _loss(task: Task, stage: Stage, trained, batch, key, frozen) -> Passed:
    result = stage.loss(task.apply, trained, batch, key, frozen)
    return result if isinstance(result, Passed) else Passed(result, {})


def _jit(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compiled quickly rather than well."""
    options = {"xla_backend_optimization_level": 0} if jax.default_backend() == "cpu" else None
    return jax.jit(function, compiler_options=options)


def _on_device(rows: Rows) -> dict[str, jax.Array]:
    return {name: jnp.asarray(x) for name, x in rows.items()}


def _halves(count: int) -> tuple[slice, slice]:
    return slice(0, count // 2), slice(count // 2, count)


def _joined(first: Any, second: Any) -> np.ndarray:
    return np.concatenate([np.atleast_1d(first), np.atleast_1d(second)])


def _equal(a: Mapping[str, Any], b: Mapping[str, Any], but: Any = ()) -> bool:
    return a.keys() == b.keys() and all(
        np.array_equal(a[name], b[name], equal_nan=np.asarray(a[name]).dtype.kind == "f")
        for name in a
        if name not in but
    )


def _compare_sums(got: Mapping[str, Any], right: Mapping[str, Any], where: str) -> None:
    for name, (total, weight) in right.items():
        (got_total, got_weight), size = map(np.sum, got[name]), abs(np.sum(weight))
        same = np.isclose(got_weight, np.sum(weight), rtol=1e-6, atol=0)
        _check(same, f"the weight of {name!r} does not add up {where}")
        allowed = _CLOSE * abs(np.sum(total)) + 1e-6 * size
        same = abs(got_total - np.sum(total)) <= allowed
        _check(same, f"the sum of {name!r} does not add up {where}")

"""The loop over layers: one tree of stacked parameters, run by a scan or unrolled.

Which layer reads which stored parameters, and of which kind each is, follows from the config;
stretches of the stack that repeat one pattern are scanned, so that a program holds each kind of
layer about once, however deep the stack.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from bert_jax.models.config import EncoderConfig, LocalAttention
from bert_jax.models.layer import LayerKind
from bert_jax.models.layers import DENSE_OUTPUT
from bert_jax.parallel import specs

# run(kind, x, parameters, index) -> (x, what was captured)
RunLayer = Callable[[LayerKind, jax.Array, Any, Any], tuple[jax.Array, Any]]


def layer_kinds(config: EncoderConfig) -> tuple[LayerKind, ...]:
    """Kind of every applied layer."""
    pattern = config.attention
    period = pattern.global_every if isinstance(pattern, LocalAttention) else 1
    return tuple(
        LayerKind(
            local=index % period != 0,
            attention_norm=not (config.norm.skip_first and index == 0),
        )
        for index in range(config.applied_layers)
    )


def layer_rows(config: EncoderConfig) -> tuple[int, ...]:
    """Stored row of every applied layer; several layers share a row where parameters are shared.

    Layer i of ``num_layers`` belongs to group ``floor(i * groups / num_layers)``.
    """
    if config.sharing is None:
        return tuple(range(config.num_layers))
    groups, inner = config.sharing.groups, config.sharing.inner
    return tuple(
        (index * groups // config.num_layers) * inner + place
        for index in range(config.num_layers)
        for place in range(inner)
    )


@dataclass(frozen=True)
class Stretch:
    """Consecutive layers that run as one scan, or a single layer.

    Attributes:
        start: First applied layer.
        period: Layers of the repeated pattern.
        repeats: How often it is repeated; 1 means it is not a scan.
    """

    start: int
    period: int
    repeats: int

    @property
    def stop(self) -> int:
        """The layer after the last."""
        return self.start + self.period * self.repeats


def plan(config: EncoderConfig, loop: Literal["scan", "unroll"]) -> tuple[Stretch, ...]:
    """The stack as stretches, in order."""
    count = config.applied_layers
    if loop == "unroll":
        return tuple(Stretch(index, 1, 1) for index in range(count))
    if config.sharing is not None:
        inner, rows = config.sharing.inner, layer_rows(config)
        first = [rows.index(group * inner) for group in range(config.sharing.groups)] + [count]
        return tuple(Stretch(a, inner, (b - a) // inner) for a, b in itertools.pairwise(first))
    pattern = config.attention
    period = pattern.global_every if isinstance(pattern, LocalAttention) else 1
    # Alone: a first layer that differs, a last one that the mask decoder runs again.
    before = 1 if config.norm.skip_first or config.convolution is not None else 0
    after = 1 if config.heads.vocabulary.mask_decoder == "enhanced" else 0
    repeats = max(0, (count - before - after) // period)
    singles = [Stretch(index, 1, 1) for index in range(before)]
    scanned = [Stretch(before, period, repeats)] if repeats > 1 else []
    start = before + (period * repeats if scanned else 0)
    return (*singles, *scanned, *(Stretch(index, 1, 1) for index in range(start, count)))


def chosen_loop(config: EncoderConfig) -> Literal["scan", "unroll"]:
    """The loop of a config; ``auto`` unrolls on CPU, scans elsewhere."""
    loop = config.execution.loop
    if loop == "auto":
        return "unroll" if specs.platform() == "cpu" else "scan"
    return loop


class LayerStack:
    """Stored parameters of all layers, and the loop over them.

    Leaves have a leading axis of ``stored_layers`` rows; the attention norm has one less where the
    first layer has none.
    """

    def __init__(self, config: EncoderConfig, parameters: dict[str, Any], run: RunLayer) -> None:
        """Prepares the loop.

        Args:
            config: Of the encoder.
            parameters: Stored parameters.
            run: One layer.
        """
        self._config = config
        self._kinds = layer_kinds(config)
        self._rows = layer_rows(config)
        self._stretches = plan(config, chosen_loop(config))
        self._run = _with_remat(run, config)
        self._pieces = self._cut(parameters)

    @property
    def stretches(self) -> tuple[Stretch, ...]:
        """In order; to be given to `apply`."""
        return self._stretches

    def apply(self, stretch: Stretch, x: Float[Array, "batch length d"]) -> tuple[Any, list[Any]]:
        """Runs a stretch; returns the hidden states and what each of its layers captured."""
        if stretch.repeats == 1:
            captured = []
            for index in range(stretch.start, stretch.stop):
                x, extra = self._run(self._kinds[index], x, self.layer(index), index)
                captured.append(extra)
            return x, captured
        return self._scan(stretch, x)

    def layer(self, index: int) -> dict[str, Any]:
        """Parameters of one applied layer that is no part of a scan."""
        return self._pieces[self._rows[index]]

    def _scan(self, stretch: Stretch, x):
        kinds = self._kinds[stretch.start : stretch.stop][: stretch.period]
        shared = self._config.sharing is not None
        xs = None if shared else self._pieces[stretch.start]
        rows = [self._rows[stretch.start + place] for place in range(stretch.period)]

        def body(x, step):
            parameters, repeat = step
            captured = []
            for place, kind in enumerate(kinds):
                own = (
                    self._pieces[rows[place]]
                    if shared
                    else jax.tree.map(lambda a, place=place: a[place], parameters)
                )
                index = stretch.start + repeat * stretch.period + place
                x, extra = self._run(kind, x, own, index)
                captured.append(extra)
            return x, captured

        x, stacked = jax.lax.scan(body, x, (xs, jnp.arange(stretch.repeats)))
        captured = [
            jax.tree.map(lambda a, repeat=repeat: a[repeat], stacked[place])
            for repeat in range(stretch.repeats if jax.tree.leaves(stacked) else 0)
            for place in range(stretch.period)
        ]
        return x, captured

    def _cut(self, parameters: dict[str, Any]) -> dict[int, Any]:
        """Parameters by stored row; those of a scan by its first row, as (repeats, period, ...)."""
        # (first row, rows, period of the scan over them or 0); shared layers are read one by one.
        cuts = [(row, 1, 0) for row in range(self._config.stored_layers)]
        if self._config.sharing is None:
            cuts = [
                (s.start, s.stop - s.start, s.period if s.repeats > 1 else 0)
                for s in self._stretches
            ]
        pieces: dict[int, Any] = {start: {} for start, _, _ in cuts}
        for name, module in parameters.items():
            lacks_first = self._config.norm.skip_first and name == "attention_norm"
            own = cuts[1:] if lacks_first else cuts
            for word, leaf in module.items():
                cut = unstack(tuple(size for _, size, _ in own), leaf)
                for (start, _, period), piece in zip(own, cut, strict=True):
                    value = _folded(piece, period) if period else piece[0]
                    pieces[start].setdefault(name, {})[word] = value
        return pieces


def _folded(piece: jax.Array, period: int) -> jax.Array:
    """(layers, ...) as (repeats, period, ...)."""
    shape = (piece.shape[0] // period, period, *piece.shape[1:])
    if jax.sharding.get_abstract_mesh().empty:
        return piece.reshape(shape)
    stored = jax.typeof(piece).sharding.spec
    return jax.lax.reshape(piece, shape, out_sharding=jax.P(stored[0], None, *stored[1:]))


def unstack(
    sizes: tuple[int, ...], stacked: Float[Array, "layers *rest"]
) -> tuple[Float[Array, "_ *rest"], ...]:
    """Pieces of the given sizes along the first axis.

    Autodiff of plain slicing would add one array of the whole stack's size for every piece, work
    that grows with the square of the depth; here the gradients are joined once.
    """
    return _unstack(sizes, stacked)


def _slices(sizes, stacked):
    starts = [sum(sizes[:index]) for index in range(len(sizes))]
    return tuple(
        jax.lax.slice_in_dim(stacked, start, start + size)
        for start, size in zip(starts, sizes, strict=True)
    )


_unstack = jax.custom_vjp(_slices, nondiff_argnums=(0,))
_unstack.defvjp(
    lambda sizes, stacked: (_slices(sizes, stacked), None),
    lambda sizes, _, gradients: (jnp.concatenate(gradients),),
)


def _with_remat(run: RunLayer, config: EncoderConfig) -> RunLayer:
    remat = config.execution.remat
    if remat == "auto":
        remat = "none" if specs.platform() == "cpu" else "dots"
    if remat == "none":
        return run
    policies = jax.checkpoint_policies
    policy = policies.nothing_saveable
    if remat == "dots":
        policy = policies.save_only_these_names(DENSE_OUTPUT)
    return jax.checkpoint(run, policy=policy, static_argnums=(0,))

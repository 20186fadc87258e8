"""Which stored parameters each layer reads, of which kind it is, and what is scanned."""

import dataclasses

import jax
import numpy as np
import pytest

from bert_jax.models.config import (
    Convolution,
    DisentangledPositions,
    EncoderConfig,
    Heads,
    LayerSharing,
    LocalAttention,
    Norm,
    VocabularyHead,
)
from bert_jax.models.stack import Stretch, layer_kinds, layer_rows, plan, unstack
from bert_jax.recipes import preset

BERT = EncoderConfig(9, num_layers=6)


def with_(**changes):
    return dataclasses.replace(BERT, **changes)


@pytest.mark.parametrize(
    ("layers", "sharing", "rows"),
    [
        (4, None, [0, 1, 2, 3]),
        (4, LayerSharing(), [0, 0, 0, 0]),
        (4, LayerSharing(2), [0, 0, 1, 1]),
        (5, LayerSharing(2), [0, 0, 0, 1, 1]),  # int(i / (5 / 2)), as transformers has it
        (3, LayerSharing(1, 2), [0, 1, 0, 1, 0, 1]),
        (4, LayerSharing(2, 2), [0, 1, 0, 1, 2, 3, 2, 3]),
    ],
)
def test_rows(layers, sharing, rows):
    config = with_(num_layers=layers, sharing=sharing)
    assert list(layer_rows(config)) == rows
    if sharing is not None:
        theirs = [int(i / (layers / sharing.groups)) for i in range(layers)]
        assert [row // sharing.inner for row in rows[:: sharing.inner]] == theirs
    assert config.applied_layers == len(rows)
    assert config.stored_layers == max(rows) + 1


def test_kinds_of_modernbert():
    """22 layers, 8 global: 0, 3, ..., 21; no attention norm in the first alone."""
    kinds = layer_kinds(preset("modernbert-base"))
    assert [i for i, kind in enumerate(kinds) if not kind.local] == list(range(0, 22, 3))
    assert [i for i, kind in enumerate(kinds) if not kind.attention_norm] == [0]
    assert not any(kind.local for kind in layer_kinds(BERT))


DISENTANGLED = DisentangledPositions()
ENHANCED = Heads(VocabularyHead(mask_decoder="enhanced"))


@pytest.mark.parametrize(
    ("config", "stretches"),
    [
        (BERT, [(0, 1, 6)]),
        (with_(sharing=LayerSharing(2, 3)), [(0, 3, 3), (9, 3, 3)]),
        (with_(positions=DISENTANGLED, convolution=Convolution()), [(0, 1, 1), (1, 1, 5)]),
        (with_(positions=DISENTANGLED, heads=ENHANCED), [(0, 1, 5), (5, 1, 1)]),
        (with_(attention=LocalAttention(8, 2)), [(0, 2, 3)]),
        (with_(num_layers=7, attention=LocalAttention(8, 3)), [(0, 3, 2), (6, 1, 1)]),
        (
            with_(num_layers=22, attention=LocalAttention(), norm=Norm("pre", skip_first=True)),
            [(0, 1, 1), (1, 3, 7)],
        ),
        (with_(num_layers=1), [(0, 1, 1)]),
        (with_(num_layers=3, attention=LocalAttention(8, 3)), [(0, 1, 1), (1, 1, 1), (2, 1, 1)]),
    ],
)
def test_plan(config, stretches):
    got = plan(config, "scan")
    assert got == tuple(Stretch(*one) for one in stretches)
    covered = [index for one in got for index in range(one.start, one.stop)]
    assert covered == list(range(config.applied_layers))
    kinds = layer_kinds(config)
    for one in got:  # a scanned stretch repeats its kinds
        first = kinds[one.start : one.start + one.period]
        assert kinds[one.start : one.stop] == first * one.repeats
    unrolled = plan(config, "unroll")
    assert [one.start for one in unrolled] == list(range(config.applied_layers))


def test_pieces_and_their_gradient():
    stack = np.arange(10.0, dtype=np.float32).reshape(5, 2)

    def loss(stack):
        a, b = unstack((2, 3), stack)
        return (a * a).sum() + 3 * b.sum()

    pieces = unstack((2, 3), jax.numpy.asarray(stack))
    np.testing.assert_array_equal(pieces[0], stack[:2])
    np.testing.assert_array_equal(pieces[1], stack[2:])
    gradient = jax.grad(loss)(jax.numpy.asarray(stack))
    np.testing.assert_array_equal(gradient, np.concatenate([2 * stack[:2], np.full((3, 2), 3.0)]))

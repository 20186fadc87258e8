"""Held-out scores against plain numpy: ratios over targets, the floor, standard errors."""

import math

import jax
import numpy as np
import pytest

from bert_jax.parallel.mesh import MeshShape, make_mesh
from bert_jax.train.held_out import Score, Scores, held_out, make_scorer
from bert_jax.train.inputs import eval_task, open_inputs, validation_batches
from bert_jax.train.state import initial_key


def _fake_batches(rows, batch_size, slots=3):
    """Batches whose `score` is known: example i has i % 4 targets of nll i."""
    for start in range(0, rows, batch_size):
        ids = np.arange(start, start + batch_size, dtype=np.uint32)
        yield {"example_ids": ids, "example_weights": (ids < rows).astype(np.float32)}


def _fake_score(params, batch):
    ids = np.asarray(batch["example_ids"]).astype(int)
    slots = np.arange(3)
    weights = (slots < (ids % 4)[:, None]).astype(np.float32)
    nll = np.broadcast_to(ids[:, None], weights.shape).astype(np.float32)
    total = weights.sum(-1)
    return {
        "sums": {
            "loss": ((nll * weights).sum(-1), total),
            "accuracy": (((nll % 2 == 0) * weights).sum(-1), total),
        },
        "targets": np.broadcast_to(slots, weights.shape),
        "weights": weights,
    }


@pytest.fixture(scope="module", autouse=True)
def mesh():
    with jax.set_mesh(make_mesh(MeshShape(), jax.devices()[:1])):
        yield


@pytest.mark.parametrize("batch_size", [1, 4, 7])
def test_every_row_counts_once_whatever_the_batch(batch_size):
    scores = held_out(
        _fake_score, {}, _fake_batches(10, batch_size), unigram_counts=np.asarray([5, 0, 2])
    )
    counts = np.minimum(np.arange(10) % 4, 3)
    nll = np.repeat(np.arange(10), counts).astype(float)
    assert scores.targets == counts.sum()
    assert scores.cross_entropy == pytest.approx(nll.mean())
    assert scores.accuracy == pytest.approx((nll % 2 == 0).mean())
    # Add-one frequencies of counts (5, 0, 2): 6/10, 1/10, 3/10.
    log_p = np.log([0.6, 0.1, 0.3])
    floor = -np.concatenate([log_p[:n] for n in counts])
    assert scores.floor.mean == pytest.approx(floor.mean())
    assert scores.gain.mean == pytest.approx(floor.mean() - nll.mean())


def test_the_standard_error_is_that_of_a_ratio_over_rows():
    scores = held_out(_fake_score, {}, _fake_batches(10, 4))
    counts = np.minimum(np.arange(10) % 4, 3)
    sums = counts * np.arange(10)
    ratio = sums.sum() / counts.sum()
    expected = math.sqrt(((sums - ratio * counts) ** 2).sum()) / counts.sum()
    assert scores.standard_error == pytest.approx(expected)
    assert scores.floor is None and scores.gain is None


def test_max_rows_takes_the_first():
    scores = held_out(_fake_score, {}, _fake_batches(10, 4), max_rows=6)
    counts = np.minimum(np.arange(6) % 4, 3)
    assert scores.targets == counts.sum()
    assert scores.cross_entropy == pytest.approx(np.repeat(np.arange(6), counts).mean())


def test_no_target_at_all_is_one_sentence():
    with pytest.raises(ValueError, match="No held-out token"):
        held_out(_fake_score, {}, _fake_batches(1, 1))


def test_the_sentence_names_the_numbers():
    weight = 18_000.0
    values = {"loss": Score(4.5, 0.02, weight), "accuracy": Score(0.26, 0.003, weight)}
    scores = Scores(values, Score(6.5, 0.01, weight), Score(2.0, 0.03, weight))
    assert scores.sentence() == (
        "held-out cross-entropy 4.500, unigram floor 6.500, gain 2.000 nats (accuracy 0.260; "
        "18,000 targets, standard error 0.020, of the gain 0.030)"
    )
    more = Scores({**values, "pair_loss": Score(0.6, 0.01, 90.0)})
    assert more.sentence().endswith("; pair loss 0.6000 (standard error 0.0100)")


def test_scores_do_not_depend_on_devices_or_calls(experiment):
    """Real rows and model: 8 devices = 1 device, and twice the same number."""
    results = []
    for devices in (1, 1, 8):
        with jax.set_mesh(make_mesh(MeshShape(), jax.devices()[:devices])):
            inputs = open_inputs(experiment)
            task = eval_task(experiment, inputs)
            score = make_scorer(task.objective, task.apply)
            params = jax.jit(task.init)(initial_key(0))
            rows = validation_batches(inputs, experiment, devices)
            results.append(held_out(score, params, rows))
    assert results[0] == results[1]
    assert results[2].targets == results[0].targets
    # The same rows on other devices: float32 products of another shape.
    assert results[2].cross_entropy == pytest.approx(results[0].cross_entropy, rel=1e-6)

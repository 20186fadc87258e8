"""Masked language modelling with pairs: losses against loops, and rows that have no label."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.data.tokenizer import SpecialTokens
from bert_jax.models.config import EncoderConfig, LearnedPositions, Normal
from bert_jax.models.flops import forward_flops, head_flops
from bert_jax.models.heads import PreTraining
from bert_jax.objectives.base import Setting
from bert_jax.objectives.masking import Masking
from bert_jax.objectives.sentence_pairs import SentencePairsObjective, pair_sums
from bert_jax.testing import empty_rows, example_rows

SPECIAL = SpecialTokens(pad=9, cls=7, sep=3, mask=0, unk=5)
VOCAB, ROWS, LENGTH = 60, 6, 12
MODEL = EncoderConfig(
    VOCAB,
    hidden_size=16,
    num_layers=2,
    num_heads=2,
    intermediate_size=24,
    type_vocab_size=2,
    positions=LearnedPositions(LENGTH),
    initializer=Normal(0.2),
    pad_id=SPECIAL.pad,
)
MASKING = Masking(0.6, count="bernoulli", max_predictions=3)  # so few that some are dropped
TASK = SentencePairsObjective(0.5).task(Setting(MODEL, MASKING, SPECIAL, VOCAB))
KEY = jax.random.key(3, impl="threefry2x32")


def pairs() -> dict[str, np.ndarray]:
    rows = example_rows(SPECIAL, VOCAB, count=ROWS, length=LENGTH)
    return {
        **rows,
        "token_type_ids": np.maximum(rows["segment_ids"] - 1, 0),
        "segment_ids": np.minimum(rows["segment_ids"], 1),
        "pair_labels": np.asarray([0, 1, 1, -1, 0, 1], np.int32),
    }


def corrupted(rows) -> dict:
    return dict(
        TASK.objective.corrupt(KEY, jnp.int32(0), {n: jnp.asarray(x) for n, x in rows.items()})
    )


def loss(apply, batch, params=None):
    (stage,) = TASK.objective.stages
    sums = stage.loss(apply, {} if params is None else params, batch, None, {})
    assert isinstance(sums, dict)
    return sums


def test_every_row_against_loops():
    """Logits by the model at all positions; log-likelihoods by float64 loops."""
    batch = corrupted(pairs())
    model = TASK.model
    assert isinstance(model, PreTraining)

    @jax.jit
    def both(key, batch):
        params = TASK.init(key)
        inputs = {n: batch[n] for n in ("segment_ids", "position_ids", "token_type_ids")}
        return loss(model.apply, batch, params), model.apply(
            {"params": params}, batch["input_ids"], **inputs
        )

    sums, output = jax.device_get(both(KEY, batch))
    logits, pair_logits = (output[n].astype(np.float64) for n in ("logits", "pair_logits"))
    batch = jax.device_get(batch)
    assert batch["dropped"].sum() > 0
    for row in range(ROWS):
        nll = hits = count = 0.0
        for place, target, weight in zip(
            *(batch[n][row] for n in ("positions", "targets", "weights")), strict=True
        ):
            scores = logits[row, place]
            nll += weight * (np.log(np.exp(scores).sum()) - scores[target])
            hits += weight * (scores[target] >= scores.max())
            count += weight
        # float32 logits of size 3: 1e-6 each.
        np.testing.assert_allclose(sums["loss"][0][row], nll, rtol=1e-5)
        assert (sums["loss"][1][row], sums["accuracy"][0][row]) == (count, hits)
        dropped = batch["dropped"][row]
        assert (sums["dropped"][0][row], sums["dropped"][1][row]) == (dropped, count + dropped)
        label, scores = batch["pair_labels"][row], pair_logits[row]
        right = 0.0 if label < 0 else np.log(np.exp(scores).sum()) - scores[label]
        np.testing.assert_allclose(sums["pair_loss"][0][row], right, rtol=1e-5)
        assert sums["pair_loss"][1][row] == (label >= 0)
        hit = label >= 0 and scores[label] >= scores.max()
        assert (sums["pair_accuracy"][0][row], sums["pair_accuracy"][1][row]) == (hit, label >= 0)
        assert (sums["pair_label"][0][row], sums["pair_label"][1][row]) == (label == 1, label >= 0)


def test_closed_form_of_the_pair():
    """Logits a and b: -ln of the label's share; a row without a label counts nothing."""
    logits = jnp.asarray([[1.0, 0.0], [1.0, 0.0], [5.0, -5.0]])
    sums = pair_sums(logits, jnp.asarray([0, 1, -1]))
    expected = [np.log1p(np.exp(-1.0)), np.log1p(np.exp(1.0)), 0.0]
    np.testing.assert_allclose(sums["pair_loss"][0], expected, rtol=1e-6)
    np.testing.assert_array_equal(sums["pair_accuracy"][0], [1, 0, 0])
    np.testing.assert_array_equal(sums["pair_loss"][1], [1, 1, 0])
    np.testing.assert_array_equal(sums["pair_accuracy"][1], [1, 1, 0])
    np.testing.assert_array_equal(sums["pair_label"], [[0, 1, 0], [1, 1, 0]])


def test_an_empty_row_has_no_weight_whatever_its_label():
    """The pipeline fills batches up with rows of padding whose label is 0."""
    empty = empty_rows(pairs(), SPECIAL)
    assert (empty["pair_labels"] == 0).all()

    def apply(variables, ids, **inputs):
        slots = jnp.ones(inputs["positions"].shape)
        return {"nll": slots, "correct": slots > 0, "pair_logits": jnp.ones((ROWS, 2))}

    sums = loss(apply, corrupted(empty))
    assert all(not np.any(part) for pair in sums.values() for part in pair)
    assert np.sum(loss(apply, corrupted(pairs()))["pair_loss"][1]) == 5


def test_both_losses_are_minimised_with_their_factors():
    (stage,) = TASK.objective.stages
    assert stage.coefficients == {"loss": 1.0, "pair_loss": 0.5}
    assert SentencePairsObjective().pair_weight == 1.0  # BERT adds the two means
    assert stage.trains("pair/kernel") and stage.trains("encoder/layers/query/kernel")


def test_the_pooler_counts_once_a_row():
    slots, width = MASKING.slots(LENGTH), MODEL.hidden_size
    row = forward_flops(MODEL, LENGTH) + slots * head_flops(MODEL) + 2 * width * (width + 2)
    assert TASK.flops(5, LENGTH) == 3 * 5 * row


def test_rows_without_pairs_are_refused():
    rows = {name: x for name, x in pairs().items() if name != "pair_labels"}
    with pytest.raises(ValueError) as caught:
        corrupted(rows)
    assert str(caught.value) == (
        "objective sentence-pairs needs rows of pairs; set packing to Pairs(...) (--packing pairs)."
    )


def test_a_weight_is_not_negative():
    with pytest.raises(ValueError, match=r"^objective.pair_weight is -1; it is 0 or more\.$"):
        SentencePairsObjective(-1)
    assert dataclasses.replace(SentencePairsObjective(), pair_weight=0.0).pair_weight == 0

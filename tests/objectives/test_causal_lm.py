"""Causal language modelling: targets by loops, losses by shifting, and the switch to masking."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.data.tokenizer import SpecialTokens
from bert_jax.models.config import EncoderConfig, GlobalAttention, Normal, RotaryPositions
from bert_jax.models.flops import forward_flops, head_flops
from bert_jax.objectives.base import Setting
from bert_jax.objectives.causal_lm import CausalLmObjective
from bert_jax.objectives.masked_lm import MaskedLmObjective
from bert_jax.objectives.masking import Masking
from bert_jax.testing import example_rows

SPECIAL = SpecialTokens(pad=9, cls=7, sep=3, mask=0, unk=5)
VOCAB, ROWS, LENGTH = 60, 5, 12
BOTH = EncoderConfig(
    VOCAB,
    hidden_size=16,
    num_layers=2,
    num_heads=2,
    intermediate_size=24,
    positions=RotaryPositions(LENGTH),
    initializer=Normal(0.2),
    pad_id=SPECIAL.pad,
)
LEFT = dataclasses.replace(BOTH, attention=GlobalAttention(direction="left"))
TASK = CausalLmObjective().task(Setting(LEFT, Masking(), SPECIAL, VOCAB))
KEY = jax.random.key(3, impl="threefry2x32")


def corrupted() -> tuple[dict, dict]:
    rows = example_rows(SPECIAL, VOCAB, count=ROWS, length=LENGTH)
    batch = {name: jnp.asarray(x) for name, x in rows.items()}
    return rows, dict(TASK.objective.corrupt(KEY, jnp.int32(0), batch))


def test_each_token_predicts_the_next_of_its_segment():
    rows, batch = corrupted()
    assert batch["targets"].shape == batch["weights"].shape == (ROWS, LENGTH - 1)
    np.testing.assert_array_equal(batch["input_ids"], rows["input_ids"])
    for row in range(ROWS):
        ids, segments = rows["input_ids"][row], rows["segment_ids"][row]
        for place in range(LENGTH - 1):
            assert batch["positions"][row, place] == place
            assert batch["targets"][row, place] == ids[place + 1]
            counted = segments[place] == segments[place + 1] != 0
            assert batch["weights"][row, place] == counted
    # Two segments of n and m tokens have n + m - 2 predictions.
    real = (rows["segment_ids"] != 0).sum(axis=1)
    np.testing.assert_array_equal(batch["weights"].sum(axis=1), real - 2)
    np.testing.assert_array_equal(batch["dropped"], np.zeros(ROWS))


def test_the_loss_is_that_of_logits_shifted_by_hand():
    rows, batch = corrupted()
    (stage,) = TASK.objective.stages

    @jax.jit
    def both(key, batch):
        params = TASK.init(key)
        inputs = {n: batch[n] for n in ("segment_ids", "position_ids")}
        sums = stage.loss(TASK.apply, params, batch, None, {})
        return sums, TASK.apply({"params": params}, batch["input_ids"], **inputs)["logits"]

    sums, logits = jax.device_get(both(KEY, batch))
    for row in range(ROWS):
        nll = hits = count = 0.0
        for place in range(1, LENGTH):
            segments = rows["segment_ids"][row]
            if segments[place] and segments[place] == segments[place - 1]:
                scores = logits[row, place - 1].astype(np.float64)
                target = rows["input_ids"][row, place]
                nll += np.log(np.exp(scores).sum()) - scores[target]
                hits += scores[target] >= scores.max()
                count += 1
        # float32 logits of size 3: 1e-6 each.
        np.testing.assert_allclose(sums["loss"][0][row], nll, rtol=1e-5)
        assert (sums["loss"][1][row], sums["accuracy"][0][row]) == (count, hits)


def test_masking_goes_on_with_the_same_parameters():
    """Two phases on one set of parameters: the encoder's direction is the only switch."""
    shapes = [
        jax.tree.map(lambda x: (x.shape, x.dtype), jax.eval_shape(task.init, KEY))
        for task in (TASK, MaskedLmObjective().task(Setting(BOTH, Masking(), SPECIAL, VOCAB)))
    ]
    assert shapes[0] == shapes[1]
    assert dataclasses.replace(LEFT, attention=GlobalAttention(direction="both")) == BOTH


def test_the_head_runs_at_every_position_but_the_last():
    row = forward_flops(LEFT, LENGTH) + (LENGTH - 1) * head_flops(LEFT)
    assert TASK.flops(5, LENGTH) == 3 * 5 * row


def test_an_encoder_that_sees_the_answer_is_refused():
    with pytest.raises(ValueError) as caught:
        CausalLmObjective().task(Setting(BOTH, Masking(), SPECIAL, VOCAB))
    assert str(caught.value) == (
        "objective causal-lm with model.attention.direction 'both': a token would see the one it "
        "predicts; set --model.attention.direction left."
    )

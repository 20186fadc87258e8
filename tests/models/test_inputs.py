"""What a model is given is checked before jax sees it, whatever kind of array it is."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.models.config import EncoderConfig, LearnedPositions
from bert_jax.models.heads import MaskedLM
from bert_jax.models.inputs import validate_inputs
from bert_jax.models.task_heads import SequenceClassifier, SpanExtractor

BERT = EncoderConfig(
    50, hidden_size=8, num_layers=1, num_heads=1, intermediate_size=8, type_vocab_size=2,
    positions=LearnedPositions(16),
)  # fmt: skip
ROBERTA = dataclasses.replace(BERT, type_vocab_size=1, pad_id=1, positions=LearnedPositions(16, 2))
IDS = np.arange(12).reshape(2, 6) + 5

BAD = [
    (BERT, {"input_ids": np.full((1, 3), 50)}, r"input_ids holds 50; it must lie in \[0, 50\)"),
    (BERT, {"input_ids": np.full((1, 3), -1)}, r"input_ids holds -1"),
    (BERT, {"input_ids": np.full((1, 17), 5)}, "rows of 17 tokens; the model has 16 positions"),
    (
        ROBERTA,
        {"input_ids": np.full((1, 17), 5)},
        r"the model has 16 usable positions \(of 18 rows, the first 2 are padding's\)",
    ),
    (BERT, {"input_ids": np.full((1, 0), 5)}, r"has the shape \(1, 0\)"),
    (BERT, {"token_type_ids": IDS * 0 + 2}, r"token_type_ids holds 2; it must lie in \[0, 2\)"),
    (ROBERTA, {"token_type_ids": IDS * 0 + 1}, "leave token_type_ids out"),
    (BERT, {"position_ids": IDS + 5}, r"position_ids holds 21; it must lie in \[0, 16\)"),
    (ROBERTA, {"position_ids": IDS + 5}, "21; it must lie in .0, 16.; usable positions"),
    (BERT, {"attention_mask": np.ones((2, 5), int)}, r"attention_mask has the shape \(2, 5\)"),
    (BERT, {"attention_mask": IDS * 0 + 2}, "attention_mask holds 2"),
    (BERT, {"segment_ids": IDS * 0 - 1}, "segment_ids holds -1"),
    (BERT, {"positions": np.full((2, 2), 6)}, r"positions holds 6; it must lie in \[0, 6\)"),
    (BERT, {"positions": np.full((3, 2), 1)}, "with the batch of input_ids, 2"),
    (
        BERT,
        {"positions": np.full((2, 2), 1), "targets": np.full((2, 2), 50)},
        r"targets holds 50; it must lie in \[0, 50\)",
    ),
    (
        BERT,
        {"positions": np.full((2, 2), 1), "targets": np.full((2, 3), 5)},
        r"targets has the shape \(2, 3\)",
    ),
]  # fmt: skip


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("config", "inputs", "message"), BAD)
def test_bad_inputs_are_refused_with_a_sentence(config, inputs, message):
    """By `validate_inputs`, and by the model from arrays of numpy and of jax."""
    inputs = {"input_ids": IDS, **inputs}
    with pytest.raises(ValueError, match=message) as caught:
        validate_inputs(config, **inputs)
    assert "\n" not in str(caught.value)
    model = MaskedLM(config)
    params = jax.tree.map(
        lambda x: jnp.zeros(x.shape), jax.eval_shape(model.init, jax.random.key(0))
    )
    with pytest.raises(ValueError, match=message):
        model.apply(params, **inputs)
    with pytest.raises(ValueError, match=message):
        model.apply(params, **{name: jnp.asarray(x) for name, x in inputs.items()})


def test_good_inputs_pass():
    validate_inputs(
        BERT,
        IDS,
        attention_mask=IDS * 0 + 1,
        segment_ids=IDS,
        position_ids=IDS - 5,
        token_type_ids=IDS * 0 + 1,
        positions=np.full((2, 2), 5),
        targets=np.full((2, 2), 49),
    )
    # Positions of one's own may be fewer than the tokens of a long packed row.
    validate_inputs(BERT, np.full((1, 40), 5), position_ids=np.arange(40)[None] % 16)


@pytest.mark.parametrize("model", [SequenceClassifier(BERT), SpanExtractor(BERT)])
def test_every_model_checks(model):
    params = model.init(jax.random.key(0))
    with pytest.raises(ValueError, match="input_ids holds 50"):
        model.apply(params, np.full((1, 3), 50))
    with pytest.raises(ValueError, match="rows of 17 tokens"):  # a length is known inside jit too
        jax.eval_shape(model.apply, params, jnp.full((1, 17), 5))


def test_values_inside_jit_are_left_alone():
    model = SequenceClassifier(BERT)
    params = model.init(jax.random.key(0))
    out = jax.jit(model.apply)(params, jnp.full((1, 3), 500))
    assert np.isnan(out["logits"]).all()  # loud, not a neighbour's row


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"input_ids": [[1, 2]]}, "input_ids is a list; give an array of integers"),
        ({"input_ids": IDS.astype(float)}, "input_ids is of float64; give integers"),
        ({"input_ids": IDS > 3}, "input_ids is of bool; give integers"),
        ({"input_ids": IDS, "token_type_ids": IDS * 0.0}, "token_type_ids is of float64"),
        ({"input_ids": IDS, "capture": ("layers",)}, "capture is .'layers',.; give a tuple of"),
        ({"input_ids": IDS, "capture": "attentions"}, "capture is 'attentions'; give a tuple"),
    ],
)
def test_other_kinds_of_inputs_are_refused(inputs, message):
    model = SequenceClassifier(BERT)
    params = model.init(jax.random.key(0))
    with pytest.raises(ValueError, match=message):
        model.apply(params, **inputs)


def test_any_integers_will_do():
    model = SequenceClassifier(BERT)
    params = model.init(jax.random.key(0))
    mask = np.arange(6) < np.asarray([[6], [4]])
    for kind in (np.uint8, np.int64):
        np.testing.assert_array_equal(
            model.apply(params, IDS.astype(np.uint16), attention_mask=mask.astype(kind))["logits"],
            model.apply(params, IDS, attention_mask=mask.astype(np.int32))["logits"],
        )

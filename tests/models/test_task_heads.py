"""Heads of tasks: against numpy in float64, for every family's pooler; inputs they share."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.models.heads import PreTraining, ReplacedTokenDetector
from bert_jax.models.task_heads import (
    MultipleChoice,
    SentenceEncoder,
    SequenceClassifier,
    SpanExtractor,
    TokenClassifier,
)

pytestmark = pytest.mark.sweep

FAMILIES = (
    "bert-base",
    pytest.param("roberta-base", marks=pytest.mark.slow),
    pytest.param("albert-base-v1", marks=pytest.mark.slow),
    pytest.param("distilbert-base", marks=pytest.mark.slow),
    pytest.param("electra-small", marks=pytest.mark.slow),
    "deberta-v3-base",
    "modernbert-base",
)
RNG = np.random.default_rng(0)
MASK = (np.arange(10) < np.asarray([[10], [7], [4], [9]])).astype(np.int32)
IDS = np.where(MASK, RNG.integers(5, 60, (4, 10)), 0).astype(np.int32)


@functools.cache
def parameters(model):
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    rng = np.random.default_rng(1)
    return jax.tree.map(lambda x: jnp.asarray(rng.normal(0.3, 0.4, x.shape), jnp.float32), shapes)


def run(model):
    """Output of the model, and its parameters and hidden states in float64."""
    params = parameters(model)
    apply = jax.jit(model.apply, compiler_options={"xla_backend_optimization_level": 0})
    output = apply(params, jnp.asarray(IDS), jnp.asarray(MASK))
    wide = jax.tree.map(lambda x: np.asarray(x, np.float64), params["params"])
    return output, wide, np.asarray(output["hidden"], np.float64)


def linear(p, x):
    return x @ p["kernel"] + p.get("bias", 0)


def activation(kind, x):
    return {
        "tanh": np.tanh,
        "relu": lambda x: np.maximum(x, 0),
        "gelu": lambda x: 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))),
        "gelu_tanh": lambda x: (
            0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
        ),
    }[kind](x)


def layer_norm(p, x, eps):
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt(x.var(-1, keepdims=True) + eps) * p["scale"] + p.get("bias", 0)


def transformed(config, p, x):
    x = activation(config.heads.pooler.activation, linear(p["pooler"], x))
    return layer_norm(p["pooler_norm"], x, config.norm.eps) if "pooler_norm" in p else x


def pooled(config, p, hidden):
    if config.heads.pooler.pooling == "cls":
        return transformed(config, p, hidden[:, 0])
    means = (hidden * MASK[..., None]).sum(1) / MASK.sum(1, keepdims=True)
    return transformed(config, p, means)


@pytest.fixture(params=FAMILIES)
def config(request, tiny_preset):
    return tiny_preset(request.param)


# Values of order 5 through two or three float32 maps of 16 terms.
close = functools.partial(np.testing.assert_allclose, atol=5e-5)


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_sequence_classifier(config, pooling):
    pooler = dataclasses.replace(config.heads.pooler, pooling=pooling)
    config = dataclasses.replace(config, heads=dataclasses.replace(config.heads, pooler=pooler))
    output, p, hidden = run(SequenceClassifier(config, num_labels=3))
    close(output["logits"], linear(p["classifier"], pooled(config, p, hidden)))
    assert output["logits"].dtype == jnp.float32


def test_token_and_span_heads(config):
    """ModernBERT has its map before these too; the others read hidden states."""
    output, p, hidden = run(TokenClassifier(config, num_labels=3))
    assert ("pooler" in p) == (config.heads.pooler.token_heads == "transform")
    x = transformed(config, p, hidden) if "pooler" in p else hidden
    close(output["logits"], linear(p["classifier"], x))
    output, p, hidden = run(SpanExtractor(config))
    x = transformed(config, p, hidden) if "pooler" in p else hidden
    both = linear(p["span"], x)
    close(output["start_logits"], both[..., 0])
    close(output["end_logits"], both[..., 1])


def test_multiple_choice(config):
    output, p, hidden = run(MultipleChoice(config, num_choices=2))
    scores = linear(p["classifier"], pooled(config, p, hidden))
    close(output["logits"], scores.reshape(2, 2))
    with pytest.raises(ValueError, match="4 rows does not hold whole questions of 3 choices"):
        model = MultipleChoice(config, num_choices=3)
        jax.eval_shape(model.apply, parameters(model), jnp.asarray(IDS))


def test_pairs(tiny_preset):
    config = tiny_preset("bert-base")
    output, p, hidden = run(PreTraining(config))
    close(output["pair_logits"], linear(p["pair"], pooled(config, p, hidden)))
    assert output["logits"].shape == (4, 10, 60)


@pytest.mark.parametrize("name", ["electra-small", "deberta-v3-base"])
def test_detectors(tiny_preset, name):
    """DeBERTa's adds the first token's state and normalises first."""
    config = tiny_preset(name)
    output, p, hidden = run(ReplacedTokenDetector(config))
    x = hidden
    if name == "deberta-v3-base":
        x = layer_norm(p["detector_norm"], hidden + hidden[:, :1], config.norm.eps)
    x = activation("gelu", linear(p["detector_dense"], x))
    close(output["logits"], linear(p["detector"], x)[..., 0])


def test_sentence_encoder(tiny_preset):
    model = SentenceEncoder(tiny_preset("bert-base"), pooling="mean", normalisation="unit")
    output, _, hidden = run(model)
    means = (hidden * MASK[..., None]).sum(1) / MASK.sum(1, keepdims=True)
    close(output["embedding"], means / np.linalg.norm(means, axis=1, keepdims=True))
    plain = SentenceEncoder(tiny_preset("bert-base"), pooling="cls")
    out = plain.apply(parameters(model), jnp.asarray(IDS), jnp.asarray(MASK))
    close(out["embedding"], hidden[:, 0])


def test_head_dropout_falls_where_the_family_has_it(tiny_preset):
    """RoBERTa's before and after the map; BERT's after only: seen by rates of nearly one."""
    for name, before in (("electra-small", True), ("bert-base", False)):
        config = tiny_preset(name)
        pooler = dataclasses.replace(
            config.heads.pooler, input_dropout=0.9 if before else 0.0, output_dropout=0.0
        )
        config = dataclasses.replace(
            config,
            heads=dataclasses.replace(config.heads, pooler=pooler),
            dropout=dataclasses.replace(config.dropout, hidden=0.0, attention=0.0),
        )
        model = SequenceClassifier(config)
        run_ = functools.partial(model.apply, parameters(model), jnp.asarray(IDS))
        noisy = run_(deterministic=False, rngs={"dropout": jax.random.key(0)})["logits"]
        changed = np.abs(noisy - run_()["logits"]).max() > 1e-3
        assert changed == before

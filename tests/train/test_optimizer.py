"""What all optimizers share: decay sets and their counts, the table, checks, flat form, types."""

import dataclasses
import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.flat import flatten, unflatten
from bert_jax.models.heads import MaskedLM, PreTraining
from bert_jax.models.paths import by_path
from bert_jax.models.sizes import real_shape
from bert_jax.recipes import preset
from bert_jax.train.optimizer import (
    Adafactor,
    AdamW,
    BertAdam,
    FairseqAdam,
    Lamb,
    Muon,
    Optimizer,
    StableAdamW,
    decay_table,
)

ALL = [AdamW(), BertAdam(), FairseqAdam(), Lamb(), StableAdamW(), Adafactor(), Muon()]
SHAPES = {
    "encoder": {
        "word": {"embedding": (5, 3)},
        "layers": {"query": {"kernel": (2, 3, 4), "bias": (2, 4)}, "norm": {"scale": (2, 3)}},
    },
    "generator": {"relative": {"embedding": (4, 3)}, "word": {"delta": (5, 3)}, "gain": ()},
    "head_bias": (5,),
}


def parameters() -> dict:
    return jax.tree.map(
        lambda shape: np.ones(shape, np.float32), SHAPES, is_leaf=lambda x: isinstance(x, tuple)
    )


def decayed(optimizer) -> set[str]:
    return {path for path, yes in by_path(optimizer.decay_mask(parameters())).items() if yes}


MATRICES = {
    "encoder/word/embedding",
    "encoder/layers/query/kernel",
    "generator/relative/embedding",
    "generator/word/delta",
}


@pytest.mark.parametrize("optimizer", ALL, ids=lambda o: type(o).__name__)
def test_decay_sets(optimizer):
    """Tables of relative positions and deltas are decayed; a layer's bias is a vector."""
    of = lambda decay: decayed(dataclasses.replace(optimizer, decay=decay))  # noqa: E731
    assert of("matrices") == MATRICES | {"generator/gain"}
    assert of("not_vectors") == MATRICES
    assert of("all") == set(by_path(parameters()))


def counts(optimizer, model) -> tuple[int, int]:
    """Decayed and undecayed parameters, without rows that pad the vocabulary."""
    shapes = jax.eval_shape(model.init, jax.random.key(0))["params"]
    mask = by_path(optimizer.decay_mask(shapes))
    size = {p: math.prod(real_shape(p, s.shape, model.config)) for p, s in by_path(shapes).items()}
    return tuple(sum(n for path, n in size.items() if mask[path] is yes) for yes in (True, False))


def test_decayed_counts_of_bert_base():
    """12 layers, pooler, both heads: 110,106,428 parameters without biases and norms."""
    model = PreTraining(preset("bert-base"))
    assert counts(BertAdam(), model) == (109_951_488, 110_106_428 - 109_951_488)
    assert counts(FairseqAdam(), model) == (110_106_428, 0)


@pytest.mark.parametrize("decay", ["not_vectors", "matrices"])
def test_decayed_counts_of_modernbert_base(decay):
    """46 norms of 768 scales and the decoder's 50,368 biases are not decayed."""
    model = MaskedLM(preset("modernbert-base"))
    assert counts(StableAdamW(decay=decay), model) == (149_655_232 - 85_696, 85_696)


def test_decay_table():
    lines = decay_table(AdamW(), parameters()).splitlines()
    assert lines[0].split() == ["parameter", "shape", "count", "decay"]
    rows = {line.split()[0]: line.split()[1:] for line in lines[1:-1]}
    assert rows["encoder/layers/query/kernel"] == ["2x3x4", "24", "yes"]
    assert rows["encoder/layers/query/bias"] == ["2x4", "8", "no"]
    assert rows["head_bias"] == ["5", "5", "no"]
    assert lines[-1] == "decayed 67, not decayed 19"
    for optimizer in ALL:
        every = dataclasses.replace(optimizer, decay="all")
        assert decay_table(every, parameters()).endswith("decayed 86, not decayed 0")


@pytest.mark.parametrize("optimizer", ALL, ids=lambda o: type(o).__name__)
def test_state_is_float32(optimizer):
    """Moments, factors and momentum are never kept in less than float32 (P48)."""
    state = jax.eval_shape(optimizer.direction().init, parameters())
    dtypes = {leaf.dtype for leaf in jax.tree.leaves(state)}
    assert dtypes == {jnp.dtype(jnp.float32), jnp.dtype(jnp.int32)}  # moments and counts


@dataclass(frozen=True)
class Holder:
    """As an experiment holds an optimizer."""

    optimizer: Optimizer


@pytest.mark.parametrize("optimizer", ALL, ids=lambda o: type(o).__name__)
def test_flat_form(optimizer):
    flat = flatten(Holder(optimizer))
    tags = ["adamw", "bert-adam", "fairseq-adam", "lamb", "stable-adamw", "adafactor", "muon"]
    assert flat["optimizer"] == tags[ALL.index(optimizer)]
    assert unflatten(Holder, flat) == Holder(optimizer)


@pytest.mark.parametrize(
    ("kind", "fields", "message"),
    [
        (AdamW, {"learning_rate": 0.0}, "optimizer.learning_rate is 0.0; it must be positive."),
        (AdamW, {"eps": -1e-8}, "optimizer.eps is -1e-08; it must be positive."),
        (BertAdam, {"b1": 1.0}, "optimizer.b1 is 1.0; it lies in [0, 1)."),
        (FairseqAdam, {"b2": -0.1}, "optimizer.b2 is -0.1; it lies in [0, 1)."),
        (Lamb, {"weight_decay": -1.0}, "optimizer.weight_decay is -1.0; it is 0 or more."),
        (AdamW, {"clip_norm": 0.0}, "optimizer.clip_norm is 0.0; it must be positive, or None."),
        (
            StableAdamW,
            {"max_learning_rate": 0.0},
            "optimizer.max_learning_rate is 0.0; it must be positive, or None.",
        ),
        (Muon, {"momentum": 1.0}, "optimizer.momentum is 1.0; it lies in [0, 1)."),
        (Muon, {"rest_b2": 1.5}, "optimizer.rest_b2 is 1.5; it lies in [0, 1)."),
        (Muon, {"rms": 0.0}, "optimizer.rms is 0.0; it must be positive, or None."),
        (Muon, {"iterations": 0}, "optimizer.iterations is 0; it must be positive."),
        (
            Muon,
            {"rest_learning_rate": -1.0},
            "optimizer.rest_learning_rate is -1.0; it must be positive, or None.",
        ),
        (Adafactor, {"clip_rms": 0.0}, "optimizer.clip_rms is 0.0; it must be positive."),
        (Adafactor, {"min_scale": 0.0}, "optimizer.min_scale is 0.0; it must be positive."),
        (
            Adafactor,
            {"min_size_to_factor": 0},
            "optimizer.min_size_to_factor is 0; it must be positive.",
        ),
        (
            Adafactor,
            {"second_moment_power": 1.5},
            "optimizer.second_moment_power is 1.5; it lies in (0, 1].",
        ),
    ],
)
def test_errors_name_the_value_and_its_range(kind, fields, message):
    with pytest.raises(ValueError) as caught:
        kind(**fields)
    assert str(caught.value) == message

"""Growth of trained parameters: where every old number stands afterwards."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.models.config import (
    EncoderConfig,
    GlobalAttention,
    LayerSharing,
    LearnedPositions,
    RotaryPositions,
)
from bert_jax.models.growth import (
    extend_context,
    grow,
    layer_map,
    resize_vocabulary,
    select_layers,
)
from bert_jax.models.heads import MaskedLM, PreTraining, ReplacedTokenDetector
from bert_jax.models.paths import by_path
from bert_jax.models.task_heads import SequenceClassifier, SpanExtractor, TokenClassifier
from bert_jax.recipes import preset

pytestmark = pytest.mark.sweep

FAMILIES = (
    "bert-base",
    "roberta-base",
    "albert-base-v1",
    "electra-small",
    "deberta-base",
    "deberta-v2-xlarge",
    "deberta-v3-base-generator",
    "modernbert-base",
    "neobert",
    "nomic-bert",
    "mosaicbert-base",
    "crammed-bert",
)


@functools.cache
def trained(model):
    """Parameters of a model, every number another."""
    shapes = jax.eval_shape(model.init, jax.random.key(0))["params"]
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape), jnp.float32), shapes)


def shapes_of(model):
    shapes = by_path(jax.eval_shape(model.init, jax.random.key(0))["params"])
    return {path: leaf.shape for path, leaf in shapes.items()}


def wider(config: EncoderConfig) -> EncoderConfig:
    """One half wider and one half deeper, heads of the same size."""
    return dataclasses.replace(
        config,
        hidden_size=3 * config.hidden_size // 2,
        num_heads=3 * config.num_heads // 2,
        num_layers=3 * config.num_layers // 2,
        intermediate_size=3 * config.intermediate_size // 2,
        embedding_size=None if config.embedding_size is None else config.embedding_size + 4,
    )


# ------------------------------------------------------------------------------ width and depth


@pytest.mark.parametrize("name", FAMILIES)
def test_grown_parameters_fit_the_larger_model(tiny_preset, name):
    config = tiny_preset(name)
    larger = wider(config)
    model = PreTraining(config)
    grown = by_path(grow(config, trained(model), larger))
    assert {path: leaf.shape for path, leaf in grown.items()} == shapes_of(PreTraining(larger))


@pytest.mark.parametrize(
    "model", [MaskedLM, SequenceClassifier, TokenClassifier, SpanExtractor, ReplacedTokenDetector]
)
def test_growing_to_the_same_size_changes_nothing(tiny_preset, model):
    config = tiny_preset("modernbert-base")
    params = trained(model(config))
    jax.tree.map(np.testing.assert_array_equal, grow(config, params, config), params)


def test_old_weights_stand_in_the_middle_and_wrap_around():
    """ModernBERT's tiling of one axis, 4 to 7: three more, one before and two behind."""
    config = EncoderConfig(9, hidden_size=4, num_layers=1, num_heads=1, intermediate_size=6)
    larger = dataclasses.replace(config, hidden_size=7, intermediate_size=8)
    params = trained(MaskedLM(config))
    grown = grow(config, params, larger)
    hidden, inner = np.array([3, 0, 1, 2, 3, 0, 1]), np.array([5, 0, 1, 2, 3, 4, 5, 0])
    old, new = (p["encoder"]["layers"] for p in (params, grown))
    kernel = old["mlp_in"]["kernel"][0]
    np.testing.assert_array_equal(new["mlp_in"]["kernel"][0], kernel[np.ix_(hidden, inner)])
    np.testing.assert_array_equal(
        new["mlp_out"]["kernel"][0], old["mlp_out"]["kernel"][0][np.ix_(inner, hidden)]
    )
    np.testing.assert_array_equal(new["mlp_norm"]["scale"][0], old["mlp_norm"]["scale"][0][hidden])
    np.testing.assert_array_equal(
        grown["encoder"]["embeddings"]["word"]["embedding"],
        params["encoder"]["embeddings"]["word"]["embedding"][:, hidden],
    )


def test_heads_are_moved_whole():
    """ModernBERT 768 -> 1024: two heads of 64 before the old twelve, two behind."""
    config = dataclasses.replace(
        preset("modernbert-base"), vocab_size=8, num_layers=1, intermediate_size=4, pad_id=0
    )
    larger = dataclasses.replace(config, hidden_size=1024, num_heads=16)
    params = trained(MaskedLM(config))
    old, new = (p["encoder"]["layers"] for p in (params, grow(config, params, larger)))
    hidden = (np.arange(1024) - 128) % 768
    for head, source in enumerate([10, 11, *range(12), 0, 1]):
        columns, theirs = slice(64 * head, 64 * head + 64), slice(64 * source, 64 * source + 64)
        for name in ("query", "key", "value"):
            np.testing.assert_array_equal(
                new[name]["kernel"][0][:, columns], old[name]["kernel"][0][hidden][:, theirs]
            )
        np.testing.assert_array_equal(
            new["attention_out"]["kernel"][0][columns],
            old["attention_out"]["kernel"][0][theirs][:, hidden],
        )


def test_layers_come_from_layers_of_their_kind():
    """ModernBERT base to large; the released map, round(i 22 / 28), mixes kinds in 12 layers."""
    base, large = preset("modernbert-base"), preset("modernbert-large")
    chosen = layer_map(base, large)
    assert [old % 3 == 0 for old in chosen] == [new % 3 == 0 for new in range(28)]
    for kind in (True, False):  # order is kept among layers of one kind
        of_kind = [old for old in chosen if (old % 3 == 0) == kind]
        assert of_kind == sorted(of_kind)
    assert (chosen[0], chosen[-1]) == (0, 21)
    released = [round(i * 22 / 28) for i in range(28)]
    assert sum((old % 3 == 0) != (new % 3 == 0) for new, old in enumerate(released)) == 12
    assert max(abs(old - new * 22 / 28) for new, old in enumerate(chosen)) <= 2
    assert layer_map(preset("bert-base"), preset("bert-large")) == tuple(
        min(range(12), key=lambda old: (abs(old - new / 2), old)) for new in range(24)
    )


def test_a_layer_from_the_first_gets_the_norm_that_it_lacked(tiny_preset):
    config = tiny_preset("modernbert-base")
    larger = dataclasses.replace(config, num_layers=16)
    params = trained(MaskedLM(config))
    layers = [0, 1, 2, 0, *range(4, 8), *range(8)]
    grown = grow(config, params, larger, layers=layers)["encoder"]["layers"]
    old = params["encoder"]["layers"]
    assert grown["attention_norm"]["scale"].shape[0] == 15
    np.testing.assert_array_equal(grown["attention_norm"]["scale"][2], np.ones(16))
    np.testing.assert_array_equal(
        grown["attention_norm"]["scale"][0], old["attention_norm"]["scale"][0]
    )
    np.testing.assert_array_equal(
        grown["mlp_norm"]["scale"], old["mlp_norm"]["scale"][np.array(layers)]
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": 8}, "hidden_size would shrink from 16 to 8"),
        ({"num_layers": 5, "activation": "relu"}, "differs in activation too"),
        ({"num_layers": 5, "vocab_size": 61}, "differs in vocab_size too"),
    ],
)
def test_what_is_no_growth_is_refused(tiny_preset, change, message):
    config = tiny_preset("bert-base")
    with pytest.raises(ValueError, match=message):
        grow(config, trained(MaskedLM(config)), dataclasses.replace(config, **change))


def test_distilbert_s_layers_of_a_teacher():
    config = dataclasses.replace(
        preset("bert-base"), vocab_size=9, hidden_size=4, num_heads=1, intermediate_size=4
    )
    params = trained(MaskedLM(config))
    smaller, kept = select_layers(config, params, [0, 2, 4, 7, 9, 11])
    assert smaller == dataclasses.replace(config, num_layers=6)
    jax.tree.map(
        lambda a, b: np.testing.assert_array_equal(a, b[np.array([0, 2, 4, 7, 9, 11])]),
        kept["encoder"]["layers"],
        params["encoder"]["layers"],
    )
    np.testing.assert_array_equal(kept["head_bias"], params["head_bias"])
    with pytest.raises(ValueError, match="layer 12 is not one of the 12"):
        select_layers(config, params, [0, 12])


def test_selected_layers_keep_their_kind(tiny_preset):
    config = tiny_preset("modernbert-base")
    params = trained(MaskedLM(config))
    smaller, kept = select_layers(config, params, [0, 1, 5, 6])
    assert kept["encoder"]["layers"]["attention_norm"]["scale"].shape[0] == 3
    assert smaller.num_layers == 4
    with pytest.raises(ValueError, match="layer 3 has global attention and would become layer 1"):
        select_layers(config, params, [0, 3])
    shared = dataclasses.replace(tiny_preset("albert-base-v1"), sharing=LayerSharing())
    with pytest.raises(ValueError, match="layers are shared"):
        select_layers(shared, trained(MaskedLM(shared)), [0])


# ----------------------------------------------------------------------------------- vocabulary


@pytest.mark.parametrize("name", ["bert-base", "albert-base-v1", "neobert"])
def test_a_grown_vocabulary(tiny_preset, name):
    """Old logits stay; a new entry's logit is the mean of all old ones (tied or not)."""
    config = tiny_preset(name)
    params = trained(MaskedLM(config))
    resized, new = resize_vocabulary(config, params, 200)  # beyond the 128 rows of the table
    assert resized == dataclasses.replace(config, vocab_size=200)
    assert {p: x.shape for p, x in by_path(new).items()} == shapes_of(MaskedLM(resized))
    ids = np.arange(12).reshape(1, 12) + 5
    old = MaskedLM(config).apply({"params": params}, ids)["logits"]
    out = MaskedLM(resized).apply({"params": new}, ids)["logits"]
    np.testing.assert_allclose(out[..., :60], old, atol=1e-5)
    # Sums of 60 logits of order 10.
    expected = np.broadcast_to(old.mean(-1, keepdims=True), (1, 12, 140))
    np.testing.assert_allclose(out[..., 60:], expected, atol=1e-4)
    _, back = resize_vocabulary(resized, new, 60)
    for path, leaf in by_path(back).items():
        rows = 60 if leaf.shape and leaf.shape[0] == 128 else None
        np.testing.assert_array_equal(leaf[:rows], by_path(params)[path][:rows])


def test_new_entries_may_be_given(tiny_preset):
    config = tiny_preset("bert-base")
    rows = np.random.default_rng(1).normal(size=(3, 16)).astype(np.float32)
    _, new = resize_vocabulary(config, trained(MaskedLM(config)), 63, rows=rows)
    np.testing.assert_array_equal(new["encoder"]["embeddings"]["word"]["embedding"][60:63], rows)
    np.testing.assert_array_equal(new["encoder"]["embeddings"]["word"]["embedding"][63:], 0)
    with pytest.raises(
        ValueError, match=r"rows has the shape \(3, 16\); 4 new entries of width 16"
    ):
        resize_vocabulary(config, trained(MaskedLM(config)), 64, rows=rows)


def test_the_padding_id_is_not_cut_off():
    config = EncoderConfig(60, hidden_size=4, num_layers=1, num_heads=1, pad_id=59)
    with pytest.raises(ValueError, match="pad_id 59 is outside the vocabulary of 50"):
        resize_vocabulary(config, {}, 50)


# -------------------------------------------------------------------------------------- context


def test_learned_positions_are_repeated(tiny_preset):
    """RoBERTa's first two rows are padding's and stay; what was short gives the same as before."""
    config = tiny_preset("roberta-base")
    params = trained(MaskedLM(config))
    longer, new = extend_context(config, params, 80)
    assert longer.positions == LearnedPositions(80, 2)
    old = params["encoder"]["embeddings"]["position"]["embedding"]
    table = new["encoder"]["embeddings"]["position"]["embedding"]
    assert table.shape == (82, 16)
    np.testing.assert_array_equal(table[:34], old)
    np.testing.assert_array_equal(table[34:66], old[2:])
    np.testing.assert_array_equal(table[66:], old[2:18])
    ids = np.arange(20).reshape(1, 20) + 5
    np.testing.assert_array_equal(
        MaskedLM(longer).apply({"params": new}, ids)["logits"],
        MaskedLM(config).apply({"params": params}, ids)["logits"],
    )


def test_rotary_positions_get_another_base(tiny_preset):
    plain = dataclasses.replace(
        tiny_preset("modernbert-base"), positions=RotaryPositions(96, 10_000.0)
    )
    longer, params = extend_context(plain, {"x": 1}, 8192, theta=160_000.0)
    assert longer.positions == RotaryPositions(8192, 160_000.0, 10_000.0)  # as ModernBERT
    assert params == {"x": 1}
    both, _ = extend_context(plain, {}, 8192, theta=160_000.0, local_theta=160_000.0)
    assert both.positions == RotaryPositions(8192, 160_000.0, 160_000.0)  # as Ettin
    everywhere = dataclasses.replace(plain, attention=GlobalAttention())
    longer, _ = extend_context(everywhere, {}, 8192, theta=160_000.0)
    assert longer.positions == RotaryPositions(8192, 160_000.0)


def test_context_that_cannot_be_extended(tiny_preset):
    config = tiny_preset("bert-base")
    with pytest.raises(ValueError, match="max_length 16 is below the 32"):
        extend_context(config, {}, 16)
    with pytest.raises(
        ValueError, match="theta belongs to rotary positions; this encoder has Learn"
    ):
        extend_context(config, {}, 64, theta=160_000.0)
    relative = tiny_preset("deberta-v3-base")
    longer, _ = extend_context(relative, {}, 64)
    assert longer.positions == dataclasses.replace(relative.positions, max_length=64)


@pytest.mark.parametrize("layers", [[0, 1], [0, 1, 2, 4], [0, 1, 2, -1]])
def test_layers_given_by_hand_must_fit(tiny_preset, layers):
    config = tiny_preset("bert-base")
    with pytest.raises(ValueError, match="give one of the 4 old layers for each of the 4 new"):
        grow(config, trained(MaskedLM(config)), config, layers=layers)


def test_parameters_of_another_config_are_refused(tiny_preset):
    config = tiny_preset("bert-base")
    other = dataclasses.replace(config, intermediate_size=8)
    with pytest.raises(ValueError, match="give the config of these parameters"):
        grow(other, trained(MaskedLM(config)), wider(other))

"""MaskedLM: what goes in by which name, what comes out, and what stays inside."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.models.config import EncoderConfig, LearnedPositions, Normal
from bert_jax.models.heads import CPU_VOCAB_BLOCK, MaskedLM, vocab_block
from bert_jax.models.sizes import real_shape
from bert_jax.ops.cross_entropy import token_losses
from bert_jax.parallel.mesh import MeshShape, make_mesh
from bert_jax.train.state import init_params

PAD, VOCAB = 9, 300
CONFIG = EncoderConfig(
    VOCAB,
    hidden_size=16,
    num_layers=1,
    num_heads=2,
    intermediate_size=32,
    embedding_size=8,
    positions=LearnedPositions(32, PAD + 1),
    initializer=Normal(0.02),
    pad_id=PAD,
)
MODEL = MaskedLM(CONFIG)
FAST_COMPILE = {"xla_backend_optimization_level": 0}
RNG = np.random.default_rng(0)
IDS = jnp.asarray(np.where(np.arange(12) < [[12], [8], [5]], RNG.integers(10, VOCAB, (3, 12)), PAD))
POSITIONS = jnp.asarray(RNG.integers(0, 5, (3, 4)))


@pytest.fixture(scope="module")
def params() -> dict:
    """Values of order 1 everywhere, also in padded rows."""
    shapes = jax.eval_shape(MODEL.init, jax.random.key(0))["params"]
    draw = lambda leaf: jnp.asarray(RNG.normal(0.5, 0.5, leaf.shape), jnp.float32)  # noqa: E731
    return jax.tree.map(draw, shapes)


@functools.partial(jax.jit, compiler_options=FAST_COMPILE)
def apply(params, ids, **inputs):
    return MODEL.apply({"params": params}, ids, **inputs)


@functools.partial(jax.jit, compiler_options=FAST_COMPILE)
def noisy(params, key, **inputs):
    output = MODEL.apply(
        {"params": params}, IDS, deterministic=False, rngs={"dropout": key}, **inputs
    )
    return output["hidden"]


# -------------------------------------------------------------------------------------- head


def test_head_against_float64(params):
    """dense, gelu (erf), norm, product with the token table, one bias."""
    output = apply(params, IDS)
    assert set(output) == {"hidden", "logits"}
    assert output["hidden"].shape == (3, 12, 16)
    assert output["logits"].shape == (3, 12, VOCAB) and output["logits"].dtype == jnp.float32
    p = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
    x = np.asarray(output["hidden"], np.float64) @ p["head_dense"]["kernel"]
    x = x + p["head_dense"]["bias"]
    x = 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + CONFIG.norm.eps)
    x = x * p["head_norm"]["scale"] + p["head_norm"]["bias"]
    table = p["encoder"]["embeddings"]["word"]["embedding"]
    right = (x @ table.T + p["head_bias"])[..., :VOCAB]
    np.testing.assert_allclose(output["logits"], right, atol=3e-5)  # logits of order 5


def test_positions_are_gathered_before_the_head(params):
    everywhere = apply(params, IDS)["logits"]
    chosen = apply(params, IDS, positions=POSITIONS)["logits"]
    right = np.take_along_axis(np.asarray(everywhere), np.asarray(POSITIONS)[..., None], axis=1)
    np.testing.assert_allclose(chosen, right, atol=1e-5)


def test_targets_give_losses_instead_of_logits(params):
    targets = jnp.asarray(RNG.integers(0, VOCAB, (3, 4)))
    best = apply(params, IDS, positions=POSITIONS)["logits"].argmax(-1)
    targets = targets.at[0].set(best[0])
    output = apply(params, IDS, positions=POSITIONS, targets=targets)
    assert set(output) == {"hidden", "nll", "correct"}
    nll, correct = token_losses(apply(params, IDS, positions=POSITIONS)["logits"], targets)
    np.testing.assert_allclose(output["nll"], nll, atol=1e-5)
    np.testing.assert_array_equal(output["correct"], correct)
    assert output["correct"][0].all()


def test_padded_vocabulary_rows_are_invisible(params):
    """Other values there change no output; predictions are real entries (P31)."""
    changed = jax.tree.map(lambda x: x, params)
    word = changed["encoder"]["embeddings"]["word"]
    assert word["embedding"].shape[0] == 384 and changed["head_bias"].shape == (384,)
    word["embedding"] = word["embedding"].at[VOCAB:].set(1e4)
    changed["head_bias"] = changed["head_bias"].at[VOCAB:].set(1e9)
    targets = jnp.full((3, 4), VOCAB - 1)
    for inputs in ({}, {"positions": POSITIONS, "targets": targets}):
        before, after = apply(params, IDS, **inputs), apply(changed, IDS, **inputs)
        jax.tree.map(np.testing.assert_array_equal, before, after)


# ------------------------------------------------------------------------------------ inputs


def test_three_ways_to_say_what_is_padding(params):
    """By the padding id, by a mask, by segments; anything may then stand at padding (P06)."""
    real = IDS != PAD
    right = apply(params, IDS)["hidden"]
    junk = jnp.where(real, IDS, 77)
    by_mask = apply(params, junk, attention_mask=real.astype(jnp.int32))["hidden"]
    by_segment = apply(params, junk, segment_ids=5 * real.astype(jnp.int32))["hidden"]
    np.testing.assert_allclose(by_mask[real], right[real], atol=1e-6)
    np.testing.assert_allclose(by_segment[real], right[real], atol=1e-6)
    whole = apply(params, junk, attention_mask=jnp.ones_like(IDS))["hidden"]
    assert np.abs(whole[1, :8] - right[1, :8]).max() > 0.01


def test_initialising_needs_no_input():
    shapes = jax.eval_shape(MODEL.init, jax.random.key(0))
    with_input = jax.eval_shape(MODEL.init, jax.random.key(0), IDS, IDS)
    assert jax.tree.structure(shapes) == jax.tree.structure(with_input)
    assert jax.tree.leaves(shapes) == jax.tree.leaves(with_input)


# ----------------------------------------------------------------------------------- dropout


def test_dropout_is_a_function_of_key_and_example(params):
    keys = [jax.random.key(s, impl="threefry2x32") for s in (0, 1)]
    ids = jnp.asarray([5, 6, 7], jnp.uint32)
    first = noisy(params, keys[0], example_ids=ids)
    np.testing.assert_array_equal(first, noisy(params, keys[0], example_ids=ids))
    real = np.asarray(IDS != PAD)
    for other in (
        noisy(params, keys[1], example_ids=ids),
        noisy(params, keys[0], example_ids=ids + 1),
        apply(params, IDS)["hidden"],
    ):
        assert (np.abs(first - other).max(axis=(1, 2)) > 0.1).all()
    assert np.isfinite(first[real]).all()


def test_rows_are_numbered_if_no_example_is_named(params):
    key = jax.random.key(0, impl="threefry2x32")
    by_number = noisy(params, key, example_ids=jnp.arange(3, dtype=jnp.uint32))
    np.testing.assert_array_equal(noisy(params, key), by_number)


# ----------------------------------------------------------------------------- initial values


@functools.cache
def initial(shape: MeshShape | None):
    init = jax.jit(lambda: init_params(MODEL, 7), compiler_options=FAST_COMPILE)
    if shape is None:
        return init()
    with jax.set_mesh(make_mesh(shape)):
        return init()


def test_initial_values_do_not_depend_on_the_mesh():
    """The same draws; how a program is fused may turn a polynomial's last bit."""
    close = functools.partial(np.testing.assert_allclose, rtol=5e-7)
    jax.tree.map(close, initial(MeshShape(1, 4, 2)), initial(None))


def test_initial_biases_scales_and_spreads():
    flat = jax.tree_util.tree_leaves_with_path(initial(None))
    assert len(flat) == 27
    for path, leaf in flat:
        role = path[-1].key
        assert leaf.dtype == jnp.float32
        if role in ("bias", "head_bias"):
            np.testing.assert_array_equal(leaf, 0)
        elif role == "scale":
            np.testing.assert_array_equal(leaf, 1)
        else:
            used = real_shape("/".join(key.key for key in path), leaf.shape, MODEL.config)
            np.testing.assert_array_equal(leaf[used[0] :], 0)  # rows that only pad the vocabulary
            leaf = leaf[: used[0]]
            count = leaf.size
            # Normal(.02); two table rows of padding are 0, which 5 sigma of the spread cover.
            assert abs(np.std(leaf) - 0.02) < 0.02 * 5 / math.sqrt(2 * count), path
            assert abs(np.mean(leaf)) < 0.02 * 5 / math.sqrt(count), path


def test_another_seed_gives_other_values():
    init = jax.jit(lambda key: MODEL.init(key)["params"]["head_dense"]["kernel"])
    draw = lambda seed: init(jax.random.key(seed, impl="threefry2x32"))  # noqa: E731
    assert (draw(8) != initial(None)["head_dense"]["kernel"]).all()
    np.testing.assert_allclose(draw(7), initial(None)["head_dense"]["kernel"], rtol=5e-7)


def test_layouts_of_parameters():
    """Kernels over fsdp and the Megatron side over tensor; vectors whole unless over tensor."""
    shapes = initial(MeshShape(1, 4, 2))
    layout = lambda leaf: tuple(jax.typeof(leaf).sharding.spec)  # noqa: E731
    layers = shapes["encoder"]["layers"]
    assert layout(layers["query"]["kernel"]) == (None, "fsdp", "tensor")
    assert layout(layers["mlp_in"]["kernel"]) == (None, "fsdp", "tensor")
    assert layout(layers["attention_out"]["kernel"]) == (None, "tensor", "fsdp")
    assert layout(layers["mlp_out"]["kernel"]) == (None, "tensor", "fsdp")
    assert layout(layers["mlp_in"]["bias"]) == (None, "tensor")
    assert set(layout(layers["mlp_norm"]["scale"])) == {None}
    assert layout(shapes["encoder"]["embeddings"]["word"]["embedding"]) == ("tensor", "fsdp")
    assert layout(shapes["head_bias"]) == ("tensor",)


def test_an_untrained_model_knows_nothing():
    """Its loss is ln V within 2 % (P10)."""
    targets = jnp.asarray(RNG.integers(0, VOCAB, (3, 4)))
    nll = apply(initial(None), IDS, positions=POSITIONS, targets=targets)["nll"]
    assert abs(nll.mean() - math.log(VOCAB)) < 0.02 * math.log(VOCAB)


# ------------------------------------------------------------------------------- vocab_block


def test_the_loss_is_blocked_where_nothing_is_split():
    assert vocab_block() == CPU_VOCAB_BLOCK
    with jax.set_mesh(make_mesh(MeshShape(1), jax.devices()[:1])):
        assert vocab_block() == CPU_VOCAB_BLOCK
    for shape in (MeshShape(8), MeshShape(1, 4, 2)):
        with jax.set_mesh(make_mesh(shape)):
            assert vocab_block() is None


def test_config_travels_with_the_module():
    assert MODEL.config is CONFIG
    assert MaskedLM(dataclasses.replace(CONFIG)) == MODEL

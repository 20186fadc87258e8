"""The encoder: against a slow float64 one, and what may never change its numbers."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.models.config import (
    AlibiPositions,
    Biases,
    Dropout,
    EncoderConfig,
    Execution,
    GlobalAttention,
    LearnedPositions,
    Norm,
    Normal,
    RotaryPositions,
    SinusoidalPositions,
    TruncatedNormal,
)
from bert_jax.models.embeddings import Embeddings
from bert_jax.models.encoder import Encoder
from bert_jax.ops.dropout import DropoutSeed

PAD = 9
COMMON = {
    "vocab_size": 50,
    "hidden_size": 16,
    "num_layers": 2,
    "num_heads": 2,
    "intermediate_size": 24,
    "pad_id": PAD,
}
CONFIGS = {
    "pre-rotary": EncoderConfig(
        **COMMON, positions=RotaryPositions(64), norm=Norm("pre", 1e-5), type_vocab_size=2
    ),
    "post-learned": EncoderConfig(
        **COMMON,
        positions=LearnedPositions(16, PAD + 1),
        norm=Norm("post", 1e-12),
        embedding_size=8,
        activation="gelu_tanh",
        initializer=Normal(0.02),
    ),
    # MosaicBERT, with its 12 heads of 12 slopes, and the same run causally.
    "alibi": EncoderConfig(
        **COMMON | {"hidden_size": 24, "num_heads": 12},
        positions=AlibiPositions(64),
        norm=Norm("post", 1e-12),
        mlp="gated",
        biases=Biases(mlp="out"),
    ),
    "alibi-left": EncoderConfig(
        **COMMON | {"hidden_size": 24, "num_heads": 12},
        positions=AlibiPositions(64),
        attention=GlobalAttention("left"),
        norm=Norm("post", 1e-12),
        mlp="gated",
        biases=Biases(mlp="out"),
    ),
    # Crammed BERT.
    "scaled-sinusoids": EncoderConfig(
        **COMMON,
        positions=SinusoidalPositions(64, scale="learned"),
        norm=Norm("pre", 1e-12, after_embeddings=True),
        mlp="gated",
        biases=Biases("none", "none"),
    ),
}
FAST_COMPILE = {"xla_backend_optimization_level": 0}
BATCH, LENGTH = 4, 12


@pytest.fixture(scope="module", params=list(CONFIGS))
def config(request) -> EncoderConfig:
    return CONFIGS[request.param]


@functools.cache
def parameters(config: EncoderConfig) -> dict:
    """Far from initial values: no bias is near 0, no scale near 1, every branch counts."""
    encoder = Encoder(dataclasses.replace(config, execution=Execution(), compute_dtype="float32"))
    ids = jnp.ones((1, 1), jnp.int32)
    shapes = jax.eval_shape(encoder.init, jax.random.key(0), ids, ids)["params"]
    rng = np.random.default_rng(0)

    def draw(path, leaf):
        mean = 1.0 if path[-1].key == "scale" else 0.0
        return jnp.asarray(rng.normal(mean, 0.25, leaf.shape), jnp.float32)

    return jax.tree.map_with_path(draw, shapes)


@functools.cache
def compiled_forward(config: EncoderConfig):
    def forward(params, ids, segments, positions=None, types=None, seed=None):
        return (
            Encoder(config).apply({"params": params}, ids, segments, positions, types, seed).hidden
        )

    return jax.jit(forward, compiler_options=FAST_COMPILE)


def run(config: EncoderConfig, ids, segments, positions=None, types=None, seed=None) -> np.ndarray:
    arrays = (None if x is None else jnp.asarray(x, jnp.int32) for x in (positions, types))
    ids, segments = jnp.asarray(ids, jnp.int32), jnp.asarray(segments, jnp.int32)
    out = compiled_forward(config)(parameters(config), ids, segments, *arrays, seed)
    return np.asarray(out, np.float32)


@pytest.fixture(scope="module")
def batch() -> dict[str, np.ndarray]:
    """Rows of 12: full; 9 tokens and padding; documents of 5 and 4 and padding; padding only."""
    segments = np.asarray(
        [[1] * 12, [1] * 9 + [0] * 3, [1] * 5 + [2] * 4 + [0] * 3, [0] * 12], np.int32
    )
    rng = np.random.default_rng(1)
    ids = np.where(segments == 0, PAD, rng.integers(10, 50, segments.shape))
    positions = np.tile(np.arange(12), (4, 1))
    positions[2, 5:9] = np.arange(4)
    positions[segments == 0] = 0
    types = rng.integers(0, 2, segments.shape)
    return {"ids": ids, "segments": segments, "positions": positions, "types": types}


# ------------------------------------------------------------------------- the slow encoder


def reference(config: EncoderConfig, params, ids, segments, positions, types) -> np.ndarray:
    """Row by row in float64, from the papers' formulas."""
    params = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
    return np.stack(
        [
            reference_row(config, params, *row)
            for row in zip(ids, segments, positions, types, strict=True)
        ]
    )


def reference_row(c, params, ids, segments, positions, types):
    tables = params["embeddings"]
    x = tables["word"]["embedding"][ids]
    if isinstance(c.positions, LearnedPositions):
        x = x + tables["position"]["embedding"][positions + c.positions.offset]
    if c.type_vocab_size:
        x = x + tables["type"]["embedding"][types]
    if isinstance(c.positions, SinusoidalPositions):
        x = x + tables["position"]["scale"] * reference_sinusoids(positions, c.hidden_size)
    post = c.norm.placement == "post"
    x = norm(c, tables["norm"], x) if c.norm.on_embeddings else x
    x = linear(tables["projection"], x) if c.embedding_size else x
    for index in range(c.num_layers):
        p = jax.tree.map(lambda leaf: leaf[index], params["layers"])  # noqa: B023
        attended = reference_attention(
            c, p, x if post else norm(c, p["attention_norm"], x), segments, positions
        )
        x = norm(c, p["attention_norm"], x + attended) if post else x + attended
        normed = x if post else norm(c, p["mlp_norm"], x)
        inner = gelu(c, linear(p["mlp_in"], normed))
        inner = inner * linear(p["mlp_gate"], normed) if c.mlp == "gated" else inner
        out = linear(p["mlp_out"], inner)
        x = norm(c, p["mlp_norm"], x + out) if post else x + out
    return x if post else norm(c, params["final_norm"], x)


def reference_attention(c, p, x, segments, positions):
    query, key, value = (linear(p[name], x) for name in ("query", "key", "value"))
    context = np.zeros_like(x)
    for head in range(c.num_heads):
        part = slice(head * c.head_dim, (head + 1) * c.head_dim)
        q, k, v = query[:, part], key[:, part], value[:, part]
        if isinstance(c.positions, RotaryPositions):
            q, k = (reference_rotation(c, y, positions) for y in (q, k))
        for i in range(len(x)):
            seen = (segments == segments[i]) & (segments != 0)
            if c.attention.direction == "left":
                seen &= np.arange(len(x)) <= i
            if seen.any():
                scores = k[seen] @ q[i] / math.sqrt(c.head_dim)
                if isinstance(c.positions, AlibiPositions):
                    distances = np.abs(positions[seen] - positions[i])
                    scores = scores - reference_slopes(c.num_heads)[head] * distances
                scores = np.exp(scores)
                context[i, part] = scores / scores.sum() @ v[seen]
    return linear(p["attention_out"], context)


def reference_slopes(heads: int) -> list[float]:
    """As released (get_slopes): by the ratio of neighbours, and recursively."""
    if math.log2(heads).is_integer():
        first = 2 ** (-(2 ** -(math.log2(heads) - 3)))
        return [first * first**i for i in range(heads)]
    below = 2 ** math.floor(math.log2(heads))
    return reference_slopes(below) + reference_slopes(2 * below)[0::2][: heads - below]


def reference_sinusoids(positions, width):
    """As released (SinusoidalPositional): sines at even entries, cosines at odd ones."""
    rates = np.exp(np.arange(0, width, 2) * (-math.log(10_000.0) / width))
    out = np.zeros((len(positions), width))
    out[:, 0::2] = np.sin(positions[:, None] * rates)
    out[:, 1::2] = np.cos(positions[:, None] * rates)
    return out


def reference_rotation(c, x, positions):
    half = c.head_dim // 2
    angles = positions[:, None] * c.positions.theta ** (-np.arange(half) / half)
    turned = (x[:, :half] + 1j * x[:, half:]) * np.exp(1j * angles)
    return np.concatenate([turned.real, turned.imag], axis=1)


def linear(p, x):
    return x @ p["kernel"] + p.get("bias", 0.0)


def norm(c, p, x):
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt(x.var(-1, keepdims=True) + c.norm.eps) * p["scale"] + p["bias"]


def gelu(c, x):
    if c.activation == "gelu":
        return 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def test_equals_the_slow_encoder(config, batch):
    got = run(config, **batch)
    right = reference(config, parameters(config), **batch)
    np.testing.assert_allclose(got, right, atol=2e-5)  # values of order 1, sums of 16 to 24 terms


# -------------------------------------------------------------------- what changes no number


def test_packed_documents_are_as_each_alone(config, batch):
    together = run(config, **batch)[2]
    for start, stop in ((0, 5), (5, 9)):
        alone = {
            name: np.zeros((BATCH, LENGTH), np.int32) + (PAD if name == "ids" else 0)
            for name in batch
        }
        for name, rows in batch.items():
            alone[name][0, : stop - start] = rows[2, start:stop]
        alone["segments"] = np.minimum(alone["segments"], 1)
        got = run(config, **alone)[0, : stop - start]
        np.testing.assert_allclose(got, together[start:stop], atol=1e-5)


def test_padding_may_hold_anything(config, batch):
    """Ids, positions and types of padding change nothing elsewhere; padding rows stay finite."""
    before = run(config, **batch)
    padding = batch["segments"] == 0
    junk = {
        "ids": np.where(padding, 41, batch["ids"]),
        "segments": batch["segments"],
        "positions": np.where(padding, 5, batch["positions"]),
        "types": np.where(padding, 1, batch["types"]),
    }
    after = run(config, **junk)
    np.testing.assert_array_equal(before[~padding], after[~padding])
    assert np.isfinite(before).all() and np.isfinite(after).all()


def test_rows_do_not_depend_on_each_other(config, batch):
    """With dropout: a permuted batch with its example indices gives the permuted output."""
    key = jax.random.key(2, impl="threefry2x32")
    examples = np.asarray([4, 2, 7, 0], np.uint32)
    order = np.asarray([2, 0, 3, 1])
    seeds = [DropoutSeed.from_key(key, jnp.asarray(e)) for e in (examples, examples[order])]
    rows = run(config, **batch, seed=seeds[0])
    moved = run(config, **{n: x[order] for n, x in batch.items()}, seed=seeds[1])
    np.testing.assert_allclose(rows[order], moved, atol=1e-6)
    assert np.abs(rows[0] - run(config, **batch, seed=seeds[1])[0]).max() > 0.1


def test_default_position_ids(config, batch):
    """Without any, those of the scheme: 0, 1, 2, ... over the real tokens at a row's start."""
    plain = {**batch, "positions": np.tile(np.arange(12), (4, 1)), "types": None}
    if isinstance(config.positions, LearnedPositions):
        plain["positions"] = np.where(batch["segments"] == 0, -1, plain["positions"])
    np.testing.assert_allclose(
        run(config, **{**plain, "positions": None}), run(config, **plain), atol=1e-6
    )


@pytest.mark.parametrize("name", ["alibi", "alibi-left"])
def test_linear_biases_know_distances_only(batch, name):
    """8000 further on, and the other way round in a row: the same hidden states."""
    far = {**batch, "positions": batch["positions"] + 8000}
    config = CONFIGS[name]
    np.testing.assert_array_equal(run(config, **far), run(config, **batch))
    narrow = dataclasses.replace(config, compute_dtype="bfloat16")
    np.testing.assert_array_equal(run(narrow, **far), run(narrow, **batch))
    back = {**batch, "positions": 100 - batch["positions"]}
    np.testing.assert_array_equal(run(config, **back), run(config, **batch))
    without = {**batch, "positions": 0 * batch["positions"]}
    assert np.abs(run(config, **without) - run(config, **batch))[:3].max() > 0.1


def test_rotary_positions_can_be_shifted(batch):
    """Only distances count, also 8000 further on, where bfloat16 angles would all be wrong."""
    config = CONFIGS["pre-rotary"]
    far = {**batch, "positions": batch["positions"] + 8000}
    # Float32 angles of size 8000 are exact to 8000 * 2**-24 = 5e-4.
    np.testing.assert_allclose(run(config, **far), run(config, **batch), atol=5e-3)
    narrow = dataclasses.replace(config, compute_dtype="bfloat16")
    real = batch["segments"] != 0
    near, moved = (run(narrow, **b)[real] for b in (batch, far))
    assert distance(moved, near) < 0.02


# ------------------------------------------------------------------- loops, remat, precision


@functools.cache
def gradients(name: str, loop: str = "unroll", remat: str = "none", dtype: str = "float32"):
    """(hidden, gradients) of a loss over real tokens, with dropout, in one execution."""
    config = dataclasses.replace(
        CONFIGS[name], execution=Execution(loop, remat), compute_dtype=dtype
    )
    rng = np.random.default_rng(3)
    ids = jnp.asarray(rng.integers(10, 50, (BATCH, LENGTH)), jnp.int32)
    segments = jnp.asarray([[1] * LENGTH] * 3 + [[1] * 5 + [2] * 4 + [0] * 3], jnp.int32)
    weights = rng.normal(0, 1, (BATCH, LENGTH, config.hidden_size))
    weights = jnp.asarray(weights * (segments != 0)[..., None])

    def loss(params, key):
        seed = DropoutSeed.from_key(key, jnp.arange(BATCH, dtype=jnp.uint32))
        hidden = Encoder(config).apply({"params": params}, ids, segments, seed=seed).hidden
        return jnp.sum(hidden.astype(jnp.float32) * weights), hidden

    options = FAST_COMPILE if dtype == "float32" else None  # the products that users run
    step = jax.jit(jax.value_and_grad(loss, has_aux=True), compiler_options=options)
    (_, hidden), grads = step(parameters(CONFIGS[name]), jax.random.key(1, impl="threefry2x32"))
    return hidden, grads


@pytest.mark.parametrize(
    "name, loop, remat",
    [
        ("pre-rotary", "scan", "none"),
        ("post-learned", "scan", "full"),
        ("alibi-left", "scan", "full"),
    ],
)
def test_execution_changes_no_value(name, loop, remat):
    """Hidden states and gradients, with dropout: only the order of float32 sums may differ."""
    hidden, grads = gradients(name, loop, remat)
    right, right_grads = gradients(name)
    np.testing.assert_allclose(hidden, right, atol=2e-6)
    assert_gradients_close(grads, right_grads, tolerance=1e-5)


@pytest.mark.parametrize("name", list(CONFIGS))
def test_bfloat16_is_float32_but_for_rounding(name):
    """Forward and backward, through the products that a CPU has for bfloat16."""
    hidden, grads = gradients(name, dtype="bfloat16")
    right, right_grads = gradients(name)
    assert hidden.dtype == jnp.bfloat16
    assert {g.dtype for g in jax.tree.leaves(grads)} == {jnp.dtype(jnp.float32)}
    # About twenty roundings by 2**-9 lie between ids and hidden states.
    assert distance(hidden, right) < 0.02
    assert_gradients_close(grads, right_grads, tolerance=0.05)


def assert_gradients_close(got, right, tolerance):
    """Each within a relative L2 distance.

    But a key's bias adds the same to all scores of a query, which softmax ignores: its gradient
    is 0, unless rotary positions turn it by position.
    """
    biases = "bias" in right["layers"]["query"]
    zero = 1e-4 * np.linalg.norm(right["layers"]["query"]["bias"]) if biases else 0.0

    def check(path, got, right):
        if np.linalg.norm(right) < zero:
            assert [k.key for k in path] == ["layers", "key", "bias"]
            assert np.linalg.norm(got) < 1e4 * tolerance * zero
        else:
            assert distance(got, right) <= tolerance, path

    jax.tree.map_with_path(check, got, right)


def distance(got, right) -> float:
    got, right = (np.asarray(x, np.float64) for x in (got, right))
    return float(np.linalg.norm(got - right) / np.linalg.norm(right))


def test_every_dropout_has_a_mask_of_its_own(monkeypatch):
    """Embeddings once, each layer three times: no layer or site stands for another."""
    params = {"params": parameters(CONFIGS["post-learned"])}
    seen = []

    def record(x, rate, seed, site):
        if seed is not None and rate:  # flax checks shapes by a run without one
            seen.append((int(seed.layer), site, rate))
        return x

    for home in ("models.embeddings", "models.layer"):
        monkeypatch.setattr(f"bert_jax.{home}.dropout", record)
    monkeypatch.setattr("bert_jax.ops.attention.dropout", record)
    config = dataclasses.replace(CONFIGS["post-learned"], dropout=Dropout(0.2, 0.3))
    ids = jnp.ones((1, 4), jnp.int32)
    seed = DropoutSeed.from_key(jax.random.key(0), jnp.arange(1))
    jax.eval_shape(lambda: Encoder(config).apply(params, ids, ids, seed=seed))
    assert len(set(seen)) == len(seen) == 1 + 3 * config.num_layers
    assert sorted(rate for _, _, rate in seen) == [0.2] * 5 + [0.3] * 2
    # MosaicBERT's: inside the feed-forward layer (site 4) and not after it (site 2).
    seen.clear()
    config = dataclasses.replace(config, dropout=Dropout(0.2, 0.0, mlp_inner=0.4, mlp_out=0.0))
    jax.eval_shape(lambda: Encoder(config).apply(params, ids, ids, seed=seed))
    assert sorted(seen) == [(0, 3, 0.2), (1, 1, 0.2), (1, 4, 0.4), (2, 1, 0.2), (2, 4, 0.4)]


# --------------------------------------------------------------------------------- embeddings


def test_a_row_hit_1000_times_in_bfloat16_gets_the_float32_sum():
    """A bfloat16 accumulator of ones stops at 256."""
    config = dataclasses.replace(CONFIGS["pre-rotary"], compute_dtype="bfloat16")
    embeddings = Embeddings(config)
    ids = jnp.full((8, 125), 17, jnp.int32)
    params = jax.jit(embeddings.init)(jax.random.key(0), ids, ids, None, None)["params"]

    def total(params):
        out = embeddings.apply({"params": params}, ids, ids, None, None)
        assert out.dtype == jnp.bfloat16
        return out.astype(jnp.float32).sum()

    gradient = jax.jit(jax.grad(total))(params)
    assert gradient["word"]["embedding"].dtype == jnp.float32
    np.testing.assert_array_equal(gradient["word"]["embedding"][17], 1000)
    np.testing.assert_array_equal(gradient["type"]["embedding"][0], 1000)


@pytest.mark.parametrize(("place", "bias"), [("after_norm", True), ("before_norm", False)])
def test_a_projection_has_a_bias_only_after_the_norm(place, bias):
    """ALBERT's and ELECTRA's has one, DeBERTa's none; the values by their order."""
    config = EncoderConfig(**COMMON, embedding_size=8, embedding_projection=place)
    embeddings = Embeddings(config)
    ids = jnp.asarray([[11, 12]], jnp.int32)
    shapes = jax.eval_shape(embeddings.init, jax.random.key(0), ids, ids, None, None)["params"]
    rng = np.random.default_rng(4)
    params = jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape), jnp.float32), shapes)
    assert params["projection"].keys() == {"kernel"} | ({"bias"} if bias else set())
    out = embeddings.apply({"params": params}, ids, jnp.arange(2)[None], None, None)
    p = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
    x = p["word"]["embedding"][[11, 12]] + p["position"]["embedding"][:2]
    first, second = (norm, linear) if bias else (linear, norm)

    def apply(step, x):
        return linear(p["projection"], x) if step is linear else norm(config, p["norm"], x)

    right = apply(second, apply(first, x))
    np.testing.assert_allclose(out[0], right, atol=1e-5)  # float32 sums of 8 and 16 terms


def test_a_learned_scale_of_sinusoids_starts_at_one_over_the_root_of_the_width():
    config = CONFIGS["scaled-sinusoids"]
    ids = jnp.full((1, 1), 12, jnp.int32)
    params = Embeddings(config).init(jax.random.key(0), ids, ids, None, None)["params"]
    np.testing.assert_array_equal(params["position"]["scale"], np.float32([16**-0.5]))
    fixed = dataclasses.replace(config, positions=SinusoidalPositions(64))
    params = Embeddings(fixed).init(jax.random.key(0), ids, ids, None, None)["params"]
    assert params.keys() == {"word", "norm"}


def test_electra_s_projection_starts_as_tensorflow_s_default():
    """Glorot's uniform: limit sqrt(6 / (8 + 4096)), standard deviation limit / sqrt(3)."""
    config = EncoderConfig(
        **COMMON | {"hidden_size": 4096}, embedding_size=8,
        initializer=TruncatedNormal(0.02, outer="glorot"),
    )  # fmt: skip
    ids = jnp.full((1, 1), 12, jnp.int32)
    params = Embeddings(config).init(jax.random.key(0), ids, ids, None, None)["params"]
    kernel, limit = np.asarray(params["projection"]["kernel"]), math.sqrt(6 / 4104)
    assert 0.999 * limit < np.abs(kernel).max() <= limit  # of 32,768 draws
    # The standard deviation of n uniform draws is off by limit * .26 / sqrt(n): 5 of them.
    assert abs(kernel.std() - limit / math.sqrt(3)) < 5 * 0.26 * limit / math.sqrt(kernel.size)
    assert np.abs(params["word"]["embedding"]).max() <= 0.04 + 1e-7  # cut at two deviations


def test_padding_rows_of_roberta_start_at_zero():
    """Its token row and its position row; the next position row is position 0's."""
    config = CONFIGS["post-learned"]
    ids = jnp.full((1, 1), 12, jnp.int32)
    init = jax.jit(
        lambda c: Embeddings(c).init(jax.random.key(0), ids, ids * 0, None, None), static_argnums=0
    )
    params = init(config)["params"]
    words, places = (np.asarray(params[n]["embedding"]) for n in ("word", "position"))
    assert words.shape == (128, 8) and places.shape == (16 + PAD + 1, 8)
    entries = config.vocab_size
    np.testing.assert_array_equal(words[entries:], 0)  # rows that only pad the table
    for table in (words[:entries], places):
        np.testing.assert_array_equal(table[PAD], 0)
        assert (np.delete(table, PAD, axis=0) != 0).any(axis=1).all()
    without = EncoderConfig(**COMMON, positions=LearnedPositions(16))
    params = init(without)["params"]
    words, places = (np.asarray(params[n]["embedding"]) for n in ("word", "position"))
    assert all((table != 0).any(axis=1).all() for table in (words[:entries], places))


def test_position_rows_in_use():
    """Real tokens train rows ``offset`` and up; padding reads the row before, and trains none."""
    _, grads = gradients("post-learned")
    rows = np.asarray(grads["embeddings"]["position"]["embedding"])
    used = (rows != 0).any(axis=1)
    first = PAD + 1
    np.testing.assert_array_equal(np.flatnonzero(used), np.arange(first, first + LENGTH))


def test_parameters_are_named_by_role(config):
    paths = {
        jax.tree_util.keystr(path, simple=True, separator="/"): leaf.shape
        for path, leaf in jax.tree_util.tree_leaves_with_path(parameters(config))
    }
    assert {path.rpartition("/")[2] for path in paths} == {"kernel", "bias", "scale", "embedding"}
    layers = [path for path in paths if path.startswith("layers/")]
    # Kernels and biases of 4 + 2 maps, scales and biases of 2 norms; a gate; without biases.
    count = 16 + {"all": 0, "out": 0, "none": -5}[config.biases.mlp] + (config.mlp == "gated")
    count -= 1 if config.biases.mlp != "all" else 0
    assert len(layers) == count and all(paths[path][0] == config.num_layers for path in layers)
    assert ("final_norm/scale" in paths) == (config.norm.placement == "pre")
    assert ("embeddings/norm/scale" in paths) == config.norm.on_embeddings
    assert ("embeddings/position/scale" in paths) == (
        isinstance(config.positions, SinusoidalPositions)
    )
    assert ("embeddings/projection/kernel" in paths) == (config.embedding_size is not None)

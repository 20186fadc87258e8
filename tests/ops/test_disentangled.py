"""The position terms of DeBERTa's scores: buckets, values, gradients, both forms, layouts, HLO."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.ops.disentangled import disentangled_bias, relative_buckets
from bert_jax.parallel import specs
from bert_jax.parallel.mesh import MeshShape, make_mesh

BATCH, HEADS, WIDTH = 2, 2, 4
FORMS = ("gather", "one_hot")
QUICK = {"xla_backend_optimization_level": 0}

# First distance of every bucket above K // 2, for (K, greatest distance): taken from transformers'
# make_log_bucket_position (5.24.0, torch 2.13.0, float32) over |d| < 2048, where it is odd in d.
FIRST_DISTANCES = {
    (256, 512): """
        129 130 131 133 134 136 137 139 140 142 143 145 146 148 150 151 153 155 156 158 160 161 163
        165 167 169 170 172 174 176 178 180 182 184 186 188 190 192 194 196 198 201 203 205 207 210
        212 214 216 219 221 224 226 229 231 234 236 239 241 244 247 249 252 255 258 260 263 266 269
        272 275 278 281 284 287 290 294 297 300 303 307 310 313 317 320 324 327 331 335 338 342 346
        349 353 357 361 365 369 373 377 381 385 390 394 398 403 407 411 416 420 425 430 434 439 444
        449 454 459 464 469 474 479 484 490 495 500 506 512""",
    (32, 128): "17 19 22 25 28 32 37 43 49 56 64 74 84 97 111 128",
    (9, 30): "5 8 15 30 57",
}

# ---------------------------------------------------------------------------------- buckets


@pytest.mark.parametrize(("buckets", "max_distance"), list(FIRST_DISTANCES))
def test_buckets_are_those_of_the_reference(buckets, max_distance):
    firsts = np.asarray(FIRST_DISTANCES[buckets, max_distance].split(), int)
    distance = np.arange(2048)
    middle = buckets // 2
    far = middle + np.searchsorted(firsts, distance, side="right")
    bucket = np.where(distance <= middle, distance, far)
    rows = relative_buckets(2048, buckets=buckets, max_distance=max_distance)
    assert rows.shape == (2048, 2048) and rows.dtype == np.int32
    # Column 0 has i - j = 0, 1, ...; row 0 has 0, -1, ...
    np.testing.assert_array_equal(rows[:, 0], np.minimum(bucket + buckets, 2 * buckets - 1))
    np.testing.assert_array_equal(rows[0], np.maximum(buckets - bucket, 0))
    # A function of i - j only.
    np.testing.assert_array_equal(rows[1:, 1:], rows[:-1, :-1])


def test_without_buckets_every_distance_has_its_row():
    rows = relative_buckets(40, buckets=0, max_distance=16)
    for i, j in np.ndindex(40, 40):
        assert rows[i, j] == min(max(i - j + 16, 0), 31)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((0, 8, 32), "length 0, max_distance 32, buckets 8: .* at least"),
        ((4, 0, 0), "max_distance 0"),
        ((4, -1, 32), "buckets -1"),
        ((4, 1, 32), "buckets 1 with max_distance 32: half the buckets must"),
        ((4, 64, 33), "less than max_distance - 1"),
    ],
)
def test_sizes_without_buckets_are_refused(sizes, message):
    length, buckets, max_distance = sizes
    with pytest.raises(ValueError, match=message):
        relative_buckets(length, buckets=buckets, max_distance=max_distance)


# ----------------------------------------------------------------------------------- values

# (length, buckets, max_distance): far inside the table, beyond its reach on both sides, without
# buckets, and the released table, of which 23 and 257 rows are reachable.
SIZES = [(9, 8, 32), (70, 4, 16), (20, 0, 24), (60, 0, 24), (12, 256, 512), (129, 256, 512)]
TERMS = ["both", "c2p", "p2c"]


def inputs(length: int, rows: int, terms: str = "both", dtype=jnp.float32, batch: int = BATCH):
    """query, key, position_key, position_query, and a cotangent of the bias."""
    rng = np.random.default_rng(length)
    content = (batch, HEADS, length, WIDTH)
    shapes = [content, content, (rows, HEADS, WIDTH), (rows, HEADS, WIDTH)]
    arrays: list = [jnp.asarray(rng.normal(0, 1, shape), dtype) for shape in shapes]
    if terms == "c2p":
        arrays[3] = None
    if terms == "p2c":
        arrays[2] = None
    return arrays, jnp.asarray(rng.normal(0, 1, (batch, HEADS, length, length)), jnp.float32)


def table_rows(buckets: int, max_distance: int) -> int:
    return 2 * (buckets or max_distance)


def with_gradients(form, indices):
    """(bias, gradients of ``sum(bias * cotangent)``); None stays None."""

    def loss(arrays, cotangent):
        bias = disentangled_bias(*arrays, indices, form=form)
        return jnp.sum(bias * cotangent), bias

    def flat(arrays, cotangent):
        (_, bias), gradients = jax.value_and_grad(loss, has_aux=True)(arrays, cotangent)
        return bias, gradients

    return flat


@functools.cache
def compiled(form, length, buckets, max_distance):
    indices = relative_buckets(length, buckets=buckets, max_distance=max_distance)
    return jax.jit(with_gradients(form, indices), compiler_options=QUICK)


def reference(arrays, cotangent, indices):
    """The definition and its derivative, one pair of places at a time, in float64."""
    query, key, position_key, position_query = (
        None if x is None else np.asarray(x, np.float64) for x in arrays
    )
    cotangent = np.asarray(cotangent, np.float64)
    bias = np.zeros(cotangent.shape)
    gradients = [None if x is None else np.zeros(x.shape) for x in arrays]
    for i, j in np.ndindex(indices.shape):
        m, weight = indices[i, j], cotangent[:, :, i, j, None]
        if position_key is not None:
            bias[:, :, i, j] += (query[:, :, i] * position_key[m]).sum(-1)
            gradients[0][:, :, i] += weight * position_key[m]
            gradients[2][m] += (weight * query[:, :, i]).sum(0)
        if position_query is not None:
            bias[:, :, i, j] += (key[:, :, j] * position_query[m]).sum(-1)
            gradients[1][:, :, j] += weight * position_query[m]
            gradients[3][m] += (weight * key[:, :, j]).sum(0)
    return bias, gradients


def assert_close(got, right):
    """1e-5 of the largest entry: float32 sums of at most a few thousand terms of size 1."""
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(right), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-5 * max(np.abs(b).max(), 1e-30))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("sizes", SIZES)
def test_equals_the_reference(sizes, form):
    length, *table = sizes
    arrays, cotangent = inputs(length, table_rows(*table))
    indices = relative_buckets(length, buckets=table[0], max_distance=table[1])
    assert_close(compiled(form, *sizes)(arrays, cotangent), reference(arrays, cotangent, indices))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("terms", ["c2p", "p2c"])
def test_one_term_only(terms, form):
    arrays, cotangent = inputs(20, 48, terms)
    bias, gradients = compiled(form, 20, 0, 24)(arrays, cotangent)
    right, wanted = reference(arrays, cotangent, relative_buckets(20, buckets=0, max_distance=24))
    assert_close((bias, gradients), (right, wanted))
    unused = gradients[1] if terms == "c2p" else gradients[0]
    np.testing.assert_array_equal(unused, 0)


def test_both_terms_are_the_sum_of_each():
    arrays, cotangent = inputs(20, 48)
    both, _ = compiled("gather", 20, 0, 24)(arrays, cotangent)
    parts = [compiled("gather", 20, 0, 24)(inputs(20, 48, t)[0], cotangent)[0] for t in TERMS[1:]]
    np.testing.assert_allclose(both, parts[0] + parts[1], atol=1e-6)


def test_forms_agree_in_bfloat16_and_with_float32():
    arrays, cotangent = inputs(70, 8, dtype=jnp.bfloat16)
    results = {form: compiled(form, 70, 4, 16)(arrays, cotangent) for form in FORMS}
    np.testing.assert_array_equal(results["gather"][0], results["one_hot"][0])
    wide = [x.astype(jnp.float32) for x in arrays]
    right = compiled("gather", 70, 4, 16)(wide, cotangent)
    for bias, gradients in results.values():
        assert bias.dtype == jnp.float32
        assert {g.dtype for g in gradients} == {jnp.dtype(jnp.bfloat16)}
        pairs = zip([bias, *gradients], [right[0], *right[1]], strict=True)
        for a, b in pairs:
            difference = np.linalg.norm(np.asarray(a, np.float32) - b)
            assert difference < 3 * 2**-8 * np.linalg.norm(b)  # three roundings on the way


@pytest.mark.parametrize("form", FORMS)
def test_gradients_of_a_crowded_row_do_not_saturate(form):
    """Most pairs share the table's two outer rows; bfloat16 sums of ones would stop at 256."""
    length = 600
    indices = relative_buckets(length, buckets=4, max_distance=16)
    ones = jnp.ones((1, 1, length, 1), jnp.bfloat16)
    table = jnp.ones((8, 1, 1), jnp.float32)  # a parameter: its gradient is float32
    bias = functools.partial(disentangled_bias, ones, ones, indices=indices, form=form)
    d_key, d_query = jax.grad(lambda t: bias(*t).sum())((table, table))
    counts = np.bincount(indices.ravel(), minlength=8)
    for gradient in (d_key, d_query):
        # The sums over a token's places, up to 600, are rounded to bfloat16 once.
        np.testing.assert_allclose(gradient[:, 0, 0], counts, rtol=2**-8)


@pytest.mark.parametrize("form", FORMS)
def test_bad_input_is_refused(form):
    (query, key, table, _), _ = inputs(9, 16)
    indices = relative_buckets(9, buckets=0, max_distance=8)
    with pytest.raises(ValueError, match="both None; give at least one"):
        disentangled_bias(query, key, None, None, indices, form=form)
    with pytest.raises(ValueError, match=r"indices reach from 0 to 15 and .* has 12 rows"):
        disentangled_bias(query, key, table[:12], None, indices, form=form)
    with pytest.raises(ValueError, match=r"from -1 to 14"):
        disentangled_bias(query, key, None, table, indices - np.int32(1), form=form)


# ----------------------------------------------------------------------------- under a mesh

TABLE = (None, specs.TENSOR, None)


@functools.cache
def on_one_device():
    arrays, cotangent = inputs(20, 16, batch=8)
    return arrays, cotangent, compiled("gather", 20, 8, 32)(arrays, cotangent)


def laid_out(arrays, cotangent):
    layouts = (specs.HEADS, specs.HEADS, TABLE, TABLE)
    moved = [
        jax.device_put(x, specs.spec(*layout)) for x, layout in zip(arrays, layouts, strict=True)
    ]
    return moved, jax.device_put(cotangent, specs.spec(*specs.HEADS))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shape", [MeshShape(8), MeshShape(2, 2, 2)])
def test_under_a_mesh(shape, form):
    arrays, cotangent, right = on_one_device()
    indices = relative_buckets(20, buckets=8, max_distance=32)
    with jax.set_mesh(make_mesh(shape)):
        arguments = laid_out(arrays, cotangent)
        bias, gradients = jax.jit(with_gradients(form, indices), compiler_options=QUICK)(*arguments)
        assert jax.typeof(bias).sharding.spec == specs.spec(*specs.HEADS)
        for gradient, array in zip(gradients, arguments[0], strict=True):
            assert jax.typeof(gradient).sharding.spec == jax.typeof(array).sharding.spec
    assert_close((bias, gradients), right)


@pytest.mark.parametrize("form", FORMS)
def test_inside_a_manual_region(form):
    """As in the train step: gradients of the tables stay local and are summed outside."""
    arrays, cotangent, right = on_one_device()
    indices = relative_buckets(20, buckets=8, max_distance=32)

    def local(arrays, cotangent):
        tables = [jax.lax.pcast(t, specs.BATCH, to="varying") for t in arrays[2:]]
        bias, gradients = with_gradients(form, indices)([*arrays[:2], *tables], cotangent)
        return bias, [*gradients[:2], *(jax.lax.psum(g, specs.BATCH) for g in gradients[2:])]

    rows, whole = jax.P(specs.BATCH), jax.P()
    split = [rows, rows, whole, whole]
    with jax.set_mesh(make_mesh(MeshShape(2, 2, 2))):
        function = jax.shard_map(
            local, in_specs=(split, rows), out_specs=(rows, split), axis_names=set(specs.BATCH)
        )
        got = jax.jit(function, compiler_options=QUICK)(*laid_out(arrays, cotangent))
    assert_close(got, right)


# ------------------------------------------------------------------------------ for a TPU


@pytest.fixture
def _nothing_cached():
    """An executable for devices that are not there cannot be read back: do not store it."""
    name = "jax_persistent_cache_min_compile_time_secs"
    before = getattr(jax.config, name)
    jax.config.update(name, 1e9)
    yield
    jax.config.update(name, before)


@pytest.mark.usefixtures("_nothing_cached")
def test_one_hot_for_a_tpu_holds_no_gather_and_no_scatter():
    """Forward and backward, over batch and heads; only the tables' gradients cross chips."""
    pytest.importorskip("libtpu")
    from bert_jax.parallel.hlo import collectives
    from bert_jax.parallel.topology import topology_mesh

    mesh = topology_mesh("v5e:2x2", MeshShape(2, 1, 2))
    indices = relative_buckets(16, buckets=8, max_distance=32)
    with jax.set_mesh(mesh):

        def abstract(shape, *layout, dtype=jnp.bfloat16):
            sharding = jax.NamedSharding(mesh, specs.spec(*layout))
            return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)

        content = abstract((4, HEADS, 16, WIDTH), *specs.HEADS)
        table = abstract((16, HEADS, WIDTH), *TABLE, dtype=jnp.float32)
        cotangent = abstract((4, HEADS, 16, 16), *specs.HEADS, dtype=jnp.float32)
        function = jax.jit(with_gradients("one_hot", indices))
        text = function.lower([content, content, table, table], cotangent).compile().as_text()
    assert not re.findall(r" (gather|scatter|dynamic-slice|sort)\(", text)
    assert {c.kind for c in collectives(text)} == {"all-reduce"}

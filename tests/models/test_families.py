"""Every family, form of attention and layout: what may never change a number."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.models.config import (
    DisentangledPositions,
    EncoderConfig,
    Execution,
    LocalAttention,
)
from bert_jax.models.encoder import Encoder
from bert_jax.models.heads import MaskedLM, ReplacedTokenDetector
from bert_jax.models.task_heads import SequenceClassifier
from bert_jax.parallel.mesh import MeshShape, make_mesh
from bert_jax.recipes import preset

pytestmark = pytest.mark.sweep

FAMILIES = (
    "bert-base",
    "roberta-base",
    "albert-base-v1",
    "distilbert-base",
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
# Those whose attention has two forms; in the others both are one program.
OF_TWO_FORMS = ("deberta-base", "deberta-v2-xlarge", "deberta-v3-base-generator", "modernbert-base")
# Those that differ most: in positions, norm, attention; the others come with the slow tests.
KINDS = ("bert-base", "deberta-v3-base-generator", "modernbert-base")
FAST_COMPILE = {"xla_backend_optimization_level": 0}
JUNK = 41


def slow_but_for(quick, names) -> list:
    return [n if n in quick else pytest.param(n, marks=pytest.mark.slow) for n in names]


@functools.cache
def parameters(config: EncoderConfig) -> dict:
    """Far from initial values: no bias is near 0, no scale near 1, every branch counts."""
    shapes = jax.eval_shape(MaskedLM(config).init, jax.random.key(0))["params"]
    rng = np.random.default_rng(0)

    def draw(path, leaf):
        mean = 1.0 if path[-1].key == "scale" else 0.0
        return jnp.asarray(rng.normal(mean, 0.25, leaf.shape), jnp.float32)

    return jax.tree.map_with_path(draw, shapes)


def batch(config: EncoderConfig) -> dict[str, np.ndarray]:
    """Rows: full; most of it and padding; two documents and padding; padding only; two full."""
    length = 80 if isinstance(config.attention, LocalAttention) else 12
    first, second, third = length // 2 - 1, length // 3, 3 * length // 4
    segments = np.ones((6, length), np.int32)
    segments[1, third:] = 0
    segments[2, first:] = 2
    segments[2, first + second :] = 0
    segments[3] = 0
    rng = np.random.default_rng(1)
    ids = np.where(segments == 0, config.pad_id, rng.integers(10, 60, segments.shape))
    positions = np.tile(np.arange(length), (6, 1))
    positions[2, first : first + second] = np.arange(second)
    positions[segments == 0] = 0
    types = rng.integers(0, max(config.type_vocab_size, 1), segments.shape)
    arrays = {"ids": ids, "segments": segments, "positions": positions, "types": types}
    return {name: x.astype(np.int32) for name, x in arrays.items()}


@functools.cache
def compiled(config: EncoderConfig):
    """(hidden or, with the mask decoder, decoded states; gradients of a loss over real tokens)."""

    def loss(params, ids, segments, positions, types):
        out = Encoder(config).apply({"params": params["encoder"]}, ids, segments, positions, types)
        states = out.hidden if out.decoded is None else out.decoded
        wide = states.astype(jnp.float32)
        weights = jnp.cos(jnp.arange(wide.shape[1] * wide.shape[2]).reshape(wide.shape[1:]))
        return jnp.sum(wide * weights * (segments != 0)[..., None]), states

    return jax.jit(jax.value_and_grad(loss, has_aux=True), compiler_options=FAST_COMPILE)


def run(config: EncoderConfig, ids, segments, positions, types):
    """States and gradients, on the host."""
    (_, states), grads = compiled(config)(
        parameters(dataclasses.replace(config, execution=Execution(), compute_dtype="float32")),
        *(jnp.asarray(x) for x in (ids, segments, positions, types)),
    )
    return np.asarray(states, np.float32), jax.tree.map(np.asarray, grads["encoder"])


@functools.cache
def reference(config: EncoderConfig):
    """The run that all others are compared with: unrolled, masks over all pairs, gathers."""
    execution = Execution("unroll", "none", "reference")
    return run(dataclasses.replace(config, execution=execution), **batch(config))


def distance(got, right) -> float:
    got, right = (np.asarray(x, np.float64) for x in (got, right))
    return float(np.linalg.norm(got - right) / np.linalg.norm(right))


def assert_gradients_close(got, right, tolerance):
    """Each within a relative L2 distance of all of them.

    Not of its own size: what softmax ignores (the bias of keys) has a gradient of rounding only.
    """
    total = max(np.linalg.norm(x) for x in jax.tree.leaves(right))

    def check(path, got, right):
        size = max(np.linalg.norm(right), 1e-2 * total)
        assert np.linalg.norm(got - right) < tolerance * size, path

    jax.tree.map_with_path(check, got, right)


@pytest.fixture(params=slow_but_for(KINDS, FAMILIES))
def config(request, tiny_preset) -> EncoderConfig:
    return tiny_preset(request.param)


# ------------------------------------------------------------------------------ rows and tokens


@pytest.mark.parametrize("name", slow_but_for(KINDS, FAMILIES))
def test_padding_documents_and_order(tiny_preset, name):
    check_padding_documents_and_order(tiny_preset(name), "fast")


@pytest.mark.slow
@pytest.mark.parametrize("name", OF_TWO_FORMS)
def test_padding_documents_and_order_in_the_other_form(tiny_preset, name):
    check_padding_documents_and_order(tiny_preset(name), "reference")


def check_padding_documents_and_order(config, form):
    """Junk in padding, packing and the order of rows: neither states nor gradients change."""
    config = dataclasses.replace(config, execution=Execution("unroll", "none", form))
    rows = batch(config)
    real = rows["segments"] != 0
    states, grads = run(config, **rows)
    assert np.isfinite(states).all()
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(grads))

    types = max(config.type_vocab_size - 1, 0)
    junk = {
        "ids": np.where(real, rows["ids"], JUNK),
        "segments": rows["segments"],
        "positions": np.where(real, rows["positions"], 5),
        "types": np.where(real, rows["types"], types),
    }
    again, junk_grads = run(config, **junk)
    np.testing.assert_allclose(again[real], states[real], atol=1e-5)
    # The row of padding only is in both: that it is junk in one shows that it has no gradient.
    assert_gradients_close(junk_grads, grads, 1e-5)

    order = np.asarray([2, 5, 0, 4, 3, 1])
    moved, moved_grads = run(config, **{name: x[order] for name, x in rows.items()})
    np.testing.assert_allclose(moved[real[order]], states[order][real[order]], atol=1e-5)
    assert_gradients_close(moved_grads, grads, 1e-5)

    length = rows["ids"].shape[1]
    for document in (1, 2):
        places = np.flatnonzero(rows["segments"][2] == document)
        alone = {name: np.zeros_like(x) for name, x in rows.items()}
        alone["ids"] += config.pad_id
        for name, x in rows.items():
            alone[name][4, : len(places)] = np.minimum(
                x[2, places], 1 if name == "segments" else 99
            )
        assert len(places) < length
        got, _ = run(config, **alone)
        np.testing.assert_allclose(got[4, : len(places)], states[2, places], atol=1e-5)


# --------------------------------------------------------------------- forms, loops, layouts


def test_execution_changes_no_value(config):
    """The fast form, scanned and recomputed, against the plain form of each pair."""
    execution = Execution("scan", "full", "fast")
    states, grads = run(dataclasses.replace(config, execution=execution), **batch(config))
    right, right_grads = reference(config)
    real = batch(config)["segments"] != 0
    # Float32 sums in another order, through 4 to 8 layers of values of order 1.
    np.testing.assert_allclose(states[real], right[real], atol=2e-5)
    assert_gradients_close(grads, right_grads, 2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("loop", ["scan", "unroll"])
@pytest.mark.parametrize("shape", [(2, 1, 2), (1, 2, 2)])
def test_layout_changes_no_value(config, loop, shape):
    check_layout(config, Execution(loop, "none", "fast"), shape)


# Of an architecture each; the slow test above has them all.
@pytest.mark.parametrize(
    "name",
    slow_but_for(
        ("albert-base-v1", "modernbert-base"),
        (
            "albert-base-v1",
            "deberta-base",
            "deberta-v2-xlarge",
            "modernbert-base",
            "neobert",
            "mosaicbert-base",
            "crammed-bert",
        ),
    ),
)
def test_a_mesh_of_three_axes_changes_no_value(tiny_preset, name):
    check_layout(tiny_preset(name), Execution("scan", "none", "fast"), (1, 2, 2))


def check_layout(config, execution, shape):
    config = dataclasses.replace(config, execution=execution)
    right, right_grads = reference(dataclasses.replace(config, execution=Execution()))
    mesh = make_mesh(MeshShape(*shape), jax.devices()[: shape[0] * shape[1] * shape[2]])
    with jax.set_mesh(mesh):
        shapes = jax.eval_shape(MaskedLM(config).init, jax.random.key(0))["params"]
        params = jax.tree.map(
            lambda x, s: jax.device_put(x, s.sharding.spec),
            parameters(dataclasses.replace(config, execution=Execution())),
            shapes,
        )
        rows = [jax.device_put(x, jax.P(("data", "fsdp"), None)) for x in batch(config).values()]
        (_, states), grads = compiled(config)(params, *rows)
        states, grads = np.asarray(states), jax.tree.map(np.asarray, grads["encoder"])
    real = batch(config)["segments"] != 0
    np.testing.assert_allclose(states[real], right[real], atol=2e-5)
    assert_gradients_close(grads, right_grads, 2e-5)


def test_bfloat16_is_float32_but_for_rounding(config):
    narrow = dataclasses.replace(
        config, compute_dtype="bfloat16", execution=Execution("unroll", "none", "reference")
    )
    states, grads = run(narrow, **batch(config))
    right, right_grads = reference(config)
    real = batch(config)["segments"] != 0
    # Each of 4 to 8 layers rounds its stream a few times by 2**-9, here at weights so large that
    # attention is nearly hard: errors grow from layer to layer.
    assert distance(states[real], right[real]) < 0.05
    total = np.sqrt(sum(np.sum(x**2) for x in jax.tree.leaves(right_grads)))
    error = jax.tree.map(lambda a, b: np.sum((a - b) ** 2), grads, right_grads)
    assert np.sqrt(sum(jax.tree.leaves(error))) < 0.1 * total


# ------------------------------------------------------------------------------------- capture


def test_captured_states_and_maps(config):
    """Their number, ends and sums; asking for them changes nothing else."""
    rows = batch(config)
    inputs = {
        "input_ids": rows["ids"],
        "segment_ids": rows["segments"],
        "position_ids": rows["positions"],
        "token_type_ids": rows["types"] if config.type_vocab_size else None,
    }
    both = ("hidden_states", "attentions")

    def apply(params, inputs, loop, capture=()):
        executed = dataclasses.replace(config, execution=Execution(loop))
        ids = inputs["input_ids"]
        rest = {name: x for name, x in inputs.items() if name != "input_ids"}
        return MaskedLM(executed).apply({"params": params}, ids, **rest, capture=capture)

    @functools.partial(jax.jit, compiler_options=FAST_COMPILE)
    def three(params, inputs):
        plain = apply(params, inputs, "unroll")
        return plain, apply(params, inputs, "unroll", both), apply(params, inputs, "scan", both)

    plain, out, scanned = jax.tree.map(np.asarray, three(parameters(config), inputs))
    assert plain.keys() == {"hidden", "logits"}
    layers, real = config.applied_layers, rows["segments"] != 0
    length = rows["ids"].shape[1]
    assert out["hidden_states"].shape == (layers + 1, 6, length, config.hidden_size)
    assert out["attentions"].shape == (layers, 6, config.num_heads, length, length)
    for name in ("hidden", "logits"):
        np.testing.assert_allclose(out[name][real], plain[name][real], atol=1e-5)
    if config.norm.placement == "post":
        np.testing.assert_array_equal(out["hidden_states"][-1], out["hidden"])
    # Every real token shares out all of its attention, among real tokens of its document.
    maps = out["attentions"].transpose(0, 2, 1, 3, 4)[:, :, real]
    np.testing.assert_allclose(maps.sum(-1), 1.0, atol=1e-5)
    segments = rows["segments"]
    other = (segments[:, :, None] != segments[:, None, :])[real]
    assert maps[:, :, other].max() == 0
    assert np.all(out["attentions"][:, ~real.any(1)] == 0)
    for name in both:
        np.testing.assert_allclose(
            scanned[name][:, real.any(1)], out[name][:, real.any(1)], atol=2e-5
        )


# ------------------------------------------------------------------------------- size of programs


@pytest.mark.slow
def test_a_context_of_8192_runs_on_a_cpu(tiny_preset):
    """Loss and gradient of a ModernBERT with windows of 128; the same as over all pairs."""
    config = tiny_preset("modernbert-base")
    config = dataclasses.replace(
        config,
        num_layers=3,
        num_heads=1,
        attention=LocalAttention(128, 3),
        positions=dataclasses.replace(config.positions, max_length=8192),
    )
    params = parameters(config)
    rng = np.random.default_rng(2)
    ids = jnp.asarray(rng.integers(10, 60, (1, 8192)), jnp.int32)
    segments = jnp.asarray(np.where(np.arange(8192) < 8000, 1 + np.arange(8192) // 3000, 0))[None]
    results = []
    for form in ("fast", "reference"):
        executed = dataclasses.replace(config, execution=Execution("unroll", "full", form))

        def loss(params, config=executed):
            out = MaskedLM(config).apply({"params": params}, ids, segment_ids=segments)
            return jnp.sum(jnp.cos(out["hidden"]) * (segments != 0)[..., None]) / 8000

        results.append(jax.jit(jax.value_and_grad(loss))(params))
    (value, grads), (right, right_grads) = results
    np.testing.assert_allclose(value, right, rtol=1e-5)
    assert_gradients_close(grads["encoder"], right_grads["encoder"], 1e-4)  # sums of 8,000 tokens


def instructions(config: EncoderConfig) -> int:
    """Operations of the lowered gradient: what a compiler has to work through."""
    ids = jnp.ones((2, 70), jnp.int32)

    def loss(params):
        return MaskedLM(config).apply({"params": params}, ids)["hidden"].sum()

    shapes = jax.eval_shape(MaskedLM(config).init, jax.random.key(0))["params"]
    return jax.jit(jax.grad(loss)).lower(shapes).as_text().count(" = ")


def test_a_scanned_program_does_not_grow_with_depth(config):
    """25 layers are about as many operations as the fewest that are scanned at all.

    That is 2; 4 where a first or last layer stands alone, 8 where every third is global.
    """
    positions = dataclasses.replace(config.positions, max_length=96)
    scanned = dataclasses.replace(config, positions=positions, execution=Execution("scan", "none"))
    short = 8 if isinstance(config.attention, LocalAttention) else 2
    short = 4 if isinstance(config.positions, DisentangledPositions) else short
    shallow, deep = (
        instructions(dataclasses.replace(scanned, num_layers=layers)) for layers in (short, 25)
    )
    assert deep < 1.15 * shallow


# -------------------------------------------------------------------------------------- heads


def test_dropout_is_the_same_in_any_order_of_rows(tiny_preset):
    """The relative table's mask is one for the batch; others hang on the example's index."""
    config = tiny_preset("deberta-v3-base")
    model = SequenceClassifier(config, num_labels=3)
    params = jax.jit(model.init)(jax.random.key(0))
    rows, order = batch(config), np.asarray([2, 5, 0, 4, 3, 1])
    examples = np.asarray([4, 2, 7, 0, 9, 1])
    apply = functools.partial(
        model.apply, params, deterministic=False, rngs={"dropout": jax.random.key(2)}
    )
    one = apply(rows["ids"], segment_ids=rows["segments"], example_ids=examples)["logits"]
    two = apply(
        rows["ids"][order], segment_ids=rows["segments"][order], example_ids=examples[order]
    )["logits"]
    np.testing.assert_allclose(one[order], two, atol=1e-6)
    other = apply(rows["ids"], segment_ids=rows["segments"], example_ids=examples + 1)["logits"]
    assert np.abs(one - other).max() > 1e-3


def test_the_mask_decoder_is_the_last_layer_twice(tiny_preset):
    """By its definition, from the captured states and the stored parameters of the last layer."""
    from bert_jax.models.layer import Context, Layer
    from bert_jax.ops.attention import segment_mask

    config = tiny_preset("deberta-v3-base-generator")
    params, rows = parameters(config)["encoder"], batch(config)
    ids, segments, positions, _ = (jnp.asarray(x) for x in rows.values())
    out = Encoder(config).apply(
        {"params": params}, ids, segments, positions, None, None, ("hidden_states",)
    )
    below = out.hidden_states[-2]
    table = params["relative"]["embedding"]
    centred = table - table.mean(-1, keepdims=True)
    normed = centred / np.sqrt(table.var(-1, keepdims=True) + config.norm.eps)
    relative = normed * params["relative_norm"]["scale"] + params["relative_norm"]["bias"]
    context = Context(segments, segment_mask(segments), relative=relative)
    layer = Layer(config, parent=None)
    last = {"params": jax.tree.map(lambda a: a[-1], params["layers"])}
    query = below + params["embeddings"]["position"]["embedding"][rows["positions"]]
    for _ in range(2):
        query, _ = layer.apply(last, below, context, None, query)
    np.testing.assert_allclose(out.decoded, query, atol=1e-5)
    usual, _ = layer.apply(last, below, context, None)
    np.testing.assert_allclose(out.hidden, usual, atol=1e-5)
    model = MaskedLM(config)
    params = parameters(config)
    full = model.apply({"params": params}, rows["ids"], segment_ids=rows["segments"])
    without = dataclasses.replace(
        config,
        heads=dataclasses.replace(config.heads, vocabulary=preset("bert-base").heads.vocabulary),
    )
    plain = MaskedLM(without).apply({"params": params}, rows["ids"], segment_ids=rows["segments"])
    np.testing.assert_array_equal(full["hidden"], plain["hidden"])
    assert np.abs(full["logits"] - plain["logits"]).max() > 0.1


def test_a_detector_of_context_sees_the_first_token(tiny_preset):
    config = tiny_preset("deberta-v3-base")
    model = ReplacedTokenDetector(config)
    params = model.init(jax.random.key(0))
    assert "detector_norm" in params["params"]
    rows = batch(config)
    out = model.apply(params, rows["ids"], segment_ids=rows["segments"])
    assert out["logits"].shape == rows["ids"].shape
    assert out["logits"].dtype == jnp.float32

"""Replaced-token detection: samples, labels, losses, and where gradients go."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from bert_jax.data.tokenizer import SpecialTokens
from bert_jax.models.config import (
    DisentangledPositions,
    EncoderConfig,
    LearnedPositions,
    Normal,
)
from bert_jax.models.paths import by_path
from bert_jax.objectives.base import (
    Objective,
    Passed,
    Setting,
    Task,
    means,
    merge,
    select,
    split_passed,
)
from bert_jax.objectives.masking import Masking
from bert_jax.objectives.replaced_tokens import (
    ReplacedTokensObjective,
    detection_sums,
    replace_tokens,
    sample,
)
from bert_jax.parallel.mesh import MeshShape, make_mesh, put_batch
from bert_jax.recipes import preset
from bert_jax.testing import example_rows, loss_reaches
from bert_jax.train.optimizer import BertAdam
from bert_jax.train.state import init_state
from bert_jax.train.step import Keys, Pace, StepConfig, make_train_step

FAST_COMPILE = {"xla_backend_optimization_level": 0}
SPECIAL = SpecialTokens(pad=9, cls=7, sep=3, mask=0, unk=5)
VOCAB, ROWS, LENGTH = 60, 6, 12
MODEL = EncoderConfig(
    VOCAB,
    hidden_size=16,
    num_layers=2,
    num_heads=2,
    intermediate_size=24,
    embedding_size=8,
    type_vocab_size=2,
    positions=LearnedPositions(LENGTH),
    initializer=Normal(0.2),
    pad_id=SPECIAL.pad,
)
DISENTANGLED = dataclasses.replace(
    MODEL,
    type_vocab_size=0,
    embedding_size=None,
    positions=DisentangledPositions(max_length=LENGTH, buckets=8, max_distance=12),
)
TIED = ReplacedTokensObjective(generator_width=0.5, generator_head_size=4)
GDES = ReplacedTokensObjective(
    generator_width=1.0,
    generator_depth=0.5,
    generator_head_size=8,
    sharing="disentangled",
)
MASKING = Masking(0.4, 0.85, 0.0, with_replacement=True)
KEYS = Keys.from_seed(5)


@functools.cache
def task_of(objective: ReplacedTokensObjective, model: EncoderConfig = MODEL) -> Task:
    return objective.task(Setting(model, MASKING, SPECIAL, VOCAB))


@functools.cache
def drawn(objective: ReplacedTokensObjective, model: EncoderConfig = MODEL) -> dict:
    """Initial parameters and noise, so that differences of tables are not 0."""
    init = jax.jit(task_of(objective, model).init, compiler_options=FAST_COMPILE)
    rng = np.random.default_rng(0)
    noise = lambda x: np.asarray(x) + rng.normal(0, 0.1, x.shape).astype(np.float32)  # noqa: E731
    return jax.tree.map(noise, init(jax.random.key(1, impl="threefry2x32")))


def rows() -> dict[str, np.ndarray]:
    return example_rows(SPECIAL, VOCAB, count=ROWS, length=LENGTH)


def corrupted(task: Task) -> dict:
    batch = {name: jnp.asarray(x) for name, x in rows().items()}
    return dict(task.objective.corrupt(KEYS.masks, jnp.int32(0), batch))


# ------------------------------------------------------------------------------------- samples


@pytest.mark.parametrize("temperature", [1.0, 2.5])
def test_samples_follow_the_softmax(temperature):
    logits = np.asarray([2.0, 0.0, -1.0, 1.0, 0.5])
    count, slots = 5000, 4
    keys = jax.vmap(lambda i: jax.random.key_data(jax.random.fold_in(KEYS.masks, i)))(
        jnp.arange(count)
    )
    many = jnp.broadcast_to(jnp.asarray(logits, jnp.float32), (count, slots, 5))
    drawn = np.asarray(sample(many, keys, temperature))
    shares = np.exp(logits / temperature) / np.exp(logits / temperature).sum()
    for token, share in enumerate(shares):
        # Four standard deviations: 1 in 16,000 for each of ten comparisons.
        bound = 4 * np.sqrt(share * (1 - share) / drawn.size)
        assert abs((drawn == token).mean() - share) < bound, token
    # Slots of a row are drawn independently: equal as often as two independent draws.
    pair = (shares**2).sum()
    bound = 4 * np.sqrt(pair * (1 - pair) / count)
    assert abs((drawn[:, 0] == drawn[:, 1]).mean() - pair) < bound


def test_samples_hang_on_the_row_s_key():
    logits = jnp.zeros((2, 50, 7))
    keys = jax.random.key_data(jax.random.split(KEYS.masks, 2))
    both = sample(logits, keys, 1.0)
    np.testing.assert_array_equal(both[::-1], sample(logits, keys[::-1], 1.0))
    assert (both[0] != both[1]).any()


def test_samples_take_the_place_of_the_selected_tokens():
    """Drawn twice: the rounded-down mean; an empty slot changes nothing, at place 0 either."""
    batch = {
        "original_ids": jnp.asarray([[10, 11, 12, 13], [20, 21, 22, 23]]),
        "positions": jnp.asarray([[1, 3, 1, 0], [2, 2, 2, 0]]),
        "weights": jnp.asarray([[1.0, 1, 1, 0], [1, 1, 1, 0]]),
    }
    sampled = jnp.asarray([[40, 50, 43, 59], [1, 2, 5, 59]])
    replaced = replace_tokens(batch, sampled)
    np.testing.assert_array_equal(replaced, [[10, 41, 12, 50], [20, 21, 2, 23]])


def test_samples_are_independent_of_masks():
    task = task_of(TIED)
    batch = corrupted(task)
    words = np.asarray(batch["sample_keys"])
    folded = [jax.random.key_data(jax.random.fold_in(KEYS.masks, i)) for i in rows()["example_ids"]]
    assert words.shape == (ROWS, 2) and len({tuple(w) for w in words.tolist()}) == ROWS
    assert not (words == np.asarray(folded)).all(axis=1).any()
    np.testing.assert_array_equal(batch["original_ids"], rows()["input_ids"])


# -------------------------------------------------------------------------------------- labels


def test_sums_of_detection_against_loops():
    rng = np.random.default_rng(2)
    logits = rng.normal(0, 2, (3, 5))
    replaced, real = rng.random((3, 5)) < 0.4, rng.random((3, 5)) < 0.7
    sums = detection_sums(
        jnp.asarray(logits, jnp.float32), jnp.asarray(replaced), jnp.asarray(real)
    )
    for row in range(3):
        loss = right = hits = found = wrong = count = 0.0
        for x, label, counted in zip(logits[row], replaced[row], real[row], strict=True):
            if counted:
                chance = 1 / (1 + np.exp(-x))
                loss -= np.log(chance if label else 1 - chance)
                right += (x > 0) == label
                hits += bool(x > 0 and label)
                found += x > 0
                wrong += label
                count += 1
        np.testing.assert_allclose(sums["detection_loss"][0][row], loss, rtol=1e-5)
        counts = {name: tuple(float(part[row]) for part in pair) for name, pair in sums.items()}
        assert counts["detection_loss"][1] == count
        assert counts["detection_accuracy"] == (right, count)
        assert counts["replaced"] == (wrong, count)
        assert counts["recall"] == (hits, wrong)
        assert counts["precision"] == (hits, found)


def test_a_sample_equal_to_the_original_counts_as_original():
    """A generator that is always right leaves nothing to find; one that never is, everything."""
    task = task_of(TIED)
    batch = corrupted(task)
    chosen = np.zeros((ROWS, LENGTH), bool)
    for row in range(ROWS):
        for place, weight in zip(batch["positions"][row], batch["weights"][row], strict=True):
            chosen[row, int(place)] |= bool(weight)
    real = rows()["segment_ids"] != 0

    def replaced_by(tokens):
        def apply(variables, ids, *, part, **inputs):
            if part == "generator":
                return {"logits": 1e4 * jax.nn.one_hot(tokens, VOCAB)}
            return {"logits": jnp.zeros(ids.shape)}

        (stage,) = task.objective.stages
        result = stage.loss(apply, {}, batch, None, {})
        assert isinstance(result, Passed)
        return result.sums

    right = replaced_by(batch["targets"])
    assert np.sum(right["replaced"][0]) == 0
    np.testing.assert_array_equal(right["replaced"][1], real.sum(axis=1))  # [CLS], [SEP] too
    wrong = replaced_by((batch["targets"] + 1) % VOCAB)
    np.testing.assert_array_equal(wrong["replaced"][0], chosen.sum(axis=1))
    # Nothing is known: ln 2 for every real token.
    np.testing.assert_allclose(means(jax.tree.map(jnp.sum, wrong))["detection_loss"], np.log(2))


def test_the_discriminator_reads_replaced_ids_and_has_its_own_dropout():
    seen = {}

    def apply(variables, ids, *, part, **inputs):
        seen[part] = {"ids": ids, **inputs}
        tokens = jnp.zeros((*inputs["positions"].shape, VOCAB)) if part == "generator" else 0
        return {"logits": tokens if part == "generator" else jnp.zeros(ids.shape)}

    task = task_of(TIED)
    batch = corrupted(task)
    (stage,) = task.objective.stages
    stage.loss(apply, {}, batch, KEYS.dropout, {})
    np.testing.assert_array_equal(seen["generator"]["ids"], batch["input_ids"])
    assert (seen["discriminator"]["ids"] != batch["original_ids"]).any()
    # Unselected tokens stand as they were: no mask token is left.
    assert not (seen["discriminator"]["ids"] == SPECIAL.mask).all(axis=1).any()
    keys = [jax.random.key_data(seen[part]["rngs"]["dropout"]).tolist() for part in seen]
    assert keys[0] != keys[1]
    stage.loss(apply, {}, batch, None, {})
    assert all(seen[part]["deterministic"] for part in seen)


# ----------------------------------------------------------------------------------- gradients


def test_the_total_is_generator_plus_50_times_discriminator():
    """Gradients of the two means, each by itself, make that of the step's total."""
    task, batch = task_of(TIED), corrupted(task_of(TIED))
    (stage,) = task.objective.stages
    assert stage.coefficients == {"loss": 1.0, "detection_loss": 50.0}

    def mean(params, name):
        total, weight = split_passed(stage.loss(task.apply, params, batch, None, {})).sums[name]
        return total / weight

    gradients = jax.jit(
        lambda p: [jax.grad(mean)(p, n) for n in ("loss", "detection_loss")],
        compiler_options=FAST_COMPILE,
    )(drawn(TIED))
    ours, theirs = (by_path(jax.device_get(g)) for g in gradients)
    total = step_gradients(task, drawn(TIED), STILL)[0]
    for path, gradient in total.items():
        right = ours[path].astype(np.float64) + 50.0 * theirs[path].astype(np.float64)
        assert close(gradient, right, norm(total)), path
        # The detector's gradient reaches the generator's side through shared tables only.
        if path.startswith("generator/"):
            assert not theirs[path].any(), path
        if path.startswith("discriminator/") and not shared(path):
            assert not ours[path].any(), path
        if shared(path):
            assert ours[path].any() and theirs[path].any(), path


def shared(path: str) -> bool:
    embeddings = "discriminator/encoder/embeddings/"
    return path.startswith(embeddings) and not path.startswith(embeddings + "projection/")


def test_disentangled_losses_reach_their_own_parameters_only():
    task, params = task_of(GDES, DISENTANGLED), drawn(GDES, DISENTANGLED)
    own = {part: {p for p in by_path(params) if p.startswith(part)} for part in params}
    assert loss_reaches(task, params, rows(), "loss") == own["generator"]
    reached = loss_reaches(task, params, rows(), "detection_loss")
    assert reached == own["discriminator"]
    tables = {p for p in reached if p.endswith("/embedding") and "/embeddings/" in p}
    assert tables == {"discriminator/encoder/embeddings/word/embedding"}


def test_the_generator_s_table_gets_nothing_even_if_it_is_asked_for():
    """Without the stage's choice of parameters: the sum itself lets no gradient through."""
    task, params = task_of(GDES, DISENTANGLED), drawn(GDES, DISENTANGLED)
    path = "generator/encoder/embeddings/word/embedding"

    def total(params):
        table = by_path(task.extract(params))["encoder/embeddings/word/embedding"]
        return jnp.sum(table**2)

    gradients = by_path(jax.grad(total)(params))
    assert not gradients[path].any()
    assert gradients[path.replace("generator", "discriminator")].all()


@dataclasses.dataclass(frozen=True)
class Keeper:
    """Gradient descent that keeps the gradients as its state."""

    learning_rate: float

    def direction(self) -> optax.GradientTransformation:
        def init(params):
            return jax.tree.map(jnp.zeros_like, params)

        def update(updates, state, params=None):
            return updates, updates

        return optax.GradientTransformation(init, update)


STILL, DESCENT = Keeper(0.0), Keeper(0.5)


@dataclasses.dataclass(frozen=True)
class Staged:
    """An objective with the optimizers given."""

    objective: Objective
    optimizers: tuple

    @property
    def stages(self):
        return tuple(
            dataclasses.replace(stage, optimizer=optimizer)
            for stage, optimizer in zip(self.objective.stages, self.optimizers, strict=False)
        )

    def corrupt(self, key, step, batch):
        return self.objective.corrupt(key, step, batch)


def stepped(task: Task, params, *optimizers):
    """(state, metrics) after one step from ``params`` on one device, without dropout's noise."""
    objective = Staged(task.objective, optimizers)
    mesh = make_mesh(MeshShape(), jax.devices()[:1])
    with jax.set_mesh(mesh):
        shapes = jax.eval_shape(task.init, jax.random.key(0))
        params = jax.tree.map(lambda x, s: jax.device_put(x, s.sharding.spec), params, shapes)
        state = init_state(params, objective, STILL)
        quiet = lambda *args, deterministic, rngs, **kw: task.apply(*args, **kw)  # noqa: E731
        step = make_train_step(objective, quiet, StepConfig(STILL, seed=5))
        run = jax.jit(step, compiler_options=FAST_COMPILE)
        out = run(state, put_batch(rows(), mesh, 1), Pace(np.float32(1)))
    return jax.device_get(out)


def step_gradients(task: Task, params, *optimizers) -> list[dict]:
    state, _ = stepped(task, params, *optimizers)
    return [by_path(gradients) for gradients in state.opt_states]


def test_the_discriminator_steps_after_the_generator():
    """By hand: samples of the old generator; its update; the detector's gradient at new tables."""
    task, params = task_of(GDES, DISENTANGLED), drawn(GDES, DISENTANGLED)
    generator, discriminator = task.objective.stages
    assert generator.coefficients == {"loss": 1.0}
    assert discriminator.coefficients == {"detection_loss": 50.0}
    batch, rate = corrupted(task), DESCENT.learning_rate

    def mean(trained, frozen, stage, name, batch):
        sums, passed = split_passed(stage.loss(task.apply, trained, batch, None, frozen))
        return sums[name][0] / sums[name][1], passed

    @functools.partial(jax.jit, compiler_options=FAST_COMPILE)
    def by_hand(params):
        trained, frozen = select(params, generator.trains)
        filling, passed = jax.grad(mean, has_aux=True)(trained, frozen, generator, "loss", batch)
        after = merge(jax.tree.map(lambda p, g: p - rate * g, trained, filling), frozen)
        at = lambda p: jax.grad(mean, has_aux=True)(  # noqa: E731
            *select(p, discriminator.trains),
            discriminator,
            "detection_loss",
            {**batch, **passed},
        )[0]
        return filling, at(params), at(after), after

    filling, old, new, after = (by_path(x) for x in jax.device_get(by_hand(params)))
    state, _ = stepped(task, params, DESCENT, STILL)
    first, second = (by_path(gradients) for gradients in state.opt_states)
    assert first.keys() == filling.keys() and second.keys() == new.keys()
    for path, gradient in first.items():
        assert close(gradient, filling[path], norm(first)), path
    for path, gradient in second.items():
        assert close(gradient, 50 * new[path], norm(second)), path
    kernel = "discriminator/detector_dense/kernel"
    assert not close(second[kernel], 50 * old[kernel], norm(second))  # the order shows
    for path, leaf in by_path(state.params).items():  # the second stage moved nothing
        np.testing.assert_allclose(leaf, after[path], rtol=1e-5, atol=1e-6)


def norm(gradients: dict) -> float:
    return float(np.sqrt(sum(np.sum(g**2) for g in gradients.values())))


def close(got, right, scale: float) -> bool:
    """Float32 sums in another order; key biases have no gradient but for rounding."""
    return bool(np.linalg.norm(got - right) < 1e-5 * max(np.linalg.norm(right), 0.1 * scale))


# -------------------------------------------------------------------------------------- models


@pytest.mark.parametrize("sharing", ["tied", "disentangled", "none"])
def test_extract_and_insert_are_inverse(sharing):
    objective = dataclasses.replace(GDES, sharing=sharing, generator_head_size=16)
    task, params = task_of(objective, DISENTANGLED), drawn(objective, DISENTANGLED)
    extracted = task.extract(params)
    wanted = jax.eval_shape(task.model.init, jax.random.key(0))["params"]
    assert {p: x.shape for p, x in by_path(extracted).items()} == {
        p: x.shape for p, x in by_path(wanted).items()
    }
    # A difference of two float32 tables of size 1 is rounded at 1e-7.
    again = task.insert(extracted, params)
    for path, leaf in by_path(params).items():
        np.testing.assert_allclose(by_path(again)[path], leaf, rtol=1e-6, atol=1e-6)
    other = jax.tree.map(lambda x: x + 1, extracted)
    back = by_path(task.extract(task.insert(other, params)))
    for path, leaf in by_path(other).items():
        np.testing.assert_allclose(back[path], leaf, rtol=1e-6, atol=1e-6)
    for path, leaf in by_path(task.insert(other, params)["generator"]).items():
        np.testing.assert_array_equal(leaf, by_path(params["generator"])[path])


def test_differences_start_at_zero_and_are_decayed():
    """So that the discriminator's tables are the generator's, bit for bit, to begin with."""
    task = task_of(GDES, DISENTANGLED)
    params = jax.jit(task.init, compiler_options=FAST_COMPILE)(jax.random.key(0))
    path = "encoder/embeddings/word/embedding"
    assert not by_path(params["discriminator"])[path].any()
    table = by_path(params["generator"])[path]
    np.testing.assert_array_equal(by_path(task.extract(params))[path], table)
    assert table.any() and by_path(params["discriminator"])["encoder/relative/embedding"].any()
    assert by_path(BertAdam().decay_mask(params["discriminator"]))[path]


def test_tied_embeddings_are_stored_once():
    """The projection to the generator's own width is its own."""
    wide = dataclasses.replace(TIED, generator_width=1.0)
    generator = by_path(jax.eval_shape(task_of(wide).init, jax.random.key(0))["generator"])
    embeddings = {path for path in generator if path.startswith("encoder/embeddings/")}
    projection = "encoder/embeddings/projection/"
    assert embeddings == {projection + "kernel", projection + "bias"}
    assert generator[projection + "kernel"].shape == (8, 16)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("electra-small", {"generator_width": 1 / 4}),
        ("electra-base", {"generator_width": 1 / 3}),
        ("electra-large", {"generator_width": 1 / 4}),
        *[
            (
                f"deberta-v3-{size}",
                {
                    "generator_width": 1.0,
                    "generator_depth": 0.5,
                    "generator_decoder": "enhanced",
                    "sharing": "disentangled",
                },
            )
            for size in ("xsmall", "small", "base", "large")
        ],
    ],
)
def test_generators_are_the_published_ones(name, settings):
    objective = ReplacedTokensObjective(**settings)
    assert objective.generator(preset(name)) == preset(name + "-generator")


def test_defaults_are_electra_s():
    published = {"temperature": 1.0, "generator_weight": 1.0, "discriminator_weight": 50.0}
    assert published.items() <= dataclasses.asdict(ReplacedTokensObjective()).items()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"generator_width": 0.0},
            "objective.generator_width is 0.0; it is a share of the discriminator's, above 0 and "
            "at most 1.",
        ),
        ({"temperature": 0.0}, "objective.temperature is 0.0; it must be positive."),
        ({"generator_head_size": 0}, "objective.generator_head_size is 0; it is 1 or more."),
    ],
)
def test_settings_out_of_range(settings, message):
    with pytest.raises(ValueError) as caught:
        ReplacedTokensObjective(**settings)
    assert str(caught.value) == message


def test_a_width_that_heads_do_not_divide():
    with pytest.raises(ValueError, match="which 3 heads of about 2 do not divide"):
        ReplacedTokensObjective(generator_width=7 / 16, generator_head_size=2).generator(MODEL)


def test_norms_of_different_widths_cannot_be_shared():
    projected = dataclasses.replace(MODEL, embedding_projection="before_norm")
    with pytest.raises(ValueError, match=r"^objective.sharing is 'tied', but the norm after"):
        TIED.generator(projected)
    assert dataclasses.replace(TIED, sharing="disentangled").generator(projected)
    assert dataclasses.replace(TIED, generator_width=1.0).generator(projected)

"""The test kit: every objective of the package passes, and each check refuses one kind of fault."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.data.tokenizer import SpecialTokens
from bert_jax.models.config import (
    DisentangledPositions,
    EncoderConfig,
    GlobalAttention,
    LearnedPositions,
    Normal,
    RotaryPositions,
)
from bert_jax.models.heads import MaskedLM
from bert_jax.objectives.base import Setting, Stage, Task, merge, row_sums
from bert_jax.objectives.causal_lm import CausalLmObjective
from bert_jax.objectives.distillation import DistillationObjective
from bert_jax.objectives.masked_lm import MaskedLmObjective
from bert_jax.objectives.masking import Masking
from bert_jax.objectives.replaced_tokens import ReplacedTokensObjective
from bert_jax.objectives.sentence_pairs import SentencePairsObjective
from bert_jax.testing import (
    ObjectiveChecks,
    check_objective,
    empty_rows,
    example_rows,
    loss_reaches,
)

SPECIAL = SpecialTokens(pad=9, cls=7, sep=3, mask=0, unk=5)
VOCAB = 60
MODEL = EncoderConfig(
    VOCAB,
    hidden_size=16,
    num_layers=2,
    num_heads=2,
    intermediate_size=24,
    embedding_size=8,
    type_vocab_size=2,
    positions=LearnedPositions(16),
    initializer=Normal(0.2),
    pad_id=SPECIAL.pad,
)
ROWS = example_rows(SPECIAL, VOCAB)
PAIRS = {
    **ROWS,
    "token_type_ids": np.maximum(ROWS["segment_ids"] - 1, 0),
    "segment_ids": np.minimum(ROWS["segment_ids"], 1),
    "pair_labels": np.resize(np.asarray([0, 1, 1, -1], np.int32), 16),
    "mask_ids": np.arange(100, 116, dtype=np.uint32),
}
DISENTANGLED = dataclasses.replace(
    MODEL,
    type_vocab_size=0,
    embedding_size=None,
    positions=DisentangledPositions(max_length=16, buckets=8, max_distance=12),
)
LEFT = dataclasses.replace(
    MODEL, positions=RotaryPositions(16), attention=GlobalAttention(direction="left")
)
RTD = ReplacedTokensObjective(generator_width=0.5, generator_head_size=4)
GDES = ReplacedTokensObjective(
    generator_width=1.0,
    generator_depth=1.0,
    generator_head_size=8,
    generator_decoder="enhanced",
    sharing="disentangled",
)
ELECTRA = Masking(0.3, 0.85, 0.0, with_replacement=True, candidates="text_and_unk")
BOTH = ("input_ids", "replaced_ids")


def task_of(objective, model=MODEL, masking=Masking(0.3)):  # noqa: B008
    return objective.task(Setting(model, masking, SPECIAL, VOCAB, 10))


@pytest.mark.slow
def test_masked_lm():
    check_objective(task_of(MaskedLmObjective()), ROWS, special=SPECIAL)


def test_sentence_pairs():
    check_objective(task_of(SentencePairsObjective(0.5)), PAIRS, special=SPECIAL)


@pytest.mark.slow
def test_causal_lm():
    task = task_of(CausalLmObjective(), LEFT)
    check_objective(task, ROWS, special=SPECIAL, draws="nothing")


@pytest.mark.slow
@pytest.mark.parametrize("sharing", ["tied", "none"])
def test_replaced_tokens(sharing):
    task = task_of(dataclasses.replace(RTD, sharing=sharing), masking=ELECTRA)
    check_objective(task, ROWS, special=SPECIAL, candidates="text_and_unk", inputs=BOTH)


@pytest.mark.slow
def test_replaced_tokens_in_two_stages():
    check_objective(task_of(GDES, DISENTANGLED), ROWS, special=SPECIAL, inputs=BOTH)


@pytest.mark.slow
@pytest.mark.parametrize("layers", [(1,), ()])
def test_distillation(layers):
    """Teacher, and the student's position table, stay as they are."""
    teacher = dataclasses.replace(MODEL, hidden_size=8, intermediate_size=12)
    load = lambda: MaskedLM(teacher).init(jax.random.key(0))["params"]  # noqa: E731
    student = dataclasses.replace(teacher, num_layers=1)
    setting = Setting(student, Masking(0.3), SPECIAL, VOCAB, trained=lambda _: (teacher, load))
    task = DistillationObjective("teacher", layers).task(setting)
    check_objective(task, ROWS, special=SPECIAL)


# -------------------------------------------------------------------- objectives that are broken


def corrupt(key, step, batch):
    """Replaces some ordinary tokens by random ones."""
    ordinary = ~jnp.isin(batch["input_ids"], jnp.asarray(SPECIAL.ids))
    return replaced(key, batch, batch["example_ids"], ordinary & (batch["segment_ids"] != 0))


def replaced(key, batch, index, where):
    def one(index, ids, where):
        first, second = jax.random.split(jax.random.fold_in(key, index))
        hit = where & (jax.random.uniform(first, ids.shape) < 0.5)
        return jnp.where(hit, jax.random.randint(second, ids.shape, 10, VOCAB), ids), hit

    ids, hit = jax.vmap(one)(index, batch["input_ids"], where)
    return {**batch, "input_ids": ids, "hit": hit}


def loss(apply, params, batch, key, frozen):
    values, real = surprise(apply, params, batch, frozen)
    return {"loss": row_sums(values, real)}


def surprise(apply, params, batch, frozen):
    logit = apply({"params": merge(params, frozen)}, batch["input_ids"])
    nll = jax.nn.softplus(jnp.where(batch["hit"], -logit, logit))
    return nll, (batch["segment_ids"] != 0).astype(jnp.float32)


@dataclass(frozen=True)
class Toy:
    """One score a token; each function may be replaced by a broken one."""

    corrupt: Callable = corrupt
    loss: Callable = loss
    trains: Callable = lambda path: path == "used/table"
    coefficients: tuple = (("loss", 1.0),)

    @property
    def stages(self):
        return (Stage("toy", self.loss, dict(self.coefficients), self.trains),)


def toy_task(**broken) -> Task:
    def init(key):
        return {name: {"table": jax.random.normal(key, (VOCAB,))} for name in ("used", "other")}

    def apply(variables, ids):
        return variables["params"]["used"]["table"].at[ids].get()

    return Task(Toy(**broken), MaskedLM(MODEL), init, apply, lambda rows, length: 1.0)


def refused(method: str, message: str, rows=ROWS, settings=(), **broken):
    checks = ObjectiveChecks(toy_task(**broken), rows, SPECIAL, **dict(settings))
    with pytest.raises(AssertionError) as caught:
        getattr(checks, method)()
    assert str(caught.value) == message


ALL = ("corruption", "randomness", "sums", "devices_and_microbatches", "no_targets",
       "trained_parameters")  # fmt: skip


def test_the_toy_is_sound():
    checks = ObjectiveChecks(toy_task(), ROWS, SPECIAL)
    for name in ALL:
        getattr(checks, name)()


def test_padding_changed():
    def broken(key, step, batch):
        where = jnp.ones(batch["input_ids"].shape, bool)
        return replaced(key, batch, batch["example_ids"], where)

    refused("corruption", "input_ids: padding is changed.", corrupt=broken)


def test_specials_changed():
    def broken(key, step, batch):
        return replaced(key, batch, batch["example_ids"], batch["segment_ids"] != 0)

    refused("corruption", "input_ids: special tokens are changed.", corrupt=broken)
    ObjectiveChecks(toy_task(corrupt=broken), ROWS, SPECIAL, candidates="all").corruption()


def test_the_unknown_token_changed():
    def broken(key, step, batch):
        kept = [i for i in SPECIAL.ids if i != SPECIAL.unk]
        ordinary = ~jnp.isin(batch["input_ids"], jnp.asarray(kept))
        return replaced(key, batch, batch["example_ids"], ordinary & (batch["segment_ids"] != 0))

    refused("corruption", "input_ids: special tokens are changed.", corrupt=broken)
    checks = ObjectiveChecks(toy_task(corrupt=broken), ROWS, SPECIAL, candidates="text_and_unk")
    checks.corruption()


@pytest.mark.parametrize(
    ("added", "message"),
    [
        (
            lambda b: {
                "positions": jnp.zeros_like(b["input_ids"]) + jnp.arange(16),
                "weights": jnp.ones(b["input_ids"].shape),
            },
            "padding is predicted.",
        ),
        (
            lambda b: {"example_ids": b["example_ids"] * 2},
            "corrupt changes example_ids, on which dropout hangs.",
        ),
        (
            lambda b: {"count": jnp.sum(b["input_ids"])},
            "corrupt gives 'count' without rows first.",
        ),
    ],
)
def test_arrays_of_corrupt(added, message):
    def broken(key, step, batch):
        return {**corrupt(key, step, batch), **added(batch)}

    refused("corruption", message, corrupt=broken)


def test_an_input_that_no_one_gives():
    message = "no batch has the array 'replaced_ids' that inputs names."
    refused("corruption", message, settings={"inputs": BOTH})


def by_clock(key, step, batch, rng=np.random.default_rng(0)):  # noqa: B008
    drawn = jnp.asarray(rng.integers(0, 2**31))
    return corrupt(jax.random.fold_in(key, drawn), step, batch)


def by_place(key, step, batch):
    places = jnp.zeros_like(batch["example_ids"]) + jnp.arange(len(batch["example_ids"]))
    return replaced(key, batch, places, batch["segment_ids"] != 0)


def by_batch(key, step, batch):
    return replaced(key, batch, batch["example_ids"] * 0, batch["segment_ids"] != 0)


def by_no_key(key, step, batch):
    return corrupt(jax.random.key(0), step, batch)


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (by_clock, "corrupt draws anew when it is traced again; draw from its key alone."),
        (
            by_place,
            "a row's draws hang on its place in the batch; fold its example index into the key.",
        ),
        (by_batch, "all rows of a batch get the same draws."),
        (by_no_key, "another key gives the same draws."),
    ],
)
def test_draws(broken, message):
    refused("randomness", message, corrupt=broken)


def test_draws_where_there_should_be_none():
    refused("randomness", "corrupt draws by example.", settings={"draws": "nothing"})


def mean(apply, params, batch, key, frozen):
    total, weight = loss(apply, params, batch, key, frozen)["loss"]
    return {"loss": (jnp.sum(total) / jnp.sum(weight), jnp.float32(1))}


def mean_of_means(apply, params, batch, key, frozen):
    total, weight = loss(apply, params, batch, key, frozen)["loss"]
    return {"loss": (total / jnp.sum(weight), weight)}


def weighed_by_itself(apply, params, batch, key, frozen):
    values, real = surprise(apply, params, batch, frozen)
    return {"loss": row_sums(values, real * (values > 0.7))}


def whole_numbers(apply, params, batch, key, frozen):
    total, weight = loss(apply, params, batch, key, frozen)["loss"]
    return {"loss": (total, weight.astype(jnp.int32))}


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (mean, "'loss' has the shape (); held-out scores need one number a row."),
        (mean_of_means, "the sum of 'loss' does not add up over two halves of the batch."),
        (weighed_by_itself, "the weight of 'loss' depends on parameters."),
        (whole_numbers, "'loss' has sums of type int32, not float32."),
    ],
)
def test_sums(broken, message):
    refused("sums", message, loss=broken)


def test_a_minimised_name_that_is_not_given():
    message = "a stage minimises 'other', which its loss does not give."
    refused("sums", message, coefficients=(("loss", 1.0), ("other", 1.0)))


def noisy(apply, params, batch, key, frozen):
    values, real = surprise(apply, params, batch, frozen)
    noise = 1.0 if key is None else jax.random.uniform(key, real.shape)  # by place in the batch
    return {"loss": row_sums(values * noise, real)}


@pytest.mark.parametrize(("broken", "what"), [(mean_of_means, "sum"), (noisy, "sum")])
def test_devices_and_microbatches(broken, what):
    message = f"the {what} of 'loss' does not add up on 8 devices in 2 microbatches."
    refused("devices_and_microbatches", message, loss=broken)


def crossed(apply, params, batch, key, frozen):
    """Each row's loss counts twice and is taken away where it stands in the batch's first half."""
    values, real = surprise(apply, params, batch, frozen)
    place = jnp.arange(len(real)) + 0.0 * real[:, 0]
    stopped = jax.lax.stop_gradient(values)
    seen = jnp.where((place < 1)[:, None], stopped, values)
    return {"loss": row_sums(seen, real)}


def test_gradients_that_hang_on_the_place_in_the_batch():
    message = "the gradient of used/table is another on 8 devices in 2 microbatches."
    refused("devices_and_microbatches", message, loss=crossed)


def counts_padding(apply, params, batch, key, frozen):
    values, real = surprise(apply, params, batch, frozen)
    return {"loss": row_sums(values, jnp.ones_like(real))}


def divides(apply, params, batch, key, frozen):
    total, weight = loss(apply, params, batch, key, frozen)["loss"]
    return {"loss": (total, weight), "mean": (total / weight, weight)}


def never_nothing(apply, params, batch, key, frozen):
    total, weight = loss(apply, params, batch, key, frozen)["loss"]
    return {"loss": (total + 1, weight)}


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (counts_padding, "'loss' has weight 256.0 in a batch of padding."),
        (divides, "'mean' is nan in a batch of padding."),
        (never_nothing, "'loss' is 16.0, not 0, in a batch of padding."),
    ],
)
def test_no_targets(broken, message):
    refused("no_targets", message, loss=broken)


def test_parameters_that_get_no_gradient():
    refused(
        "trained_parameters",
        "stage 'toy' trains other/table, which gets no gradient from it; weight decay would move "
        "it: leave it out of trains.",
        trains=lambda path: True,
    )


def test_a_stage_of_nothing():
    message = "stage 'toy' trains no parameter."
    refused("trained_parameters", message, trains=lambda path: False)


def test_the_model_that_is_kept():
    task = task_of(RTD)
    wrong = dataclasses.replace(task, extract=lambda params: params["generator"])
    with pytest.raises(AssertionError, match=r"^extract and the model's init disagree about"):
        ObjectiveChecks(wrong, ROWS, SPECIAL).model()
    wrong = dataclasses.replace(task, insert=lambda model, params: {"discriminator": model})
    with pytest.raises(AssertionError, match=r"^insert does not give all parameters back\.$"):
        ObjectiveChecks(wrong, ROWS, SPECIAL).model()
    wrong = dataclasses.replace(task, flops=lambda rows, length: 0.0)
    with pytest.raises(AssertionError, match=r"^flops of a step are not above 0\.$"):
        ObjectiveChecks(wrong, ROWS, SPECIAL).model()


# ------------------------------------------------------------------------------------- the parts


def test_what_a_loss_reaches():
    def two(apply, params, batch, key, frozen):
        values, real = surprise(apply, params, batch, frozen)
        other = frozen.get("other", params.get("other"))["table"]
        extra = real * jax.nn.relu(other.at[batch["input_ids"]].get() ** 2)
        return {"loss": row_sums(values, real), "extra": row_sums(extra, real)}

    task = toy_task(loss=two, trains=lambda path: True)
    params = task.init(jax.random.key(0))
    assert loss_reaches(task, params, ROWS, "loss") == {"used/table"}
    assert loss_reaches(task, params, ROWS, "extra") == {"other/table"}
    task = toy_task(loss=two)
    assert loss_reaches(task, params, ROWS, "extra") == frozenset()
    with pytest.raises(ValueError, match=r"^no stage of the objective gives a loss 'third'\.$"):
        loss_reaches(task, params, ROWS, "third")


def test_example_rows():
    """Two texts of [CLS] ... [SEP] and padding, of many lengths, in the pipeline's types."""
    assert {name: x.dtype.name for name, x in ROWS.items()} == {
        "input_ids": "int32",
        "segment_ids": "int32",
        "position_ids": "int32",
        "word_ids": "int32",
        "example_ids": "uint32",
    }
    for ids, segments, positions, words in zip(
        *(ROWS[n] for n in ("input_ids", "segment_ids", "position_ids", "word_ids")), strict=True
    ):
        np.testing.assert_array_equal(ids == SPECIAL.pad, segments == 0)
        for text in (1, 2):
            there = segments == text
            assert ids[there][0] == SPECIAL.cls and ids[there][-1] == SPECIAL.sep
            np.testing.assert_array_equal(positions[there], np.arange(there.sum()))
        np.testing.assert_array_equal(words == -1, np.isin(ids, SPECIAL.ids))
    assert len({int(n) for n in (ROWS["segment_ids"] != 0).sum(axis=1)}) > 3
    assert (ROWS["input_ids"] == SPECIAL.unk).any() and ROWS["input_ids"].max() < VOCAB


def test_empty_rows_are_the_pipeline_s():
    empty = empty_rows(PAIRS, SPECIAL)
    assert (empty["input_ids"] == SPECIAL.pad).all() and (empty["word_ids"] == -1).all()
    assert not empty["segment_ids"].any() and not empty["pair_labels"].any()
    np.testing.assert_array_equal(empty["example_ids"], PAIRS["example_ids"])

"""Schedules against their closed forms, at named steps."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.train.schedule import Constant, Cosine, Linear, Trapezoid

TOTAL = 1000
ALL = [Linear(100), Cosine(100), Constant(100), Trapezoid(100, decay_steps=200)]


def factors(schedule, steps, total=TOTAL) -> list[float]:
    return [float(schedule.factor(int(step), total)) for step in steps]


@pytest.mark.parametrize("schedule", ALL, ids=str)
def test_warm_up_starts_at_zero_and_is_linear(schedule):
    """Step 0 has rate 0, as in optax, fairseq and transformers (P47); step 100 the peak."""
    assert factors(schedule, [0]) == [0.0]
    np.testing.assert_allclose(factors(schedule, [1, 50, 99, 100]), [0.01, 0.5, 0.99, 1])


@pytest.mark.parametrize("kind", [Linear, Cosine, Constant, Trapezoid])
def test_warm_up_may_start_higher(kind):
    """From .1: the first update is not wasted."""
    schedule = kind(warmup_steps=10, warmup_from=0.1)
    np.testing.assert_allclose(factors(schedule, [0, 1, 5, 10]), [0.1, 0.19, 0.55, 1], rtol=1e-6)


@pytest.mark.parametrize("kind", [Linear, Cosine, Constant, Trapezoid])
def test_without_warm_up_the_peak_comes_first(kind):
    assert factors(kind(), [0]) == [1.0]


@pytest.mark.parametrize(
    "schedule, expected",
    [
        (Linear(100), {100: 1, 550: 0.5, 775: 0.25, 1000: 0, 2000: 0}),
        (Linear(100, final=0.2), {100: 1, 550: 0.6, 1000: 0.2, 2000: 0.2}),
        (Linear(), {0: 1, 250: 0.75, 999: 0.001}),
        (Cosine(100), {100: 1, 550: 0.5, 325: 0.5 + math.sqrt(0.125), 1000: 0, 2000: 0}),
        (Cosine(100, final=0.1), {100: 1, 550: 0.55, 1000: 0.1}),
        (Constant(100), {100: 1, 999: 1, 5000: 1}),
        (Trapezoid(100, decay_steps=200), {100: 1, 800: 1, 900: 0.5, 950: 0.25, 1000: 0, 1100: 0}),
        (
            Trapezoid(100, decay_steps=200, decay="1-sqrt"),
            {100: 1, 800: 1, 850: 0.5, 900: 1 - math.sqrt(0.5), 1000: 0, 1100: 0},
        ),
        (
            Trapezoid(100, decay_steps=200, decay="1-sqrt", final=0.5),
            {800: 1, 850: 0.75, 1000: 0.5},
        ),
        (Trapezoid(100), {100: 1, 1000: 1}),
    ],
    ids=str,
)
def test_closed_forms(schedule, expected):
    np.testing.assert_allclose(factors(schedule, expected), list(expected.values()), atol=1e-6)


@pytest.mark.parametrize("schedule", ALL, ids=str)
def test_traced_steps_give_the_same(schedule):
    steps = np.arange(0, 1200, 7)
    traced = jax.jit(jax.vmap(lambda step: schedule.factor(step, TOTAL)))(jnp.asarray(steps))
    assert traced.dtype == jnp.float32
    np.testing.assert_allclose(traced, factors(schedule, steps), atol=1e-6)


@pytest.mark.parametrize("schedule", ALL, ids=str)
def test_never_outside_zero_and_one(schedule):
    values = jax.vmap(lambda step: schedule.factor(step, TOTAL))(jnp.arange(2000))
    assert values.min() >= 0 and values.max() <= 1


def test_a_million_steps_in_float32():
    """RoBERTa's 500,000 and BERT's 1,000,000 steps lose nothing that matters in float32."""
    np.testing.assert_allclose(
        factors(Linear(10_000), [505_000, 999_999], 1_000_000), [0.5, 1 / 990_000], rtol=0.01
    )


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: Linear(-1), "schedule.warmup_steps is -1; it is 0 or more."),
        (lambda: Constant(1, 1.5), "schedule.warmup_from is 1.5; it lies in [0, 1]."),
        (lambda: Linear(final=2.0), "schedule.final is 2.0; it lies in [0, 1]."),
        (lambda: Cosine(final=-0.1), "schedule.final is -0.1; it lies in [0, 1]."),
        (lambda: Trapezoid(final=1.1), "schedule.final is 1.1; it lies in [0, 1]."),
        (lambda: Trapezoid(decay_steps=-5), "schedule.decay_steps is -5; it is 0 or more."),
    ],
)
def test_errors_name_the_value_and_its_range(make, message):
    with pytest.raises(ValueError) as caught:
        make()
    assert str(caught.value) == message

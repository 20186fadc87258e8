"""Schedules against their closed forms and torch's own, at named steps."""

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest

from bert_jax.train.schedule import (
    BertLinear,
    Budget,
    Constant,
    Cosine,
    ElectraLinear,
    InverseSqrt,
    Linear,
    Polynomial,
    Trapezoid,
)

TOTAL = 1000
WARM = [
    Linear(100),
    Polynomial(100, power=2),
    Cosine(100),
    Constant(100),
    Trapezoid(100, decay_length=200),
    InverseSqrt(100),
]
PLAIN = [BertLinear(100), ElectraLinear(100), Budget()]


def factors(schedule, steps, total=TOTAL) -> list[float]:
    return [schedule.factor(step, total) for step in steps]


@pytest.mark.parametrize("schedule", WARM, ids=str)
def test_warm_up_starts_at_zero_and_is_linear(schedule):
    """The first update has rate 0, as in optax, fairseq and transformers (P47); at 100 the peak."""
    assert factors(schedule, [0]) == [0.0]
    np.testing.assert_allclose(factors(schedule, [1, 50, 99, 100]), [0.01, 0.5, 0.99, 1])


@pytest.mark.parametrize("kind", [type(schedule) for schedule in WARM])
def test_warm_up_may_start_higher(kind):
    """From .1; or from 1 / (n + 1), which gives (step + 1) / (n + 1): no update is wasted."""
    schedule = kind(warmup=10, warmup_from=0.1)
    np.testing.assert_allclose(factors(schedule, [0, 1, 5, 10]), [0.1, 0.19, 0.55, 1])
    schedule = kind(warmup=7, warmup_from=1 / 8)
    np.testing.assert_allclose(factors(schedule, range(8)), np.arange(1, 9) / 8)


@pytest.mark.parametrize("kind", [type(s) for s in WARM] + [BertLinear, ElectraLinear])
def test_without_warm_up_the_peak_comes_first(kind):
    assert factors(kind(), [0]) == [1.0]


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (Linear(100), {100: 1, 550: 0.5, 775: 0.25, 1000: 0, 2000: 0}),
        (Linear(100, final=0.2), {100: 1, 550: 0.6, 1000: 0.2, 2000: 0.2}),
        (Linear(), {0: 1, 250: 0.75, 999: 0.001}),
        (Polynomial(100, power=2), {100: 1, 550: 0.25, 1000: 0, 2000: 0}),
        (Polynomial(100, power=2, final=0.2), {100: 1, 550: 0.4, 1000: 0.2}),
        (Cosine(100), {100: 1, 550: 0.5, 325: 0.5 + math.sqrt(0.125), 1000: 0, 2000: 0}),
        (Cosine(100, final=0.1), {100: 1, 550: 0.55, 1000: 0.1}),
        (Cosine(100, final=0.1, end=900), {500: 0.55, 900: 0.1, 950: 0.1, 1000: 0.1}),
        (Constant(100), {100: 1, 999: 1, 5000: 1}),
        (
            Trapezoid(100, decay_length=200),
            {100: 1, 800: 1, 900: 0.5, 950: 0.25, 1000: 0, 1100: 0},
        ),
        (
            Trapezoid(100, decay_length=200, decay="1-sqrt"),
            {100: 1, 800: 1, 850: 0.5, 900: 1 - math.sqrt(0.5), 1000: 0, 1100: 0},
        ),
        (
            Trapezoid(100, decay_length=200, decay="1-sqrt", final=0.5),
            {800: 1, 850: 0.75, 1000: 0.5},
        ),
        (
            Trapezoid(100, decay_length=200, decay="cosine", final=0.2),
            {800: 1, 900: 0.6, 1000: 0.2, 850: 0.6 + 0.4 * math.sqrt(0.5)},
        ),
        (Trapezoid(100), {100: 1, 1000: 1}),
        (InverseSqrt(100), {400: 0.5, 1000: math.sqrt(0.1)}),
        (InverseSqrt(constant=100), {0: 1, 99: 1, 100: 1, 400: 0.5}),
        (InverseSqrt(100, constant=200), {150: 1, 200: 1, 800: 0.5}),
        (InverseSqrt(), {0: 1, 1: 1, 4: 0.5}),
        (BertLinear(100), {0: 0, 50: 0.5, 99: 0.99, 100: 0.9, 550: 0.45, 1000: 0, 2000: 0}),
        (ElectraLinear(100), {0: 0, 50: 0.5 * 0.95, 100: 0.9, 550: 0.45, 1000: 0, 2000: 0}),
        (Budget(), {0: 0.25, 375: 0.625, 750: 1, 875: 0.5, 1000: 0, 2000: 0}),
        (Budget(start=0.5, peak=0.5), {0: 0.5, 250: 0.75, 500: 1, 750: 0.5}),
    ],
    ids=str,
)
def test_closed_forms(schedule, expected):
    np.testing.assert_allclose(
        factors(schedule, expected), list(expected.values()), rtol=1e-12, atol=1e-12
    )  # float64


def test_berts_rate_drops_by_one_percent_after_the_warm_up():
    """Decay counts from step 0 and is replaced by the warm-up: 1.0 x peak, then .99 x peak."""
    schedule, total = BertLinear(10_000), 1_000_000
    np.testing.assert_allclose(
        factors(schedule, [0, 9_999, 10_000, 500_000, 999_999], total),
        [0, 0.9999, 0.99, 0.5, 1e-6],
    )


def test_modernberts_phases_in_tokens():
    """A plateau after 3B tokens of warm-up; then 50B of 1 - sqrt to .001 with no plateau."""
    first, total = Trapezoid(warmup=3e9), 1.719e12
    assert factors(first, [0, 1.5e9, 3e9, 1e12, 1.719e12], total) == [0, 0.5, 1, 1, 1]
    third = Trapezoid(decay_length=50e9, decay="1-sqrt", final=0.001)
    np.testing.assert_allclose(
        factors(third, [0, 12.5e9, 50e9], 50e9), [1, 0.001 + 0.999 * 0.5, 0.001]
    )


def test_ettins_second_phase_halves_the_rate_without_a_plateau():
    schedule = Trapezoid(decay_length=250e9, decay="1-sqrt", final=0.5)
    np.testing.assert_allclose(factors(schedule, [0, 62.5e9, 250e9], 250e9), [1, 0.75, 0.5])


def test_t5s_rate():
    """1 / sqrt(max(step, 10,000)) is a peak of .01 with a long constant piece."""
    steps = [0, 9_999, 10_000, 40_000, 999_999]
    right = [1 / math.sqrt(max(step, 10_000)) for step in steps]
    np.testing.assert_allclose(
        [0.01 * f for f in factors(InverseSqrt(constant=10_000), steps, 1_000_000)], right
    )


@pytest.mark.parametrize("schedule", [*WARM, *PLAIN], ids=str)
def test_the_unit_of_the_clock_does_not_matter(schedule):
    """Lengths and clock scaled together give the same factors (1,024 is exact in binary)."""
    lengths = {
        name: 1024.0 * getattr(schedule, name)
        for name in ("warmup", "decay_length", "constant")
        if hasattr(schedule, name)
    }
    scaled = dataclasses.replace(schedule, **lengths)
    steps = range(0, 1200, 7)
    assert factors(scaled, [1024.0 * s for s in steps], 1024.0 * TOTAL) == factors(schedule, steps)


@pytest.mark.parametrize("schedule", [*WARM, *PLAIN], ids=str)
def test_never_outside_zero_and_one(schedule):
    values = factors(schedule, range(2000))
    assert min(values) >= 0 and max(values) <= 1
    assert all(type(value) is float for value in values)


@pytest.mark.parametrize(
    ("name", "schedule", "total"),
    [
        ("linear", Linear(final=0.1), 20),
        ("polynomial", Polynomial(power=2), 20),
        ("cosine", Cosine(final=0.1), 24),
        ("warm_cosine", Cosine(4, warmup_from=0.25), 24),
        ("one_cycle", Linear(6, warmup_from=0.1, final=0.01), 24),
    ],
)
def test_torchs_own_schedules(name, schedule, total):
    path = Path(__file__).parents[1] / "data" / "torch_trajectories.npz"
    with np.load(path) as file:
        right = file[f"schedule/{name}"]
    assert len(right) == 24
    # Several of torch's are recursions, which add up rounding in float64.
    np.testing.assert_allclose(factors(schedule, range(24), total), right, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Linear(-1), "schedule.warmup is -1; it is 0 or more."),
        (lambda: BertLinear(-1), "schedule.warmup is -1; it is 0 or more."),
        (lambda: Constant(1, 1.5), "schedule.warmup_from is 1.5; it lies in [0, 1]."),
        (lambda: Linear(final=2.0), "schedule.final is 2.0; it lies in [0, 1]."),
        (lambda: Cosine(final=-0.1), "schedule.final is -0.1; it lies in [0, 1]."),
        (lambda: Cosine(end=0.0), "schedule.end is 0.0; it must be positive, or None."),
        (lambda: Polynomial(power=0.0), "schedule.power is 0.0; it must be positive."),
        (lambda: InverseSqrt(constant=0.0), "schedule.constant is 0.0; it must be positive."),
        (lambda: Trapezoid(final=1.1), "schedule.final is 1.1; it lies in [0, 1]."),
        (lambda: Trapezoid(decay_length=-5), "schedule.decay_length is -5; it is 0 or more."),
        (lambda: Budget(start=1.5), "schedule.start is 1.5; it lies in [0, 1]."),
        (lambda: Budget(peak=1.0), "schedule.peak is 1.0; it lies between 0 and 1."),
        (lambda: Linear().factor(1, 0), "the schedule's total is 0; it must be positive."),
        (lambda: Linear().factor(-1, 5), "the clock shows -1; it counts from 0."),
    ],
)
def test_errors_name_the_value_and_its_range(make, message):
    with pytest.raises(ValueError) as caught:
        make()
    assert str(caught.value) == message

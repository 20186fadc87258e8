"""Nested dataclasses as flat dicts: shapes that experiments do not have (yet), values, names."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from bert_jax import flat as nested
from bert_jax.flat import check, defaults, describe, did_you_mean, flatten, switch, tag, unflatten


@dataclass(frozen=True)
class Grain:
    size: int
    hue: str = "grey"


@dataclass(frozen=True)
class Sand:
    grain: Grain = Grain(1)
    depth: float = 1.0


@dataclass(frozen=True)
class StoneFloor:
    tile: "Grain | Sand | None" = None
    depth: float = 2.0
    cuts: tuple[int, ...] = ()


@dataclass(frozen=True)
class GlassFloor:
    tile: Grain | Sand | None = None


@dataclass(frozen=True)
class WoodFloor:
    plank: str
    depth: int = 3


@dataclass(frozen=True)
class House:
    floor: StoneFloor | WoodFloor | GlassFloor
    door: Grain = field(default_factory=lambda: Grain(9))
    shade: Literal["light", "dark"] | None = None
    open: bool = False


NESTED = House(StoneFloor(Sand(Grain(4, "red"), 0.5), 2.5, (1, 2)), shade="dark", open=True)
FLAT = {
    "floor": "stone",
    "floor.tile": "sand",
    "floor.tile.grain.size": 4,
    "floor.tile.grain.hue": "red",
    "floor.tile.depth": 0.5,
    "floor.depth": 2.5,
    "floor.cuts": (1, 2),
    "door.size": 9,
    "door.hue": "grey",
    "shade": "dark",
    "open": True,
}


def test_unions_inside_unions() -> None:
    assert flatten(NESTED) == FLAT
    assert list(flatten(NESTED)) == list(FLAT)
    assert unflatten(House, FLAT) == NESTED
    assert nested.unions(House, FLAT) == {
        "floor": {"stone": StoneFloor, "wood": WoodFloor, "glass": GlassFloor},
        "floor.tile": {"grain": Grain, "sand": Sand},
    }


def test_an_inner_tag_that_is_missing_is_named() -> None:
    some = {name: value for name, value in FLAT.items() if name != "floor.tile"}
    with pytest.raises(ValueError, match=r"^the field 'floor\.tile' is missing\.$"):
        unflatten(House, some)


def test_switch_keeps_what_fits_and_leaves_out_what_has_no_default() -> None:
    wood = switch(House, FLAT, "floor", "wood")
    # 2.5 is no whole number, so the wooden floor has its own depth; the plank must be named.
    assert wood == {
        "floor": "wood",
        "floor.depth": 3,
        **{name: FLAT[name] for name in ("door.size", "door.hue", "shade", "open")},
    }
    back = switch(House, wood, "floor", "stone")
    assert unflatten(House, back).floor == StoneFloor(None, 3.0, ())
    grain = switch(House, FLAT, "floor.tile", "grain")
    assert {n: v for n, v in grain.items() if n.startswith("floor.tile")} == {
        "floor.tile": "grain",
        "floor.tile.hue": "grey",
    }
    glass = switch(House, FLAT, "floor", "glass")  # the kind of an inner field is no value to keep
    assert unflatten(House, glass).floor == GlassFloor(None)
    none = switch(House, FLAT, "floor.tile", None)
    assert unflatten(House, none).floor == StoneFloor(None, 2.5, (1, 2))


def test_defaults_leave_out_what_has_none() -> None:
    assert defaults(Sand) == {"grain.size": 1, "grain.hue": "grey", "depth": 1.0}
    assert defaults(WoodFloor, "x.") == {"x.depth": 3}
    assert "floor" not in defaults(House) and defaults(House)["door.size"] == 9


class AdamW: ...


class StableAdamW: ...


class RotaryPositions: ...


class Masking: ...


@pytest.mark.parametrize(
    ("field_name", "cls", "expected"),
    [
        ("positions", RotaryPositions, "rotary"),
        ("schedule", RotaryPositions, "rotary-positions"),
        ("optimizer", AdamW, "adamw"),
        ("optimizer", StableAdamW, "stable-adamw"),
        ("masking", Masking, "masking"),
        ("eval_masking", Masking, "masking"),
    ],
)
def test_tags(field_name: str, cls: type, expected: str) -> None:
    assert tag(field_name, cls) == expected


@pytest.mark.parametrize(
    ("annotation", "value", "expected"),
    [
        (int, 3, 3),
        (int, np.int64(3), 3),
        (float, 3, 3.0),
        (float, np.float32(0.5), 0.5),
        (str, "", ""),
        (bool, False, False),
        (Path, Path("x"), Path("x")),
        (int | None, None, None),
        (Literal["a", 1], 1, 1),
        (tuple[int, float], [1, 2], (1, 2.0)),
        (tuple[str, ...], [], ()),
        (tuple[int, int] | None, (1, 2), (1, 2)),
    ],
)
def test_values_that_fit(annotation: Any, value: Any, expected: Any) -> None:
    fitted = check("x", annotation, value)
    assert fitted == expected and type(fitted) is type(expected)


@pytest.mark.parametrize(
    ("annotation", "value", "wanted"),
    [
        (int, 3.0, "an integer"),
        (int, True, "an integer"),
        (int, "3", "an integer"),
        (float, "3", "a finite number"),
        (float, False, "a finite number"),
        (float, float("inf"), "a finite number"),
        (str, None, "a string"),
        (bool, 1, "True or False"),
        (Path, "x", "a path"),
        (Literal["a", 1], True, "one of a, 1"),
        (Literal["a"], "b", "a"),
        (int | str | None, 1.5, "an integer or a string or None"),
        (tuple[int, int], (1,), "2 values (an integer, an integer)"),
        (tuple[int, ...], (1, "a"), "values, each an integer"),
        (tuple[int, ...], "12", "values, each an integer"),
    ],
)
def test_values_that_do_not_fit(annotation: Any, value: Any, wanted: str) -> None:
    assert describe(annotation) == wanted
    with pytest.raises(ValueError) as caught:
        check("x.y", annotation, value)
    assert str(caught.value) == f"x.y is {value!r}; expected {wanted}."


def test_a_type_without_a_flat_form_is_a_fault_of_the_program() -> None:
    with pytest.raises(TypeError, match="cannot be written flat"):
        check("x", dict[str, int], {})


def test_did_you_mean() -> None:
    known = ["a.rate", "b.rate", "b.rank", "seed"]
    assert did_you_mean("b.rat", known, "no.") == "did you mean b.rate?"
    assert did_you_mean("rate", known, "no.") == "did you mean a.rate or b.rate?"
    assert did_you_mean("--sed", ["--seed"], "no.") == "did you mean --seed?"
    assert did_you_mean("x", known, "no.") == "no."
    assert did_you_mean("x", [], "no.") == "no."

"""Words of a command line: options, places, calls."""

from pathlib import Path
from typing import Any, Literal

import pytest

from bert_jax.arguments import Signature, UnknownOption, as_flag, call, description, scan

OPTIONS: dict[str, Any] = {
    "--count": int,
    "--rate": float,
    "--name": str,
    "--label": str | None,
    "--range": tuple[int, int] | None,
    "--sizes": tuple[int, ...],
    "--kind": Literal["a", "b"],
    "--out": Path,
    "--quick": bool,
    "--maybe": bool | None,
}


@pytest.mark.parametrize(
    ("words", "values", "rest"),
    [
        ("", {}, []),
        ("a b", {}, ["a", "b"]),
        ("a --count 3 b --rate 1 c", {"--count": 3, "--rate": 1.0}, ["a", "b", "c"]),
        ("--count -3 --rate -1e-3", {"--count": -3, "--rate": -0.001}, []),
        ("--count=3 --count 4", {"--count": 4}, []),
        ("--name=a=b --out=x/y", {"--name": "a=b", "--out": Path("x/y")}, []),
        ("--name none --label NONE", {"--name": "none", "--label": None}, []),
        ("--name=", {"--name": ""}, []),
        ("--range 1 2 a", {"--range": (1, 2)}, ["a"]),
        ("--range None a", {"--range": None}, ["a"]),
        ("--range=none a", {"--range": None}, ["a"]),
        ("--sizes 1 2 3 --kind b", {"--sizes": (1, 2, 3), "--kind": "b"}, []),
        ("--quick a", {"--quick": True}, ["a"]),
        ("--maybe True", {"--maybe": True}, []),
        ("--quick --no-quick", {"--quick": False}, []),
        ("--count 1 -- --count 2", {"--count": 1}, ["--count", "2"]),
        ("- a", {}, ["-", "a"]),
    ],
)
def test_scan(words: str, values: dict[str, Any], rest: list[str]) -> None:
    assert scan(words.split(), OPTIONS) == (values, rest)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--cuont 3", "unknown option --cuont; did you mean --count?"),
        ("-q", "unknown option -q; --help lists the options."),
        ("--no-count", "unknown option --no-count; did you mean --count?"),
        ("--count", "--count needs a value: an integer."),
        ("--count --rate 1", "--count needs a value: an integer."),
        ("--count 1.5", "--count is '1.5'; expected an integer."),
        ("--rate nan", "--rate is 'nan'; expected a finite number."),
        ("--kind c", "--kind is 'c'; expected one of a, b."),
        ("--range 1", "--range is '1'; expected 2 values (an integer, an integer) or None."),
        ("--sizes 1 x", "--sizes is '1 x'; expected values, each an integer."),
        ("--maybe yes", "--maybe is 'yes'; expected True or False or None."),
        ("--quick=1", "--quick takes no value; '1' was given."),
    ],
)
def test_scan_refuses_with_a_sentence(words: str, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        scan(words.split(), OPTIONS)
    assert str(caught.value) == message


def test_an_unknown_option_is_carried_by_its_error() -> None:
    with pytest.raises(UnknownOption) as caught:
        scan(["--cu_ont=3"], OPTIONS)
    assert caught.value.flag == "--cu-ont"


def test_flags_are_written_with_hyphens() -> None:
    assert as_flag("optimizer.learning_rate") == "--optimizer.learning-rate"
    assert as_flag("--optimizer.learning_rate") == "--optimizer.learning-rate"


calls: list[tuple[Any, ...]] = []


def cook(
    dish: str, pots: tuple[Path, ...], /, *, minutes: int, hot: bool = True, salt: float = 0.5
) -> int | None:
    """Cook a dish.

    Slowly.

    Example:
        cook soup pot

    Args:
        dish: What.
        pots: In what.
        minutes: How long.
        hot: Serve it hot.
        salt: How much.

    Returns:
        Its exit code.
    """
    calls.append((dish, pots, minutes, hot, salt))
    return minutes


def show(name: str | None = None, /) -> None:
    """Show it."""
    calls.append((name,))


def test_call() -> None:
    calls.clear()
    assert call(cook, ["soup", "--minutes", "7", "a", "b", "--no-hot"], "cook") == 7
    assert call(show, [], "show") == 0
    assert call(show, ["x"], "show") == 0
    assert calls == [("soup", (Path("a"), Path("b")), 7, False, 0.5), (None,), ("x",)]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "DISH is missing; the command is cook DISH POTS... (cook --help explains it)."),
        ("soup", "POTS is missing; the command is cook DISH POTS... (cook --help explains it)."),
        ("soup a", "--minutes (an integer) is missing; cook --help explains it."),
    ],
)
def test_call_refuses_what_is_missing(words: str, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        call(cook, words.split(), "cook")
    assert str(caught.value) == message


def test_call_refuses_too_many_places() -> None:
    with pytest.raises(ValueError, match=r"^unexpected argument 'b'; the command is show \[NAME\]"):
        call(show, ["a", "b"], "show")


def test_help_is_the_docstring_without_its_sections(capsys: pytest.CaptureFixture[str]) -> None:
    calls.clear()
    assert description(cook) == "Cook a dish.\n\nSlowly.\n\nExample:\n    cook soup pot"
    assert call(cook, ["soup", "--help"], "kitchen cook") == 0
    assert calls == []
    out = capsys.readouterr().out
    assert out.startswith("usage: kitchen cook [-h] ")
    for part in ("DISH", "POTS...", "--minutes INT", "(required)", "How much. (default: 0.5)"):
        assert part in out
    assert Signature.of(show).usage() == "[NAME]"

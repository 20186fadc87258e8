"""What a check has found: an expected value, the found one, and whether they agree."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple


class Finding(NamedTuple):
    """One comparison of a check.

    Attributes:
        name: What was compared.
        expected: As the source has it.
        found: As the recipe, or the code that runs it, has it.
        passed: Whether they agree.
    """

    name: str
    expected: str
    found: str
    passed: bool


def equal(name: str, expected: Any, found: Any) -> Finding:
    """Values that must be the same."""
    return Finding(name, _text(expected), _text(found), expected == found)


def close(name: str, expected: float, found: float, tolerance: float) -> Finding:
    """Numbers that may differ by ``tolerance`` times the expected one."""
    passed = abs(found - expected) <= tolerance * abs(expected)
    return Finding(name, f"{expected:.6g}", f"{found:.6g}", passed)


def within(name: str, expected: float, found: float, allowed: float) -> Finding:
    """Numbers that may differ by ``allowed``."""
    passed = abs(found - expected) <= allowed
    return Finding(name, f"{expected:.6g} within {allowed:.1g}", f"{found:.6g}", passed)


def table(findings: Iterable[Finding]) -> str:
    """Findings as lines; those that failed say what was expected."""
    found: Sequence[Finding] = tuple(findings)
    width = max((len(one.name) for one in found), default=0)
    lines = []
    for one in found:
        verdict = "ok  " if one.passed else "FAIL"
        line = f"{verdict}  {one.name:<{width}}  {one.found}"
        lines.append(line if one.passed else f"{line}; expected {one.expected}")
    return "\n".join(lines)


def _text(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)

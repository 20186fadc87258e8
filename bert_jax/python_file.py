"""Python files as data: experiments and objectives of one's own."""

from __future__ import annotations

import contextlib
import hashlib
import sys
import traceback
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bert_jax.flat import did_you_mean


def run_file(path: str | Path, kind: str = "file") -> dict[str, Any]:
    """Names that a Python file defines; it may import its neighbours, as a script may.

    It is run anew each time, from its text: a cached .pyc may be of an earlier edit.

    Args:
        path: The file.
        kind: What it is called in messages.

    Raises:
        FileNotFoundError: There is none; a similar name beside it is suggested.
        ValueError: It raises an exception (with file, line and message).
    """
    path = Path(path)
    if not path.is_file():
        known = [str(one) for one in sorted(path.parent.glob("*.py"))]
        near = did_you_mean(str(path), known, "give the path of a Python file.")
        raise FileNotFoundError(f"there is no {kind} {path}; {near}")
    name = f"_experiment_{hashlib.sha256(bytes(path.resolve())).hexdigest()[:16]}"
    module = types.ModuleType(name)
    module.__file__ = str(path)
    try:
        with _neighbours(path.resolve().parent):
            sys.modules[name] = module  # dataclasses in the file look their module up
            exec(compile(path.read_bytes(), str(path), "exec"), module.__dict__)
    except (Exception, SystemExit) as error:
        raise ValueError(f"{_where(path, error)}: {_what(error)}") from error
    return vars(module)


@contextlib.contextmanager
def named_errors(path: str | Path) -> Iterator[None]:
    """Names file and line in the exceptions of functions that `run_file` has given.

    Raises:
        ValueError: In the place of any exception.
    """
    try:
        yield
    except Exception as error:
        raise ValueError(f"{_where(Path(path), error)}: {_what(error)}") from error


@contextlib.contextmanager
def _neighbours(directory: Path) -> Iterator[None]:
    """Makes the modules beside a file importable for a while; forgets them, and it, afterwards.

    Another directory's files may have the same names; an edited file is to be read again.
    """
    before = set(sys.modules)
    sys.path.insert(0, str(directory))
    try:
        yield
    finally:
        if str(directory) in sys.path:
            sys.path.remove(str(directory))
        for name in set(sys.modules) - before:
            file = getattr(sys.modules[name], "__file__", None)
            if file and Path(file).resolve().parent == directory and "." not in name:
                del sys.modules[name]


def _where(path: Path, error: BaseException) -> str:
    """File and line of an exception: the innermost line of the experiment's own file."""
    if isinstance(error, SyntaxError):
        return f"{error.filename or path}:{error.lineno or 1}"
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == str(path)]
    return f"{path}:{lines[-1] or 1}" if lines else str(path)


def _what(error: BaseException) -> str:
    """An exception's message; with its kind, where the message alone says little."""
    message = error.msg if isinstance(error, SyntaxError) else str(error)
    return message if type(error) is ValueError else f"{type(error).__name__}: {message}"

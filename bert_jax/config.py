"""Experiments as files, as command-line options, as flat dicts and as ``config.json``."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bert_jax import flat as nested
from bert_jax.arguments import UnknownOption, as_flag, parse, scan
from bert_jax.data.shards import write_whole
from bert_jax.experiment import Experiment
from bert_jax.flat import Flat
from bert_jax.python_file import run_file

CONFIG = "config.json"
ABSENT = "(no such field)"
"""In `diff`: the other experiment has another kind of schedule, say, without this field."""

_ABOUT = ("run.", "versions.")  # entries of config.json that are no fields of the experiment

NO_NUMBERS = (
    "name",
    "logging",
    "checkpoints",
    "evaluation",
    "eval_masking",
    "max_skipped_steps",
    "microbatches",
    "mesh",
    "model.execution",
)
"""Fields that `digest` leaves out: none changes what is learned from the same data.

What is written and when it is saved or evaluated (``name``, ``logging``, ``checkpoints``,
``evaluation``, ``eval_masking``), when a failing run gives up (``max_skipped_steps``), and how the
same sums are computed (``microbatches``, ``mesh``, ``model.execution``: equal but for the rounding
of float32). So a run may move to other machines, or save more often, and stay the same run.
"""


# --- files ---------------------------------------------------------------------------------------


def load_experiment(path: str | Path) -> Experiment:
    """Runs a Python file and returns its ``experiment``.

    The file may import its neighbours, as a script may. It is run anew each time.

    Args:
        path: The file.

    Raises:
        FileNotFoundError: There is none; a similar name beside it is suggested.
        ValueError: It raises an exception (with file, line and message), defines no ``experiment``,
            or one with a field of the wrong type.
    """
    return _experiment_of(path, run_file(path, "experiment file"))


def load_phases(path: str | Path) -> tuple[Experiment, ...]:
    """Runs a Python file and returns its ``phases``, or else its one ``experiment``.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: As for `load_experiment`.
    """
    names = run_file(path, "experiment file")
    found = names.get("phases")
    if found is None:
        return (_experiment_of(path, names),)
    if not isinstance(found, tuple) or not found:
        raise ValueError(
            f"`phases` in {path} is {found!r:.60}; expected a tuple of experiments, one or more."
        )
    return tuple(_checked(path, f"phases[{i}]", phase) for i, phase in enumerate(found))


def _experiment_of(path: str | Path, names: Mapping[str, Any]) -> Experiment:
    found = names.get("experiment")
    if found is None:
        raise ValueError(
            f"{path} defines no `experiment`; end it with experiment = Experiment(...)."
        )
    return _checked(path, "experiment", found)


def _checked(path: str | Path, name: str, found: Any) -> Experiment:
    if not isinstance(found, Experiment):
        raise ValueError(
            f"`{name}` in {path} is of type {type(found).__name__}; expected bert_jax.Experiment."
        )
    try:
        return unflatten(flatten(found))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


# --- options -------------------------------------------------------------------------------------


def override(experiment: Experiment, args: Sequence[str]) -> Experiment:
    """The experiment with fields changed as on a command line.

    ``--optimizer.learning-rate 3e-4 --steps 1000``; ``--schedule cosine`` changes the kind of a
    field that has several, and keeps the fields both kinds have. All options are taken together:
    only the result must be valid, in whatever order they stand.

    Args:
        experiment: What to start from.
        args: Words of a command line.

    Raises:
        ValueError: An option is unknown, its value is of the wrong type, or the result is refused.
    """
    changed, _, words = override_among(experiment, args, {})
    if words:
        raise ValueError(f"unexpected argument {words[0]!r}; options start with --.")
    return changed


def override_among(
    experiment: Experiment, args: Sequence[str], others: Mapping[str, Any]
) -> tuple[Experiment, dict[str, Any], list[str]]:
    """Like `override`, where further options and arguments stand among the words.

    Args:
        experiment: What to start from.
        args: Words of a command line.
        others: Types of the further options by flag.

    Returns:
        The experiment; values of further options; words that belong to no option.
    """
    flat = _switch(flatten(experiment), args)
    names = {as_flag(name): name for name in nested.schema(Experiment, flat)}
    types_ = {as_flag(name): kind for name, kind in nested.schema(Experiment, flat).items()}
    try:
        values, words = scan(args, {**others, **types_})
    except UnknownOption as error:
        raise ValueError(_elsewhere(flat, error.flag) or str(error)) from error
    for flag in values.keys() & names.keys():
        flat[names[flag]] = values[flag]
    for name in nested.schema(Experiment, flat):
        if name not in flat:
            raise ValueError(f"{as_flag(name)} must be given too; it has no default.")
    rest = {flag: values[flag] for flag in values.keys() & others.keys()}
    return unflatten(flat), rest, words


def _switch(flat: Flat, args: Sequence[str]) -> Flat:
    """Changes the kinds of those fields for which an option asks, outer ones first."""
    done: set[str] = set()
    while True:
        asked = [name for name in nested.unions(Experiment, flat) if name not in done]
        if not asked:
            return flat
        for name in asked:
            done.add(name)
            chosen = flat[name]
            for kind in _values_of(as_flag(name), args):
                chosen = parse(as_flag(name), nested.schema(Experiment, flat)[name], [kind])
            if chosen != flat[name]:
                flat = nested.switch(Experiment, flat, name, chosen)
                break


def _values_of(flag: str, args: Sequence[str]) -> list[str]:
    """What stands behind each occurrence of an option that takes one word."""
    found = []
    for position, word in enumerate(args):
        name, equals, inline = word.partition("=")
        if word.startswith("--") and as_flag(name) == flag:
            following = args[position + 1 : position + 2]
            found += [inline] if equals else [one for one in following if one[:2] != "--"]
    return found


def _elsewhere(flat: Flat, flag: str) -> str | None:
    """What to say of an option that another kind of some field has."""
    for name, members in nested.unions(Experiment, flat).items():
        for kind in members:
            other = nested.switch(Experiment, flat, name, kind)
            if flag in map(as_flag, nested.schema(Experiment, other)):
                return (
                    f"{flag} is an option of {as_flag(name)} {kind}, and {name} is {flat[name]}; "
                    f"add {as_flag(name)} {kind}."
                )
    return None


# --- flat forms ----------------------------------------------------------------------------------


def flatten(experiment: Experiment) -> Flat:
    """All fields by dotted name (``optimizer.learning_rate``), in their order.

    A field of several kinds also has an entry of its own: ``{"schedule": "linear", ...}``.

    Raises:
        ValueError: A field holds what its type does not allow.
    """
    return nested.flatten(experiment)


def unflatten(flat: Mapping[str, Any]) -> Experiment:
    """The experiment of a flat dict; the inverse of `flatten`.

    Raises:
        ValueError: An entry is missing, unknown or of the wrong type, or the result is refused.
    """
    return nested.unflatten(Experiment, flat)


def format_flat(experiment: Experiment) -> str:
    """All fields, one a line, aligned."""
    flat = flatten(experiment)
    width = max(map(len, flat))
    return "\n".join(f"{name:<{width}}  {value}" for name, value in flat.items())


def diff(a: Experiment, b: Experiment) -> list[tuple[str, Any, Any]]:
    """Fields that differ, as (name, value in a, value in b); `ABSENT` where one has no such."""
    left, right = flatten(a), flatten(b)
    pairs = [(n, left.get(n, ABSENT), right.get(n, ABSENT)) for n in {**left, **right}]
    return [(name, old, new) for name, old, new in pairs if old != new]


def digest(experiment: Experiment) -> str:
    """SHA-256 of what determines the trained weights: every field but those in `NO_NUMBERS`.

    ``data`` counts by its path; what lies there has a digest of its own, `Store.digest`. Digests
    of different versions of bert_jax differ when fields were added.
    """
    flat = {
        name: value
        for name, value in flatten(experiment).items()
        if not any(name == left_out or name.startswith(f"{left_out}.") for left_out in NO_NUMBERS)
    }
    canonical = json.dumps(flat, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()


# --- config.json ---------------------------------------------------------------------------------


def save_config(
    experiment: Experiment, run_dir: str | Path, extra: Mapping[str, Any] | None = None
) -> Path:
    """Writes ``config.json``: every field, then ``run.*`` and ``versions.*``, sorted; atomically.

    Args:
        experiment: The experiment.
        run_dir: Directory of the run; made if missing.
        extra: Further facts about the run (hashes, say), stored as ``run.NAME``.

    Returns:
        The file's path.
    """
    about = {**_environment(), **{f"run.{name}": value for name, value in (extra or {}).items()}}
    about["run.digest"] = digest(experiment)
    path = Path(run_dir) / CONFIG
    path.parent.mkdir(parents=True, exist_ok=True)
    contents = json.dumps(
        {**flatten(experiment), **about}, indent=1, sort_keys=True, allow_nan=False
    )
    write_whole(path, contents + "\n")
    return path


def _environment() -> dict[str, Any]:
    """Versions of what computes, and the devices."""
    import platform

    import flax
    import jax
    import optax

    import bert_jax

    devices = jax.devices()
    return {
        "versions.bert_jax": bert_jax.__version__,
        "versions.flax": flax.__version__,
        "versions.jax": jax.__version__,
        "versions.optax": optax.__version__,
        "versions.python": platform.python_version(),
        "run.device": devices[0].device_kind,
        "run.devices": len(devices),
        "run.platform": devices[0].platform,
        "run.processes": jax.process_count(),
    }


def load_config(run_dir: str | Path) -> Experiment:
    """The experiment of a run directory.

    Raises:
        FileNotFoundError: It is no run directory.
        ValueError: Its ``config.json`` is damaged, or of a version with other fields.
    """
    path = Path(run_dir) / CONFIG
    if not path.is_file():
        phases = sorted(str(found.parent) for found in Path(run_dir).glob(f"phase-*/{CONFIG}"))
        if phases:
            raise FileNotFoundError(
                f"{run_dir} holds phases; name one of them, such as {phases[-1]}."
            )
        raise FileNotFoundError(
            f"{run_dir} is no run directory: it holds no {CONFIG}; give the directory that "
            f"`bert-jax train` wrote."
        )
    try:
        flat = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(flat, dict):
            raise ValueError("it is not a JSON object.")
        return unflatten({n: v for n, v in flat.items() if not n.startswith(_ABOUT)})
    except ValueError as error:
        raise ValueError(f"{path} cannot be read: {error}") from error

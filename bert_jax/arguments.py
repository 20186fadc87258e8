"""Words of a command line: options by type, one sentence for a mistake, help by tyro.

tyro turns words into values and signatures into help. What a user may get wrong is found here
first, because tyro answers with a page where one sentence names the value, the limit and the fix.
"""

import contextlib
import dataclasses
import inspect
import re
import typing
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, get_args, get_origin

from bert_jax.flat import (
    alternatives,
    check,
    describe,
    did_you_mean,
    flatten,
    schema,
    unions,
)

HELP = ("--help", "-h")


class UnknownOption(ValueError):
    """An option that a command does not have.

    Attributes:
        flag: The option.
    """

    def __init__(self, flag: str, options: Iterable[str]):
        """The sentence names the nearest of the options."""
        near = did_you_mean(flag, options, "--help lists the options.")
        super().__init__(f"unknown option {flag}; {near}")
        self.flag = flag


def wants_help(args: Sequence[str]) -> bool:
    """Whether help is asked for."""
    return any(arg in HELP for arg in args)


# --- words to values -----------------------------------------------------------------------------


_NEGATION = re.compile(r"(^--|\.)no-(?=[^.]*$)")


def scan(args: Sequence[str], options: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Reads ``--option value`` and ``--option=value``; of an option given twice the last holds.

    Args:
        args: Words of a command line.
        options: Types by option (``--top-k``); `bool` for one without a value, which also has a
            ``no-`` form (``--no-cache``, ``--model.norm.no-bias``). ``_`` for ``-`` is understood.

    Returns:
        Values of the options that were given, and the words that belong to none.

    Raises:
        ValueError: An option is unknown (the nearest is named), or has no or a bad value.
    """
    values: dict[str, Any] = {}
    words: list[str] = []
    rest = deque(args)
    while rest:
        word = rest.popleft()
        if word == "--":
            return values, [*words, *rest]
        if not word.startswith("-") or word == "-":
            words.append(word)
            continue
        flag, equals, inline = word.partition("=")
        flag = as_flag(flag) if flag.startswith("--") else flag
        positive = _NEGATION.sub(r"\1", flag)
        if options.get(positive) is bool:
            if equals:
                raise ValueError(f"{flag} takes no value; {inline!r} was given.")
            values[positive] = flag == positive
        elif flag in options:
            values[flag] = parse(flag, options[flag], _take(options[flag], rest, inline, equals))
        else:
            raise UnknownOption(flag, options)
    return values, words


def as_flag(name: str) -> str:
    """``--optimizer.learning-rate`` for ``optimizer.learning_rate``."""
    return "--" + name.lstrip("-").replace("_", "-")


def _take(annotation: Any, rest: deque[str], inline: str, equals: str) -> list[str]:
    """Takes the words of a value: as many as its type has, at most up to the next option."""
    count = _specification(annotation).nargs
    most = len(rest) + 1 if count == "*" else max(count) if isinstance(count, tuple) else count
    taken = [inline] if equals else []
    while len(taken) < most and rest and not rest[0].startswith("--"):
        if _is_none(annotation, taken):
            break
        taken.append(rest.popleft())
    return taken


def _is_none(annotation: Any, words: Sequence[str]) -> bool:
    optional = type(None) in alternatives(annotation)
    return optional and [word.lower() for word in words] == ["none"]


def parse(flag: str, annotation: Any, words: Sequence[str]) -> Any:
    """The value that words stand for; ``none`` in any case where a type allows None.

    Raises:
        ValueError: Naming the option, the words and the type.
    """
    if not words:
        raise ValueError(f"{flag} needs a value: {describe(annotation)}.")
    if _is_none(annotation, words):
        return None
    specification = _specification(annotation)
    try:
        return check(flag, annotation, specification.instance_from_str(list(words)))
    except (ValueError, AssertionError) as error:
        given = " ".join(words)
        raise ValueError(f"{flag} is {given!r}; expected {describe(annotation)}.") from error


def _specification(annotation: Any) -> Any:
    """The rule of tyro for a type: how many words a value has, and how they are read."""
    from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

    found = ConstructorRegistry.get_primitive_spec(PrimitiveTypeInfo.make(annotation, set()))
    if not isinstance(found, PrimitiveConstructorSpec):
        raise TypeError(f"{annotation} cannot be written on a command line")
    return found


# --- functions as commands -----------------------------------------------------------------------


@dataclass(frozen=True)
class Signature:
    """What a command takes.

    Attributes:
        places: Its positional arguments, in order; one of a tuple type takes all words that are
            left, at least one.
        options: Types by option.
        defaults: Of places and options (by parameter name); the others must be given.
        names: Parameter names by option.
    """

    places: dict[str, Any]
    options: dict[str, Any]
    defaults: dict[str, Any]
    names: dict[str, str]

    @classmethod
    def of(cls, function: Callable[..., Any]) -> "Signature":
        """Reads a function: positional-only parameters are places, keyword-only ones options."""
        hints = typing.get_type_hints(function)
        parameters = inspect.signature(function).parameters
        kinds = {name: parameter.kind for name, parameter in parameters.items()}
        keywords = [name for name, kind in kinds.items() if kind is inspect.Parameter.KEYWORD_ONLY]
        return cls(
            places={name: hints[name] for name in parameters if name not in keywords},
            options={as_flag(name): hints[name] for name in keywords},
            defaults={
                name: parameter.default
                for name, parameter in parameters.items()
                if parameter.default is not inspect.Parameter.empty
            },
            names={as_flag(name): name for name in keywords},
        )

    def usage(self) -> str:
        """The places, as in ``RUN TEXT...``."""
        return " ".join(map(self.metavar, self.places))

    def metavar(self, place: str) -> str:
        """A place's name in help: ``RUN``, ``TEXT...``, ``[NAME]``."""
        name = place.upper() + ("..." if get_origin(self.places[place]) is tuple else "")
        return f"[{name}]" if place in self.defaults else name


def call(function: Callable[..., int | None], args: Sequence[str], prog: str) -> int:
    """Calls a function with the words of a command line, or prints its help.

    Args:
        function: Its positional-only parameters are positional arguments, the keyword-only ones
            options; its docstring is the help.
        args: The words.
        prog: The command they stand behind, for messages.

    Returns:
        The exit code.

    Raises:
        ValueError: For a mistake in the words, and whatever the function raises.
    """
    signature = Signature.of(function)
    if wants_help(args):
        print_help(function, signature, prog)
        return 0
    given, words = scan(args, signature.options)
    placed = place(signature, words, prog)
    for flag, name in signature.names.items():
        if flag not in given and name not in signature.defaults:
            kind = describe(signature.options[flag])
            raise ValueError(f"{flag} ({kind}) is missing; {prog} --help explains it.")
    options = {signature.names[flag]: value for flag, value in given.items()}
    return function(*placed, **options) or 0


def place(signature: Signature, words: Sequence[str], prog: str) -> list[Any]:
    """Values of the positional arguments."""
    rest, placed = list(words), []
    for name, annotation in signature.places.items():
        if get_origin(annotation) is tuple and rest:
            one = get_args(annotation)[0]
            placed.append(tuple(parse(name.upper(), one, [word]) for word in rest))
            rest = []
        elif rest:
            placed.append(parse(name.upper(), annotation, [rest.pop(0)]))
        elif name not in signature.defaults:
            raise ValueError(
                f"{name.upper()} is missing; the command is {prog} {signature.usage()} "
                f"({prog} --help explains it)."
            )
    if rest:
        raise ValueError(
            f"unexpected argument {rest[0]!r}; the command is {prog} {signature.usage()}."
        )
    return placed


# --- help ----------------------------------------------------------------------------------------


def description(function: Callable[..., Any]) -> str:
    """A docstring without its sections of arguments, results and errors."""
    text = inspect.getdoc(function) or ""
    for section in ("Args", "Returns", "Raises"):
        text = text.partition(f"\n{section}:\n")[0]
    return text.strip()


def print_help(
    function: Callable[..., Any], signature: Signature, prog: str, record: Any = None
) -> None:
    """Prints what a command does, an example, and every option with its default.

    Args:
        function: Its docstring is the help.
        signature: Of the function.
        prog: The command.
        record: A record whose fields are options too, its values their defaults.
    """
    import tyro

    conf = tyro.conf
    fields: list[tuple[str, Any, Any]] = []
    for name, annotation in signature.places.items():
        hint = "(one or more)" if get_origin(annotation) is tuple else None
        hint = "(optional)" if name in signature.defaults else hint
        about = conf.arg(metavar=signature.metavar(name), help_behavior_hint=hint)
        fields.append((name, Annotated[annotation, conf.Positional, about], name))
    for flag, annotation in signature.options.items():
        name = signature.names[flag]
        fields.append((name, annotation, name))
    made = [
        (name, kind, dataclasses.field(kw_only=True, default=signature.defaults[source]))
        if source in signature.defaults
        else (name, kind, dataclasses.field(kw_only=True))
        for name, kind, source in fields
    ]
    if record is not None:
        made += _record_fields(record)
    page = dataclasses.make_dataclass("Page", made, namespace={"__doc__": function.__doc__})
    with contextlib.suppress(SystemExit):
        tyro.cli(
            page,
            prog=prog,
            description=description(function),
            args=["--help"],
            config=(conf.AvoidSubcommands, conf.FlagCreatePairsOff),
        )


def _record_fields(record: Any) -> list[tuple[str, Any, Any]]:
    """Options that choose the members of unions, then the record's own fields."""
    import tyro

    conf, cls, flat = tyro.conf, type(record), flatten(record)
    made = []
    for name in unions(cls, flat):
        about = conf.arg(name=as_flag(name)[2:], help=f"Which kind of {name}; its fields follow.")
        kind = Annotated[schema(cls, flat)[name], about]
        made.append((name.replace(".", "__"), kind, dataclasses.field(default=flat[name])))
    own = Annotated[cls, conf.arg(name="")]
    return [*made, ("record", own, dataclasses.field(default=record))]

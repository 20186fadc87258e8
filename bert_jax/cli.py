"""The command `bert-jax`: verbs to functions, and what a user is told when something is wrong.

A mistake (`ValueError`, `OSError`) is one sentence on standard error and exit code 2; anything else
is a fault of the program and keeps its traceback, as does everything with ``BERT_JAX_DEBUG=1``.
Nothing heavy is imported before the verb is known.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NamedTuple

from bert_jax import __version__
from bert_jax.arguments import HELP, call
from bert_jax.flat import did_you_mean

PROG = "bert-jax"


class Verb(NamedTuple):
    """Where a verb's function is, and what it does in a line."""

    module: str
    function: str
    line: str


VERBS = {
    "tokenizer": Verb("bert_jax.commands", "tokenizer", "train a vocabulary on text, measure it"),
    "prepare": Verb("bert_jax.commands", "prepare", "tokenise a corpus into a store"),
    "train": Verb("bert_jax.train.command", "train_command", "pretrain an encoder, or resume"),
    "evaluate": Verb("bert_jax.commands", "evaluate", "score a run on held-out text"),
    "fill-mask": Verb("bert_jax.commands", "fill_mask", "let a run predict masked words"),
    "import": Verb("bert_jax.commands", "import_model", "check a Hugging Face model directory"),
    "export": Verb("bert_jax.commands", "export_model", "write a run as a Hugging Face directory"),
    "compare": Verb("bert_jax.commands", "compare", "train experiments at an equal budget"),
    "report": Verb("bert_jax.commands", "report", "write a run's report.html again"),
    "recipes": Verb(
        "bert_jax.commands", "recipes", "list, show, compare and check the published recipes"
    ),
}

USAGE = f"""\
usage: {PROG} VERB [ARGUMENTS] [--option value ...]

Pretrain and use encoder language models in JAX.

{"".join(f"  {name:<11} {verb.line}{chr(10)}" for name, verb in VERBS.items())}
{PROG} VERB --help explains a verb, with an example and every option.
{PROG} --version prints the version.

An example, from text to a filled mask:
  {PROG} tokenizer corpus.jsonl --out tokenizer --vocab-size 8192
  {PROG} prepare corpus.jsonl --out store --tokenizer tokenizer
  {PROG} train experiments/quickstart.py runs/first --data store --model.vocab-size 8192
  {PROG} fill-mask runs/first "The [MASK] of the United States"
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command line.

    Args:
        argv: Its words after the program's name; None takes those of this process.

    Returns:
        Exit code: 0; 2 after a mistake of the user; 130 after an interruption by the keyboard, 141
        when the reader of the output has gone; or what the verb says.
    """
    try:
        code = _run(list(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return _say("interrupted", 130)
    except BrokenPipeError:
        # What is still buffered must not be written when the interpreter ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except (ValueError, OSError) as error:
        if os.environ.get("BERT_JAX_DEBUG") == "1":
            raise
        return _say(_sentence(error), 2)


def _run(args: list[str]) -> int:
    if not args:
        print(USAGE, end="", file=sys.stderr)
        return 2
    name, *rest = args
    if name in HELP:
        print(USAGE, end="")
        return 0
    if name == "--version":
        print(f"{PROG} {__version__}")
        return 0
    if name not in VERBS:
        kind = "option" if name.startswith("-") else "command"
        known = ["--help", "--version"] if kind == "option" else VERBS
        near = did_you_mean(name, known, f"{PROG} --help lists what there is.")
        raise ValueError(f"unknown {kind} {name}; {near}")
    verb = VERBS[name]
    function = getattr(import_module(verb.module), verb.function)
    if name == "train":  # its options are the fields of the experiment it names
        return function(rest, f"{PROG} {name}")
    return call(function, rest, f"{PROG} {name}")


def _sentence(error: Exception) -> str:
    """An exception's message on one line."""
    message = str(error)
    if isinstance(error, OSError) and error.filename is not None:
        message = f"{error.filename}: {error.strerror}."
    return " ".join(message.split()) or type(error).__name__


def _say(sentence: str, code: int) -> int:
    print(f"{PROG}: {sentence}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())

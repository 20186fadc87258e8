"""Benchmarks: ``python tools/bench.py NAME``, one module of ``tools/benchmarks`` each.

A benchmark module has ``add_arguments(parser)`` and ``run(arguments)``, and prints its results
with what is needed to read them: versions, sizes, and whether the figure is a median.
"""

import argparse
import importlib
import sys
from pathlib import Path

BENCHMARKS = {
    "data": "rows and batches from a warm store, in tokens a second on one core",
    "step": "the train step against transformers + torch (extra `reference`), interleaved",
    "attention_forms": "forms of disentangled and local attention, here or by the TPU compiler",
}


def main(arguments: list[str] | None = None) -> int:
    """Runs the benchmark that the command line names.

    Args:
        arguments: the command line after the program's name; that of the process if None.

    Returns:
        The exit status: 0, or 2 after a message when the input was wrong.
    """
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    parser = argparse.ArgumentParser(description="Measures bert_jax.")
    commands = parser.add_subparsers(dest="name", required=True)
    for name, purpose in BENCHMARKS.items():
        module = importlib.import_module(f"benchmarks.{name}")
        module.add_arguments(commands.add_parser(name, help=purpose, description=module.__doc__))
    options = parser.parse_args(arguments)
    try:
        importlib.import_module(f"benchmarks.{options.name}").run(options)
    except (ValueError, OSError) as error:
        print(f"bench {options.name}: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())

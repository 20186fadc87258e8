"""The package as it is imported: what `import bert_jax` costs, offers and refuses."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import bert_jax


def test_import_is_quick_and_loads_nothing_but_the_standard_library() -> None:
    program = (
        "import sys, time\n"
        "before, start = set(sys.modules), time.process_time()\n"
        "import bert_jax\n"
        "seconds = time.process_time() - start\n"
        "print(seconds, *sorted({m.partition('.')[0] for m in set(sys.modules) - before}))\n"
    )
    run = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", program], capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    seconds, *loaded = run.stdout.split()
    assert "bert_jax" in loaded
    assert set(loaded) - set(sys.stdlib_module_names) == {"bert_jax"}
    assert float(seconds) < 1, f"{seconds} s of CPU time; where they went:\n{run.stderr}"


@pytest.mark.parametrize("name", bert_jax.__all__)
def test_every_public_name_resolves_to_a_documented_callable(name: str) -> None:
    value = getattr(bert_jax, name)
    assert callable(value)
    assert value.__doc__


def test_the_lists_of_names_agree() -> None:
    """`__all__`, the table of homes and the imports for type checkers name the same things."""
    assert bert_jax.__file__
    tree = ast.parse(Path(bert_jax.__file__).read_text())
    (checked,) = [
        node
        for node in tree.body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    homes = {
        alias.name: node.module
        for node in checked.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert homes == bert_jax._HOMES
    assert sorted(homes) == sorted(bert_jax.__all__)


@pytest.mark.parametrize("verb", ["train", "evaluate"])
def test_a_package_named_like_its_function_is_called_as_the_function(
    verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = importlib.import_module(bert_jax._HOMES[verb])
    package = importlib.import_module(f"bert_jax.{verb}")
    monkeypatch.setattr(home, verb, lambda *args, **kwargs: (args, kwargs))
    for callee in (package, getattr(bert_jax, verb)):
        assert callee(1, run_dir="x") == ((1,), {"run_dir": "x"})


def test_unknown_names_are_refused() -> None:
    with pytest.raises(AttributeError, match="module 'bert_jax' has no attribute 'no_such_name'"):
        bert_jax.no_such_name  # noqa: B018
    with pytest.raises(ImportError, match="no_such_name"):
        exec("from bert_jax import no_such_name")


def test_dir_lists_the_public_names() -> None:
    assert set(bert_jax.__all__) <= set(dir(bert_jax))

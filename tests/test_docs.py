"""Code in the guides runs as it stands there."""

import ast
import re
import sys
import types
from pathlib import Path

import jax
import numpy as np
import pytest

from bert_jax import testing
from bert_jax.data.tokenizer import SpecialTokens
from bert_jax.experiment import Carry
from bert_jax.models.config import EncoderConfig
from bert_jax.models.flops import forward_flops
from bert_jax.models.heads import ReplacedTokenDetector
from bert_jax.objectives.base import Setting
from bert_jax.objectives.custom import CustomObjective
from bert_jax.objectives.masking import Masking
from bert_jax.testing import check_objective
from bert_jax.train.phases import chained, phase_dir

DOCS = Path(__file__).parents[1] / "docs"


def _blocks(page: str) -> list[str]:
    """Python code of a page."""
    return re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)


def _code(page: str, replaced: tuple[str, str] = ("", "")) -> dict:
    """Names defined by the page's first Python block."""
    return _run(_blocks(page)[0].replace(*replaced), {"__name__": "guide"}, page)


def _run(code: str, names: dict, page: str) -> dict:
    exec(compile(code, page, "exec", dont_inherit=True), names)
    return names


def test_the_objective_of_the_guide_passes_the_kit(monkeypatch):
    """The guide's second block checks the objective of its first."""
    page = "how-to/add-an-objective.md"
    module = types.ModuleType("guide")
    monkeypatch.setitem(sys.modules, "guide", module)  # dataclasses look their module up
    first, second = _blocks(page)
    names = _run(first, vars(module), page)
    checked = []

    def recorded(*args, **kwargs):
        checked.append(args)
        check_objective(*args, **kwargs)

    monkeypatch.setattr(testing, "check_objective", recorded)
    # The devices of this process are there already.
    _run(second.replace('jax.config.update("jax_num_cpu_devices", 8)', ""), names, page)
    (arguments,) = checked
    assert arguments[0].objective.parts is names["objective"]


def test_an_objective_is_twenty_lines():
    """From the first function on, as the guide says; lines that are not empty."""
    first = _blocks("how-to/add-an-objective.md")[0]
    lines = [line for line in first[first.index("def corrupt") :].splitlines() if line.strip()]
    assert len(lines) <= 20


def test_the_objective_of_the_guide_is_the_experiment_s():
    """Statement by statement, but for imports and docstrings."""
    text = (DOCS.parent / "experiments" / "spot_the_intruder.py").read_text()

    def statements(code: str) -> list[str]:
        tree = ast.parse(code)
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(
                node
            ):
                node.body = node.body[1:]
        return [ast.unparse(node) for node in tree.body if not _is_import(node)]

    ours, theirs = statements(_blocks("how-to/add-an-objective.md")[0]), statements(text)
    assert ours == theirs[: len(ours)]
    (last,) = theirs[len(ours) :]
    assert last.startswith("experiment = replace(quickstart, name='intruder', ")
    assert "objective=CustomObjective(__file__)" in last


def _is_import(node: ast.stmt) -> bool:
    return isinstance(node, ast.Import | ast.ImportFrom)


def test_an_objective_of_one_s_own_is_found_by_its_file(tmp_path):
    file = str(DOCS.parent / "experiments" / "spot_the_intruder.py")
    model = EncoderConfig(60, hidden_size=16, num_layers=1, num_heads=2, intermediate_size=32)
    special = SpecialTokens(pad=0, unk=1, cls=2, sep=3, mask=4)
    task = CustomObjective(file).task(Setting(model, Masking(), special, 60))
    assert isinstance(task.model, ReplacedTokenDetector)
    head = 8 * 2 * 16 * (16 + 1)  # the detector's two maps at every position
    assert task.flops(2, 8) == 3 * 2 * (forward_flops(model, 8) + head)
    (tmp_path / "none.py").write_text("goal = 3")
    with pytest.raises(ValueError, match=r"none\.py defines no `objective` with a method task"):
        CustomObjective(str(tmp_path / "none.py")).task(Setting(model, Masking(), special, 60))
    with pytest.raises(FileNotFoundError, match="there is no objective file"):
        CustomObjective(str(tmp_path / "nothing.py")).task(Setting(model, Masking(), special, 60))


def test_every_test_that_the_guides_name_exists():
    """`tests/file.py::test_name` in any page: the file is there and defines the test."""
    root = DOCS.parent
    named = {
        (page.name, path, test)
        for page in DOCS.rglob("*.md")
        for path, test in re.findall(r"`(t[\w/]+\.py)(?:::(\w+))?`", page.read_text())
    }
    assert len(named) >= 12
    for page, path, test in named:
        assert (root / path).is_file(), (page, path)
        assert not test or f"def {test}(" in (root / path).read_text(), (page, path, test)


def test_the_table_of_families_has_every_preset_s_family():
    from bert_jax.recipes import list_presets

    table = (DOCS / "reference" / "families.md").read_text()
    for name in list_presets():
        family = re.sub(r"-(v1|v2)$", "", name) if name.startswith("albert") else name
        family = family.removesuffix("-generator")
        assert f"`{family}" in table or f"`{family.rpartition('-')[0]}-" in table, name


def test_the_fine_tuning_step_of_the_guide_learns():
    model = DOCS.parent / "tests" / "data" / "parity" / "bert_mlm"
    names = _code("how-to/use-a-model.md", ("models/bert-base-uncased", str(model)))
    ids = np.random.default_rng(0).integers(5, 97, (6, 9)).astype(np.int32)
    labels, mask = np.asarray([0, 1, 2, 0, 1, 2]), np.ones_like(ids)
    state, params, losses = names["state"], names["params"], []
    for i in range(40):
        key = jax.random.key(i)
        params, state, loss = names["step"](params, state, ids, mask, labels, key)
        losses.append(float(loss))
    # At 2e-5 a step moves little; forty of them go down on six texts all the same.
    assert np.mean(losses[-10:]) < np.mean(losses[:10])


def test_the_phases_of_the_guide_chain():
    """Each block goes on from the names of the first; what it says is what `chained` makes."""
    page = "how-to/train-in-phases.md"
    phased, causal_first, branched = _blocks(page)
    names = _run(phased, {"__name__": "guide"}, page)
    short, long = chained(names["phases"], "runs/mine")
    assert (short.init_from, long.init_from) == (None, str(phase_dir("runs/mine", 1)))
    assert (short.packing.seq_length, long.packing.seq_length) == (128, 512)
    assert (short.steps, long.steps, short.schedule_end, long.schedule_end) == (9e4, 1e5, 1e5, 1e5)
    # One line of learning rates, from the first step to 0 at the last.
    assert long.factor(95_000, 0.0) < short.factor(90_000, 0.0) and long.factor(100_000, 0.0) == 0

    first, second = chained(_run(causal_first, dict(names), page)["phases"], "runs/mine")
    assert first.model.attention.direction == "left" and second.model.attention.direction == "both"
    assert second.seed != first.seed and second.carry == Carry()

    decay = _run(branched, dict(names), page)["experiment"]
    assert decay.factor(40_000, 0.0) == 1 and 0 < decay.factor(42_500, 0.0) < 0.5
    assert decay.factor(45_000, 0.0) == 0

"""A few exports loaded by transformers itself; `tools/export_roundtrip.py` does so for all."""

import importlib.util
import sys
import warnings
from pathlib import Path

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # other people's imports
    pytest.importorskip("torch")
    pytest.importorskip("transformers")

TOOL = Path(__file__).parents[2] / "tools" / "export_roundtrip.py"
_spec = importlib.util.spec_from_file_location("export_roundtrip", TOOL)
tool = importlib.util.module_from_spec(_spec)
sys.modules["export_roundtrip"] = tool  # where dataclasses look for it
_spec.loader.exec_module(tool)
CASES = {case.name: case for case in tool.cases()}


@pytest.mark.parametrize(
    "name",
    [
        "bert, masked LM",
        "bert, encoder",
        "roberta, classifier",
        "albert, pre-training",
        "electra, detector",
        "deberta-v2, masked LM",
        "modernbert, tagger",
    ],
)
def test_transformers_loads_it_without_a_word_and_agrees(name, tmp_path):
    result = tool.check(CASES[name], tmp_path / "out")
    assert result.problems == ()
    assert result.error < tool.BOUND

"""Copies of the parity fixtures, to spoil."""

import shutil
from pathlib import Path

import pytest
from safetensors.numpy import load_file, save_file

PARITY = Path(__file__).parents[1] / "data" / "parity"


@pytest.fixture
def copy(tmp_path):
    """``copy(case)``: (directory, weights) of a copy of a fixture, to spoil."""

    def make(case):
        directory = tmp_path / case
        shutil.copytree(PARITY / case, directory)
        return directory, load_file(directory / "model.safetensors")

    return make


@pytest.fixture
def checkpoint(copy):
    """bert_mlm: (directory, weights, write)."""
    directory, weights = copy("bert_mlm")
    return directory, weights, lambda weights: save_file(weights, directory / "model.safetensors")

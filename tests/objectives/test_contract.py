"""What of an objective of one's own is refused before anything is trained, and how it is said."""

from pathlib import Path

import jax
import pytest

from bert_jax.data.tokenizer import SpecialTokens
from bert_jax.models.config import EncoderConfig
from bert_jax.objectives.base import Setting
from bert_jax.objectives.custom import CustomObjective
from bert_jax.objectives.masking import Masking
from bert_jax.parallel.mesh import MeshShape, make_mesh
from bert_jax.testing import check_objective, example_rows

SPECIAL = SpecialTokens(pad=0, unk=1, cls=2, sep=3, mask=4)
MODEL = EncoderConfig(60, hidden_size=16, num_layers=1, num_heads=2, intermediate_size=32)
SETTING = Setting(MODEL, Masking(), SPECIAL, 60)
GUIDE = Path(__file__).parents[2] / "experiments" / "spot_the_intruder.py"

CORRUPTED = 'return {"input_ids": new, "intruder": new != ids}'
LOSS = '"loss": row_sums(nll, real)'
MADE = "RowObjective(ReplacedTokenDetector, corrupt, loss)"


@pytest.fixture
def written(tmp_path):
    """The guide's objective with one change, as a file."""

    def write(old="", new=""):
        text = GUIDE.read_text().partition("experiment = ")[0]
        text = text.replace("from quickstart import experiment as quickstart\n", "")
        assert old in text
        file = tmp_path / "mine.py"
        file.write_text(text.replace(old, new))
        return CustomObjective(str(file))

    return write


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (CORRUPTED, "return None", "corrupt gives None; it gives a dictionary of arrays"),
        (CORRUPTED, "return new", "corrupt gives no dictionary; it gives a dictionary"),
        ('{"input_ids": new', '{"input_ids": new[:5]', r"'input_ids' as an array .*\(2, 5\)"),
        ('{"input_ids": new', '{"input_ids": 1.0 * new', "'input_ids' as an array of float32"),
        ("new != ids}", "(new != ids)[:5]}", r"mine\.py:\d+: .*[Ii]ncompatible shapes"),
        (
            LOSS,
            '"loss": jnp.mean(nll)',
            r"'loss' as an array of float32 and shape \(\); it gives a",
        ),
        (
            LOSS,
            '"loss": (nll.sum(), real.sum())',
            r"both have one number a row, \(2,\), as row_sums",
        ),
        (LOSS, '"loss": (nll, real)', r"a sum of shape \(2, 16\) and a weight of shape \(2, 16\)"),
        (
            LOSS,
            '"other": row_sums(nll, real)',
            "gives 'accuracy', .* stage 'custom' minimises 'loss'",
        ),
        (
            "    return {\n",
            "    return 3\n    {\n",
            r"the loss gives an array .*; it gives \{name: \(",
        ),
        ('output["logits"]', 'output["logit"]', r"mine\.py:\d+: KeyError: 'logit'"),
        ("corrupt(key, row, setting)", "corrupt(key, row)", "takes 2 positional arguments but 3"),
        (MADE, MADE.replace("ReplacedTokenDetector", "lambda c: c"), "gives a EncoderConfig; it"),
        (MADE, "RowObjective", "defines no `objective` with a method task"),
    ],
)
def test_a_mistake_is_one_sentence_with_the_file(old, new, message, written):
    with pytest.raises(ValueError, match=message) as caught:
        written(old, new).task(SETTING)
    assert "mine.py" in str(caught.value) and "\n" not in str(caught.value)


def test_a_sound_objective_is_made_on_any_mesh(written):
    objective = written()
    assert objective.task(SETTING).model.config == MODEL
    with jax.set_mesh(make_mesh(MeshShape(2, 2, 2))):
        assert objective.task(SETTING).model.config == MODEL


def test_the_kit_says_it_in_a_sentence_too(written):
    task = written().task(SETTING)
    broken = type(task)(**{**vars(task), "objective": _Means(task.objective)})
    with pytest.raises(AssertionError, match="it gives a pair \\(sum, weight\\)"):
        check_objective(broken, example_rows(SPECIAL, 60), special=SPECIAL)


class _Means:
    """An objective whose loss gives means."""

    def __init__(self, sound):
        self.corrupt = sound.corrupt
        (stage,) = sound.stages

        def means(*arguments):
            return {n: s.sum() / w.sum() for n, (s, w) in stage.loss(*arguments).items()}

        self.stages = (type(stage)("means", means),)

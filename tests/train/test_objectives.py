"""Every objective through the loop: trained, resumed, opened, evaluated, started from another."""

import dataclasses
from pathlib import Path

import jax
import numpy as np
import pytest

from bert_jax.data.pairs import Pairs
from bert_jax.evaluate.fill_mask import fill_mask
from bert_jax.evaluate.run import evaluate, load_run, open_model
from bert_jax.models.config import GlobalAttention
from bert_jax.models.heads import MaskedLM, PreTraining, ReplacedTokenDetector
from bert_jax.models.paths import by_path
from bert_jax.objectives.causal_lm import CausalLmObjective
from bert_jax.objectives.custom import CustomObjective
from bert_jax.objectives.distillation import DistillationObjective
from bert_jax.objectives.masking import Masking
from bert_jax.objectives.replaced_tokens import ReplacedTokensObjective
from bert_jax.objectives.sentence_pairs import SentencePairsObjective
from bert_jax.train.log import read_metrics
from bert_jax.train.loop import train

pytestmark = pytest.mark.usefixtures("one_device")
INTRUDER = Path(__file__).parents[2] / "experiments" / "spot_the_intruder.py"
DISENTANGLED = ReplacedTokensObjective(
    generator_width=1.0, generator_depth=0.5, generator_head_size=8, sharing="disentangled"
)
TIED = ReplacedTokensObjective(generator_width=0.5, generator_head_size=8)


@pytest.fixture(scope="module")
def short(experiment):
    return dataclasses.replace(experiment, steps=4)


@pytest.fixture(scope="module")
def masked_run(short, tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("runs") / "masked"
    with pytest.MonkeyPatch.context() as patch:
        one = jax.devices()[:1]
        patch.setattr(jax, "devices", lambda *_: one)
        train(short, run_dir)
    return run_dir


def notes(run_dir):
    return " ".join(r["text"] for r in read_metrics(run_dir) if r["kind"] == "note")


def opened(experiment, run_dir):
    """The trained run, opened; its last logged scores are those of `evaluate`."""
    result = train(experiment, run_dir)
    run = load_run(run_dir)
    scores = evaluate(run)
    logged = [r for r in read_metrics(run_dir) if r["kind"] == "evaluation"][-1]
    for name, score in scores.values.items():
        # One program is compiled with the unigram floor's arrays as outputs, one without.
        assert logged[name] == pytest.approx(score.mean, rel=1e-5, abs=1e-6), name
    assert result.step == experiment.steps == run.step
    return run, scores


@pytest.mark.slow
def test_sentence_pairs(short, tmp_path):
    pairs = dataclasses.replace(
        short,
        objective=SentencePairsObjective(),
        packing=Pairs(seq_length=32, copies=2),
        model=dataclasses.replace(short.model, type_vocab_size=2),
    )
    run, scores = opened(pairs, tmp_path / "run")
    assert type(run.model) is PreTraining
    # Untrained: a coin. One document of a fifth of the corpus: few rows, so a wide bound.
    assert scores.values["pair_loss"].mean == pytest.approx(np.log(2), rel=0.1)
    assert scores.values["pair_loss"].weight < scores.targets


def test_pairs_are_needed(short, tmp_path):
    with pytest.raises(ValueError, match="objective sentence-pairs needs rows of pairs"):
        train(dataclasses.replace(short, objective=SentencePairsObjective()), tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize("objective", [TIED, DISENTANGLED], ids=["tied", "disentangled"])
def test_replaced_tokens_resume_bit_for_bit(objective, short, tmp_path):
    """Two steps, then two more by the same command: the same as four, moments included."""
    rtd = dataclasses.replace(short, objective=objective)
    run, scores = opened(rtd, tmp_path / "whole")
    assert type(run.model) is ReplacedTokenDetector
    assert 0 < scores.values["replaced"].mean < 0.2
    from bert_jax.train import log

    write = log.RunLog.log

    def stopped(self, step, values, **more):
        write(self, step, values, **more)
        if step == 2:
            raise KeyboardInterrupt

    often = dataclasses.replace(rtd, checkpoints=dataclasses.replace(rtd.checkpoints, every=1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log.RunLog, "log", stopped)
        with pytest.raises(KeyboardInterrupt):
            train(often, tmp_path / "parts")
    train(often, tmp_path / "parts")
    jax.tree.map(np.testing.assert_array_equal, load_run(tmp_path / "parts").whole, run.whole)
    with pytest.raises(ValueError, match="ReplacedTokenDetector, which predicts no words"):
        open_model(tmp_path / "whole")


@pytest.mark.slow
def test_a_run_starts_from_a_run_of_another_objective(short, masked_run, tmp_path):
    """Encoder kept, heads new; and back. The same objective keeps generator and discriminator."""
    rtd = dataclasses.replace(short, objective=DISENTANGLED, init_from=str(masked_run), steps=1)
    still = dataclasses.replace(
        rtd, optimizer=dataclasses.replace(rtd.optimizer, learning_rate=1e-30)
    )
    train(still, tmp_path / "rtd")
    there, here = (by_path(load_run(d).params) for d in (masked_run, tmp_path / "rtd"))
    for path in there.keys() & here.keys():
        # The table is a sum of the generator's and a difference, both float32.
        np.testing.assert_allclose(here[path], there[path], atol=1e-6)
    assert "new, drawn at random: detector/bias" in notes(tmp_path / "rtd")
    assert "not used: head_bias" in notes(tmp_path / "rtd")
    assert "what else the objective has starts as in a fresh run" in notes(tmp_path / "rtd")

    again = dataclasses.replace(still, init_from=str(tmp_path / "rtd"), seed=8)
    train(again, tmp_path / "again")
    one, two = (load_run(tmp_path / name).whole for name in ("rtd", "again"))
    jax.tree.map(np.testing.assert_array_equal, one, two)

    back = dataclasses.replace(short, init_from=str(tmp_path / "rtd"), steps=1)
    train(back, tmp_path / "back")
    assert "new, drawn at random: head_bias" in notes(tmp_path / "back")


@pytest.mark.slow
def test_distillation_from_a_run(short, masked_run, tmp_path):
    student = dataclasses.replace(
        short,
        model=dataclasses.replace(short.model, num_layers=1),
        objective=DistillationObjective(str(masked_run), layers=(1,)),
    )
    run, scores = opened(student, tmp_path / "run")
    assert run.model.config.num_layers == 1
    teacher = load_run(masked_run).params
    jax.tree.map(np.testing.assert_array_equal, dict(run.whole["teacher"]), dict(teacher))
    assert 0 < scores.values["agreement"].mean <= 1
    assert len(fill_mask("ba [MASK] ke", run)) == 1  # a masked language model like any other


@pytest.mark.slow
def test_causal_then_masked(short, tmp_path):
    left = dataclasses.replace(
        short,
        model=dataclasses.replace(short.model, attention=GlobalAttention("left")),
        objective=CausalLmObjective(),
    )
    run, _ = opened(left, tmp_path / "causal")
    assert type(run.model) is MaskedLM
    masked = dataclasses.replace(short, init_from=str(tmp_path / "causal"), steps=1)
    train(masked, tmp_path / "masked")
    assert "attention was left, is both" in notes(tmp_path / "masked")
    with pytest.raises(ValueError, match=r"set --model\.attention\.direction left"):
        train(dataclasses.replace(short, objective=CausalLmObjective()), tmp_path / "bad")


@pytest.mark.slow
def test_an_objective_from_a_file(short, tmp_path):
    custom = dataclasses.replace(short, objective=CustomObjective(str(INTRUDER)))
    run, scores = opened(custom, tmp_path / "run")
    assert type(run.model) is ReplacedTokenDetector
    assert scores.cross_entropy == pytest.approx(np.log(2), rel=0.1)
    missing = dataclasses.replace(short, objective=CustomObjective("nowhere.py"))
    with pytest.raises(FileNotFoundError, match=r"there is no objective file nowhere\.py"):
        train(missing, tmp_path / "missing")


@pytest.mark.slow
def test_selection_by_frequency_needs_a_store_and_follows_it(short, tmp_path):
    rare = dataclasses.replace(short, masking=Masking(frequency_power=0.7))
    opened(rare, tmp_path / "run")
    synthetic = dataclasses.replace(rare, data="synthetic")
    with pytest.raises(ValueError, match="synthetic data has none: set it to 0"):
        train(synthetic, tmp_path / "synthetic")

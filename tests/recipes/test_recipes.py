"""Published recipes: the numbers that the sources state, and two steps of each on a CPU."""

from pathlib import Path

import numpy as np
import pytest

from bert_jax.config import load_experiment, override
from bert_jax.models.config import Normal, TruncatedNormal
from bert_jax.recipes import list_recipes, recipe
from bert_jax.train.log import read_metrics
from bert_jax.train.loop import train

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
TINY = (
    "--steps 2 --batch-size 8 --model.num-layers 2 --model.hidden-size 32 --model.num-heads 2 "
    "--model.intermediate-size 64 --model.vocab-size 512 --model.compute-dtype float32 "
    "--packing.seq-length 32 --mesh.data 1 --logging.every 1 --evaluation.max-rows 16"
)


def test_names():
    assert list_recipes() == ("bert-base", "roberta-base")
    with pytest.raises(ValueError, match="did you mean 'roberta-base'"):
        recipe("roberta-bse")


def test_bert_base_is_google_s():
    e = recipe("bert-base")
    m = e.model
    assert (m.num_layers, m.hidden_size, m.num_heads, m.intermediate_size) == (12, 768, 12, 3072)
    assert (m.vocab_size, m.type_vocab_size, m.positions.max_length) == (30522, 2, 512)
    assert (m.norm.placement, m.norm.eps, m.activation) == ("post", 1e-12, "gelu_tanh")
    assert m.initializer == TruncatedNormal(0.02)
    assert (e.batch_size, e.packing.seq_length, e.steps) == (256, 128, 900_000)
    assert (e.optimizer.b2, e.optimizer.eps, e.optimizer.clip_norm) == (0.999, 1e-6, 1.0)
    assert e.optimizer.decay == "matrices"
    rate = [
        e.optimizer.learning_rate * float(e.schedule.factor(s, e.steps)) for s in (0, 5_000, 10_000)
    ]
    np.testing.assert_allclose(rate, [0, 5e-5, 1e-4], rtol=1e-6)
    assert e.masking.slots(128) == 19  # round(.15 * 128); 20 is the most the code allows


def test_roberta_base_is_the_paper_s():
    e = recipe("roberta-base")
    m = e.model
    assert (m.num_layers, m.hidden_size, m.num_heads, m.intermediate_size) == (12, 768, 12, 3072)
    assert (m.vocab_size, m.pad_id, m.positions.offset) == (50265, 1, 2)
    assert (m.norm.eps, m.activation, m.initializer) == (1e-5, "gelu", Normal(0.02))
    assert (e.batch_size, e.packing.seq_length, e.steps) == (8192, 512, 500_000)
    assert (e.packing.mode, e.packing.attend) == ("complete", "row")
    assert (e.optimizer.b2, e.optimizer.decay, e.optimizer.clip_norm) == (0.98, "all", None)
    assert (e.masking.candidates, e.masking.random_ids) == ("all", (4, 50265))
    rate = [
        e.optimizer.learning_rate * float(e.schedule.factor(s, e.steps))
        for s in (12_000, 24_000, 500_000)
    ]
    np.testing.assert_allclose(rate, [3e-4, 6e-4, 0], atol=1e-10)


@pytest.mark.usefixtures("one_device")
@pytest.mark.parametrize(
    ("file", "more"),
    [
        ("bert_base.py", "--masking.random-ids 0 512"),
        ("roberta_base.py", "--masking.random-ids 4 512 --microbatches 2"),
    ],
)
def test_two_steps_on_synthetic_data(file, more, tmp_path):
    base = load_experiment(EXPERIMENTS / file)
    tiny = override(base, ["--data", "synthetic", *TINY.split(), *more.split()])
    train(tiny, tmp_path / "run")
    losses = [r["loss"] for r in read_metrics(tmp_path / "run") if r["kind"] == "train"]
    assert len(losses) == 2
    # Untrained: near the entropy of a uniform guess (random weights of .02 move it little).
    assert losses[0] == pytest.approx(np.log(512), rel=0.02)

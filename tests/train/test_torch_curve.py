"""500 training steps against transformers + torch: same weights, batches, masks, rates.

The curve was made by ``tools/torch_curve.py`` (versions are in the file); no torch is needed here.
"""

from pathlib import Path

import jax
import numpy as np
import pytest

from bert_jax.data.packing import Packing
from bert_jax.experiment import Experiment
from bert_jax.models.config import Dropout, EncoderConfig, LearnedPositions
from bert_jax.parallel.mesh import MeshShape, make_mesh, put_batch
from bert_jax.train.inputs import batches, open_inputs, run_task
from bert_jax.train.optimizer import AdamW
from bert_jax.train.schedule import Linear
from bert_jax.train.state import init_state, initial_key
from bert_jax.train.step import Pace, StepConfig, make_train_step

CURVE = Path(__file__).parents[1] / "data" / "curves" / "bert_torch.npz"


def curve_experiment() -> Experiment:
    """The experiment of ``tools/torch_curve.py``, field by field."""
    return Experiment(
        name="torch-curve",
        model=EncoderConfig(
            vocab_size=512,
            hidden_size=64,
            num_layers=4,
            num_heads=4,
            intermediate_size=160,
            type_vocab_size=2,
            positions=LearnedPositions(max_length=32),
            dropout=Dropout(0.0, 0.0),
        ),
        packing=Packing(seq_length=32, mode="document"),
        batch_size=8,
        steps=500,
        optimizer=AdamW(learning_rate=1e-3),
        schedule=Linear(warmup=50),
    )


@pytest.mark.slow
def test_losses_follow_torch_for_500_steps():
    e = curve_experiment()
    mesh = make_mesh(MeshShape(), jax.devices()[:1])
    with jax.set_mesh(mesh):
        inputs = open_inputs(e)
        task, make = run_task(e, inputs), batches(inputs, e)
        config = StepConfig(e.optimizer, e.seed)
        step = jax.jit(make_train_step(task.objective, task.apply, config), donate_argnums=0)
        state = jax.jit(
            lambda: init_state(task.init(initial_key(e.seed)), task.objective, e.optimizer)
        )()
        losses, norms = [], []
        for number in range(e.steps):
            state, metrics = step(
                state, put_batch(make.batch(number), mesh, 1), Pace(np.float32(e.factor(number)))
            )
            total, weight = metrics["sums"]["loss"]
            losses.append(float(total) / float(weight))
            norms.append(float(metrics["gradient_norm"]))
    with np.load(CURVE) as curve:
        difference = np.abs(np.asarray(losses) - curve["losses"])
        # float32 sums in another order differ by 1e-7 and training amplifies that: the issue's
        # bounds are 1e-4 for 50 steps and 1e-2 for all.
        assert difference[:50].max() < 1e-4
        assert difference.max() < 1e-2
        np.testing.assert_allclose(norms[:50], curve["gradient_norms"][:50], rtol=1e-3)
        # The run learns: it is not two flat lines that agree.
        assert np.mean(curve["losses"][-20:]) < curve["losses"][0] - 0.8

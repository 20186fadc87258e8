"""Makes tests/data/curves/bert_torch.npz: 500 steps of a 4-layer BERT in transformers + torch.

    pip install -e .[reference] && python tools/torch_curve.py

Initial weights, batches, masks and learning rates are ours; forward pass, gradients, clipping and
AdamW are torch's. `tests/train/test_torch_curve.py` makes the same steps with our train step.
"""

from __future__ import annotations

import sys
from pathlib import Path

import jax
import numpy as np
import torch
import transformers
from torch_reference import bert_for_masked_lm

from bert_jax.data.packing import Packing
from bert_jax.experiment import Experiment
from bert_jax.models.config import Dropout, EncoderConfig, LearnedPositions
from bert_jax.models.heads import MaskedLM
from bert_jax.train.inputs import batches, open_inputs, run_task
from bert_jax.train.optimizer import AdamW
from bert_jax.train.schedule import Linear
from bert_jax.train.state import init_params
from bert_jax.train.step import Keys

OUT = Path(__file__).resolve().parents[1] / "tests" / "data" / "curves" / "bert_torch.npz"

EXPERIMENT = Experiment(
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


def main() -> None:
    """Trains and writes the curve."""
    e = EXPERIMENT
    torch.set_num_threads(1)
    inputs = open_inputs(e)
    objective, make = run_task(e, inputs).objective, batches(inputs, e)
    model = bert_for_masked_lm(e.model, jax.jit(lambda: init_params(MaskedLM(e.model), e.seed))())
    assert isinstance(e.optimizer, AdamW)
    no_decay = ("bias", "LayerNorm.weight")
    named = list(model.named_parameters())
    optimizer = torch.optim.AdamW(
        [
            {"params": [p for n, p in named if not n.endswith(no_decay)], "weight_decay": 0.01},
            {"params": [p for n, p in named if n.endswith(no_decay)], "weight_decay": 0.0},
        ],
        lr=e.optimizer.learning_rate,
        betas=(e.optimizer.b1, e.optimizer.b2),
        eps=e.optimizer.eps,
    )
    corrupt = jax.jit(objective.corrupt)
    losses, norms = [], []
    for step in range(e.steps):
        rows = make.batch(step)
        masked = corrupt(Keys.from_seed(e.seed).masks, step, dict(rows))
        loss = _loss(model, jax.tree.map(np.asarray, dict(masked)))
        optimizer.zero_grad()
        loss.backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)))
        for group in optimizer.param_groups:
            group["lr"] = e.optimizer.learning_rate * e.factor(step)
        optimizer.step()
        losses.append(float(loss.detach()))
    OUT.parent.mkdir(parents=True, exist_ok=True)
    np.savez(
        OUT,
        losses=np.asarray(losses, np.float32),
        gradient_norms=np.asarray(norms, np.float32),
        versions=np.asarray(
            [f"torch {torch.__version__}", f"transformers {transformers.__version__}"]
        ),
    )
    print(f"{OUT}: loss {losses[0]:.4f} -> {np.mean(losses[-20:]):.4f}")


def _loss(model, masked) -> torch.Tensor:
    labels = np.full(masked["input_ids"].shape, -100)
    for row in range(len(labels)):
        real = masked["weights"][row] > 0
        labels[row, masked["positions"][row][real]] = masked["targets"][row][real]
    return model(
        input_ids=torch.from_numpy(masked["input_ids"].astype(np.int64)),
        attention_mask=torch.from_numpy((masked["segment_ids"] != 0).astype(np.int64)),
        labels=torch.from_numpy(labels),
    ).loss


if __name__ == "__main__":
    sys.exit(main())

"""Throughput and model FLOPs, against the clock and against XLA's own count."""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import pytest

from bert_jax.models import heads
from bert_jax.models.config import (
    Convolution,
    DisentangledPositions,
    Dropout,
    EncoderConfig,
    Execution,
    Heads,
    LayerSharing,
    LocalAttention,
    RotaryPositions,
    VocabularyHead,
)
from bert_jax.models.flops import model_flops_per_step
from bert_jax.train.metrics import Throughput, peak_flops

BASE = EncoderConfig(
    vocab_size=256,
    hidden_size=256,
    num_layers=1,
    num_heads=4,
    intermediate_size=1024,
    dropout=Dropout(0, 0),
    execution=Execution(loop="unroll", remat="none"),
)
# Each has a term that the others hide: attention, the factorised projection, the head, the MLP.
CASES = {
    "base": (replace(BASE, num_layers=2), 2, 128, 20),
    "long": (replace(BASE, hidden_size=128, intermediate_size=128, num_heads=2), 1, 512, 8),
    "factorised": (replace(BASE, embedding_size=384, intermediate_size=128), 2, 64, 4),
    "many predictions": (replace(BASE, vocab_size=4096), 2, 64, 64),
    "gated": (replace(BASE, mlp="gated"), 2, 64, 4),
    "shared": (replace(BASE, num_layers=2, sharing=LayerSharing(1, 2)), 2, 64, 4),
    "convolution": (replace(BASE, convolution=Convolution(5)), 2, 64, 4),
    "no transform": (
        replace(BASE, vocab_size=1024, heads=Heads(VocabularyHead("none", decoder="untied"))),
        2,
        64,
        64,
    ),
    "wide": (replace(BASE, intermediate_size=3072, positions=RotaryPositions()), 2, 64, 4),
}


@pytest.mark.parametrize("case", CASES)
def test_flops_agree_with_xla(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the compiled float32 gradient, layers unrolled, all logits at once, no padded rows.

    XLA also counts additions and multiplications outside matrix products (norms, softmax, masks,
    losses): up to 4 % at these widths, less at real ones (0.8 % at width 512).
    """
    monkeypatch.setattr(heads, "vocab_block", lambda: None)  # XLA counts the body of a loop once
    config, rows, length, slots = CASES[case]
    model = heads.MaskedLM(config)
    ids = jax.ShapeDtypeStruct((rows, length), jnp.int32)
    picked = jax.ShapeDtypeStruct((rows, slots), jnp.int32)

    def loss(params, ids, positions, targets):
        output = model.apply(
            {"params": params},
            ids,
            segment_ids=jnp.ones_like(ids),
            positions=positions,
            targets=targets,
        )
        return output["nll"].sum()

    params = jax.eval_shape(lambda: model.init(jax.random.key(0))["params"])
    compiled = jax.jit(jax.grad(loss)).lower(params, ids, picked, picked).compile()
    counted = compiled.cost_analysis()["flops"]
    ours = model_flops_per_step(config, rows, length, slots)
    assert 1 <= counted / ours < 1.05


def test_flops_of_bert_base() -> None:
    """The usual 6 N D (N without embeddings) plus attention and head, per row of 512."""
    config = EncoderConfig(vocab_size=30522)
    matrices = 12 * (4 * 768**2 + 2 * 768 * 3072)
    attention = 12 * 12 * 512 * 768  # 2 products of 2 T d, forward and twice backward, 12 layers
    head = 768**2 + 768 * 30522
    expected = 512 * (6 * matrices + attention) + 76 * 6 * head
    assert model_flops_per_step(config, 1, 512, 76) == expected


def test_flops_of_windows_and_relative_positions() -> None:
    """Against BERT's by hand: fewer tokens seen in two layers of three, more products a token."""
    config = EncoderConfig(vocab_size=30522)
    plain = model_flops_per_step(config, 1, 512, 76)
    windows = replace(config, attention=LocalAttention(128, 3))
    saved = 8 * (512 - 129) * 4 * 768  # layers * tokens not seen * two products
    assert model_flops_per_step(windows, 1, 512, 76) == plain - 3 * 512 * saved
    assert model_flops_per_step(windows, 1, 64, 4) == model_flops_per_step(config, 1, 64, 4)
    relative = replace(config, positions=DisentangledPositions())
    terms = 12 * 2 * 2 * 512 * 768  # layers * terms * one product with what 512 tokens see
    assert model_flops_per_step(relative, 1, 512, 76) == plain + 3 * 512 * terms


@dataclass
class Chip:
    device_kind: str


@pytest.mark.parametrize(
    ("kind", "tera"),
    [
        ("TPU v4", 275),
        ("TPU v5 lite", 197),
        ("TPU v5p", 459),
        ("TPU v6 lite", 918),
        ("NVIDIA A100-SXM4-80GB", 312),
        ("NVIDIA H100 80GB HBM3", 989),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA H200", 989),
        ("NVIDIA L4", 121),
    ],
)
def test_known_chips(kind: str, tera: float) -> None:
    assert peak_flops(Chip(kind)) == tera * 1e12


@pytest.mark.parametrize("kind", ["cpu", "TPU v99", "NVIDIA L40", "NVIDIA GeForce RTX 3090", ""])
def test_unknown_chips(kind: str) -> None:
    assert peak_flops(Chip(kind)) is None


def test_the_devices_here_are_unknown() -> None:
    assert peak_flops(jax.devices()[0]) is None


class TestThroughput:
    def meter(self, **options: int) -> tuple[Throughput, list[float]]:
        now = [100.0]
        return Throughput(clock=lambda: now[0], **options), now

    def test_needs_two_reports(self) -> None:
        meter, now = self.meter()
        assert meter.tokens_per_second is None
        assert meter.remaining(10) is None
        now[0] += 50  # compilation
        meter.update(1, 1e6)
        assert meter.tokens_per_second is None
        assert meter.remaining(10) is None
        now[0] += 2
        meter.update(2, 500)
        assert meter.tokens_per_second == 250
        assert meter.remaining(10) == 16

    def test_slides(self) -> None:
        meter, now = self.meter(window=2)
        for step, seconds in enumerate([1, 1, 1, 10, 10]):
            now[0] += seconds
            meter.update(step, 100)
        assert meter.tokens_per_second == 10
        assert meter.remaining(8) == pytest.approx(4 * 22 / 4)

    def test_leaves_out_evaluations_but_not_from_the_time_that_is_left(self) -> None:
        meter, now = self.meter()
        meter.update(0, 0)
        now[0] += 1
        with meter.excluded():
            now[0] += 7
        now[0] += 1
        meter.update(10, 100)
        assert meter.tokens_per_second == 50
        assert meter.remaining(20) == 9

    def test_excludes_an_evaluation_that_fails(self) -> None:
        meter, now = self.meter()
        meter.update(0, 0)
        with pytest.raises(ZeroDivisionError), meter.excluded():
            now[0] += 7
            1 / 0  # noqa: B018
        now[0] += 1
        meter.update(1, 5)
        assert meter.tokens_per_second == 5

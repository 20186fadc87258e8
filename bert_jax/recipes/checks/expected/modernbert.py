"""ModernBERT and Ettin. Sources: `bert_jax.recipes.modernbert` and `bert_jax.recipes.ettin`."""

from __future__ import annotations

from typing import NamedTuple

from bert_jax.models.config import LocalAttention, RotaryPositions
from bert_jax.recipes.checks.expectation import (
    Arithmetic,
    Count,
    Expectation,
    Packed,
    Phase,
    Rate,
    Selected,
    Shape,
)

# size: parameters, decayed, .88 * .02 / sqrt(2 * layers), heads
_SHAPES = {
    "base": (149_655_232, 149_569_536, 2.652171e-3, 12),
    "large": (395_881_664, 395_771_904, 2.350898e-3, 16),
    "17m": (16_913_600, 16_859_136, 4.701797e-3, 4),
    "32m": (32_081_344, 32_022_528, 3.933806e-3, 6),
    "68m": (68_457_664, 68_386_816, 2.853882e-3, 8),
}
_SHORT, _LONG, _EVERYWHERE = (1e4, 1e4), (1.6e5, 1e4), (1.6e5, 1.6e5)
_MODERNBERT = Selected(
    share=0.3,
    mask=0.8,
    random=0.1,
    specials=True,
    unknown=True,  # src/sequence_packer.py, mlm_masking: only padding is left out
    masks=True,
    short=(7.2, 8.4),  # .3 of all
    random_ids=(0, 50_285),
)


def _collated(rate: float, short: tuple[float, float]) -> Selected:
    """The collator of transformers: no special tokens, any entry as a replacement."""
    return Selected(
        share=rate,
        mask=0.8,
        random=0.1,
        specials=False,
        unknown=False,
        masks=False,
        short=short,
        random_ids=(0, 50_368),
    )


# yamls: "We always evaluate at 15% masking", with transformers' collator: .15 of 17, of 21
_HELD_OUT = _collated(0.15, (2.55, 3.15))
# src/sequence_packer.py: documents share a row and do not see each other. There none is cut that
# would fit in a row; that rows end anywhere here is one of the recipe's stated deviations.
_ROWS = Packed(several=True, crossed=False, cut="anywhere")


def _shape(size: str) -> Shape:
    number, decayed, residual, heads = _SHAPES[size]
    return Shape(
        counts=(Count("masked lm", number),),
        decayed=decayed,
        heads=heads,
        positions=RotaryPositions(1024, 1e4, 1e4),
        attention=LocalAttention(window=128, global_every=3),  # 64 tokens on each side
        norm="pre",
        eps=1e-5,
        embedding_norm=True,
        first_norm=False,  # the embeddings' norm stands right before it
        activation=2.680390,  # erf
        matrix_std=0.017593,
        residual_std=residual,
        dropout=(0.0, 0.0, 0.1, 0.0, 0.0),
    )


def _adam(peak: float, weight_decay: float, max_rate: float) -> Arithmetic:
    return Arithmetic(
        kind="stable_adamw",
        peak=peak,
        b1=0.9,
        b2=0.98,
        eps=1e-6,
        weight_decay=weight_decay,
        decays="biases and norms",
        clip=None,
        max_rate=max_rate,
    )


EXPECTED: dict[str, Expectation] = {
    "modernbert-base": Expectation(
        shape=_shape("base"),
        phases=(
            Phase(
                steps=374_901,
                batch_size=4608,
                seq_length=1024,
                rates=(
                    Rate(0, 0.0),
                    Rate(1.5e9, 4e-4),
                    Rate(3e9, 8e-4),
                    Rate(1e12, 8e-4),
                    Rate(1.719e12, 8e-4),
                ),
                masking=_MODERNBERT,
                optimizer=_adam(8e-4, 1e-5, 8e-4),
                # thresholds at 3.33, 10, 20, 33.3 and 50 billion tokens
                batches=(
                    (0, 768),
                    (4_238, 768),
                    (4_239, 1536),
                    (8_478, 2304),
                    (12_717, 3072),
                    (16_955, 3840),
                    (21_193, 3840),
                    (21_194, 4608),
                ),
                theta=_SHORT,
            ),
            Phase(
                steps=52_982,
                batch_size=576,
                seq_length=8192,
                rates=(Rate(0, 3e-4), Rate(125e9, 3e-4), Rate(250e9, 3e-4)),
                masking=_MODERNBERT,
                optimizer=_adam(3e-4, 1e-5, 8e-4),
                carries=("kept", "reset"),
                theta=_LONG,
            ),
            Phase(
                steps=10_597,
                batch_size=576,
                seq_length=8192,
                rates=(Rate(0, 3e-4), Rate(12.5e9, 1.5015e-4), Rate(50e9, 3e-7)),
                masking=_MODERNBERT,
                optimizer=_adam(3e-4, 1e-5, 8e-4),
                carries=("kept", "reset"),
                theta=_LONG,
            ),
        ),
        tokens=2_019e9,
        rows=_ROWS,
        held_out=_HELD_OUT,
    ),
    "modernbert-large": Expectation(
        shape=_shape("large"),
        phases=(
            Phase(
                steps=180_333,
                batch_size=4928,
                seq_length=1024,
                rates=(Rate(0, 0.0), Rate(1e9, 2.5e-4), Rate(2e9, 5e-4), Rate(9e11, 5e-4)),
                masking=_MODERNBERT,
                optimizer=_adam(5e-4, 1e-5, 5e-4),
                batches=((0, 448), (397, 896), (1_983, 2688), (3_964, 4480), (3_965, 4928)),
                theta=_SHORT,
            ),
            Phase(
                steps=158_533,
                batch_size=4928,
                seq_length=1024,
                rates=(Rate(0, 5e-5), Rate(8e11, 5e-5)),
                masking=_MODERNBERT,
                optimizer=_adam(5e-5, 1e-6, 5e-4),
                batches=((0, 4928),),
                carries=("kept", "reset"),
                theta=_SHORT,
            ),
            Phase(
                steps=49_542,
                batch_size=616,
                seq_length=8192,
                rates=(Rate(0, 5e-5), Rate(250e9, 5e-5)),
                masking=_MODERNBERT,
                optimizer=_adam(5e-5, 1e-6, 5e-4),
                carries=("kept", "reset"),
                theta=_LONG,
            ),
            Phase(
                steps=9_782,
                batch_size=624,
                seq_length=8192,
                rates=(Rate(0, 5e-5), Rate(12.5e9, 2.5025e-5), Rate(50e9, 5e-8)),
                masking=_MODERNBERT,
                optimizer=_adam(5e-5, 1e-6, 5e-4),
                carries=("kept", "reset"),
                theta=_LONG,
            ),
        ),
        tokens=2_000e9,
        rows=_ROWS,
        held_out=_HELD_OUT,
    ),
}


# --------------------------------------------------------------------------------------- Ettin

_SPECIALS_KEPT = _collated(0.3, (5.1, 6.3))  # .3 of 17, of 21
_LAST = _collated(0.15, (2.55, 3.15))


class _Size(NamedTuple):
    """A size: peak, decay, where the warm-up ends; theta of local layers in phase 2."""

    shape: str
    peak: float
    decay: float
    rise: float
    local: float


_SIZES = {
    "17m": _Size("17m", 3e-3, 3e-4, 4e9, 1e4),
    "32m": _Size("32m", 3e-3, 3e-4, 4e9, 1.6e5),
    "68m": _Size("68m", 3e-3, 3e-4, 3e9, 1.6e5),
    "150m": _Size("base", 8e-4, 1e-5, 3e9, 1.6e5),
    "400m": _Size("large", 5e-4, 1e-5, 2e9, 1.6e5),
}
# peak: a quarter of the way and the end of phase 2; beginning, quarter and end of phase 3
_FALLS = {
    3e-3: (2.25e-3, 1.5e-3, 1.5e-3, 7.8e-4, 6e-5),
    8e-4: (6e-4, 4e-4, 4e-4, 2.08e-4, 1.6e-5),
    5e-4: (3.75e-4, 2.5e-4, 2.5e-4, 1.3e-4, 1e-5),
}


def _ettin(size: _Size) -> Expectation:
    peak, (quarter, half, start, fallen, end) = size.peak, _FALLS[size.peak]
    return Expectation(
        shape=_shape(size.shape),
        phases=(
            Phase(
                steps=360_277,
                batch_size=4608,
                seq_length=1024,
                rates=(Rate(0, 0.0), Rate(size.rise, peak), Rate(1.7e12, peak)),
                masking=_SPECIALS_KEPT,
                optimizer=_adam(peak, size.decay, peak),
                batches=((0, 4608),),  # the batch warm-up of the yaml has no effect
                theta=_SHORT,
            ),
            Phase(
                steps=6_783,
                batch_size=4608,
                seq_length=7999,
                rates=(Rate(0, peak), Rate(62.5e9, quarter), Rate(250e9, half)),
                masking=_SPECIALS_KEPT,
                optimizer=_adam(peak, size.decay, peak),
                carries=("kept", "reset"),
                theta=(1.6e5, size.local),
            ),
            Phase(
                steps=1_357,
                batch_size=4608,
                seq_length=7999,
                rates=(Rate(0, start), Rate(12.5e9, fallen), Rate(50e9, end)),
                masking=_LAST,
                optimizer=_adam(start, size.decay, peak),
                carries=("kept", "reset"),
                theta=_EVERYWHERE,
            ),
        ),
        tokens=2_000e9,
        # yamls: sequence_packing false, so a document a row. There one that is longer comes already
        # cut; that it goes on in rows of its own here is a stated deviation.
        rows=Packed(several=False, crossed=False, cut="anywhere"),
        held_out=_HELD_OUT,  # yamls: the evaluation's mlm_probability .15
    )


EXPECTED |= {f"ettin-{name}": _ettin(size) for name, size in _SIZES.items()}

"""Position ids, and rotary angles that keep float32 in a bfloat16 model."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.models.config import AlibiPositions, LearnedPositions, RotaryPositions
from bert_jax.models.positions import (
    alibi_bias,
    alibi_slopes,
    default_position_ids,
    rotary_angles,
    rotate,
    sinusoids,
)

REAL = np.asarray([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1], [0, 0, 1, 1, 0], [1, 0, 1, 0, 1], [0] * 5])


@pytest.mark.parametrize("scheme", [LearnedPositions(), RotaryPositions(), AlibiPositions()])
def test_positions_run_along_the_row(scheme):
    ids = default_position_ids(scheme, jnp.asarray(REAL))
    np.testing.assert_array_equal(ids, np.tile(np.arange(5), (5, 1)))


@pytest.mark.parametrize("pad_id", [0, 1, 9])
def test_with_an_offset_only_real_tokens_count(pad_id):
    """fairseq's rule: row ``pad_id + 1 + k`` for the k-th real token, ``pad_id`` for padding."""
    ids = default_position_ids(LearnedPositions(512, pad_id + 1), jnp.asarray(REAL))
    rows = np.cumsum(REAL, axis=1) * REAL + pad_id
    np.testing.assert_array_equal(np.asarray(ids) + pad_id + 1, rows)


def test_roberta_positions_are_those_of_transformers():
    roberta = pytest.importorskip("transformers.models.roberta.modeling_roberta")
    torch = pytest.importorskip("torch")
    rule = roberta.RobertaEmbeddings.create_position_ids_from_input_ids
    rows = rule(torch.tensor(np.where(REAL, 7, 1)), padding_idx=1)
    ids = default_position_ids(LearnedPositions(512, 2), jnp.asarray(REAL))
    np.testing.assert_array_equal(np.asarray(ids) + 2, rows.numpy())


# ----------------------------------------------------------------------------------- rotary


def float32_angles(positions, head_dim, theta):
    """The definition, every frequency and every product rounded to float32 once."""
    frequencies = theta ** (-2.0 * np.arange(head_dim // 2) / head_dim)
    return np.float32(positions)[..., None] * np.float32(frequencies)


@pytest.mark.parametrize("theta", [10_000.0, 160_000.0])
def test_angles_are_float32_at_far_positions(theta):
    """At 8191, where bfloat16 tells only every 32nd position from the next."""
    positions = np.asarray([[0, 1, 255, 511, 4095, 8190, 8191]])
    cosine, sine = rotary_angles(jnp.asarray(positions), 64, theta)
    assert cosine.dtype == sine.dtype == jnp.float32
    assert cosine.shape == (1, 1, 7, 32)
    angles = float32_angles(positions, 64, theta).astype(np.float64)
    np.testing.assert_allclose(cosine[:, 0], np.cos(angles), atol=1e-4)
    np.testing.assert_allclose(sine[:, 0], np.sin(angles), atol=1e-4)


def test_rotation_of_bfloat16_uses_float32_angles():
    """All that bfloat16 costs is the rounding of the result."""
    x = jax.random.normal(jax.random.key(0), (1, 2, 3, 64), jnp.bfloat16)
    positions = np.asarray([[8000, 8190, 8191]])
    turned = rotate(x, *rotary_angles(jnp.asarray(positions), 64, 10_000.0))
    assert turned.dtype == jnp.bfloat16
    angles = float32_angles(positions, 64, 10_000.0).astype(np.float64)[:, None]
    wide = np.asarray(x, np.float64)
    right = complex_pairs(wide) * np.exp(1j * angles)
    np.testing.assert_allclose(complex_pairs(turned), right, atol=2**-8 * np.abs(right).max())


def complex_pairs(x) -> np.ndarray:
    """Pair (i, i + d/2) as one complex number, which the rotation multiplies by exp(i angle)."""
    x = np.asarray(x, np.float64)
    half = x.shape[-1] // 2
    return x[..., :half] + 1j * x[..., half:]


def test_scores_depend_on_distances_only():
    """q(p) . k(r) = q(p + 1000) . k(r + 1000), for every pair of positions."""
    query, key = jax.random.normal(jax.random.key(1), (2, 1, 2, 16, 32))
    scores = []
    for shift in (0, 1000):
        angles = rotary_angles(jnp.arange(16)[None] + shift, 32, 10_000.0)
        scores.append(jnp.einsum("bhqd,bhkd->bhqk", rotate(query, *angles), rotate(key, *angles)))
    np.testing.assert_allclose(scores[0], scores[1], atol=2e-3)  # float32 angles of size 1000
    same = rotate(query, *rotary_angles(jnp.zeros((1, 16), jnp.int32), 32, 10_000.0))
    np.testing.assert_array_equal(same, query)


def test_rotation_keeps_lengths_and_positions_matter():
    x = jax.random.normal(jax.random.key(2), (1, 1, 8, 16))
    turned = rotate(x, *rotary_angles(jnp.arange(8)[None], 16, 10_000.0))
    np.testing.assert_allclose(np.abs(complex_pairs(turned)), np.abs(complex_pairs(x)), rtol=1e-5)
    assert np.abs(turned[:, :, 1:] - x[:, :, 1:]).max(axis=-1).min() > 0.1


def test_sinusoids():
    """Vaswani et al.: sin(p / 10000^(2i/d)) at even entries, cosines at odd ones."""
    ids = np.asarray([[0, 3, 511]])
    got = sinusoids(jnp.asarray(ids), 8, 10_000.0)
    angles = ids[..., None] / 10_000.0 ** (2 * (np.arange(8) // 2) / 8)
    right = np.where(np.arange(8) % 2 == 0, np.sin(angles), np.cos(angles))
    np.testing.assert_allclose(got, right, atol=5e-5)  # float32 angles up to 511


# ------------------------------------------------------------------------------ linear biases


@pytest.mark.parametrize(
    ("heads", "powers"),
    [
        (1, [8]),
        (2, [4, 8]),
        (8, [1, 2, 3, 4, 5, 6, 7, 8]),
        (16, [i / 2 for i in range(1, 17)]),
        # MosaicBERT: those of 8, and every second of 16's.
        (12, [1, 2, 3, 4, 5, 6, 7, 8, 0.5, 1.5, 2.5, 3.5]),
        (3, [4, 8, 2]),
        (5, [2, 4, 6, 8, 1]),
    ],
)
def test_slopes(heads, powers):
    np.testing.assert_allclose(alibi_slopes(heads), 2.0 ** -np.asarray(powers), rtol=1e-15)


def test_linear_biases():
    """Two documents in a row; distances that bfloat16 would round."""
    ids = np.asarray([[0, 1, 2, 0, 1, 5001]])
    bias = alibi_bias(jnp.asarray(ids), 12)
    assert bias.shape == (1, 12, 6, 6) and bias.dtype == jnp.float32
    for h, i, j in np.ndindex(12, 6, 6):
        right = -alibi_slopes(12)[h] * abs(ids[0, i] - ids[0, j])
        np.testing.assert_allclose(bias[0, h, i, j], right, rtol=1e-7)  # one rounding of each
    np.testing.assert_array_equal(bias[0, 0, 5], [-2500.5, -2500, -2499.5, -2500.5, -2500, 0])

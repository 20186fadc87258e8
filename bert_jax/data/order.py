"""The order of the rows in an epoch: a keyed permutation that is evaluated, never stored.

A run must resume at any step, on any number of hosts, without replaying what went before. So the
order is not a shuffled list but a function: ``order(seed, epoch, num_rows, positions)`` says which
row stands at each of the given positions, for a few hundred nanoseconds a row and no memory.

It is a Feistel network over the smallest power of two that holds ``num_rows`` (Luby and Rackoff
1988), with cycle walking (Black and Rogaway 2002): a value that falls outside is encrypted again
until it falls inside, which keeps the map a permutation of ``[0, num_rows)``. Its round function is
the finaliser of splitmix64 (Steele, Lea and Flood 2014). Changing any of this changes the order of
every run, so its values are pinned by a test.
"""

import numpy as np
from jaxtyping import Int64, UInt64

_ROUNDS = 8
GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2**64 / golden ratio: spreads consecutive round numbers
_MAX_ROWS = 2**62


def order(
    seed: int,
    epoch: int | Int64[np.ndarray, "..."],
    num_rows: int,
    positions: Int64[np.ndarray, "..."],
) -> Int64[np.ndarray, "..."]:
    """Returns the row at each position of an epoch.

    For a fixed ``(seed, epoch)`` the map from position to row is a permutation of
    ``[0, num_rows)``; other seeds and other epochs give unrelated permutations. The value at one
    position does not depend on which others are asked for with it.

    Args:
        seed: The run's data seed, in ``[0, 2**63)``.
        epoch: The epoch, from 0; one number, or one for each position (same shape).
        num_rows: The number of rows in an epoch, in ``[1, 2**62]``.
        positions: Places within the epoch, each in ``[0, num_rows)``.

    Returns:
        Row numbers, of the shape of ``positions``.

    Raises:
        ValueError: If a number is outside its range.
    """
    positions = np.asarray(positions, np.int64)
    epochs = np.asarray(epoch, np.int64)
    if not 0 <= seed < 2**63:
        raise ValueError(f"The data seed must be in [0, 2**63); got {seed}.")
    if not 1 <= num_rows <= _MAX_ROWS:
        raise ValueError(f"An epoch must have between 1 and 2**62 rows; got {num_rows}.")
    if epochs.ndim and epochs.shape != positions.shape:
        raise ValueError(
            f"Give one epoch, or one for each position; got epochs of shape {epochs.shape} for "
            f"positions of shape {positions.shape}."
        )
    if epochs.size and epochs.min() < 0:
        raise ValueError(f"Epochs count from 0; got {epochs.min()}.")
    if positions.size and (positions.min() < 0 or positions.max() >= num_rows):
        raise ValueError(
            f"Positions must lie in [0, {num_rows}), the rows of an epoch; got "
            f"{positions.min()} to {positions.max()}."
        )
    keys = _round_keys(seed, epochs.reshape(-1))
    values = positions.reshape(-1).astype(np.uint64)
    return _walk(values, keys, num_rows).astype(np.int64).reshape(positions.shape)


def _walk(
    values: UInt64[np.ndarray, " n"], keys: list[UInt64[np.ndarray, " k"]], num_rows: int
) -> UInt64[np.ndarray, " n"]:
    """Encrypts each value until it is below ``num_rows``; under two rounds of it on average."""
    bits = max(2, (num_rows - 1).bit_length())
    limit = np.uint64(num_rows)
    values = _encrypt(values, keys, bits)
    outside = np.flatnonzero(values >= limit)
    while outside.size:
        own_keys = [key if key.size == 1 else key[outside] for key in keys]
        walked = _encrypt(values[outside], own_keys, bits)
        values[outside] = walked
        outside = outside[walked >= limit]
    return values


def _encrypt(
    values: UInt64[np.ndarray, " n"], keys: list[UInt64[np.ndarray, " k"]], bits: int
) -> UInt64[np.ndarray, " n"]:
    """A permutation of ``[0, 2**bits)``: the two halves are mixed into each other in turn."""
    width = np.uint64(bits // 2)
    low_mask = np.uint64((1 << (bits // 2)) - 1)
    high_mask = np.uint64((1 << (bits - bits // 2)) - 1)
    high, low = values >> width, values & low_mask
    for index, key in enumerate(keys):
        # Each line alone is undone by doing it again, so the whole is invertible for any halves.
        if index % 2 == 0:
            high ^= mix(low + key) & high_mask
        else:
            low ^= mix(high + key) & low_mask
    return (high << width) | low


def _round_keys(seed: int, epochs: Int64[np.ndarray, " k"]) -> list[UInt64[np.ndarray, " k"]]:
    """One 64-bit key a round, from (seed, epoch, round)."""
    base = mix(mix(np.array([seed], np.uint64) + GOLDEN) + epochs.astype(np.uint64))
    return [mix(base + np.array([index], np.uint64) * GOLDEN) for index in range(1, _ROUNDS + 1)]


def mix(x: UInt64[np.ndarray, " n"]) -> UInt64[np.ndarray, " n"]:
    """splitmix64's finaliser, in place: an input bit flips an output bit half of the time."""
    x ^= x >> np.uint64(30)
    x *= np.uint64(0xBF58476D1CE4E5B9)
    x ^= x >> np.uint64(27)
    x *= np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return x

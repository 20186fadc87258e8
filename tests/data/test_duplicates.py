"""The set of digests against Python's own set."""

import hashlib
import random

import pytest

from bert_jax.data.duplicates import SeenDigests


@pytest.mark.parametrize("unsorted", [1, 7, 1000])
def test_agrees_with_a_set(unsorted):
    generator = random.Random(unsorted)
    seen, expected = SeenDigests(unsorted=unsorted), set()
    for _ in range(200):
        numbers = [generator.randrange(3000) for _ in range(generator.randrange(30))]
        digests = [hashlib.sha256(str(n).encode()).digest() for n in numbers]
        new = []
        for number in numbers:
            new.append(number not in expected)
            expected.add(number)
        assert seen.add(digests) == new


def test_zero_bytes_count():
    """Numpy's byte strings drop zeros at their end; digests that differ there must not agree."""
    digests = [b"x" * 14 + end for end in (b"\0\0", b"\0x", b"x\0", b"xx")] + [bytes(16)]
    seen = SeenDigests(unsorted=1)
    assert [seen.add([digest]) for digest in digests] == [[True]] * 5
    assert seen.add(digests) == [False] * 5


def test_runs_stay_few():
    seen = SeenDigests(unsorted=10)
    for n in range(2000):
        seen.add([hashlib.sha256(bytes([n & 255, n >> 8])).digest()])
    assert len(seen._runs) <= 8  # at most log2(2000 / 10)

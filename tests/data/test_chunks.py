"""Shards are cut by bytes of text, known before anything is tokenised."""

import random

import pytest

from bert_jax.data import chunks as module
from bert_jax.data.chunks import Kept, make_chunks


def make_documents(seed: int) -> list[Kept]:
    generator = random.Random(seed)
    return [
        Kept(
            f"document {n}",
            generator.randrange(1, 50),
            generator.choices(("train", "validation"), (4, 1))[0],
            10 * n,
        )
        for n in range(300)
    ]


def shards_of(chunks) -> dict[tuple[str, int], list[str]]:
    """The texts of every shard; checks that shards close once, with their last chunk."""
    shards: dict[tuple[str, int], list[str]] = {}
    closed = set()
    for chunk in chunks:
        key = chunk.split, chunk.shard
        assert key not in closed
        assert len(chunk.texts) == len(chunk.sizes)
        shards.setdefault(key, []).extend(chunk.texts)
        if chunk.closes:
            closed.add(key)
    assert closed == set(shards)
    return shards


@pytest.mark.parametrize("chunk_bytes", [1, 100, 10**6])
@pytest.mark.parametrize("shard_bytes", [1, 333, 10**6])
def test_shards_hold_all_documents_in_order(monkeypatch, chunk_bytes, shard_bytes):
    monkeypatch.setattr(module, "_CHUNK_BYTES", chunk_bytes)
    documents = make_documents(chunk_bytes)
    shards = shards_of(make_chunks(documents, set(), shard_bytes, lambda position: None))
    sizes = {document.text: document.size for document in documents}
    for split in ("train", "validation"):
        mine = [shards[key] for key in sorted(shards) if key[0] == split]
        assert [text for shard in mine for text in shard] == [
            document.text for document in documents if document.split == split
        ]
        for shard in mine[:-1]:
            sizes_here = [sizes[text] for text in shard]
            assert sum(sizes_here) >= shard_bytes > sum(sizes_here[:-1])


def test_finished_shards_are_passed_over_and_the_others_stay_the_same():
    documents = make_documents(0)
    every = shards_of(make_chunks(documents, set(), 333, lambda position: None))
    done = set(random.Random(1).sample(sorted(every), len(every) // 2))
    passed: list[int] = []
    rest = shards_of(make_chunks(documents, done, 333, passed.append))
    assert rest == {key: texts for key, texts in every.items() if key not in done}
    assert len(passed) == sum(len(every[key]) for key in done)
    assert passed == sorted(passed)

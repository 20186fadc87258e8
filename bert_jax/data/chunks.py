"""From documents to chunks of work: unique, split by hash, cut into shards by bytes of text.

What a shard holds is a function of the input and the settings alone, known before anything is
tokenised. So after an interruption finished shards are passed over at the speed of reading.
"""

import collections
import dataclasses
import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from typing import NamedTuple

import numpy as np
from jaxtyping import Int64

from bert_jax.data.duplicates import SeenDigests
from bert_jax.data.shards import SPLITS
from bert_jax.data.sources import Source, read_source

SALT = "bert_jax validation split"
"""What goes before a document's text in the hash that chooses its split."""

_SALTED = hashlib.sha256(SALT.encode())

_CHUNK_BYTES = 1 << 19
_BLOCK_DOCUMENTS = 1024  # looked up among the duplicates in one go, if no more bytes than
_BLOCK_BYTES = 1 << 23


@dataclasses.dataclass(frozen=True)
class Chunk:
    """Documents that are tokenised in one go, and where the result belongs.

    Attributes:
        split: "train" or "validation".
        shard: Number of the shard.
        texts: The documents.
        sizes: Bytes of text of each.
        closes: Whether these are the last documents of the shard.
        position: Bytes of input read so far.
    """

    split: str
    shard: int
    texts: list[str]
    sizes: Int64[np.ndarray, " documents"]
    closes: bool
    position: int


class Kept(NamedTuple):
    """A document that belongs in the store, its bytes of text, split, and place in the input."""

    text: str
    size: int
    split: str
    position: int


@dataclasses.dataclass
class Census:
    """Counts of the documents read.

    Attributes:
        read: All of them.
        blank: Those of white space only, which are dropped.
        duplicates: By split, those whose text was met before, which are dropped.
    """

    read: int = 0
    blank: int = 0
    duplicates: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)


def split_of(text: str, validation_fraction: float) -> str:
    """The split a document belongs to, whatever else is in the corpus.

    Args:
        text: The document.
        validation_fraction: It is held out if the first 8 bytes of SHA-256(`SALT` + text), a
            big-endian number, are below this times 2^64.

    Returns:
        "train" or "validation".
    """
    return _split_of_digest(_salted_digest(text.encode("utf-8")), validation_fraction)


def _salted_digest(data: bytes) -> bytes:
    digest = _SALTED.copy()
    digest.update(data)
    return digest.digest()


def _split_of_digest(digest: bytes, validation_fraction: float) -> str:
    return SPLITS[int.from_bytes(digest[:8], "big") < int(validation_fraction * 2**64)]


def keep_documents(
    sources: Sequence[Source], field: str, validation_fraction: float, census: Census
) -> Iterator[Kept]:
    """Reads documents, drops blank ones and exact duplicates, and chooses the split of the others.

    Args:
        sources: Read in this order.
        field: Of the text, as in `sources.read_documents`.
        validation_fraction: As of `split_of`.
        census: Counts are added to it as the iterator advances.
    """
    seen = SeenDigests()
    for block in _blocks(sources, field, census):
        digests = [_salted_digest(data) for _, data, _ in block]
        for (text, data, at), digest, new in zip(block, digests, seen.add(digests), strict=True):
            split = _split_of_digest(digest, validation_fraction)
            if new:
                yield Kept(text, len(data), split, at)
            else:
                census.duplicates[split] += 1


def _blocks(
    sources: Sequence[Source], field: str, census: Census
) -> Iterator[list[tuple[str, bytes, int]]]:
    """Yields lists of (text, the same in UTF-8, position in all input) of non-blank documents."""
    block: list[tuple[str, bytes, int]] = []
    before, num_bytes = 0, 0
    for source in sources:
        for document, position in read_source(source, field):
            census.read += 1
            if not document.text.strip():
                census.blank += 1
                continue
            data = document.text.encode("utf-8")
            block.append((document.text, data, before + position))
            num_bytes += len(data)
            if len(block) >= _BLOCK_DOCUMENTS or num_bytes >= _BLOCK_BYTES:
                yield block
                block, num_bytes = [], 0
        before += source.num_bytes
    yield block


def make_chunks(
    documents: Iterable[Kept],
    done: Set[tuple[str, int]],
    shard_bytes: int,
    passed: Callable[[int], None],
) -> Iterator[Chunk]:
    """Cuts each split into shards and these into chunks.

    Args:
        documents: In the order of the input.
        done: (split, number) of shards that are finished; their documents are passed over.
        shard_bytes: A shard is full with the document that reaches this many bytes of text.
        passed: Called with the position of a document that is passed over.
    """
    open_shards = {split: _OpenShard(split, 0) for split in SPLITS}
    position = 0
    for document in documents:
        position = document.position
        shard = open_shards[document.split]
        shard.num_bytes += document.size
        is_done = (shard.split, shard.number) in done
        if is_done:
            passed(position)
        else:
            shard.texts.append(document.text)
            shard.sizes.append(document.size)
            shard.pending += document.size
        is_full = shard.num_bytes >= shard_bytes
        if not is_done and (is_full or shard.pending >= _CHUNK_BYTES):
            yield shard.take(closes=is_full, position=position)
        if is_full:
            open_shards[document.split] = _OpenShard(shard.split, shard.number + 1)
    for shard in open_shards.values():
        if shard.num_bytes and (shard.split, shard.number) not in done:
            yield shard.take(closes=True, position=position)


@dataclasses.dataclass
class _OpenShard:
    """The shard of a split that is being filled, and its next chunk."""

    split: str
    number: int
    num_bytes: int = 0
    pending: int = 0  # of num_bytes, in the next chunk
    texts: list[str] = dataclasses.field(default_factory=list)
    sizes: list[int] = dataclasses.field(default_factory=list)

    def take(self, *, closes: bool, position: int) -> Chunk:
        """Returns the documents gathered and begins the next chunk."""
        sizes = np.asarray(self.sizes, np.int64)
        chunk = Chunk(self.split, self.number, self.texts, sizes, closes, position)
        self.texts, self.sizes, self.pending = [], [], 0
        return chunk

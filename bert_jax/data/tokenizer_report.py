"""How well a vocabulary fits a text: unknown rate, fertility, the words it breaks most."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np

from bert_jax.data.tokenizer import Tokenizer
from bert_jax.data.tokenizer_sentencepiece import Normalization
from bert_jax.data.tokenizer_train import TrainedKind

if TYPE_CHECKING:
    from bert_jax.data.sources import Format

_BATCH = 64  # documents tokenised at a time
_WORDS_BATCH = 10_000
_WORD = re.compile(r"\w+(?:['\u2019]\w+)*")  # letters and digits, apostrophes inside
_REPORT_CHARACTERS = 10_000_000


@dataclasses.dataclass(frozen=True)
class FragmentedWord:
    """A word the vocabulary breaks into many pieces.

    Attributes:
        word: As it stands in the text.
        count: How often it does.
        pieces: The strings of its tokens.
    """

    word: str
    count: int
    pieces: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class TokenizerReport:
    """A tokenizer measured on texts. `str` gives a table.

    Attributes:
        kind, family, normalization, digest: Of the tokenizer.
        vocab_size: Its tokens, special ones included.
        documents, characters: Of the texts.
        words: Between white space.
        tokens: Without special tokens.
        unknown_tokens: How many of them are the unknown token.
        most_fragmented: Words seen at least twice (or, if there are none, at all) with the most
            pieces; frequent ones first among equals.
    """

    kind: str
    family: str
    normalization: str
    digest: str
    vocab_size: int
    documents: int
    characters: int
    words: int
    tokens: int
    unknown_tokens: int
    most_fragmented: tuple[FragmentedWord, ...]

    @property
    def unknown_rate(self) -> float:
        """Share of tokens that are unknown, 0 of no tokens."""
        return self.unknown_tokens / self.tokens if self.tokens else 0.0

    @property
    def fertility(self) -> float:
        """Tokens a word, words being what stands between white space; 0 of no words."""
        return self.tokens / self.words if self.words else 0.0

    def table(self) -> str:
        """The report as lines of text."""
        lines = [
            f"tokenizer          {self.kind}, {self.family} special tokens",
            f"normalization      {self.normalization}",
            f"digest             {self.digest[:12]}",
            f"vocabulary size    {self.vocab_size:,}",
            f"measured on        {self.documents:,} documents, {self.characters:,} characters, "
            f"{self.words:,} words, {self.tokens:,} tokens",
            f"unknown rate       {self.unknown_rate:.4%} ({self.unknown_tokens:,} tokens)",
            f"fertility          {self.fertility:.3f} tokens a word",
        ]
        if self.most_fragmented:
            width = max(len(found.word) for found in self.most_fragmented)
            lines.append("most fragmented    (word, occurrences, pieces)")
            lines += [
                f"  {found.word:<{width}}  {found.count:>6,}  {' '.join(found.pieces)}"
                for found in self.most_fragmented
            ]
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.table()


def tokenizer_report(
    tokenizer: Tokenizer, texts: Iterable[str], *, num_words: int = 20
) -> TokenizerReport:
    """Measures a tokenizer on texts, which are read once and not kept.

    Args:
        tokenizer: What to measure.
        texts: Documents. Names of special tokens in them count as ordinary text.
        num_words: How many of the most fragmented words to name.

    Raises:
        ValueError: A text is not one.
    """
    documents = characters = words = tokens = unknown = 0
    counts: collections.Counter[str] = collections.Counter()
    texts = iter(texts)
    while batch := list(itertools.islice(texts, _BATCH)):
        for text, encoded in zip(batch, tokenizer.encode_arrays(batch), strict=True):
            documents += 1
            characters += len(text)
            words += len(text.split())
            tokens += len(encoded.ids)
            unknown += int(np.sum(encoded.ids == tokenizer.special.unk))
            counts.update(_WORD.findall(text))
    return TokenizerReport(
        kind=tokenizer.kind,
        family=tokenizer.family,
        normalization=tokenizer.normalization,
        digest=tokenizer.digest(),
        vocab_size=tokenizer.vocab_size,
        documents=documents,
        characters=characters,
        words=words,
        tokens=tokens,
        unknown_tokens=unknown,
        most_fragmented=_most_fragmented(tokenizer, counts, num_words),
    )


def train_tokenizer_command(
    files: Sequence[str | os.PathLike[str]],
    output_dir: str | os.PathLike[str],
    *,
    kind: TrainedKind = "wordpiece",
    vocab_size: int = 30522,
    lowercase: bool = False,
    strip_accents: bool | None = None,
    min_frequency: int = 2,
    limit_alphabet: int = 1000,
    normalization: Normalization = "identity",
    unknown: Literal["unk", "bytes"] = "unk",
    character_coverage: float = 0.99995,
    format: Format = "auto",
    field: str = "text",
) -> TokenizerReport:
    """Trains a tokenizer on files, saves it and measures it on them: `bert-jax tokenizer`.

    Args:
        files: What `read_documents` reads: text, JSON lines, Parquet, TFDS directories.
        output_dir: Directory to save to, in Hugging Face's form.
        kind: "wordpiece", "byte_bpe" or "unigram".
        vocab_size: Tokens, special ones included.
        lowercase: Texts are lower-cased.
        strip_accents: Accents are taken off letters; None: as `lowercase`.
        min_frequency: "wordpiece", "byte_bpe": occurrences of a pair that is merged.
        limit_alphabet: "wordpiece": most characters to keep.
        normalization: "unigram": SentencePiece's rule.
        unknown: "unigram": unknown characters become the unknown token, or tokens of bytes.
        character_coverage: "unigram": share of characters to keep.
        format: Of the files.
        field: Of the text, in formats with fields.

    Returns:
        The report, on the first 10 million characters of the files.

    Raises:
        ValueError: An argument or a file is bad.
        FileNotFoundError: A file is missing.
    """
    from bert_jax.data.sources import read_documents

    documents = read_documents(files, format=format, field=field)
    tokenizer = Tokenizer.train(
        texts=(document.text for document in documents),
        kind=kind,
        vocab_size=vocab_size,
        lowercase=lowercase,
        strip_accents=strip_accents,
        min_frequency=min_frequency,
        limit_alphabet=limit_alphabet,
        normalization=normalization,
        unknown=unknown,
        character_coverage=character_coverage,
    )
    tokenizer.save(output_dir)
    documents = read_documents(files, format=format, field=field)
    return tokenizer_report(tokenizer, _first_texts(document.text for document in documents))


def _first_texts(texts: Iterable[str]) -> Iterator[str]:
    """The first texts, up to some number of characters."""
    characters = 0
    for text in texts:
        if characters >= _REPORT_CHARACTERS:
            return
        characters += len(text)
        yield text


def _most_fragmented(
    tokenizer: Tokenizer, counts: collections.Counter[str], num_words: int
) -> tuple[FragmentedWord, ...]:
    """The broken words of most pieces, each tokenised as if it stood between spaces."""
    words = [word for word, count in counts.items() if count > 1] or list(counts)
    # A SentencePiece model puts the space before the first word itself.
    before = "" if tokenizer.kind == "unigram" else " "
    lengths: dict[str, int] = {}
    for start in range(0, len(words), _WORDS_BATCH):
        batch = words[start : start + _WORDS_BATCH]
        encoded = tokenizer.encode_arrays([before + word for word in batch])
        lengths.update((word, len(one.ids)) for word, one in zip(batch, encoded, strict=True))
    broken = [word for word in words if lengths[word] > 1]
    chosen = sorted(broken, key=lambda word: (-lengths[word], -counts[word], word))[:num_words]
    encoded = tokenizer.encode_arrays([before + word for word in chosen])
    pieces = [tuple(tokenizer.id_to_token(int(i)) for i in one.ids) for one in encoded]
    return tuple(
        FragmentedWord(word, counts[word], parts)
        for word, parts in zip(chosen, pieces, strict=True)
    )

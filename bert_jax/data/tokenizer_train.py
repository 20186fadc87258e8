"""Trains vocabularies: WordPiece, byte-level BPE, and SentencePiece's unigram model.

The same text gives the same vocabulary on every run and machine. Byte-level BPE does by itself.
`tokenizers`' WordPiece trainer numbers the pieces inside words in the order of a hash table, which
also decides ties between merges; it is told the alphabet instead, which takes a first pass over the
text. SentencePiece sums floats by thread, so that their number is fixed here.
"""

from __future__ import annotations

import collections
import dataclasses
import io
import json
import os
import re
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from bert_jax.data import tokenizer_sentencepiece
from bert_jax.data.tokenizer_parts import FAMILY_TOKENS, TokenizerParts, assemble, check_text
from bert_jax.data.tokenizer_sentencepiece import Normalization

if TYPE_CHECKING:
    import tokenizers

TrainedKind = Literal["wordpiece", "byte_bpe", "unigram"]

_WHERE = "the trained tokenizer"
_THREADS = 16  # SentencePiece's own default
_SENTENCE = 4000  # characters; SentencePiece skips longer ones than it is told to expect
_NOT_TEXT = (".json", ".jsonl", ".parquet", ".csv", ".tsv", ".zip")


@dataclasses.dataclass(frozen=True)
class Training:
    """What to train.

    Attributes:
        kind: "wordpiece" (BERT's special tokens), "byte_bpe" (RoBERTa's) or "unigram" (BERT's).
        vocab_size: Tokens, special ones included; fewer come out if the text has no more to offer.
        lowercase: Texts are lower-cased.
        strip_accents: Accents are taken off letters; None: as `lowercase`.
        min_frequency: How often a pair must occur to be merged ("wordpiece", "byte_bpe").
        limit_alphabet: Most characters to keep, by frequency ("wordpiece").
        normalization: SentencePiece's rule ("unigram"). "identity" changes no character and keeps
            every space; the others rewrite texts by NFKC and shorten runs of spaces.
        unknown: What becomes of characters without a piece ("unigram"): the unknown token, or the
            tokens of their UTF-8 bytes.
        character_coverage: Share of the text's characters that get pieces ("unigram"; the default
            is that of ALBERT's vocabulary).
    """

    kind: TrainedKind
    vocab_size: int
    lowercase: bool = False
    strip_accents: bool | None = None
    min_frequency: int = 2
    limit_alphabet: int = 1000
    normalization: Normalization = "identity"
    unknown: Literal["unk", "bytes"] = "unk"
    character_coverage: float = 0.99995

    def __post_init__(self) -> None:
        if self.kind not in get_args(TrainedKind):
            raise ValueError(f"tokenizer kind {self.kind!r} is not one of {get_args(TrainedKind)}")
        if self.normalization not in get_args(Normalization):
            raise ValueError(
                f"normalization {self.normalization!r} is not one of {get_args(Normalization)}"
            )
        if self.unknown not in ("unk", "bytes"):
            raise ValueError(f"unknown {self.unknown!r} is not one of ('unk', 'bytes')")
        for name in ("vocab_size", "min_frequency", "limit_alphabet"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: it must be at least 1")
        if not 0 < self.character_coverage <= 1:
            raise ValueError(f"character_coverage is {self.character_coverage}: it lies in (0, 1]")
        elsewhere = {
            "unigram": ("min_frequency", "limit_alphabet"),
            "byte_bpe": ("limit_alphabet", "normalization", "unknown", "character_coverage"),
            "wordpiece": ("normalization", "unknown", "character_coverage"),
        }[self.kind]
        defaults = {field.name: field.default for field in dataclasses.fields(self)}
        for name in elsewhere:
            if getattr(self, name) != defaults[name]:
                raise ValueError(f"{name} means nothing for a {self.kind} tokenizer: leave it out")

    @property
    def strips_accents(self) -> bool:
        """`strip_accents`, resolved."""
        return self.lowercase if self.strip_accents is None else self.strip_accents

    @property
    def special_tokens(self) -> list[str]:
        """The special tokens, in the order of their ids, which start at 0."""
        family = "roberta" if self.kind == "byte_bpe" else "bert"
        return list(FAMILY_TOKENS[family].values())


def train_parts(texts: Iterable[str], training: Training) -> TokenizerParts:
    """Trains a tokenizer.

    Args:
        texts: Of any length. WordPiece reads them twice; an iterator that can be read only once is
            written to a temporary file.
        training: What to train.

    Raises:
        ValueError: There is no text, or the vocabulary is too small for its characters.
    """
    if training.kind == "byte_bpe":
        return _train_byte_bpe(_not_empty(texts), training)
    if training.kind == "unigram":
        return _train_unigram(_not_empty(texts), training)
    if iter(texts) is not texts:
        return _train_wordpiece(texts, training)
    with tempfile.TemporaryFile("w+", encoding="utf-8", newline="") as file:
        for text in texts:  # without their line ends, which mean nothing to WordPiece
            file.write(" ".join(text.split()) + "\n")
        return _train_wordpiece(_Rewound(file), training)


def file_texts(paths: Iterable[str | os.PathLike[str]]) -> Iterator[str]:
    """The lines of text files (UTF-8, plain or gzipped).

    Raises:
        ValueError: A file is missing, not text, or of a format whose lines are not the text.
    """
    from bert_jax.data.sources import read_documents

    paths = [Path(path) for path in paths]
    for path in paths:
        if any(suffix in _NOT_TEXT for suffix in path.suffixes):
            raise ValueError(
                f"{path} is not plain text: read it with read_documents and pass its texts"
            )
        if not path.exists():
            raise ValueError(
                f"training file {str(path)[:200]} does not exist: pass texts as texts="
            )
    return (document.text for document in read_documents(paths, format="lines"))


class _Rewound:
    """The lines of a file, from the start each time."""

    def __init__(self, file: Any):
        self._file = file

    def __iter__(self) -> Iterator[str]:
        self._file.seek(0)
        return iter(self._file)


def _not_empty(texts: Iterable[str]) -> Iterator[str]:
    """The texts that are not blank; fails if there is none."""
    found = False
    for text in texts:
        check_text(text)
        if text and not text.isspace():
            found = True
            yield text
    if not found:
        raise ValueError("there is no text to train a tokenizer on: every document is empty")


def _too_small(training: Training, needed: int, remedy: str = "") -> ValueError:
    """The error for a vocabulary that cannot hold the alphabet."""
    return ValueError(
        f"vocab_size {training.vocab_size} is too small for this text: the special tokens and the "
        f"alphabet alone are {needed}; raise it{remedy}"
    )


def _train_wordpiece(texts: Iterable[str], training: Training) -> TokenizerParts:
    """Trains WordPiece on texts that can be read twice."""
    import tokenizers
    from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

    backend = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=True,
        strip_accents=training.strips_accents,
        lowercase=training.lowercase,
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    alphabet = _wordpiece_alphabet(backend, texts, training.limit_alphabet)
    given = [*training.special_tokens, *alphabet]
    if len(given) > training.vocab_size:
        raise _too_small(training, len(given), " or lower limit_alphabet")
    trainer = trainers.WordPieceTrainer(
        vocab_size=training.vocab_size,
        min_frequency=training.min_frequency,
        special_tokens=given,
        initial_alphabet=[piece for piece in alphabet if len(piece) == 1],
        limit_alphabet=sum(len(piece) == 1 for piece in alphabet),
        show_progress=False,
    )
    backend.train_from_iterator(_not_empty(texts), trainer)
    vocab = backend.get_vocab()
    trained = tokenizers.Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    trained.normalizer, trained.pre_tokenizer = backend.normalizer, backend.pre_tokenizer
    trained.decoder = decoders.WordPiece()
    return assemble(trained, _WHERE, family="bert")


def _wordpiece_alphabet(
    backend: tokenizers.Tokenizer, texts: Iterable[str], limit: int
) -> list[str]:
    """Most frequent characters, and `##` before those that can stand inside a word.

    Counted after normalisation; ties go to the lower code point. Both lists are sorted.
    """
    normalizer: Any = backend.normalizer
    splitter: Any = backend.pre_tokenizer
    counts: collections.Counter[str] = collections.Counter()
    for text in _not_empty(texts):
        counts.update(normalizer.normalize_str(text))
    by_count = sorted(counts, key=lambda character: (-counts[character], character))
    kept = sorted([character for character in by_count if not character.isspace()][:limit])
    inside = [
        c for c in kept if [word for word, _ in splitter.pre_tokenize_str(f"a{c}")] == [f"a{c}"]
    ]
    return [*kept, *(f"##{character}" for character in inside)]


def _train_byte_bpe(texts: Iterable[str], training: Training) -> TokenizerParts:
    """Trains byte-level BPE, whose alphabet is the 256 bytes."""
    import tokenizers
    from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    needed = len(training.special_tokens) + len(alphabet)
    if needed > training.vocab_size:
        raise _too_small(training, needed)
    backend = tokenizers.Tokenizer(models.BPE())
    steps = tokenizer_sentencepiece.fold(
        lowercase=training.lowercase, strip_accents=training.strips_accents
    )
    if steps:
        backend.normalizer = normalizers.Sequence(steps)
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=training.vocab_size,
        min_frequency=training.min_frequency,
        special_tokens=training.special_tokens,
        initial_alphabet=alphabet,
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    # Training registered the special tokens; `assemble` does it again, the mask with its space.
    definition = {**json.loads(backend.to_str()), "added_tokens": []}
    trained = tokenizers.Tokenizer.from_str(json.dumps(definition))
    return assemble(trained, _WHERE, family="roberta")


def _train_unigram(texts: Iterable[str], training: Training) -> TokenizerParts:
    """Trains SentencePiece's unigram model and converts it."""
    import sentencepiece

    sentences = _Remembering(_sentences(texts, training))
    written = io.BytesIO()
    names = FAMILY_TOKENS["bert"]
    specials: dict[str, Any] = {
        **{f"{role}_id": i for i, role in enumerate(("pad", "unk", "bos", "eos"))},
        "pad_piece": names["pad"],
        "unk_piece": names["unk"],
        "bos_piece": names["cls"],
        "eos_piece": names["sep"],
        "control_symbols": [names["mask"]],
    }
    try:
        sentencepiece.SentencePieceTrainer.Train(
            sentence_iterator=sentences,
            model_writer=written,
            model_type="unigram",
            vocab_size=training.vocab_size,
            hard_vocab_limit=False,
            character_coverage=training.character_coverage,
            normalization_rule_name=training.normalization,
            remove_extra_whitespaces=training.normalization != "identity",
            byte_fallback=training.unknown == "bytes",
            **specials,
            max_sentence_length=4 * _SENTENCE,  # bytes
            num_threads=_THREADS,
            minloglevel=2,
        )
    except RuntimeError as error:
        if sentences.error is not None:
            raise sentences.error from None
        small = re.search(r"smaller than required_chars\. \d+ vs (\d+)", str(error))
        if small:
            remedy = " or lower character_coverage"
            raise _too_small(training, int(small.group(1)), remedy) from error
        raise ValueError(f"SentencePiece cannot train on this text: {error}") from error
    content = written.getvalue()
    backend, normalization = tokenizer_sentencepiece.convert(
        content, _WHERE, lowercase=training.lowercase, strip_accents=training.strips_accents
    )
    return assemble(
        backend, _WHERE, family="bert", normalization=normalization, sentencepiece=content
    )


class _Remembering:
    """An iterator that keeps the error it failed with, which SentencePiece turns into its own."""

    def __init__(self, texts: Iterator[str]):
        self._texts = texts
        self.error: Exception | None = None

    def __iter__(self) -> _Remembering:
        return self

    def __next__(self) -> str:
        try:
            return next(self._texts)
        except StopIteration:
            raise
        except Exception as error:
            self.error = error
            raise


def _sentences(texts: Iterable[str], training: Training) -> Iterator[str]:
    """The lines of the texts, folded, cut at spaces into what SentencePiece takes."""
    from tokenizers import normalizers

    steps = tokenizer_sentencepiece.fold(
        lowercase=training.lowercase, strip_accents=training.strips_accents
    )
    folded = normalizers.Sequence(steps)
    for text in texts:
        for line in text.replace("\0", " ").splitlines():
            rest = folded.normalize_str(line) if steps else line
            while len(rest) > _SENTENCE:
                space = rest.rfind(" ", 0, _SENTENCE)
                cut = space if space > 0 else _SENTENCE
                yield rest[:cut]
                rest = rest[cut:]
            if rest.strip():
                yield rest

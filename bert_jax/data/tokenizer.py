"""One tokenizer for WordPiece, byte-level BPE and SentencePiece's unigram model.

Example:
    Tokenizer.train(["corpus.txt"], kind="wordpiece", vocab_size=30522).save("my-tokenizer")
    tokenizer = Tokenizer.load("my-tokenizer")
    tokenizer.encode("The [MASK] of the Union").ids
"""

from __future__ import annotations

import functools
import hashlib
import json
import operator
import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal, SupportsIndex, cast

import numpy as np
from jaxtyping import Bool

from bert_jax.data import tokenizer_files, tokenizer_parts, tokenizer_train
from bert_jax.data.tokenizer_encoding import (
    EncodedArrays,
    Encoding,
    as_pairs,
    number_words,
    offset_array,
    starts_after_marks,
    trim,
    trim_in_words,
    truncate,
)
from bert_jax.data.tokenizer_parts import ROLES, Family, Kind, SpecialTokens, TokenizerParts
from bert_jax.data.tokenizer_sentencepiece import Normalization
from bert_jax.data.tokenizer_train import TrainedKind, Training

if TYPE_CHECKING:
    import tokenizers

__all__ = ["EncodedArrays", "Encoding", "Family", "Kind", "SpecialTokens", "Tokenizer"]

SpecialsInText = Literal["recognise", "literal"]


class Tokenizer:
    """Text to token ids and back. Made by `load` or `train`; immutable; can be pickled."""

    def __init__(self, parts: TokenizerParts):
        self._parts = parts

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Tokenizer:
        """Reads a tokenizer.

        Args:
            path: A Hugging Face directory, a tokenizer.json, a vocab.txt (WordPiece), a vocab.json
                with merges.txt beside it (byte-level BPE), or a SentencePiece unigram *.model. Of
                a file, nothing beside it is read (but merges.txt); in a directory,
                tokenizer_config.json and special_tokens_map.json name the special tokens' roles.

        Raises:
            ValueError: Nothing is there, it is broken, or a special token is missing.
        """
        return cls(tokenizer_files.read_tokenizer(path))

    @classmethod
    def train(
        cls,
        files: Iterable[str | os.PathLike[str]] | None = None,
        *,
        texts: Iterable[str] | None = None,
        kind: TrainedKind,
        vocab_size: int,
        lowercase: bool = False,
        strip_accents: bool | None = None,
        min_frequency: int = 2,
        limit_alphabet: int = 1000,
        normalization: Normalization = "identity",
        unknown: Literal["unk", "bytes"] = "unk",
        character_coverage: float = 0.99995,
    ) -> Tokenizer:
        """Trains a vocabulary; the same text gives the same one every time.

        Args:
            files: Text files (UTF-8, also gzipped), read line by line.
            texts: Texts, instead of files.
            kind: "wordpiece", "byte_bpe" or "unigram"; see `Training` for this and the rest.
            vocab_size: Tokens, special ones included.
            lowercase: Texts are lower-cased.
            strip_accents: Accents are taken off letters; None: as `lowercase`.
            min_frequency: "wordpiece", "byte_bpe": occurrences of a pair that is merged.
            limit_alphabet: "wordpiece": most characters to keep.
            normalization: "unigram": SentencePiece's rule.
            unknown: "unigram": unknown characters become the unknown token, or tokens of bytes.
            character_coverage: "unigram": share of characters to keep.

        Raises:
            ValueError: An argument is out of range, a file is missing or bad, there is no text, or
                the vocabulary is too small for the text's characters.
        """
        if (files is None) == (texts is None):
            raise ValueError("a tokenizer is trained on files or on texts=: give one of them")
        training = Training(
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
        if texts is None:
            texts = tokenizer_train.file_texts(
                [files] if isinstance(files, str | os.PathLike) else files or []
            )
        elif isinstance(texts, str):
            raise ValueError("texts is one str: pass a list of texts, or its file as files")
        return cls(tokenizer_train.train_parts(texts, training))

    def save(self, directory: str | os.PathLike[str], *, max_length: int | None = None) -> None:
        """Writes a directory that `load` and transformers' AutoTokenizer read.

        Args:
            directory: Made if needed. Another tokenizer in it is removed; other files stay.
            max_length: Longest input of the model it goes with, special tokens included, for
                programs that truncate to it.
        """
        tokenizer_files.write_tokenizer(directory, self._parts, max_length)

    def encode(
        self,
        text: str | Sequence[str],
        pair: str | Sequence[str] | None = None,
        *,
        max_length: int | None = None,
        add_special_tokens: bool = True,
        is_split_into_words: bool = False,
        specials_in_text: SpecialsInText = "recognise",
    ) -> Encoding:
        """Tokenises a text, or a pair of texts into one sequence.

        Args:
            text: A text, or its words.
            pair: The second one.
            max_length: Tokens to keep, special ones included. Of a pair the longer text is cut
                first, down to the length of the shorter, then both.
            add_special_tokens: Whether to frame the text as the family does.
            is_split_into_words: Whether texts are lists of words. Each is tokenised as it would be
                with a space before it.
            specials_in_text: What to make of a special token's name in a text, "[MASK]" say:
                "recognise" it as that token, or take it "literal"ly, as the characters it is
                written with.

        Raises:
            ValueError: A text is not of the type said, or `max_length` has no room for the special
                tokens.
        """
        backend = self._backend(specials_in_text)
        given = [text] if pair is None else [text, pair]
        inputs = [self._checked(one, is_split_into_words, specials_in_text) for one in given]
        encoded = backend.encode(
            *inputs, is_pretokenized=is_split_into_words, add_special_tokens=add_special_tokens
        )
        sequences, word_ids = encoded.sequence_ids, encoded.word_ids
        ids, offsets = np.array(encoded.ids, np.int64), offset_array(encoded.offsets)
        is_space, starts = self._is_space[ids], np.zeros(len(ids), bool)
        for number, (one, original) in enumerate(zip(inputs, given, strict=True)):
            own = np.array([sequence == number for sequence in sequences], bool)
            words = [word_ids[i] for i in np.flatnonzero(own)]
            if is_split_into_words:
                offsets[own] = trim_in_words(offsets[own], words, one, original, is_space[own])
            else:
                offsets[own] = trim(offsets[own], one, is_space[own])
                starts[own] = self._word_starts(one, ids[own], offsets[own], words)
        if not is_split_into_words:
            word_ids = number_words(sequences, starts)
        whole = Encoding(
            encoded.ids, encoded.type_ids, as_pairs(offsets), word_ids, encoded.special_tokens_mask
        )
        return whole if max_length is None else truncate(whole, sequences, max_length)

    def encode_batch(
        self,
        texts: Sequence[str],
        *,
        add_special_tokens: bool = True,
        specials_in_text: SpecialsInText = "recognise",
    ) -> list[Encoding]:
        """Tokenises texts, in parallel threads (unless TOKENIZERS_PARALLELISM is false).

        Args:
            texts: Single texts.
            add_special_tokens: As of `encode`.
            specials_in_text: As of `encode`.
        """
        batch = self._encode_batch(texts, add_special_tokens, specials_in_text)
        return [self._encoding(text, encoded) for text, encoded in zip(texts, batch, strict=True)]

    def encode_arrays(
        self,
        texts: Sequence[str] | Sequence[Sequence[str]],
        *,
        is_split_into_words: bool = False,
        specials_in_text: SpecialsInText = "literal",
    ) -> list[EncodedArrays]:
        """Tokenises the documents of a corpus; like `encode_batch` without special tokens.

        Args:
            texts: Documents.
            is_split_into_words: Whether documents are lists of words, as a segmenter of Chinese
                gives them, say: a given word starts one, whatever characters it has. Offsets are
                those in the words joined by single spaces.
            specials_in_text: "literal", so that no special token gets into a corpus because a
                document speaks of it.
        """
        if is_split_into_words:
            return [self._arrays_of_words(words, specials_in_text) for words in texts]
        whole = cast(Sequence[str], texts)
        batch = self._encode_batch(whole, False, specials_in_text)
        return [self._arrays(text, encoded) for text, encoded in zip(whole, batch, strict=True)]

    def decode(self, ids: Iterable[SupportsIndex], skip_special_tokens: bool = True) -> str:
        """The text of tokens.

        Args:
            ids: Token ids.
            skip_special_tokens: Whether to leave out special tokens (the unknown one too).

        Raises:
            ValueError: An id is not one of the vocabulary.
        """
        numbers = [operator.index(i) for i in ids]
        for i in (min(numbers, default=0), max(numbers, default=0)):
            self._check_id(i)
        return self._parts.backend.decode(numbers, skip_special_tokens=skip_special_tokens)

    def id_to_token(self, id: SupportsIndex) -> str:
        """The string of a token.

        Raises:
            ValueError: The id is not one of the vocabulary.
        """
        number = operator.index(id)
        self._check_id(number)
        token = self._parts.backend.id_to_token(number)
        if token is None:
            raise ValueError(f"token id {id} is not used in this vocabulary of {self.vocab_size}")
        return token

    def token_to_id(self, token: str) -> int | None:
        """The id of a token, None if it is not in the vocabulary."""
        return self._parts.backend.token_to_id(token)

    @property
    def special(self) -> SpecialTokens:
        """The special tokens by role."""
        return self._parts.special

    @property
    def family(self) -> Family:
        """How texts are framed and pairs joined: "bert" or "roberta"."""
        return self._parts.special.family

    @property
    def kind(self) -> Kind:
        """The model: "wordpiece", "byte_bpe" or "unigram"; of a file also "bpe" or "wordlevel"."""
        return self._parts.kind

    @property
    def normalization(self) -> str:
        """What happens to a text before it is split, in words."""
        return self._parts.normalization

    @functools.cached_property
    def vocab_size(self) -> int:
        """One more than the largest id, special tokens included."""
        return max(self._parts.backend.get_vocab().values()) + 1

    def digest(self) -> str:
        """SHA-256, in hex, of all that decides on ids and texts; kept by `save` and `load`."""
        return self._digest

    @functools.cached_property
    def _digest(self) -> str:
        definition = json.loads(self._parts.backend.to_str())
        del definition["version"]
        roles = {role: getattr(self.special, role) for role in ROLES}
        content = {"tokenizer": definition, "roles": roles, "family": self.family}
        canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()

    def __getstate__(self) -> dict[str, Any]:
        return {"_parts": self._parts}

    def __repr__(self) -> str:
        return (
            f"Tokenizer({self.kind}, {self.vocab_size} tokens, family {self.family}, "
            f"normalization {self.normalization}, digest {self.digest()[:12]})"
        )

    def _check_id(self, id: int) -> None:
        if not 0 <= id < self.vocab_size:
            raise ValueError(
                f"token id {id} is not in the vocabulary: ids go from 0 to {self.vocab_size - 1}"
            )

    def _backend(self, specials_in_text: SpecialsInText) -> tokenizers.Tokenizer:
        if specials_in_text == "recognise":
            return self._parts.backend
        if specials_in_text == "literal":
            return self._literal
        raise ValueError(
            f"specials_in_text {specials_in_text!r} is neither 'recognise' nor 'literal'"
        )

    @functools.cached_property
    def _literal(self) -> tokenizers.Tokenizer:
        return tokenizer_parts.literal_twin(self._parts)

    @functools.cached_property
    def _splits_words(self) -> bool:
        """Whether the pre-tokenizer splits words; else the vocabulary's space marks tell them."""
        return len(set(self._parts.backend.encode("a b", add_special_tokens=False).word_ids)) > 1

    @functools.cached_property
    def _marks(self) -> Literal["cjk", "cjk and punctuation"] | None:
        """Characters that are words of their own, though the pre-tokenizer does not split them."""
        if self.kind == "byte_bpe":
            return "cjk"
        return "cjk and punctuation" if self.kind in ("unigram", "bpe") else None

    @functools.cached_property
    def _starts_word(self) -> Bool[np.ndarray, " vocab"]:
        """Which tokens start a word by themselves: those with a space before them, and specials."""
        starts = np.zeros(self.vocab_size, bool)
        starts[list(self.special.ids)] = True
        marker = tokenizer_parts.space_marker(self.kind)
        vocab = self._parts.backend.get_vocab()
        starts[[i for token, i in vocab.items() if marker and token.startswith(marker)]] = True
        return starts

    @functools.cached_property
    def _is_space(self) -> Bool[np.ndarray, " vocab"]:
        """Which tokens are nothing but spaces."""
        is_space = np.zeros(self.vocab_size, bool)
        marker = tokenizer_parts.space_marker(self.kind)
        vocab = self._parts.backend.get_vocab()
        is_space[[i for token, i in vocab.items() if marker and not token.strip(marker)]] = True
        return is_space

    @functools.cached_property
    def _names(self) -> frozenset[str]:
        """The tokens that are found in a text before anything else."""
        return frozenset(t.content for t in self._parts.backend.get_added_tokens_decoder().values())

    @functools.cached_property
    def _holds_spaces(self) -> bool:
        """Whether tokens can have spaces at their ends."""
        added = self._parts.backend.get_added_tokens_decoder().values()
        return self.kind != "wordpiece" or any(t.lstrip or t.rstrip for t in added)

    def _checked(
        self, text: str | Sequence[str], is_split: bool, specials_in_text: SpecialsInText
    ) -> Any:
        """Checks an input's type; puts spaces before words whose model keeps them in tokens."""
        if not is_split:
            tokenizer_parts.check_text(text)
            return text
        if isinstance(text, str):
            raise ValueError("is_split_into_words needs a list of words, not one str")
        for word in text:
            tokenizer_parts.check_text(word)
        if self.kind not in ("byte_bpe", "bpe"):
            return list(text)
        names = self._names if specials_in_text == "recognise" else ()
        plain = [not word or word in names or word[0].isspace() for word in text]
        return [word if as_is else f" {word}" for word, as_is in zip(text, plain, strict=True)]

    def _encode_batch(
        self, texts: Sequence[str], add_special_tokens: bool, specials_in_text: SpecialsInText
    ) -> list[Any]:
        if isinstance(texts, str):
            raise ValueError("texts is one str: pass a list of texts")
        backend = self._backend(specials_in_text)
        try:
            return backend.encode_batch(list(texts), add_special_tokens=add_special_tokens)
        except TypeError:
            for text in texts:
                tokenizer_parts.check_text(text)
            raise

    def _encoding(self, text: str, encoded: Any) -> Encoding:
        ids, offsets, word_ids = np.array(encoded.ids, np.int64), encoded.offsets, encoded.word_ids
        if self._holds_spaces:
            offsets = as_pairs(trim(offset_array(offsets), text, self._is_space[ids]))
        if self._marks or not self._splits_words:
            own = np.array([sequence is not None for sequence in encoded.sequence_ids], bool)
            words = [word_ids[i] for i in np.flatnonzero(own)]
            starts = np.zeros(len(ids), bool)
            starts[own] = self._word_starts(text, ids[own], offset_array(offsets)[own], words)
            word_ids = number_words(encoded.sequence_ids, starts)
        return Encoding(
            encoded.ids, encoded.type_ids, offsets, word_ids, encoded.special_tokens_mask
        )

    def _arrays(self, text: str, encoded: Any) -> EncodedArrays:
        ids = np.array(encoded.ids, np.uint32)
        offsets = offset_array(encoded.offsets)
        if self._holds_spaces:
            offsets = trim(offsets, text, self._is_space[ids])
        return EncodedArrays(ids, self._word_starts(text, ids, offsets, encoded.word_ids), offsets)

    def _arrays_of_words(
        self, words: Sequence[str], specials_in_text: SpecialsInText
    ) -> EncodedArrays:
        encoding = self.encode(
            words,
            add_special_tokens=False,
            is_split_into_words=True,
            specials_in_text=specials_in_text,
        )
        number = np.array(encoding.word_ids, np.int64)
        begins = np.cumsum([0, *(len(word) + 1 for word in words)])
        offsets = offset_array(encoding.offsets) + begins[number][:, None]
        starts = np.diff(number, prepend=-1) != 0
        return EncodedArrays(np.array(encoding.ids, np.uint32), starts, offsets)

    def _word_starts(
        self, text: str, ids: Any, offsets: Any, words: Sequence[int | None]
    ) -> Bool[np.ndarray, " tokens"]:
        """Which tokens of a text start a word, out of what the pre-tokenizer has split."""
        starts = np.diff(np.array(words, np.int64), prepend=-1) != 0
        if not self._splits_words:
            starts |= self._starts_word[ids]
        if self._marks:
            starts |= starts_after_marks(offsets, text, self._is_space[ids], marks=self._marks)
        return starts

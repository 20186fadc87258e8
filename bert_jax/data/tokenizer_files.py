"""Tokenizer files: reads every usual form, writes a Hugging Face directory.

A saved directory holds `tokenizer.json` (all that encodes and decodes), `tokenizer_config.json`
and `special_tokens_map.json` (the roles of the special tokens) and, where the tokenizer was made
from a SentencePiece model, `spiece.model` (which does not know of `lowercase`: that is in
`tokenizer.json` alone). Its `tokenizer_class` is the generic
`PreTrainedTokenizerFast`, because transformers 5 rebuilds named classes (`BertTokenizer`, ...) from
the vocabulary alone and so would change what is not their default.
"""

from __future__ import annotations

import json
import os
import unicodedata
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bert_jax.data import tokenizer_sentencepiece
from bert_jax.data.tokenizer_parts import ROLES, Role, SpecialTokens, TokenizerParts, assemble

if TYPE_CHECKING:
    import tokenizers

_DEFINITION, _CONFIG, _SPECIAL_MAP = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
)
_MODEL = "spiece.model"
_MODELS = (_MODEL, "spm.model", "sentencepiece.bpe.model", "sentencepiece.model", "tokenizer.model")
_VOCABULARIES = ("vocab.txt", "vocab.json", "merges.txt", "added_tokens.json")
_FORMS = f"{_DEFINITION}, vocab.txt, vocab.json with merges.txt, or a SentencePiece *.model"


def read_tokenizer(path: str | os.PathLike[str]) -> TokenizerParts:
    """Reads a tokenizer from a directory or a file; see `Tokenizer.load`."""
    path = Path(path)
    if path.is_dir():
        return _read_directory(path)
    if not path.exists():
        raise ValueError(f"{path} does not exist: a tokenizer is a directory with {_FORMS}")
    if path.suffix == ".model":
        return _read_sentencepiece(path, {})
    if path.suffix == ".txt":
        return (
            _read_bpe(path.parent, {}) if path.name == "merges.txt" else _read_wordpiece(path, {})
        )
    if path.suffix != ".json":
        raise ValueError(f"{path} is not a tokenizer file: {_FORMS} is expected")
    content = _read_json(path)
    if "model" in content and "added_tokens" in content:
        return assemble(_from_definition(path), str(path))
    if not all(isinstance(i, int) for i in content.values()):
        raise ValueError(f"{path} is neither a tokenizer.json nor an object of ids by token")
    return _read_bpe(path.parent, {}, path.name)


def write_tokenizer(
    directory: str | os.PathLike[str], parts: TokenizerParts, max_length: int | None
) -> None:
    """Writes a Hugging Face directory; see `Tokenizer.save`."""
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    contents = {
        _SPECIAL_MAP: _to_json(_special_map(parts.special)),
        _CONFIG: _to_json(_config(parts, max_length)),
        _DEFINITION: parts.backend.to_str(pretty=True).encode(),
        **({_MODEL: parts.sentencepiece} if parts.sentencepiece is not None else {}),
    }
    unfinished = {name: directory / f"{name}.unfinished" for name in contents}
    for name, content in contents.items():
        unfinished[name].write_bytes(content)
    # From here until the definition is in place there is no tokenizer, not a mixture of two.
    for name in (_DEFINITION, *_VOCABULARIES, *_MODELS):
        (directory / name).unlink(missing_ok=True)
    for name, path in unfinished.items():
        path.replace(directory / name)


def _special_map(special: SpecialTokens) -> dict[str, str]:
    """Names of the roles as Hugging Face calls them."""
    named = {f"{role}_token": token for role, token in special.names().items()}
    if special.family == "roberta":
        named |= {"bos_token": special.cls_token, "eos_token": special.sep_token}
    return named


def _config(parts: TokenizerParts, max_length: int | None) -> dict[str, Any]:
    """The contents of tokenizer_config.json."""
    added = {token.content: token for token in parts.backend.get_added_tokens_decoder().values()}
    flags = ("lstrip", "normalized", "rstrip", "single_word", "special")
    named = {
        role: {
            "__type": "AddedToken",
            "content": token,
            **{flag: getattr(added[token], flag) for flag in flags},
        }
        for role, token in _special_map(parts.special).items()
    }
    segments = ["token_type_ids"] if parts.special.family == "bert" else []
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_input_names": ["input_ids", *segments, "attention_mask"],
        "clean_up_tokenization_spaces": False,
        "normalization": parts.normalization,
        **({"model_max_length": max_length} if max_length is not None else {}),
        **named,
    }


def _read_directory(directory: Path) -> TokenizerParts:
    """Reads a Hugging Face directory."""
    config: dict[str, Any] = {}
    for name in (_SPECIAL_MAP, _CONFIG):  # the later one wins
        if (directory / name).exists():
            config |= _read_json(directory / name)
    models = [directory / name for name in _MODELS if (directory / name).exists()]
    models = models or sorted(directory.glob("*.model"))
    if (directory / _DEFINITION).exists():
        return assemble(
            _from_definition(directory / _DEFINITION),
            str(directory / _DEFINITION),
            names=_names(config),
            normalization=config.get("normalization"),
            sentencepiece=models[0].read_bytes() if models else None,
        )
    config["added"] = _added_tokens(directory, config)
    if (directory / "vocab.txt").exists():
        return _read_wordpiece(directory / "vocab.txt", config)
    if (directory / "vocab.json").exists():
        return _read_bpe(directory, config)
    if models:
        return _read_sentencepiece(models[0], config)
    raise ValueError(f"{directory} holds no tokenizer: {_FORMS} is expected in it")


def _names(config: Mapping[str, Any]) -> dict[Role, str]:
    """The names of roles in a tokenizer_config.json; `bos` and `eos` where no `cls` and `sep`."""
    names: dict[Role, str] = {}
    for role in ROLES:
        for key in (role, {"cls": "bos", "sep": "eos"}.get(role)):
            token = config.get(f"{key}_token")
            if token is not None and role not in names:
                names[role] = token["content"] if isinstance(token, Mapping) else token
    return names


def _added_tokens(directory: Path, config: Mapping[str, Any]) -> dict[int, str]:
    """Tokens, by id, that were added to a vocabulary without being written into it."""
    listed = config.get("added_tokens_decoder", {})
    added = {int(i): token["content"] for i, token in listed.items()}
    if (directory / "added_tokens.json").exists():
        added |= {i: token for token, i in _read_json(directory / "added_tokens.json").items()}
    return added


def _finish(
    backend: tokenizers.Tokenizer, path: Path, config: Mapping[str, Any], **more: Any
) -> TokenizerParts:
    """Adds a directory's added tokens to a backend made from a bare vocabulary."""
    for i, token in sorted(config.get("added", {}).items()):
        if backend.token_to_id(token) is None:
            backend.add_tokens([token])
        if backend.token_to_id(token) != i:
            raise ValueError(
                f"{path.parent} adds {token!r} as id {i}, but it is {backend.token_to_id(token)} "
                f"in {path.name}: one of the files belongs to another tokenizer"
            )
    return assemble(backend, str(path), names=_names(config), **more)


def _from_definition(path: Path) -> tokenizers.Tokenizer:
    """Reads a tokenizer.json."""
    import tokenizers

    try:
        return tokenizers.Tokenizer.from_str(_read_text(path))
    except Exception as error:  # the library raises nothing more special
        raise ValueError(
            f"{path} is not a tokenizer.json that `tokenizers` reads: {error}"
        ) from error


def _read_wordpiece(path: Path, config: Mapping[str, Any]) -> TokenizerParts:
    """Reads a vocab.txt: one token a line, its id the number of the line from 0.

    A bare file does not say whether text is to be lower-cased. It is if no token has an upper case
    letter (with such a vocabulary any other reading makes every capitalised word unknown), and then
    accents are stripped if no token has any.
    """
    import tokenizers
    from tokenizers import decoders, models, normalizers, pre_tokenizers

    lines = _read_text(path).removesuffix("\n").split("\n")
    vocab = {token: i for i, token in enumerate(lines)}
    if len(vocab) != len(lines) or "" in vocab:
        seen: set[str] = set()
        for number, token in enumerate(lines, 1):
            if token in seen or not token:
                fault = f"repeats the token {token!r}" if token else "is empty"
                raise ValueError(f"{path}:{number} {fault}: a vocab.txt has one new token a line")
            seen.add(token)
    names = _names(config)
    unknown = names.get("unk", "<unk>" if "<unk>" in vocab and "[UNK]" not in vocab else "[UNK]")
    words = [t for t in vocab if not (t[:1] + t[-1:] in ("[]", "<>") or t in names.values())]
    lowercase = config.get("do_lower_case", all(t == t.lower() for t in words))
    accents = config.get("strip_accents")
    if accents is None and "do_lower_case" not in config:
        accents = lowercase and not any(
            unicodedata.category(c) == "Mn" for t in words for c in unicodedata.normalize("NFD", t)
        )
    backend = tokenizers.Tokenizer(models.WordPiece(vocab, unk_token=unknown))
    backend.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=config.get("tokenize_chinese_chars", True),
        strip_accents=lowercase if accents is None else accents,
        lowercase=lowercase,
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    return _finish(backend, path, config)


def _read_bpe(
    directory: Path, config: Mapping[str, Any], vocabulary: str = "vocab.json"
) -> TokenizerParts:
    """Reads a byte-level BPE: a JSON object of ids by token, and merges.txt beside it."""
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers

    path, merges = directory / vocabulary, directory / "merges.txt"
    for needed, other in ((path, merges), (merges, path)):
        if not needed.exists():
            raise ValueError(f"{needed} is missing: byte-level BPE needs it beside {other.name}")
    vocab = _read_json(path)
    lines = [line for line in _read_text(merges).split("\n") if line.strip()]
    if lines and lines[0].startswith("#version"):
        del lines[0]
    pairs = [(left, right) for left, _, right in (line.partition(" ") for line in lines)]
    try:
        model = models.BPE(vocab, pairs)
    except Exception as error:  # the library raises nothing more special
        raise ValueError(
            f"{merges} does not fit {path.name} ({error}): are they a pair?"
        ) from error
    backend = tokenizers.Tokenizer(model)
    prefix = config.get("add_prefix_space", False)
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    backend.decoder = decoders.ByteLevel()
    return _finish(backend, path, config)


def _read_sentencepiece(path: Path, config: Mapping[str, Any]) -> TokenizerParts:
    """Reads a SentencePiece unigram model, laid out as the `tokenizer_class` beside it says."""
    content = path.read_bytes()
    layout = tokenizer_sentencepiece.layout_of(config.get("tokenizer_class"), str(path))
    backend, normalization = tokenizer_sentencepiece.convert(content, str(path), layout=layout)
    return _finish(backend, path, config, normalization=normalization, sentencepiece=content)


def _to_json(content: Mapping[str, Any]) -> bytes:
    return (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode()


def _read_json(path: Path) -> dict[str, Any]:
    """Reads a JSON object."""
    try:
        content = json.loads(_read_text(path))
    except json.JSONDecodeError as error:
        raise ValueError(
            f"{path}:{error.lineno} is not JSON ({error.msg}): fetch it again"
        ) from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds a JSON {type(content).__name__}, an object is needed")
    return content


def _read_text(path: Path) -> str:
    """Reads UTF-8 text with any line ends."""
    content = path.read_bytes()
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ValueError(f"{path}:{line} is not UTF-8 text: tokenizer files are") from error
    if not text.strip():
        raise ValueError(f"{path} is empty: a tokenizer needs a vocabulary")
    return text.replace("\r\n", "\n")

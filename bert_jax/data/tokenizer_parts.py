"""What a tokenizer consists of: a backend of the `tokenizers` library and the roles of its tokens.

The two families differ in the names of their special tokens, their order in a trained vocabulary
and the way a pair is joined:

* "bert": `[CLS] A [SEP] B [SEP]`, type ids 0 and 1 (Devlin et al. 2019, section 3);
* "roberta": `<s> A </s> </s> B </s>`, type ids all 0 (Liu et al. 2019; fairseq's hub interface).
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import tokenizers

Family = Literal["bert", "roberta"]
Kind = Literal["wordpiece", "byte_bpe", "unigram", "bpe", "wordlevel"]
Role = Literal["pad", "unk", "cls", "sep", "mask"]

ROLES: tuple[Role, ...] = ("pad", "unk", "cls", "sep", "mask")

# In the order of a trained vocabulary. (RoBERTa's positions count from its padding id, 1.)
FAMILY_TOKENS: dict[Family, dict[Role, str]] = {
    "bert": {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"},
    "roberta": {"cls": "<s>", "pad": "<pad>", "sep": "</s>", "unk": "<unk>", "mask": "<mask>"},
}
# Other names met in published vocabularies (ALBERT, ESM), tried when no file names the roles.
_OTHER_NAMES: dict[Role, tuple[str, ...]] = {
    "pad": ("<pad>", "[PAD]"),
    "unk": ("<unk>", "[UNK]"),
    "cls": ("<cls>",),
    "sep": ("<sep>", "<eos>"),
    "mask": ("<mask>", "[MASK]"),
}
# The character that stands for the space before a word in the vocabulary's strings.
_SPACE_MARKERS: dict[Kind, str] = {"byte_bpe": "\u0120", "unigram": "\u2581", "bpe": "\u2581"}


@dataclasses.dataclass(frozen=True)
class SpecialTokens:
    """The special tokens of a vocabulary, by role.

    Attributes:
        pad, unk, cls, sep, mask: Their ids.
        pad_token, unk_token, cls_token, sep_token, mask_token: Their strings.
        family: How they frame a text and join a pair.
        additional: Ids of tokens that are special and have none of these roles.
    """

    pad: int
    unk: int
    cls: int
    sep: int
    mask: int
    pad_token: str = "[PAD]"
    unk_token: str = "[UNK]"
    cls_token: str = "[CLS]"
    sep_token: str = "[SEP]"
    mask_token: str = "[MASK]"
    family: Family = "bert"
    additional: tuple[int, ...] = ()

    @property
    def ids(self) -> tuple[int, ...]:
        """The ids of all special tokens, each once, sorted."""
        return tuple(sorted({*(getattr(self, role) for role in ROLES), *self.additional}))

    def names(self) -> dict[Role, str]:
        """The string of each role."""
        return {role: getattr(self, f"{role}_token") for role in ROLES}


@dataclasses.dataclass(frozen=True)
class TokenizerParts:
    """Everything that defines a tokenizer.

    Attributes:
        backend: Without truncation and padding; its post-processor adds the special tokens.
        special: The special tokens' roles.
        kind: The model behind it.
        normalization: What happens to a text before it is split, in words, for reports.
        sentencepiece: The SentencePiece model it was made from, to be saved with it.
    """

    backend: tokenizers.Tokenizer
    special: SpecialTokens
    kind: Kind
    normalization: str
    sentencepiece: bytes | None = None


def assemble(
    backend: tokenizers.Tokenizer,
    where: str,
    *,
    names: Mapping[Role, str] | None = None,
    family: Family | None = None,
    normalization: str | None = None,
    sentencepiece: bytes | None = None,
) -> TokenizerParts:
    """Finds the special tokens of a backend, registers them and sees to the post-processor.

    Args:
        backend: Not to be used afterwards: it, or a copy, is part of the result.
        where: The file or directory, for messages.
        names: Strings of roles that are known; the others are searched by the usual names.
        family: None: as the post-processor says, else as the name of the first token says.
        normalization: None: described from the backend.
        sentencepiece: See `TokenizerParts`.

    Raises:
        ValueError: A role has no token, or one that is not in the vocabulary.
    """
    definition = json.loads(backend.to_str())
    backend = _with_exact_scores(backend, definition)
    backend.no_truncation()
    backend.no_padding()
    kind = _kind(definition, where)
    framing = _framing(definition["post_processor"])
    known: dict[Role, str] = {
        **(framing[1] if framing else {}),
        **_unknown_token(definition),
        **(names or {}),
    }
    found = _find_names(backend.get_vocab(), known, where)
    if framing is not None:
        family = framing[0]
    elif family is None:
        family = "roberta" if found["cls"] == FAMILY_TOKENS["roberta"]["cls"] else "bert"
    _register(backend, found, kind)
    ids = {role: backend.token_to_id(token) for role, token in found.items()}
    special_ids = (i for i, token in backend.get_added_tokens_decoder().items() if token.special)
    strings: dict[str, Any] = {f"{role}_token": token for role, token in found.items()}
    special = SpecialTokens(
        **ids,
        **strings,
        family=family,
        additional=tuple(sorted(set(special_ids) - set(ids.values()))),
    )
    if framing is None:
        backend = _framed(backend, special, kind)
    normalization = normalization or _describe(definition["normalizer"])
    return TokenizerParts(backend, special, kind, normalization, sentencepiece)


def check_text(text: object) -> None:
    """Refuses what is not text.

    Raises:
        ValueError: It is no string, or holds half of a surrogate pair, which UTF-8 cannot write.
    """
    if not isinstance(text, str):
        raise ValueError(f"a text to tokenise is a {type(text).__name__}, a str is needed")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"a text holds {text[error.start]!a}, half of a surrogate pair, at character "
            f"{error.start}: decode it from UTF-16 or drop that character"
        ) from error


def space_marker(kind: Kind) -> str | None:
    """The character by which the vocabulary's strings show a space before a word, if any."""
    return _SPACE_MARKERS.get(kind)


def literal_twin(parts: TokenizerParts) -> tokenizers.Tokenizer:
    """A backend with the same ids that sees ordinary text where a special token's name is written.

    `tokenizers` can stop looking for special tokens, but its models would still find their names
    in the vocabulary (a Unigram model always, WordPiece where the name is one word). Here those
    names are replaced by strings of noncharacters, which no text holds.
    """
    import tokenizers

    definition = json.loads(parts.backend.to_str())
    model = definition["model"]
    hidden = {
        token["content"]: f"\ufdd1{token['id']}\ufdd1"
        for token in definition["added_tokens"]
        if token["special"]
    }
    for token in definition["added_tokens"]:
        token["content"] = hidden.get(token["content"], token["content"])
    vocab = model["vocab"]
    if isinstance(vocab, dict):
        model["vocab"] = {hidden.get(token, token): i for token, i in vocab.items()}
    else:
        model["vocab"] = [[hidden.get(token, token), score] for token, score in vocab]
    if isinstance(model.get("unk_token"), str):
        model["unk_token"] = hidden.get(model["unk_token"], model["unk_token"])
    return tokenizers.Tokenizer.from_str(json.dumps(definition))


def _with_exact_scores(
    backend: tokenizers.Tokenizer, definition: Mapping[str, Any]
) -> tokenizers.Tokenizer:
    """Rounds the scores of a Unigram model to 15 digits.

    `tokenizers` writes up to 17 digits and reads more than 15 inexactly, so that a model would
    change a little each time it is saved and loaded.
    """
    import tokenizers

    model = definition["model"]
    if model["type"] != "Unigram":
        return backend
    exact = [[token, float(f"{score:.15g}")] for token, score in model["vocab"]]
    if exact == model["vocab"]:
        return backend
    exact_definition = {**definition, "model": {**model, "vocab": exact}}
    return tokenizers.Tokenizer.from_str(json.dumps(exact_definition))


def _kind(definition: Mapping[str, Any], where: str) -> Kind:
    """The kind of model in a tokenizer's definition."""
    model = definition["model"]["type"]
    kinds: dict[str, Kind] = {
        "WordPiece": "wordpiece",
        "Unigram": "unigram",
        "WordLevel": "wordlevel",
    }
    if model == "BPE":
        steps = _flatten(definition["pre_tokenizer"], "pretokenizers")
        return "byte_bpe" if any(step["type"] == "ByteLevel" for step in steps) else "bpe"
    if model not in kinds:
        raise ValueError(
            f"{where} holds a {model} model: WordPiece, BPE, Unigram or WordLevel is needed"
        )
    return kinds[model]


def _flatten(step: Mapping[str, Any] | None, key: str) -> list[Mapping[str, Any]]:
    """The elements of a component that may be a sequence of others."""
    if step is None:
        return []
    if step["type"] == "Sequence":
        return [inner for part in step[key] for inner in _flatten(part, key)]
    return [step]


def _framing(processor: Mapping[str, Any] | None) -> tuple[Family, dict[Role, str]] | None:
    """Family and the names of `cls` and `sep` by the post-processor; None if it adds no frame."""
    for step in _flatten(processor, "processors"):
        if step["type"] in ("BertProcessing", "RobertaProcessing"):
            family: Family = "bert" if step["type"] == "BertProcessing" else "roberta"
            return family, {"cls": step["cls"][0], "sep": step["sep"][0]}
        if step["type"] == "TemplateProcessing":
            pieces = [_template_piece(piece) for piece in step["pair"]]
            if pieces[1:2] != ["$A"] or pieces[-2:-1] != ["$B"]:
                continue
            between = pieces[2:-2]
            if between and set(between) == {pieces[-1]}:
                family = "bert" if len(between) == 1 else "roberta"
                return family, {"cls": pieces[0], "sep": pieces[-1]}
    return None


def _template_piece(piece: Mapping[str, Any]) -> str:
    """A template's element: "$A", "$B" or the string of a special token."""
    if "Sequence" in piece:
        return f"${piece['Sequence']['id']}"
    return piece["SpecialToken"]["id"]


def _unknown_token(definition: Mapping[str, Any]) -> dict[Role, str]:
    """The unknown token a model is made with, if any."""
    model = definition["model"]
    if model.get("unk_token") is not None:
        return {"unk": model["unk_token"]}
    if model.get("unk_id") is not None:
        return {"unk": model["vocab"][model["unk_id"]][0]}
    return {}


def _find_names(vocab: Mapping[str, int], known: Mapping[Role, str], where: str) -> dict[Role, str]:
    """Gives each role a token of the vocabulary."""
    families: tuple[Family, ...] = ("bert", "roberta")
    if FAMILY_TOKENS["roberta"]["mask"] in vocab and FAMILY_TOKENS["bert"]["mask"] not in vocab:
        families = ("roberta", "bert")
    found: dict[Role, str] = {}
    for role in ROLES:
        usual = (*(FAMILY_TOKENS[family][role] for family in families), *_OTHER_NAMES[role])
        wanted = (known[role],) if role in known else tuple(dict.fromkeys(usual))
        present = [token for token in wanted if token in vocab]
        if not present:
            raise ValueError(
                f"{where} has no {role} token among its {len(vocab)} entries "
                f"({' or '.join(wanted)} is expected): add it to the vocabulary, or name another "
                f'in tokenizer_config.json as "{role}_token"'
            )
        found[role] = present[0]
    return found


def _register(backend: tokenizers.Tokenizer, found: Mapping[Role, str], kind: Kind) -> None:
    """Makes the backend recognise the special tokens in a text, where it does not yet.

    The mask takes the space before it where a space belongs to the word that follows, so that
    "the <mask>" has as many tokens as "the" and a word.
    """
    import tokenizers

    registered = {t.content for t in backend.get_added_tokens_decoder().values() if t.special}
    spaced = space_marker(kind) is not None
    backend.add_special_tokens(
        [
            tokenizers.AddedToken(token, normalized=False, lstrip=spaced and role == "mask")
            for role, token in found.items()
            if token not in registered
        ]
    )


def _framed(backend: tokenizers.Tokenizer, special: SpecialTokens, kind: Kind) -> Any:
    """The backend with a post-processor that frames texts as the family does.

    Written out, not by the library's template strings, where names with `$` or spaces mean more.
    """
    import tokenizers

    definition = json.loads(backend.to_str())
    cls, sep = special.cls_token, special.sep_token
    if special.family == "roberta" and kind == "byte_bpe":
        steps = _flatten(definition["pre_tokenizer"], "pretokenizers")
        definition["post_processor"] = {
            "type": "RobertaProcessing",
            "sep": [sep, special.sep],
            "cls": [cls, special.cls],
            "trim_offsets": True,
            "add_prefix_space": any(step.get("add_prefix_space") for step in steps),
        }
    else:
        second = 1 if special.family == "bert" else 0
        head, end, end_of_pair = (
            {"SpecialToken": {"id": token, "type_id": type_id}}
            for token, type_id in ((cls, 0), (sep, 0), (sep, second))
        )
        a, b = ({"Sequence": {"id": i, "type_id": t}} for i, t in (("A", 0), ("B", second)))
        between = [end] if special.family == "bert" else [end, end]
        definition["post_processor"] = {
            "type": "TemplateProcessing",
            "single": [head, a, end],
            "pair": [head, a, *between, b, end_of_pair],
            "special_tokens": {
                token: {"id": token, "ids": [i], "tokens": [token]}
                for token, i in ((cls, special.cls), (sep, special.sep))
            },
        }
    return tokenizers.Tokenizer.from_str(json.dumps(definition))


def _describe(normalizer: Mapping[str, Any] | None) -> str:
    """A backend's normaliser in words."""
    steps = []
    for step in _flatten(normalizer, "normalizers"):
        if step["type"] == "BertNormalizer":
            accents = step["lowercase"] if step["strip_accents"] is None else step["strip_accents"]
            steps += ["cleaned"] * step["clean_text"] + ["lower case"] * step["lowercase"]
            steps += ["accents stripped"] * accents
        elif step["type"] not in ("Replace", "Prepend"):
            steps.append(step["type"])
    return ", ".join(steps) or "identity"

"""SentencePiece unigram models as backends of the `tokenizers` library, with equal ids.

`tokenizers` gives what SentencePiece has not: offsets, word numbers, special tokens in the text,
and the file format others load. SentencePiece's normaliser (src/normalizer.cc) becomes a sequence:

* its rules (`precompiled_charsmap`). `tokenizers` applies them to whole grapheme clusters and drops
  a combining mark behind a letter that has a rule, so NFKC comes first: of 97,736 letters with
  marks (all letters of the first two planes decomposed, and random pairs) 43 then differ, 12,366
  without. NFKC would touch one character that `nmt_nfkc` leaves alone, the full-width tilde.
* spaces: runs shortened and the ends trimmed, if the model asks for it;
* the space before the first word, and `▁` for every space.

Two differences remain: "<0x41>" written in a text is taken for the byte it names if the model falls
back to bytes, and without a mark before the first word, spaces at the start of a text count.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Literal

from bert_jax.data.tokenizer_parts import FAMILY_TOKENS

if TYPE_CHECKING:
    import tokenizers

Layout = Literal["model", "fairseq", "deberta"]
Normalization = Literal["identity", "nmt_nfkc", "nfkc", "nmt_nfkc_cf", "nfkc_cf"]

_SPACE = "\u2581"
_TILDE, _HIDDEN_TILDE = "\uff5e", "\ufdd0"
_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4  # of ModelProto.SentencePiece.Type
_UNIGRAM = 1  # of TrainerSpec.ModelType
_LAYOUTS: dict[str, Layout] = {"XLMRobertaTokenizer": "fairseq", "DebertaV2Tokenizer": "deberta"}
_GENERIC = ("PreTrainedTokenizer", "TokenizersBackend", "None")


def layout_of(tokenizer_class: str | None, where: str) -> Layout:
    """How a Hugging Face tokenizer class orders the pieces of a model.

    Raises:
        ValueError: The class changes more than the order.
    """
    name = str(tokenizer_class).removesuffix("Fast")
    if name in _LAYOUTS:
        return _LAYOUTS[name]
    if name not in _GENERIC:
        raise ValueError(
            f"{where} belongs to a {name}, which changes texts or ids in ways the model does not "
            "say: save it with transformers, so that there is a tokenizer.json, and load that"
        )
    return "model"


def convert(
    content: bytes,
    where: str,
    *,
    layout: Layout = "model",
    lowercase: bool = False,
    strip_accents: bool = False,
) -> tuple[tokenizers.Tokenizer, str]:
    """Makes a backend of a SentencePiece model.

    Args:
        content: A serialised ModelProto.
        where: Its file, for messages.
        layout: "model": ids as in the model; "fairseq": as XLM-R counts them, `<s>`, `<pad>`,
            `</s>`, `<unk>` first and `<mask>` last; "deberta": a `[MASK]` behind the last piece.
        lowercase: Before the model's own normaliser; with it, the model was trained on such text.
        strip_accents: Likewise.

    Returns:
        The backend, without post-processor, and its normalisation in words.

    Raises:
        ValueError: It is no SentencePiece model, or not of the unigram kind.
    """
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers

    proto = _parse(content, where)
    pieces, unknown = _pieces(proto, layout)
    spec, byte_fallback = proto.normalizer_spec, proto.trainer_spec.byte_fallback
    backend = tokenizers.Tokenizer(models.Unigram(pieces, unknown, byte_fallback))
    backend.normalizer = _normalizer(spec, lowercase=lowercase, strip_accents=strip_accents)
    # No piece reaches over a space (the usual case): words can be split, and cached, beforehand.
    splits = not any(_SPACE in piece[1:] for piece, _ in pieces)
    backend.pre_tokenizer = pre_tokenizers.Sequence(_space_steps(spec, splits))
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace(_SPACE, " "),
            *([decoders.ByteFallback()] if byte_fallback else []),
            decoders.Fuse(),
            *([decoders.Strip(" ", 1, 0)] if spec.add_dummy_prefix else []),
        ]
    )
    # All control pieces, so that the model does not find them in a text by itself.
    masks = [names["mask"] for names in FAMILY_TOKENS.values()]
    controls = [piece.piece for piece in proto.pieces if piece.type == _CONTROL]
    backend.add_special_tokens(
        [tokenizers.AddedToken(c, normalized=False, lstrip=c in masks) for c in controls]
    )
    before = ["lower case"] * lowercase + ["accents stripped"] * strip_accents
    return backend, ", ".join([*before, spec.name or "identity"])


def _pieces(proto: Any, layout: Layout) -> tuple[list[tuple[str, float]], int]:
    """The pieces with their scores in the order of their ids, and the id of the unknown one."""
    pieces = [
        # A user's own symbols are preferred to all others (src/unigram_model.cc).
        (piece.piece, 0.1 * (len(piece.piece.encode()) - 1))
        if piece.type == _USER_DEFINED
        else (piece.piece, piece.score)
        for piece in proto.pieces
    ]
    unknown = next(i for i, piece in enumerate(proto.pieces) if piece.type == _UNKNOWN)
    if layout == "fairseq":  # the model's own first three are <unk>, <s>, </s>
        first = [(name, 0.0) for name in ("<s>", "<pad>", "</s>", "<unk>")]
        return [*first, *pieces[3:], ("<mask>", 0.0)], 3
    if layout == "deberta" and "[MASK]" not in dict(pieces):
        return [*pieces, ("[MASK]", 0.0)], unknown
    return pieces, unknown


def _parse(content: bytes, where: str) -> Any:
    """Reads the protocol buffer and refuses what cannot be converted."""
    from google.protobuf.message import DecodeError

    messages: Any = importlib.import_module("sentencepiece.sentencepiece_model_pb2")
    try:
        proto = messages.ModelProto.FromString(content)
    except DecodeError as error:
        raise ValueError(f"{where} is not a SentencePiece model: {error}") from error
    kinds = [piece.type for piece in proto.pieces]
    if _UNKNOWN not in kinds:
        raise ValueError(f"{where} is not a whole SentencePiece model: it has no unknown piece")
    if proto.trainer_spec.model_type != _UNIGRAM:
        raise ValueError(
            f"{where} is a SentencePiece model of another kind than unigram: convert it with "
            "transformers to a tokenizer.json, and load that"
        )
    if (
        proto.trainer_spec.treat_whitespace_as_suffix
        or not proto.normalizer_spec.escape_whitespaces
    ):
        raise ValueError(
            f"{where} marks spaces behind words or not at all: a mark before words is needed"
        )
    return proto


def fold(*, lowercase: bool, strip_accents: bool) -> list[Any]:
    """Normalisers that lower case and strip accents as BERT does (marks of category Mn, by NFD)."""
    from tokenizers import normalizers

    if not lowercase and not strip_accents:
        return []
    bert = normalizers.BertNormalizer(
        clean_text=False,
        handle_chinese_chars=False,
        strip_accents=strip_accents,
        lowercase=lowercase,
    )
    return [bert, normalizers.NFC()] if strip_accents else [bert]


def _normalizer(spec: Any, *, lowercase: bool, strip_accents: bool) -> Any:
    """The normaliser of a model, up to the marks for spaces."""
    import tokenizers
    from tokenizers import normalizers

    steps = fold(lowercase=lowercase, strip_accents=strip_accents)
    if spec.precompiled_charsmap:
        rules = [normalizers.Precompiled(spec.precompiled_charsmap)]
        if "nfkc" in spec.name:
            folded = [normalizers.Lowercase()] if spec.name.endswith("_cf") else []
            rules = [normalizers.NFKC(), *folded, *rules]
        if spec.name.startswith("nmt_nfkc"):
            hide = normalizers.Replace(_TILDE, _HIDDEN_TILDE)
            two = normalizers.Replace("\r\n", "\n\n")  # one grapheme, but two spaces
            rules = [hide, two, *rules, normalizers.Replace(_HIDDEN_TILDE, _TILDE)]
        steps += rules
    if spec.remove_extra_whitespaces:
        steps.append(normalizers.Replace(tokenizers.Regex(" {2,}"), " "))
        steps.append(normalizers.Replace(tokenizers.Regex(f"[ {_SPACE}]+\\z"), ""))
        if spec.add_dummy_prefix:  # is not left out where the text has such a mark itself
            steps.append(normalizers.Replace(tokenizers.Regex(f"\\A{_SPACE}"), 2 * _SPACE))
    else:
        steps.append(normalizers.Replace(" ", _SPACE))
    return normalizers.Sequence(steps)


def _space_steps(spec: Any, splits: bool) -> list[Any]:
    """Pre-tokenizers that mark spaces and the start of a text, not what follows a special token.

    If spaces at the ends are trimmed, a space before the first word is as good as the mark put
    there. Else both count, so the mark for the start is set apart from those of the spaces, which
    the normaliser has made already.
    """
    from tokenizers import pre_tokenizers

    first = "first" if spec.add_dummy_prefix else "never"
    if spec.remove_extra_whitespaces:
        return [pre_tokenizers.Metaspace(_SPACE, first, splits)]
    return [
        pre_tokenizers.Metaspace(" ", first, split=False),
        pre_tokenizers.Metaspace(_SPACE, "never", splits),
    ]

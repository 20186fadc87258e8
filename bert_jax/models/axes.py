"""The axes along which encoders differ, each a small frozen type with the fields it needs.

`bert_jax.models.config.EncoderConfig` holds one value of every axis; a family is such a point.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Activation = Literal["gelu", "gelu_tanh", "relu", "silu", "tanh"]
RelativeTerm = Literal["c2p", "p2c"]
Direction = Literal["both", "left"]


# ------------------------------------------------------------------------------------ positions


@dataclass(frozen=True)
class LearnedPositions:
    """A table of absolute positions (BERT, RoBERTa).

    Attributes:
        max_length: Usable positions; the table has ``max_length + offset`` rows.
        offset: Row of position 0. RoBERTa's is ``pad_id + 1``: padding reads row ``offset - 1``
            and, unless ``position_ids`` are given, only real tokens are counted (fairseq
            ``make_positions``).
    """

    max_length: int = 512
    offset: int = 0

    def __post_init__(self) -> None:
        at_least("positions.max_length", self.max_length, 1)
        at_least("positions.offset", self.offset, 0)


@dataclass(frozen=True)
class SinusoidalPositions:
    """Sines and cosines added to the embeddings (Vaswani et al. 2017, section 3.5).

    Attributes:
        max_length: Longest sequence the model is meant for; a bound for inputs, not a table size.
        theta: Base of the geometric series of wavelengths.
        scale: ``fixed``: they are added as they are; ``learned``: times one number that is
            trained, at first ``width ** -.5`` (crammed BERT; FLASH, arXiv:2202.10447).
    """

    max_length: int = 512
    theta: float = 10_000.0
    scale: Literal["fixed", "learned"] = "fixed"

    def __post_init__(self) -> None:
        at_least("positions.max_length", self.max_length, 1)
        _greater_than_one("positions.theta", self.theta)


@dataclass(frozen=True)
class RotaryPositions:
    """Rotary position embeddings, rotate-half form (Su et al. 2021, arXiv:2104.09864).

    Attributes:
        max_length: Longest sequence the model is meant for; a bound for inputs, not a table size.
        theta: Base of the geometric series of wavelengths.
        local_theta: Base in layers of local attention; None means ``theta`` (ModernBERT: 160,000
            in global layers, 10,000 in local ones).
    """

    max_length: int = 512
    theta: float = 10_000.0
    local_theta: float | None = None

    def __post_init__(self) -> None:
        at_least("positions.max_length", self.max_length, 1)
        _greater_than_one("positions.theta", self.theta)
        if self.local_theta is not None:
            _greater_than_one("positions.local_theta", self.local_theta)


@dataclass(frozen=True)
class DisentangledPositions:
    """Relative positions as queries and keys of their own (DeBERTa, arXiv:2006.03654).

    One table of relative embeddings serves all layers. The score of query i and key j is
    ``(q_i.k_j + q_i.r_key[i-j] + k_j.r_query[i-j]) / sqrt(head_dim * (1 + number of terms))``.

    Attributes:
        max_length: Longest sequence the model is meant for.
        buckets: Log buckets a side (v2, v3: 256): distances up to half of it are exact, further
            ones share buckets; the table has ``2 * buckets`` rows. 0: no buckets (v1), distances
            are clipped at ``max_distance`` and the table has ``2 * max_distance`` rows.
        max_distance: Distance of the last bucket, or of the clip.
        terms: ``c2p``: content query against position key; ``p2c``: position query against content
            key.
        projections: Maps of the relative table: ``shared``: those of the content (v3); ``own``:
            further ones in every layer (v1, v2's default).
        norm: ``layer``: a layer norm of the relative table (v2, v3); ``none`` (v1).
        at_input: ``absolute``: a table of absolute positions is added to the embeddings too;
            ``none``.
    """

    max_length: int = 512
    buckets: int = 256
    max_distance: int = 512
    terms: tuple[RelativeTerm, ...] = ("c2p", "p2c")
    projections: Literal["shared", "own"] = "shared"
    norm: Literal["layer", "none"] = "layer"
    at_input: Literal["none", "absolute"] = "none"

    def __post_init__(self) -> None:
        at_least("positions.max_length", self.max_length, 1)
        at_least("positions.buckets", self.buckets, 0)
        at_least("positions.max_distance", self.max_distance, 1)
        if self.buckets == 1 or (self.buckets and self.max_distance <= self.buckets // 2 + 1):
            raise ValueError(
                f"positions.buckets {self.buckets} does not go with max_distance "
                f"{self.max_distance}: log buckets need buckets >= 2 and max_distance > "
                f"buckets / 2 + 1; buckets = 0 clips distances instead."
            )
        if not self.terms or len(set(self.terms)) != len(self.terms):
            raise ValueError(
                f"positions.terms is {self.terms}; name c2p, p2c or both, each once (without any, "
                f"choose other positions)."
            )

    @property
    def table_rows(self) -> int:
        """Rows of the relative table."""
        return 2 * (self.buckets or self.max_distance)


@dataclass(frozen=True)
class AlibiPositions:
    """Scores that fall off linearly with the distance (ALiBi, arXiv:2108.12409; MosaicBERT).

    The score of query i and key j is ``q_i.k_j / sqrt(head_dim) - slope |p_i - p_j|``, with one
    fixed slope a head (`bert_jax.models.positions.alibi_slopes`) and p the position ids, the same
    on both sides. There are no parameters.

    Attributes:
        max_length: Longest sequence the model is meant for; a bound for inputs, not a table size.
    """

    max_length: int = 512

    def __post_init__(self) -> None:
        at_least("positions.max_length", self.max_length, 1)


@dataclass(frozen=True)
class NoPositions:
    """No positions at all: a bag of tokens, or a convolution elsewhere tells the order.

    Attributes:
        max_length: Longest sequence the model is meant for.
    """

    max_length: int = 512

    def __post_init__(self) -> None:
        at_least("positions.max_length", self.max_length, 1)


Positions = (
    LearnedPositions
    | RotaryPositions
    | DisentangledPositions
    | SinusoidalPositions
    | AlibiPositions
    | NoPositions
)


# ------------------------------------------------------------------------------------ attention


@dataclass(frozen=True)
class GlobalAttention:
    """Every token sees its whole segment, in all layers.

    Attributes:
        direction: ``both``: what precedes and what follows; ``left``: a token sees itself and what
            precedes it in the row (causal language models). The parameters are the same, so a
            model trained one way goes on the other way (CLM, then MLM: arXiv:2507.00994).
    """

    direction: Direction = "both"


@dataclass(frozen=True)
class LocalAttention:
    """Sliding windows, with a layer of global attention every so often (ModernBERT).

    Attributes:
        window: Width of the window: ``window // 2`` tokens on each side are seen, and the token
            itself (128: 129 tokens).
        global_every: Layers 0, k, 2k, ... are global.
        direction: As in `GlobalAttention`, in layers of both kinds: with ``left`` a window is the
            ``window // 2`` tokens before a token, and itself.
    """

    window: int = 128
    global_every: int = 3
    direction: Direction = "both"

    def __post_init__(self) -> None:
        at_least("attention.window", self.window, 2)
        at_least("attention.global_every", self.global_every, 1)

    @property
    def radius(self) -> int:
        """Tokens seen on each side (of the left one, where ``direction`` is ``left``)."""
        return self.window // 2


AttentionPattern = GlobalAttention | LocalAttention


# ----------------------------------------------------------------------- norm, biases, sharing


@dataclass(frozen=True)
class Norm:
    """Normalisation: where it stands, which one, and its epsilon (inside the square root).

    ``post``: after each residual sum (BERT, RoBERTa). ``pre``: before each sub-layer, and once at
    the end.

    Attributes:
        placement: ``post`` or ``pre``.
        eps: Epsilon.
        kind: ``layer`` (Ba et al. 2016) or ``rms``, which does not centre (Zhang & Sennrich 2019).
        bias: Whether the norm has a bias beside its scale; an RMS norm never has.
        after_embeddings: Whether the embeddings are normalised; None: with ``post`` they are.
        skip_first: Whether the first layer's attention has no norm of its own (ModernBERT: the
            embeddings' norm stands right before it).
    """

    placement: Literal["post", "pre"] = "post"
    eps: float = 1e-12
    kind: Literal["layer", "rms"] = "layer"
    bias: bool = True
    after_embeddings: bool | None = None
    skip_first: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.eps < 1:
            raise ValueError(f"norm.eps is {self.eps}; it must lie between 0 and 1.")
        if self.skip_first and self.placement == "post":
            raise ValueError(
                "norm.skip_first goes with placement 'pre' only: a 'post' norm closes its layer."
            )

    @property
    def on_embeddings(self) -> bool:
        """Whether the embeddings are normalised."""
        if self.after_embeddings is None:
            return self.placement == "post"
        return self.after_embeddings


@dataclass(frozen=True)
class Biases:
    """Which linear maps of a layer have a bias.

    Attributes:
        attention: ``all``; ``none``; ``query_value``: all but keys, those of positions included
            (DeBERTa v1).
        mlp: ``all``; ``none``; ``out``: only the map back to the residual stream (MosaicBERT).
    """

    attention: Literal["all", "query_value", "none"] = "all"
    mlp: Literal["all", "out", "none"] = "all"


@dataclass(frozen=True)
class LayerSharing:
    """Layers that share their parameters (ALBERT).

    Attributes:
        groups: Sets of parameters; the stack is cut into that many stretches.
        inner: Layers in a group, each with its own parameters; a group is applied as a whole
            ``num_layers / groups`` times, so ``num_layers * inner`` layers run.
    """

    groups: int = 1
    inner: int = 1

    def __post_init__(self) -> None:
        at_least("sharing.groups", self.groups, 1)
        at_least("sharing.inner", self.inner, 1)


@dataclass(frozen=True)
class Convolution:
    """A convolution over neighbours beside the first layer (DeBERTa v2).

    The first layer's output becomes ``norm(output + activation(convolution(embeddings)))``; it
    never looks over the border of a document.

    Attributes:
        kernel_size: Odd number of tokens it looks at.
        activation: Its activation.
    """

    kernel_size: int = 3
    activation: Activation = "tanh"

    def __post_init__(self) -> None:
        if self.kernel_size < 1 or self.kernel_size % 2 == 0:
            raise ValueError(
                f"convolution.kernel_size is {self.kernel_size}; it must be odd, so that it has "
                f"a middle."
            )


@dataclass(frozen=True)
class Dropout:
    """Dropout rates; all 0 at evaluation.

    Attributes:
        hidden: After the embeddings and after each sub-layer.
        attention: On attention probabilities.
        embedding: After the embeddings, if not ``hidden``.
        attention_out: After the attention sub-layer, if not ``hidden``.
        mlp_inner: On the activations inside the feed-forward layer.
        mlp_out: After the feed-forward sub-layer, if not ``hidden`` (MosaicBERT has it inside
            instead).
    """

    hidden: float = 0.1
    attention: float = 0.1
    embedding: float | None = None
    attention_out: float | None = None
    mlp_inner: float = 0.0
    mlp_out: float | None = None

    def __post_init__(self) -> None:
        for name in ("hidden", "attention", "embedding", "attention_out", "mlp_inner", "mlp_out"):
            rate = getattr(self, name)
            if rate is not None and not 0 <= rate < 1:
                raise ValueError(f"dropout.{name} is {rate}; a rate lies in [0, 1).")

    @property
    def on_embeddings(self) -> float:
        """Rate after the embeddings."""
        return self.hidden if self.embedding is None else self.embedding

    @property
    def on_attention_out(self) -> float:
        """Rate after the attention sub-layer."""
        return self.hidden if self.attention_out is None else self.attention_out

    @property
    def on_mlp_out(self) -> float:
        """Rate after the feed-forward sub-layer."""
        return self.hidden if self.mlp_out is None else self.mlp_out


# -------------------------------------------------------------------------------- initial values


@dataclass(frozen=True)
class TruncatedNormal:
    """Normal draws cut at two standard deviations, not rescaled (Google BERT).

    The cut leaves a standard deviation of .88 ``std`` (measured .0176 for .02).

    Attributes:
        std: Standard deviation before the cut.
        residual: ``by_depth``: maps back to the residual stream start at ``std / sqrt(2 L)``
            (Megatron, ModernBERT); ``same``.
        outer: The projection of factorised embeddings and a detector's last map: ``glorot``:
            uniform in ``sqrt(6 / (inputs + outputs))``, which is what TensorFlow gives maps
            whose start is left open, as google-research/electra leaves these two
            (model/modeling.py, run_pretraining.py); ``same``.
    """

    std: float = 0.02
    residual: Literal["same", "by_depth"] = "same"
    outer: Literal["same", "glorot"] = "same"


@dataclass(frozen=True)
class Normal:
    """Plain normal draws (fairseq RoBERTa).

    Attributes:
        std: Standard deviation.
    """

    std: float = 0.02


@dataclass(frozen=True)
class Uniform:
    """Uniform draws from ``[-limit, limit]`` (NeoBERT).

    Attributes:
        limit: Largest magnitude.
    """

    limit: float = 0.02


Initializer = TruncatedNormal | Normal | Uniform


# ------------------------------------------------------------------------------------------ heads


@dataclass(frozen=True)
class VocabularyHead:
    """How hidden states become logits over the vocabulary.

    Attributes:
        transform: ``dense``: a linear map to the table's width, activation and norm come first
            (BERT); ``none``: hidden states are projected as they are (NeoBERT).
        activation: Of the transform; None means the encoder's.
        bias: Whether the transform's linear map has a bias.
        decoder: ``tied``: the output table is the token table; ``untied``: one of its own.
        decoder_bias: Whether every vocabulary entry has an output bias.
        mask_decoder: ``enhanced``: hidden states first go twice more through the last layer, with
            queries that start from absolute positions (DeBERTa's enhanced mask decoder,
            arXiv:2006.03654 section 3.2, as microsoft/DeBERTa trains it); ``none``.
    """

    transform: Literal["dense", "none"] = "dense"
    activation: Activation | None = None
    bias: bool = True
    decoder: Literal["tied", "untied"] = "tied"
    decoder_bias: bool = True
    mask_decoder: Literal["none", "enhanced"] = "none"


@dataclass(frozen=True)
class Pooler:
    """How one vector stands for a text, before a classifier.

    Attributes:
        pooling: ``cls``: the first token; ``mean``: the mean over real tokens.
        activation: Of the linear map that follows.
        bias: Whether that map has a bias.
        norm: ``encoder``: the encoder's norm after the activation (ModernBERT); ``none``.
        input_dropout: Rate before the map.
        output_dropout: Rate before the classifier; None means the encoder's hidden rate.
        token_heads: ``transform``: taggers and span heads have the map, activation and norm too
            (ModernBERT); ``none``: they read hidden states.
    """

    pooling: Literal["cls", "mean"] = "cls"
    activation: Activation = "tanh"
    bias: bool = True
    norm: Literal["none", "encoder"] = "none"
    input_dropout: float = 0.0
    output_dropout: float | None = None
    token_heads: Literal["none", "transform"] = "none"

    def __post_init__(self) -> None:
        for name in ("input_dropout", "output_dropout"):
            rate = getattr(self, name)
            if rate is not None and not 0 <= rate < 1:
                raise ValueError(f"heads.pooler.{name} is {rate}; a rate lies in [0, 1).")


@dataclass(frozen=True)
class Heads:
    """The shapes of a family's heads; which of them a model has is the choice of its class.

    Attributes:
        vocabulary: Of masked language models.
        pooler: Of classifiers and sentence pairs.
        detector: Replaced-token detection: ``token``: each hidden state alone (ELECTRA);
            ``token_and_context``: with the first token's added, then normalised (DeBERTa v3).
    """

    vocabulary: VocabularyHead = VocabularyHead()
    pooler: Pooler = Pooler()
    detector: Literal["token", "token_and_context"] = "token"


def at_least(name: str, value: int, least: int) -> None:
    """ValueError if a number of a config is too small."""
    if value < least:
        raise ValueError(f"{name} is {value}; it must be at least {least}.")


def _greater_than_one(name: str, value: float) -> None:
    if value <= 1:
        raise ValueError(f"{name} is {value}; it must be greater than 1.")

"""Replaced-token detection: a generator fills masks, a discriminator finds what it replaced.

ELECTRA (Clark et al. 2020, arXiv:2003.10555) trains both on one sum of losses and shares the
embeddings. DeBERTa v3 (He et al. 2021, arXiv:2111.09543) lets the discriminator read the
generator's embeddings without a gradient and learn a difference to them ("gradient-disentangled
embedding sharing"); it updates the generator first, then the discriminator, each with its own
moments and clipping.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from bert_jax.models.config import EncoderConfig
from bert_jax.models.flops import forward_flops, head_flops, pooler_flops
from bert_jax.models.heads import MaskedLM, ReplacedTokenDetector
from bert_jax.models.paths import by_path, from_paths
from bert_jax.objectives.base import (
    Apply,
    Batch,
    Params,
    Passed,
    Setting,
    Stage,
    Sums,
    Task,
    merge,
    row_keys,
)
from bert_jax.objectives.masked_lm import MaskedLanguageModel, masked_lm_sums, noise, predict
from bert_jax.ops.cross_entropy import token_losses

Sharing = Literal["tied", "disentangled", "none"]

_EMBEDDINGS = "encoder/embeddings/"
_OWN = _EMBEDDINGS + "projection/"  # never shared: it maps to the model's own width
_TABLE = "/embedding"  # last word of a table's path
_SAMPLES = 1  # folded into a row's key: its samples are independent of its masks


@dataclass(frozen=True)
class ReplacedTokensObjective:
    """Replaced-token detection; the experiment's model is the discriminator.

    Attributes:
        generator_width: The generator's width as a share of the discriminator's.
        generator_depth: Its number of layers, likewise.
        generator_head_size: Width of its attention heads.
        generator_decoder: ``enhanced``: its predictions come from DeBERTa's enhanced mask decoder.
        sharing: ``tied``: all embeddings are one, trained by both losses, in one stage (ELECTRA);
            ``disentangled``: the discriminator's tables are the generator's, without a gradient,
            plus a difference of its own that starts at 0, in two stages (DeBERTa v3); ``none``: two
            sets of embeddings, in one stage.
        temperature: Of the generator's samples.
        generator_weight: Factor of the generator's loss.
        discriminator_weight: Factor of the discriminator's.
    """

    generator_width: float = 0.25
    generator_depth: float = 1.0
    generator_head_size: int = 64
    generator_decoder: Literal["none", "enhanced"] = "none"
    sharing: Sharing = "tied"
    temperature: float = 1.0
    generator_weight: float = 1.0
    discriminator_weight: float = 50.0

    def __post_init__(self) -> None:
        for name in ("generator_width", "generator_depth"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(
                    f"objective.{name} is {getattr(self, name)}; it is a share of the "
                    f"discriminator's, above 0 and at most 1."
                )
        for name in ("temperature", "generator_weight", "discriminator_weight"):
            if getattr(self, name) <= 0:
                raise ValueError(f"objective.{name} is {getattr(self, name)}; it must be positive.")
        if self.generator_head_size < 1:
            raise ValueError(
                f"objective.generator_head_size is {self.generator_head_size}; it is 1 or more."
            )

    def generator(self, model: EncoderConfig) -> EncoderConfig:
        """The generator's encoder for a discriminator's."""
        width = round(model.hidden_size * self.generator_width)
        heads = max(1, width // self.generator_head_size)
        if width % heads:
            raise ValueError(
                f"objective.generator_width {self.generator_width} of model.hidden_size "
                f"{model.hidden_size} is {width}, which {heads} heads of about "
                f"{self.generator_head_size} do not divide; change one of the three."
            )
        narrow = width != model.hidden_size
        if self.sharing == "tied" and narrow and model.embedding_projection == "before_norm":
            raise ValueError(
                f"objective.sharing is 'tied', but the norm after the embeddings is "
                f"{model.hidden_size} wide in the model and {width} in the generator "
                f"(model.embedding_projection 'before_norm'); set --objective.sharing disentangled "
                f"or --objective.generator-width 1."
            )
        table = model.table_size if self.sharing != "none" else min(width, model.table_size)
        vocabulary = dataclasses.replace(
            model.heads.vocabulary, mask_decoder=self.generator_decoder
        )
        return dataclasses.replace(
            model,
            hidden_size=width,
            num_layers=max(1, round(model.num_layers * self.generator_depth)),
            num_heads=heads,
            intermediate_size=round(model.intermediate_size * self.generator_width),
            embedding_size=None if table == width else table,
            heads=dataclasses.replace(model.heads, vocabulary=vocabulary),
        )

    def task(self, setting: Setting) -> Task:
        """The objective with a generator and a discriminator, which is what is kept."""
        models = Models(
            MaskedLM(self.generator(setting.model)),
            ReplacedTokenDetector(setting.model),
            self.sharing,
        )
        objective = ReplacedTokens(MaskedLanguageModel.of(setting), self)
        return Task(
            objective,
            models.discriminator,
            models.init,
            models.apply,
            self._flops(setting),
            extract=models.extract,
            insert=models.insert,
        )

    def _flops(self, setting: Setting):
        generator = self.generator(setting.model)

        def flops(rows: int, length: int) -> float:
            slots = setting.masking.slots(length)
            filling = forward_flops(generator, length) + slots * head_flops(generator)
            detecting = forward_flops(setting.model, length)
            detecting += length * pooler_flops(setting.model, labels=1)
            return 3.0 * rows * (filling + detecting)

        return flops


@dataclass(frozen=True)
class Models:
    """Generator and discriminator over one tree, ``{"generator": ..., "discriminator": ...}``.

    With ``tied`` embeddings the generator's part lacks them; with ``disentangled`` ones the
    discriminator's tables hold differences.
    """

    generator: MaskedLM
    discriminator: ReplacedTokenDetector
    sharing: Sharing

    def init(self, key: jax.Array) -> dict[str, Any]:
        """Initial parameters of both."""
        variables: Any = self.generator.init(jax.random.fold_in(key, 1))
        generator = by_path(variables["params"])
        variables = self.discriminator.init(jax.random.fold_in(key, 2))
        discriminator = by_path(variables["params"])
        if self.sharing == "tied":
            generator = {path: leaf for path, leaf in generator.items() if not _is_shared(path)}
        if self.sharing == "disentangled":
            discriminator = {
                path: jnp.zeros_like(leaf) if _is_table(path) else leaf
                for path, leaf in discriminator.items()
            }
        return {"generator": from_paths(generator), "discriminator": from_paths(discriminator)}

    def apply(
        self,
        variables: Mapping[str, Any],
        input_ids: Array,
        *,
        part: Literal["generator", "discriminator"],
        **arguments: Any,
    ) -> Any:
        """Runs one of the two with its parameters put together."""
        params = variables["params"]
        if part == "generator":
            whole = self.generator_params(params)
            return self.generator.apply({"params": whole}, input_ids, **arguments)
        whole = self.extract(params)
        return self.discriminator.apply({"params": whole}, input_ids, **arguments)

    def generator_params(self, params: Params) -> Any:
        """The generator's own parameters, its embeddings included."""
        if self.sharing != "tied":
            return params["generator"]
        shared = {p: x for p, x in by_path(params["discriminator"]).items() if _is_shared(p)}
        return from_paths({**by_path(params["generator"]), **shared})

    def extract(self, params: Params) -> Any:
        """The discriminator's own parameters: its tables are sums, if they are disentangled."""
        if self.sharing != "disentangled":
            return params["discriminator"]
        theirs = by_path(params["generator"])
        return from_paths(
            {
                path: jax.lax.stop_gradient(theirs[path]) + leaf if _is_table(path) else leaf
                for path, leaf in by_path(params["discriminator"]).items()
            }
        )

    def insert(self, model_params: Params, params: Params) -> dict[str, Any]:
        """``params`` with the discriminator as given; the generator's tables stay."""
        leaves = by_path(model_params)
        if self.sharing == "disentangled":
            theirs = by_path(params["generator"])
            leaves = {p: x - theirs[p] if _is_table(p) else x for p, x in leaves.items()}
        return {**params, "discriminator": from_paths(leaves)}


def _is_shared(path: str) -> bool:
    return path.startswith(_EMBEDDINGS) and not path.startswith(_OWN)


def _is_table(path: str) -> bool:
    return _is_shared(path) and path.endswith(_TABLE)


@dataclass(frozen=True)
class ReplacedTokens:
    """The objective.

    Attributes:
        masked: Selection and masking for the generator.
        config: Weights, temperature and sharing.
    """

    masked: MaskedLanguageModel
    config: ReplacedTokensObjective

    @property
    def stages(self) -> tuple[Stage, ...]:
        """One stage of two losses, or the generator's and then the discriminator's."""
        c = self.config
        generator = {"loss": c.generator_weight}
        discriminator = {"detection_loss": c.discriminator_weight}
        if c.sharing != "disentangled":
            return (Stage("replaced_tokens", self._both, generator | discriminator),)
        return (
            Stage("generator", self._generate, generator, _of("generator")),
            Stage("discriminator", self._detect, discriminator, _of("discriminator")),
        )

    def corrupt(self, key: jax.Array, step: jax.Array, batch: Batch) -> Batch:
        """Masks a batch for the generator; keeps the originals, and a key a row for its samples."""
        keys = jax.vmap(lambda k: jax.random.key_data(jax.random.fold_in(k, _SAMPLES)))(
            row_keys(key, batch)
        )
        corrupted = self.masked.corrupt(key, step, batch)
        return {**corrupted, "original_ids": batch["input_ids"], "sample_keys": keys}

    def _generate(self, apply: Apply, params, batch: Batch, key, frozen) -> Passed:
        """Cross-entropy of the generator; its samples are passed on."""
        output = predict(apply, merge(params, frozen), batch, key, targets=None, part="generator")
        logits = output["logits"]
        nll, correct = token_losses(logits, batch["targets"])
        sums = masked_lm_sums({"nll": nll, "correct": correct}, batch)
        logits = jax.lax.stop_gradient(logits)
        ids = replace_tokens(batch, sample(logits, batch["sample_keys"], self.config.temperature))
        return Passed(sums, {"replaced_ids": ids})

    def _detect(self, apply: Apply, params, batch: Batch, key, frozen) -> Sums:
        """Binary cross-entropy of the discriminator over all real tokens."""
        output = apply(
            {"params": merge(params, frozen)},
            batch["replaced_ids"],
            part="discriminator",
            segment_ids=batch["segment_ids"],
            position_ids=batch["position_ids"],
            token_type_ids=batch.get("token_type_ids"),
            # Its dropout is its own: else both models would drop the same elements.
            **noise(batch, None if key is None else jax.random.fold_in(key, 1)),
        )
        replaced = batch["replaced_ids"] != batch["original_ids"]
        return detection_sums(output["logits"], replaced, batch["segment_ids"] != 0)

    def _both(self, apply: Apply, params, batch: Batch, key, frozen) -> Passed:
        sums, passed = self._generate(apply, params, batch, key, frozen)
        found = self._detect(apply, params, {**batch, **passed}, key, frozen)
        return Passed(sums | found, passed)


def _of(part: str):
    def trains(path: str) -> bool:
        return path.startswith(f"{part}/")

    return trains


def sample(
    logits: Float[Array, "rows slots vocab"], keys: Array, temperature: float
) -> Int[Array, "rows slots"]:
    """A token at each slot from softmax(logits / temperature), by the Gumbel-max trick.

    Args:
        logits: Of the generator.
        keys: (rows, 2) words of a threefry key a row.
        temperature: Above 1 flatter.
    """

    def one(row, words):
        key = jax.random.wrap_key_data(words, impl="threefry2x32")
        return jnp.argmax(row / temperature + jax.random.gumbel(key, row.shape), axis=-1)

    return jax.vmap(one)(logits, keys).astype(jnp.int32)


def replace_tokens(batch: Batch, sampled: Int[Array, "rows slots"]) -> Int[Array, "rows length"]:
    """The original row with samples in place of the selected tokens.

    A position that was selected more than once gets the rounded-down mean of its samples, an id
    that perhaps nobody sampled: google-research/electra, pretrain_helpers.scatter_update.
    """

    def one(ids, positions, weights, sampled):
        drawn = (weights > 0).astype(jnp.int32)
        count = jnp.zeros_like(ids).at[positions].add(drawn)
        total = jnp.zeros_like(ids).at[positions].add(drawn * sampled)
        return jnp.where(count > 0, total // jnp.maximum(count, 1), ids)

    return jax.vmap(one)(batch["original_ids"], batch["positions"], batch["weights"], sampled)


def detection_sums(logits: Float[Array, "rows length"], replaced: Array, real: Array) -> Sums:
    """Losses and hits of a discriminator, summed over each row's real tokens.

    Returns:
        ``detection_loss`` (nats), ``detection_accuracy``, ``replaced`` (their share: its complement
        is the accuracy of "all original"), ``recall`` of the replaced, ``precision``.
    """
    counted = real.astype(jnp.float32)
    nll = jax.nn.softplus(jnp.where(replaced, -logits, logits))
    found = logits > 0
    total = lambda x: jnp.sum(x * counted, axis=-1)  # noqa: E731
    hits = total(found & replaced)
    return {
        "detection_loss": (total(nll), total(real)),
        "detection_accuracy": (total(found == replaced), total(real)),
        "replaced": (total(replaced), total(real)),
        "recall": (hits, total(replaced)),
        "precision": (hits, total(found)),
    }

"""ELECTRA (Clark et al. 2020, arXiv:2003.10555): discriminators and their generators.

The numbers are those of google-research/electra; a name without a file is a flag of
configure_pretraining.py, whose defaults are the small model's; those of base and large stand in a
comment there. Of the published scores only Small-OWT's are of a run with the released defaults: the
others are of the released models, Small++, Base++ and Large (README).
"""

from __future__ import annotations

import dataclasses
from typing import Literal, NamedTuple

from bert_jax.data.pairs import Pairs
from bert_jax.experiment import Evaluation, Experiment
from bert_jax.models.config import (
    Dropout,
    EncoderConfig,
    Heads,
    LearnedPositions,
    Norm,
    Pooler,
    TruncatedNormal,
    VocabularyHead,
)
from bert_jax.objectives.masking import Masking
from bert_jax.objectives.replaced_tokens import ReplacedTokensObjective
from bert_jax.recipes.record import Recipe, Score
from bert_jax.recipes.sentences import TYPE_NOT_STATED
from bert_jax.train.optimizer import BertAdam
from bert_jax.train.schedule import ElectraLinear

# (layers, width, heads, embedding width, generator's share of the width); util/training_utils.py
# and configure_pretraining.py. The released small++ has a generator of full width (README).
SIZES = {
    "small": (12, 256, 4, 128, 1 / 4),
    "base": (12, 768, 12, 768, 1 / 3),
    "large": (24, 1024, 16, 1024, 1 / 4),
}


def electra_encoder(size: str) -> EncoderConfig:
    """The discriminator, which is what is fine-tuned."""
    layers, width, heads, embedding, _ = SIZES[size]
    return EncoderConfig(
        vocab_size=30522,
        hidden_size=width,
        num_layers=layers,
        num_heads=heads,
        intermediate_size=4 * width,
        embedding_size=None if embedding == width else embedding,
        type_vocab_size=2,
        positions=LearnedPositions(max_length=512),
        norm=Norm("post", eps=1e-12),
        activation="gelu",  # modeling.py, gelu(): erf
        dropout=Dropout(0.1, 0.1),
        # modeling.py, create_initializer(); not embeddings_project and the detector's last map.
        initializer=TruncatedNormal(0.02, outer="glorot"),
        heads=Heads(
            # The generator's head has gelu whatever the encoder has.
            vocabulary=VocabularyHead(activation="gelu"),
            pooler=Pooler(activation="gelu", input_dropout=0.1, output_dropout=0.1),
        ),
    )


def electra_generator(size: str) -> EncoderConfig:
    """The generator: as deep, narrower, with the discriminator's embedding width."""
    discriminator = electra_encoder(size)
    width = round(discriminator.hidden_size * SIZES[size][4])
    return dataclasses.replace(
        discriminator,
        hidden_size=width,
        num_heads=max(1, width // 64),  # configure_pretraining.py: heads of 64
        intermediate_size=4 * width,
        embedding_size=discriminator.table_size,
    )


class _Run(NamedTuple):
    """What differs between the sizes: configure_pretraining.py, but for steps (`_unsourced`)."""

    seq_length: int
    batch_size: int
    steps: int
    learning_rate: float
    mask_rate: float
    # max_predictions_per_seq: int((mask_prob + .005) * max_seq_length). That is the room: of a full
    # row of 512 tokens round(512 * mask_prob) are predicted, 77 and 128 (pretrain_helpers.mask).
    most: int


_RUNS = {
    "small": _Run(128, 128, 1_000_000, 5e-4, 0.15, 19),
    "base": _Run(512, 256, 766_000, 2e-4, 0.15, 79),
    "large": _Run(512, 2048, 1_750_000, 2e-4, 0.25, 130),
}
_README = "README of google-research/electra, dev, median"
_SOURCES = (
    "google-research/electra: configure_pretraining.py, run_pretraining.py, "
    "pretrain/pretrain_helpers.py, model/modeling.py, model/optimization.py, "
    "util/training_utils.py, build_pretraining_dataset.py, README.md",
    "Clark et al. 2020, arXiv:2003.10555",
)
_DEVIATIONS = (
    "Losses are divided by the weights of the whole batch; there by those of each replica, plus "
    "1e-6, and replicas are averaged.",
    "Pairs, masks, samples and order are drawn by other random numbers, and rows are shuffled over "
    "the whole corpus.",
    "There A also gets later sentences that still fit into it after B has begun, in a tenth to a "
    "third of the rows (build_pretraining_dataset.py; simulated); here A and B are each one "
    "stretch of the text, which is what the table of pairs can say.",
)


def electra_recipe(size: str, corpus: Literal["paper", "owt"] = "paper") -> Recipe:
    """ELECTRA of a size; corpus owt is the small one that the README trains on OpenWebText."""
    run, name = _RUNS[size], f"electra-{size}" + ("-owt" if corpus == "owt" else "")
    experiment = Experiment(
        name=name,
        model=dataclasses.replace(electra_encoder(size), compute_dtype="bfloat16"),
        objective=ReplacedTokensObjective(
            generator_width=SIZES[size][4],  # generator_hidden_size
            generator_depth=1.0,  # generator_layers
            generator_head_size=64,  # training_utils.get_generator_config
            sharing="tied",  # untied_generator_embeddings False
            temperature=1.0,
            generator_weight=1.0,  # gen_weight
            discriminator_weight=50.0,  # disc_weight
        ),
        masking=Masking(
            rate=run.mask_rate,
            mask_prob=0.85,  # pretrain_helpers.mask
            random_prob=0.0,  # the other 15 % stay as they are
            count="fixed",  # pretrain_helpers.mask: max(1, min(most, round(length * mask_prob)))
            count_base="tokens",  # length counts [CLS] and [SEP]
            candidates="text_and_unk",  # all but [CLS], [SEP], [MASK]
            max_predictions=run.most,
            with_replacement=True,  # tf.random.categorical
        ),
        packing=Pairs(
            seq_length=run.seq_length,
            kind="contiguous",
            short_prob=0.05,  # build_pretraining_dataset.py
            single_prob=0.1,  # build_pretraining_dataset.py
            copies=1,
            masks="fresh",
        ),
        batch_size=run.batch_size,
        microbatches=4 if size == "large" else 1,
        steps=run.steps,
        optimizer=BertAdam(
            learning_rate=run.learning_rate,
            b1=0.9,  # optimization.py
            b2=0.999,  # optimization.py
            eps=1e-6,  # optimization.py
            weight_decay=0.01,  # weight_decay_rate
            decay="matrices",  # optimization.py: all but LayerNorm, layer_norm, bias
            clip_norm=1.0,  # optimization.py: before CrossShardOptimizer averages
            clip="replica",
        ),
        schedule=ElectraLinear(warmup=10_000),  # num_warmup_steps; lr_decay_power 1
        evaluation=Evaluation(every=10_000, max_rows=4096),
    )
    return Recipe(
        name=name,
        phases=(experiment,),
        sources=_SOURCES,
        hardware="one V100, 4 days (README)" if size == "small" else "not stated with the code",
        tokens=float(run.steps * run.batch_size * run.seq_length),
        scores=_scores(size, corpus),
        deviations=_DEVIATIONS,
        unsourced=_unsourced(size),
    )


def _unsourced(size: str) -> tuple[str, ...]:
    table = "Table 6 of the paper, to which configure_pretraining.py refers, was not at hand: "
    found = {
        "small": f"{table}the numbers are the defaults of configure_pretraining.py.",
        "base": (
            f"{table}the 766,000 steps are remembered from it, not read in any source; the other "
            f"numbers are those of the comment in configure_pretraining.py."
        ),
        "large": (
            f"{table}the 1,750,000 steps are read from the name ELECTRA-1.75M that the README "
            f"gives the released model; the other numbers are those of the comment in "
            f"configure_pretraining.py."
        ),
    }
    return (found[size], TYPE_NOT_STATED)


def _scores(size: str, corpus: str) -> tuple[Score, ...]:
    tasks = ("CoLA", "SST-2", "MRPC", "STS-B", "QQP", "MNLI", "QNLI", "RTE")
    table = {
        ("small", "owt"): (56.8, 88.3, 87.4, 86.8, 88.3, 78.9, 87.9, 68.5),
        ("base", "paper"): (67.7, 95.1, 89.5, 91.2, 91.5, 88.8, 93.2, 82.7),
        ("large", "paper"): (69.1, 96.9, 90.8, 92.6, 92.4, 90.9, 95.0, 88.0),
    }
    # Released are Small++ (4M steps, a generator as wide as the discriminator), Base++ and Large.
    whose = {"small": "", "base": " (of Base++)", "large": " (of the released Large)"}[size]
    values = table.get((size, corpus), ())
    return tuple(Score(f"{t}{whose}", v, _README) for t, v in zip(tasks, values, strict=False))

"""A small twin of ELECTRA on the bundled corpus.

    make demo                                     # makes the store, if it is not there yet
    bert-jax train experiments/electra_tiny.py runs/electra-tiny
    bert-jax evaluate runs/electra-tiny

One stage, tied embeddings, a generator of half the width, 50 times the discriminator's loss. The
masks are ELECTRA's: 85 % [MASK], 15 % unchanged, positions drawn with replacement.
"""

import dataclasses
from pathlib import Path

from bert_jax.config import load_experiment
from bert_jax.objectives.masking import Masking
from bert_jax.objectives.replaced_tokens import ReplacedTokensObjective

experiment = dataclasses.replace(
    load_experiment(Path(__file__).parent / "fixed_compute_mlm.py"),
    name="electra-tiny",
    objective=ReplacedTokensObjective(generator_width=0.5, generator_head_size=64),
    masking=Masking(
        mask_prob=0.85,
        random_prob=0.0,
        count_base="tokens",
        candidates="text_and_unk",
        with_replacement=True,
    ),
    steps=3000,
)

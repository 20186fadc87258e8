"""A small twin of ELECTRA on the bundled corpus.

    make demo                                     # trains runs/demo/run, where it starts from
    bert-jax train experiments/electra_tiny.py runs/electra-tiny
    bert-jax evaluate runs/electra-tiny

One stage, tied embeddings, a generator of half the width, 50 times the discriminator's loss. The
masks are ELECTRA's: 85 % [MASK], 15 % unchanged, positions drawn with replacement. The
discriminator starts as the demo's encoder: from random numbers it calls every token original for
the 2,752 steps of `fixed_compute_electra.py`.

Hardware: two CPU cores, about 3 minutes (1,200 steps of 8 x 64 tokens), beside another run.
Expected (measured): real and replaced tokens are told apart at .8822 (standard error .0006), where
always saying "original" is right at .8739; loss .333 (.001), where that share's entropy is .379.
"""

import dataclasses
from pathlib import Path

from bert_jax.config import load_experiment
from bert_jax.experiment import Evaluation
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
    steps=1200,
    init_from="runs/demo/run",
    evaluation=Evaluation(every=200),
)

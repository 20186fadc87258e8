"""A small twin of ALBERT on the bundled corpus: n-grams, sentence order, shared layers, LAMB.

make demo                                     # makes the store, if it is not there yet
bert-jax train experiments/albert_tiny.py runs/albert-tiny
bert-jax evaluate runs/albert-tiny
"""

import dataclasses
from pathlib import Path

from bert_jax.config import load_experiment
from bert_jax.data.pairs import Pairs
from bert_jax.objectives.masking import Masking
from bert_jax.objectives.sentence_pairs import SentencePairsObjective

base = load_experiment(Path(__file__).parent / "fixed_compute_mlm.py")
experiment = dataclasses.replace(
    base,
    name="albert-tiny",
    model=dataclasses.replace(base.model, type_vocab_size=2),
    objective=SentencePairsObjective(),
    masking=Masking(unit="ngram"),
    packing=Pairs(seq_length=128, kind="order", copies=None, masks="fresh"),
    steps=6000,
)

"""A small twin of ALBERT's objective on the bundled corpus: n-grams and sentence order.

    make demo                                     # makes the tokenizer, if it is not there yet
    bert-jax prepare bert_jax/data/corpora/state_of_the_union.jsonl.gz \
        --tokenizer runs/demo/tokenizer --validation-fraction 0.1 --out runs/pairs/store
    bert-jax train experiments/albert_tiny.py runs/albert-tiny
    bert-jax evaluate runs/albert-tiny/phase-2

Sentence order is the pure one: two segments of one document, swapped half of the time. Like
`bert_tiny.py` it starts from an encoder that knows words. Its layers are not shared.

Hardware: two CPU cores, about 17 minutes, beside another run.
Measured: loss .690 at step 400, where a coin has ln 2 = .693: not yet learned. See
`docs/benchmarks.md` for a longer run.
"""

import dataclasses
from pathlib import Path

from bert_jax.config import load_phases
from bert_jax.data.pairs import Pairs
from bert_jax.objectives.masking import Masking

words, next_sentences = load_phases(Path(__file__).parent / "bert_tiny.py")
orders = dataclasses.replace(
    next_sentences,
    name="albert-tiny-twin",
    masking=Masking(unit="ngram"),
    packing=Pairs(seq_length=64, kind="order", copies=None, masks="fresh"),
    batch_size=128,
    steps=450,
)
phases = (words, orders)
experiment = words

"""A small twin of ALBERT's objective on the bundled corpus: n-grams and sentence order.

    make demo                                     # makes the tokenizer, if it is not there yet
    bert-jax prepare bert_jax/data/corpora/state_of_the_union.jsonl.gz \
        --tokenizer runs/demo/tokenizer --validation-fraction 0.25 --out runs/orders/store
    bert-jax train experiments/albert_tiny.py runs/albert-tiny
    bert-jax evaluate runs/albert-tiny/phase-2

Sentence order is the pure one: two segments of one document, swapped half of the time. It is hard:
logistic regression on the words of A and B, or on the four at their borders, does not beat a coin
on held-out documents. So this is the longest run here: words are read four times over before, and a
quarter of the documents is held out, to tell a small gain from none. Its layers are not shared.

Hardware: one CPU core, 42 minutes: 25 of words (8,000 steps of 16 x 64 tokens), 17 of pairs (500
of 128 x 64) with an evaluation every 50.
Expected (measured): held-out loss of the order .6886 (standard error .0012), where a coin has
ln 2 = .6931; accuracy .539 (.006), where always the same answer is right at .501.
"""

import dataclasses
from pathlib import Path

from bert_jax.config import load_phases
from bert_jax.data.pairs import Pairs
from bert_jax.experiment import Evaluation
from bert_jax.models.config import Dropout
from bert_jax.objectives.masking import Masking
from bert_jax.train.schedule import Trapezoid

words, next_sentences = load_phases(Path(__file__).parent / "bert_tiny.py")
words = dataclasses.replace(
    words,
    data="runs/orders/store",
    batch_size=16,
    steps=8000,
    schedule=Trapezoid(warmup=100, decay_length=3000),
    evaluation=Evaluation(every=2000),
)
orders = dataclasses.replace(
    next_sentences,
    name="albert-tiny-twin",
    data="runs/orders/store",
    model=dataclasses.replace(words.model, dropout=Dropout(0.1, 0.1)),
    masking=Masking(unit="ngram"),
    packing=Pairs(seq_length=64, kind="order", copies=None, masks="fresh"),
    batch_size=128,
    steps=500,
)
phases = (words, orders)
experiment = words

"""BERT-base on your own corpus: the published recipe, first its 128-token phase.

    bert-jax tokenizer --help          # a WordPiece vocabulary of 30,522 entries
    bert-jax prepare --help            # a store, here called stores/corpus
    bert-jax train experiments/bert_base.py --data stores/corpus

Phases run one after the other, in runs/NAME/phase-1 and so on; the same command goes on after an
interruption. One alone: ``bert-jax train bert-base:2 ... --init-from RUN``.

Arithmetic: 900,000 steps of 256 rows of 128 tokens, then 100,000 of 512: 42.6 B positions.
Hardware: the original took 4 days on 16 TPU v2 chips.
Expected: no run of this project has been made at this size. Published, fine-tuned: MNLI 84.7,
SST-2 92.7, SQuAD 1.1 F1 88.4.
Numbers and their sources: ``bert_jax/recipes/bert.py``. What is known of the recipe, and its
checks:

    bert-jax recipes bert-base
    bert-jax recipes check bert-base

Without a corpus, two steps on a laptop:

    bert-jax train experiments/bert_base.py:1 --data synthetic --steps 2 --batch-size 8 \
        --model.num-layers 2 --model.hidden-size 64 --model.num-heads 2 \
        --model.intermediate-size 128 --model.vocab-size 1024 --masking.random-ids 0 1024
"""

from bert_jax.recipes import published

phases = published("bert-base").phases
experiment = phases[0]  # for `load_experiment`, which gives one

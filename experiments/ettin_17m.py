"""Ettin-17M on your own corpus: ModernBERT's recipe in its smallest published size.

    bert-jax tokenizer --help          # a byte-level BPE vocabulary of 50,368 entries
    bert-jax prepare --help            # a store, here called stores/corpus
    bert-jax train experiments/ettin_17m.py --data stores/corpus

Phases run one after the other, in runs/NAME/phase-1 and so on; the same command goes on after an
interruption. One alone: ``bert-jax train ettin-17m:2 ... --init-from RUN``.

Arithmetic: 1.7 T tokens at 1,024, then 250 B and 50 B at 7,999, in batches of 4,608 rows.
Hardware: the original took 141 hours on 4 H100.
Expected: no run of this project has been made at this size. Published, fine-tuned: GLUE 79.2.
Numbers and their sources: ``bert_jax/recipes/ettin.py``. What is known of the recipe, and its
checks:

    bert-jax recipes ettin-17m
    bert-jax recipes check ettin-17m

Without a corpus, two steps on a laptop:

    bert-jax train experiments/ettin_17m.py:1 --data synthetic --steps 2 --batch-size 8 \
        --model.num-layers 2 --model.hidden-size 64 --model.num-heads 2 \
        --model.intermediate-size 128 --model.vocab-size 1024 --masking.random-ids 0 1024 \
        --eval-masking.random-ids 0 1024 --model.pad-id 0 --packing.seq-length 64 \
        --microbatches 1
"""

from bert_jax.recipes import published

phases = published("ettin-17m").phases
experiment = phases[0]  # for `load_experiment`, which gives one

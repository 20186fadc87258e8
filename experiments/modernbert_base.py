"""ModernBERT-base on your own corpus: 1.7 T tokens at 1,024, then 8,192, then decay.

    bert-jax tokenizer --help          # a byte-level BPE vocabulary of 50,368 entries
    bert-jax prepare --help            # a store, here called stores/corpus
    bert-jax train experiments/modernbert_base.py --data stores/corpus

Phases run one after the other, in runs/NAME/phase-1 and so on; the same command goes on after an
interruption. One alone: ``bert-jax train modernbert-base:2 ... --init-from RUN``.

Arithmetic: 374,901 steps to 1.719 T tokens (batches grow from 768 to 4,608 rows over 50 B), then
250 B and 50 B at 8,192.
Hardware: the original took 191.1 + 36.3 + 7.5 hours on 8 H100.
Expected: no run of this project has been made at this size. Published, fine-tuned: GLUE 88.4, MNLI
89.1.
Numbers and their sources: ``bert_jax/recipes/modernbert.py``. What is known of the recipe, and its
checks:

    bert-jax recipes modernbert-base
    bert-jax recipes check modernbert-base

Without a corpus, two steps on a laptop:

    bert-jax train experiments/modernbert_base.py:1 --data synthetic --steps 2 --batch-size 8 \
        --model.num-layers 2 --model.hidden-size 64 --model.num-heads 2 \
        --model.intermediate-size 128 --model.vocab-size 1024 --masking.random-ids 0 1024 \
        --eval-masking.random-ids 0 1024 --model.pad-id 0 --packing.seq-length 64 \
        --microbatches 1 --batch-warmup none
"""

from bert_jax.recipes import published

phases = published("modernbert-base").phases
experiment = phases[0]  # for `load_experiment`, which gives one

"""ALBERT-base, version 1, on your own corpus: shared layers, sentence order, LAMB.

    bert-jax tokenizer --help          # a SentencePiece unigram vocabulary of 30,000 entries
    bert-jax prepare --help            # a store, here called stores/corpus
    bert-jax train experiments/albert_base.py --data stores/corpus

Arithmetic: 125,000 steps of 4,096 rows of 512 tokens: 262 B positions.
Hardware: the original used Cloud TPUs.
Expected: no run of this project has been made at this size. Published, fine-tuned: MNLI 81.6,
SST-2 90.3, RACE 64.0. Mind ``--masking.max-predictions``: the
original command's 20 are 4 % of a row.
Numbers and their sources: ``bert_jax/recipes/albert.py``. What is known of the recipe, and its
checks:

    bert-jax recipes albert-base-v1
    bert-jax recipes check albert-base-v1

Without a corpus, two steps on a laptop:

    bert-jax train experiments/albert_base.py --data synthetic --steps 2 --batch-size 8 \
        --model.num-layers 2 --model.hidden-size 64 --model.num-heads 2 \
        --model.intermediate-size 128 --model.vocab-size 1024 --masking.random-ids 0 1024 \
        --model.embedding-size 32 --packing.seq-length 64 --microbatches 1
"""

from bert_jax.recipes import recipe

experiment = recipe("albert-base-v1")

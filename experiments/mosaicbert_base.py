"""MosaicBERT-base on your own corpus: 70,000 steps at 128 tokens.

    bert-jax tokenizer --help          # a WordPiece vocabulary of 30,522 entries
    bert-jax prepare --help            # a store, here called stores/c4
    bert-jax train experiments/mosaicbert_base.py --data stores/c4

Arithmetic: 70,000 steps of 4,096 rows of 128 tokens: 36.7 B positions.
Hardware: 8 A100; GLUE 79.6 after 1.13 hours (paper).
Expected: no run of this project has been made at this size. Published, fine-tuned: GLUE 85.4, MNLI
85.6.
Numbers and their sources: ``bert_jax/recipes/mosaicbert.py``. What is known of the recipe, and its
checks:

    bert-jax recipes mosaicbert-base
    bert-jax recipes check mosaicbert-base

Without a corpus, two steps on a laptop:

    bert-jax train experiments/mosaicbert_base.py --data synthetic --steps 2 --batch-size 8 \
        --model.num-layers 2 --model.hidden-size 64 --model.num-heads 2 \
        --model.intermediate-size 128 --model.vocab-size 1024 --masking.random-ids 0 1024 \
        --eval-masking.random-ids 0 1024
"""

from bert_jax.recipes import recipe

experiment = recipe("mosaicbert-base")

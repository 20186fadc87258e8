"""Crammed BERT: what one accelerator trains in a day; the clock is the wall's.

    bert-jax tokenizer --help          # a WordPiece vocabulary of 32,768 entries
    bert-jax prepare --help            # a store, here called stores/pile
    bert-jax train experiments/crammed_bert.py --data stores/pile

Arithmetic: 24 hours; at most 14.7 B positions, in batches that grow from 128 to 8,192 rows.
Hardware: one GPU in the original.
Expected: no run of this project has been made at this size.
Numbers and their sources: ``bert_jax/recipes/crammed.py``. What is known of the recipe, and its
checks:

    bert-jax recipes crammed-bert
    bert-jax recipes check crammed-bert

Without a corpus, two steps on a laptop:

    bert-jax train experiments/crammed_bert.py --data synthetic --steps 2 --batch-size 8 \
        --model.num-layers 2 --model.hidden-size 64 --model.num-heads 2 \
        --model.intermediate-size 128 --model.vocab-size 1024 --masking.random-ids 0 1024 \
        --microbatches 1 --batch-warmup none --total 60
"""

from bert_jax.recipes import recipe

experiment = recipe("crammed-bert")

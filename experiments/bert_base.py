"""BERT-base on your own corpus: the 128-token phase of the published recipe.

    bert-jax tokenizer --help          # a WordPiece vocabulary of 30,522 entries
    bert-jax prepare --help            # a store, here called stores/corpus
    bert-jax train experiments/bert_base.py --data stores/corpus

Hardware: compiled for 16 TPU v5e chips (16 rows a chip); the paper used 16 TPU v2 chips.
Expected: no run of this project has been made at this size; the paper gives no masked-LM loss.
Numbers and their sources: ``bert_jax/recipes/bert.py``.

Without a corpus, two steps on a laptop:

    bert-jax train experiments/bert_base.py --data synthetic --steps 2 --batch-size 8 \
        --model.num-layers 2 --model.hidden-size 64 --model.num-heads 2 \
        --model.intermediate-size 128 --model.vocab-size 1024 --masking.random-ids 0 1024
"""

from bert_jax.recipes import recipe

experiment = recipe("bert-base")

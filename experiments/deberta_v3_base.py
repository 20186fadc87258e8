"""DeBERTa-v3-base on your own corpus: rtd.sh of microsoft/DeBERTa.

    bert-jax tokenizer --help          # a SentencePiece vocabulary of 128,100 entries
    bert-jax prepare --help            # a store, here called stores/corpus
    bert-jax train experiments/deberta_v3_base.py --data stores/corpus

Arithmetic: 1,000,000 steps of 256 rows of 512 tokens: 131 B positions.
Hardware: not stated by the source. ``deberta-v3-base-paper`` weighs the discriminator as the paper.
Expected: no run of this project has been made at this size. Published, of the released model: MNLI
90.6, SQuAD 2.0 F1 88.4.
Numbers and their sources: ``bert_jax/recipes/deberta.py``. What is known of the recipe, and its
checks:

    bert-jax recipes deberta-v3-base
    bert-jax recipes check deberta-v3-base

Without a corpus, two steps on a laptop:

    bert-jax train experiments/deberta_v3_base.py --data synthetic --steps 2 --batch-size 8 \
        --model.num-layers 4 --model.hidden-size 64 --model.num-heads 2 \
        --model.intermediate-size 128 --model.vocab-size 1024 --packing.seq-length 64
"""

from bert_jax.recipes import recipe

experiment = recipe("deberta-v3-base")

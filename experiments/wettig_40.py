"""Should you mask 15 %? Masking 40 % with a large model for a short time.

    bert-jax tokenizer --help          # a byte-level BPE vocabulary of 50,265 entries
    bert-jax prepare --help            # a store, here called stores/corpus
    bert-jax train experiments/wettig_40.py --data stores/corpus

Arithmetic: 23,000 steps of 4,096 rows of 128 tokens: 12.1 B positions.
Hardware: GPUs of the RTX 2080 kind in the original.
Expected: no run of this project has been made at this size. Published, fine-tuned: MNLI 84.5.
Numbers and their sources: ``bert_jax/recipes/wettig.py``. What is known of the recipe, and its
checks:

    bert-jax recipes wettig-40
    bert-jax recipes check wettig-40

Without a corpus, two steps on a laptop:

    bert-jax train experiments/wettig_40.py --data synthetic --steps 2 --batch-size 8 \
        --model.num-layers 2 --model.hidden-size 64 --model.num-heads 2 \
        --model.intermediate-size 128 --model.vocab-size 1024
"""

from bert_jax.recipes import recipe

experiment = recipe("wettig-40")

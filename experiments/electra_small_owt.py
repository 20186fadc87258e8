"""ELECTRA-small on OpenWebText: the cheapest published target on public data.

    bert-jax tokenizer --help          # a WordPiece vocabulary of 30,522 entries
    bert-jax prepare --help            # a store, here called stores/openwebtext
    bert-jax train experiments/electra_small_owt.py --data stores/openwebtext

Arithmetic: 1,000,000 steps of 128 rows of 128 tokens: 16.4 B positions.
Hardware: the original took 4 days on one V100, and is good after 200,000 steps (10 hours).
Expected: no run of this project has been made at this size. Published, fine-tuned, median:
MNLI 78.9, CoLA 56.8, SST-2 88.3, MRPC 87.4, STS-B 86.8, QQP 88.3, QNLI 87.9, RTE 68.5.
Numbers and their sources: ``bert_jax/recipes/electra.py``. What is known of the recipe, and its
checks:

    bert-jax recipes electra-small-owt
    bert-jax recipes check electra-small-owt

Without a corpus, two steps on a laptop:

    bert-jax train experiments/electra_small_owt.py --data synthetic --steps 2 --batch-size 8 \
        --model.num-layers 2 --model.hidden-size 128 --model.num-heads 2 \
        --model.intermediate-size 128 --model.vocab-size 1024 --objective.generator-head-size 32
"""

from bert_jax.recipes import recipe

experiment = recipe("electra-small-owt")

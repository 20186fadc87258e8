"""NeoBERT on your own corpus: 28 narrow layers, a million steps, then rows of 4,096.

    bert-jax tokenizer --help          # a WordPiece vocabulary of 30,522 entries
    bert-jax prepare --help            # a store, here called stores/refinedweb
    bert-jax train experiments/neobert.py --data stores/refinedweb

Phases run one after the other, in runs/NAME/phase-1 and so on; the same command goes on after an
interruption. One alone: ``bert-jax train neobert:2 ... --init-from RUN``.

Arithmetic: 1,000,000 steps of 2,048 rows of 1,024 tokens, then 50,000 of 512 rows of 4,096: 2.2 T.
Hardware: the original used 8 H100.
Expected: no run of this project has been made at this size.
Numbers and their sources: ``bert_jax/recipes/neobert.py``. What is known of the recipe, and its
checks:

    bert-jax recipes neobert
    bert-jax recipes check neobert

Without a corpus, two steps on a laptop:

    bert-jax train experiments/neobert.py:1 --data synthetic --steps 2 --batch-size 8 \
        --model.num-layers 2 --model.hidden-size 64 --model.num-heads 2 \
        --model.intermediate-size 128 --model.vocab-size 1024 --packing.seq-length 64
"""

from bert_jax.recipes import published

phases = published("neobert").phases
experiment = phases[0]  # for `load_experiment`, which gives one

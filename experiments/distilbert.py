"""DistilBERT from a BERT-base of yours, or one imported from Hugging Face.

    # the teacher's tokenizer, and a store made with it
    bert-jax prepare --help            # a store, here called stores/corpus
    bert-jax train experiments/distilbert.py --data stores/corpus \
        --objective.teacher models/bert-base-uncased

Arithmetic: 3 epochs; 19,336 steps of 1,000 rows of 512 tokens if the corpus has 3.3 B tokens: give
``--steps`` for yours.
Hardware: the original took about 90 hours on 8 V100.
Expected: no run of this project has been made at this size. Published, fine-tuned: MNLI 82.1,
SST-2 91.3, SQuAD 1.1 F1 86.9: 97 % of the teacher's.
Numbers and their sources: ``bert_jax/recipes/distilbert.py``. What is known of the recipe, and its
checks:

    bert-jax recipes distilbert-base
    bert-jax recipes check distilbert-base

Without a corpus, two steps on a laptop, and two of a teacher before:

    bert-jax train experiments/distilbert.py runs/teacher --data synthetic --steps 2 \
        --objective masked-lm --batch-size 8 --model.num-layers 4 --model.hidden-size 64 \
        --model.num-heads 2 --model.intermediate-size 128 --model.vocab-size 1024 \
        --masking.random-ids 0 1024 --masking.frequency-power 0 --packing.seq-length 64 \
        --microbatches 1
    bert-jax train experiments/distilbert.py runs/student --data synthetic --steps 2 \
        --objective.teacher runs/teacher --objective.layers 0 2 --batch-size 8 \
        --model.num-layers 2 --model.hidden-size 64 --model.num-heads 2 \
        --model.intermediate-size 128 --model.vocab-size 1024 \
        --masking.random-ids 0 1024 --masking.frequency-power 0 --packing.seq-length 64 \
        --microbatches 1
"""

from bert_jax.recipes import recipe

experiment = recipe("distilbert-base")

"""RoBERTa-base on your own corpus: the longest run of the paper.

    bert-jax tokenizer --help          # a byte-level BPE vocabulary of 50,265 entries
    bert-jax prepare --help            # a store, here called stores/corpus
    bert-jax train experiments/roberta_base.py --data stores/corpus

Arithmetic: 8,192 rows x 512 tokens = 4.2 M tokens a step, 2.1 T tokens in 500,000 steps; on 16
chips 512 rows a chip, in 16 microbatches of 32.
Hardware: compiled for 16 TPU v5e chips; the paper used 1,024 V100. ``roberta-base-fairseq`` is the
smaller run of fairseq's own yaml, on 8 V100.
Expected: no run of this project has been made at this size. A reproduction with fairseq reports a
training perplexity of 5.32 after about 12,900 updates of this batch (fairseq issue 1111).
Published, fine-tuned: MNLI 87.6, SST-2 94.8.
Numbers and their sources: ``bert_jax/recipes/roberta.py``. What is known of the recipe, and its
checks:

    bert-jax recipes roberta-base
    bert-jax recipes check roberta-base

Without a corpus, two steps on a laptop:

    bert-jax train experiments/roberta_base.py --data synthetic --steps 2 --batch-size 8 \
        --model.num-layers 2 --model.hidden-size 64 --model.num-heads 2 \
        --model.intermediate-size 128 --model.vocab-size 1024 --masking.random-ids 4 1024 \
        --microbatches 2 --packing.seq-length 64
"""

from bert_jax.recipes import recipe

experiment = recipe("roberta-base")

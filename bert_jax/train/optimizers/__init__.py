"""Optimizers as data: one frozen record each; `bert_jax.train.optimizer` gathers them."""

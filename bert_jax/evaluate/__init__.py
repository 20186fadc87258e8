"""What a trained model is worth and says; callable: `bert_jax.evaluate(...)`."""

from bert_jax._verbs import make_callable

make_callable(__name__)

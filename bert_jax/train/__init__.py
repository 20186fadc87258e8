"""From an experiment to a run directory; callable: `bert_jax.train(experiment, run_dir)`."""

from bert_jax._verbs import make_callable

make_callable(__name__)

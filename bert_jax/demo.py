"""`make demo`: from text to a filled mask in a few minutes, with nothing but this package.

A WordPiece vocabulary is trained on the bundled State of the Union messages, the corpus is
prepared, a small encoder is trained, measured on the messages that were held out, and asked to
fill masks. Every stage is kept: run again, the demo goes on where it stopped.
"""

from __future__ import annotations

import sys
from importlib.resources import files
from pathlib import Path

from bert_jax.config import load_experiment
from bert_jax.data.prepare import prepare
from bert_jax.data.sources import read_documents
from bert_jax.data.store import Store, store_summary
from bert_jax.data.tokenizer import Tokenizer
from bert_jax.evaluate.fill_mask import fill_mask, format_predictions
from bert_jax.evaluate.run import evaluate, load_run
from bert_jax.train.loop import TrainResult, train

EXPERIMENT = Path("experiments") / "quickstart.py"
OUT = Path("runs") / "demo"
TEXTS = (
    "the congress of the united [MASK]",
    "our relations with foreign [MASK] continue to be friendly.",
    "the secretary of the [MASK] has reported to me.",
)


def main(experiment_file: Path = EXPERIMENT, out: Path = OUT) -> int:
    """Runs the demo; returns an exit code.

    Args:
        experiment_file: What is trained.
        out: Where tokenizer, store and run are kept.
    """
    experiment = load_experiment(experiment_file)
    say("1. Vocabulary")
    corpus = files("bert_jax") / "data" / "corpora" / "state_of_the_union.jsonl.gz"
    tokenizer = cached_tokenizer(Path(str(corpus)), out / "tokenizer", experiment.model.vocab_size)
    say(f"2. Corpus: {out / 'store'}")
    store = prepare(str(corpus), out / "store", tokenizer=tokenizer)
    say(store_summary(store))
    say(f"3. Training: {experiment_file} ({experiment.steps:,} steps)")
    result = train(experiment, out / "run")
    if result.interrupted:
        say("interrupted; run `make demo` again to go on")
        return 130
    say("4. Results")
    for line in results(result, store):
        say(line)
    return 0


def cached_tokenizer(corpus: Path, directory: Path, vocab_size: int) -> Tokenizer:
    """The demo's vocabulary, trained once: lower-cased WordPiece of ``vocab_size`` tokens."""
    if directory.exists():
        tokenizer = Tokenizer.load(directory)
        if tokenizer.vocab_size == vocab_size:
            say(f"{directory} holds {vocab_size:,} tokens already")
            return tokenizer
    texts = (document.text for document in read_documents(str(corpus)))
    tokenizer = Tokenizer.train(
        texts=texts, kind="wordpiece", vocab_size=vocab_size, lowercase=True
    )
    tokenizer.save(directory)
    say(f"{directory}: {tokenizer.vocab_size:,} tokens")
    return tokenizer


def results(result: TrainResult, store: Store) -> list[str]:
    """What the demo says at its end."""
    run = load_run(result.run_dir)
    scores = evaluate(run)
    filled = [format_predictions(text, fill_mask(text, run, top_k=3)) for text in TEXTS]
    return [
        *filled,
        "",
        scores.sentence(),
        f"({store.split('validation').num_documents} held-out messages, split by document hash)",
        f"curves and config: {result.report}",
        f'next: .venv/bin/bert-jax fill-mask {result.run_dir} "peace with all [MASK]"',
    ]


def say(text: str) -> None:
    """Prints a line at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())

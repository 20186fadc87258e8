"""What `bert-jax evaluate` prints."""

from __future__ import annotations

from pathlib import Path

from bert_jax.evaluate.pseudo_perplexity import pseudo_perplexity
from bert_jax.evaluate.run import evaluate, load_run


def evaluate_run(
    run_dir: Path, *, sentences: Path | None = None, step: int | None = None, average: int = 1
) -> str:
    """Held-out scores of a run, and the pseudo-perplexity of given sentences.

    Args:
        run_dir: The run.
        sentences: A text file, one sentence a line; blank lines are passed over.
        step: Checkpoint; the newest by default.
        average: Take the mean of this many of the last checkpoints.
    """
    run = load_run(run_dir, step=step, average=average)
    mean = f", mean of the last {average} checkpoints" if average > 1 else ""
    lines = [f"{run_dir}, step {run.step:,}{mean}", evaluate(run).sentence()]
    if sentences is not None:
        texts = [line.strip() for line in sentences.read_text("utf-8").splitlines() if line.strip()]
        if not texts:
            raise ValueError(f"{sentences} holds no sentence; write one a line.")
        scored = pseudo_perplexity(texts, run)
        lines.append(
            f"pseudo-perplexity {scored.perplexity:.2f} over {sum(scored.tokens):,} tokens of "
            f"{len(texts):,} sentences (method {scored.method})"
        )
        lines += [
            f"  {score:10.3f} nats  {count:4} tokens  {text}"
            for score, count, text in zip(scored.log_likelihoods, scored.tokens, texts, strict=True)
        ]
    return "\n".join(lines)

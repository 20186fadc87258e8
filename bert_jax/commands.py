"""The verbs of `bert-jax` as typed functions, whose docstrings and signatures make their help.

Positional-only parameters are positional arguments, keyword-only ones are options. What a verb does
is elsewhere and is imported when the verb runs, so that help comes at once. `train` is in
`bert_jax.train.command`.
"""

from pathlib import Path
from typing import Literal

from bert_jax.data.readers import Format
from bert_jax.data.tokenizer_train import TrainedKind


def tokenizer(
    file: tuple[str, ...],
    /,
    *,
    out: Path,
    kind: TrainedKind = "wordpiece",
    vocab_size: int = 30522,
    lowercase: bool = False,
    strip_accents: bool | None = None,
    format: Format = "auto",
    field: str = "text",
) -> None:
    """Train a vocabulary on text, save it in Hugging Face's form, and measure it.

    Prints the vocabulary's size, the rate of unknown tokens, the tokens a word, and the words that
    are broken into most pieces.

    Example:
        bert-jax tokenizer corpus.jsonl --out tokenizer --kind wordpiece --vocab-size 8192

    Args:
        file: Text, JSON lines (either also gzipped), Parquet, or a TFDS directory; or a pattern.
        out: Directory to write.
        kind: BERT's WordPiece, RoBERTa's byte-level BPE, or SentencePiece's unigram model.
        vocab_size: Tokens, special ones included.
        lowercase: Lower-case the text.
        strip_accents: Take accents off letters; None does so if the text is lower-cased.
        format: Of the files; auto goes by the name.
        field: Where the text is, in JSON lines, Parquet and TFDS.
    """
    from bert_jax.data.tokenizer_report import train_tokenizer_command

    report = train_tokenizer_command(
        file,
        out,
        kind=kind,
        vocab_size=vocab_size,
        lowercase=lowercase,
        strip_accents=strip_accents,
        format=format,
        field=field,
    )
    print(report)


def prepare(
    file: tuple[str, ...],
    /,
    *,
    out: Path,
    tokenizer: Path,
    format: Format = "auto",
    field: str = "text",
    validation_fraction: float = 0.05,
    workers: int | None = None,
) -> None:
    """Tokenise a corpus once into a store that training reads.

    Exact duplicates are dropped; a part of the documents is held out for evaluation. Interrupted,
    the same command goes on where it stopped.

    Example:
        bert-jax prepare corpus.jsonl --out store --tokenizer tokenizer

    Args:
        file: Text, JSON lines (either also gzipped), Parquet, or a TFDS directory; or a pattern.
        out: Directory to write: new, empty, or begun by the same command.
        tokenizer: A directory or file of a tokenizer, such as `bert-jax tokenizer` writes.
        format: Of the files; auto goes by the name.
        field: Where the text is, in JSON lines, Parquet and TFDS.
        validation_fraction: Share of the documents to hold out.
        workers: Tokenising processes; None: as many as there are processors, fewer for little text.
    """
    from bert_jax.data.prepare import prepare
    from bert_jax.data.store import store_summary

    store = prepare(
        file,
        out,
        tokenizer=tokenizer,
        format=format,
        field=field,
        validation_fraction=validation_fraction,
        workers=workers,
    )
    print(store_summary(store))


def evaluate(
    run: Path,
    /,
    *,
    sentences: Path | None = None,
    step: int | None = None,
    average: int = 1,
) -> None:
    """Score a run on held-out text, always with the same masks.

    Example:
        bert-jax evaluate runs/first --sentences sentences.txt

    Args:
        run: Directory of the run.
        sentences: Also give the pseudo-perplexity of these sentences, one a line of this file.
        step: Checkpoint to use; None: the newest.
        average: Use the mean of this many of the last checkpoints.
    """
    from bert_jax.evaluate.command import evaluate_run

    print(evaluate_run(run, sentences=sentences, step=step, average=average))


def fill_mask(run: Path, text: tuple[str, ...], /, *, top_k: int = 5) -> None:
    """Let a model predict what stands at the mask, with probabilities.

    Example:
        bert-jax fill-mask runs/first "The [MASK] of the United States" --top-k 3

    Args:
        run: Directory of the run, or a Hugging Face directory.
        text: Text with one or more mask tokens ([MASK], or <mask> in RoBERTa's vocabularies).
        top_k: Predictions to show for each mask.
    """
    from bert_jax.evaluate.fill_mask import fill_mask_run

    print(fill_mask_run(run, text, top_k=top_k))


def import_model(directory: Path, /, *, reference: Path | None = None) -> int:
    """Read a Hugging Face model directory, say what is in it, and check the numbers it gives.

    Prints the architecture, the parameters that are new, unused, unexpected or renamed, and the
    tokenizer. With reference outputs (reference.npz) it compares outputs, loss and gradient norms;
    the exit code is 1 if one is out of its bound. bert_jax.import_hf gives the model itself.

    Example:
        bert-jax import models/bert-base-uncased

    Args:
        directory: With config.json and model.safetensors (or shards, or flax_model.msgpack).
        reference: Outputs to compare with; None takes reference.npz in the directory, if there.
    """
    from bert_jax.exchange import import_directory

    text, compared = import_directory(directory, reference=reference)
    print(text)
    return 0 if compared is None or compared.passed else 1


def export_model(
    source: Path,
    out: Path,
    /,
    *,
    part: Literal["model", "encoder"] = "model",
    family: str | None = None,
    labels: tuple[str, ...] = (),
    step: int | None = None,
    license: str | None = None,
    language: tuple[str, ...] = (),
    average: int = 1,
) -> None:
    """Write a run (or a Hugging Face directory again) for Hugging Face transformers.

    Writes config.json, model.safetensors, the tokenizer and a model card with what the run knows of
    its training; all of them, or none.

    Example:
        bert-jax export runs/first exported --license apache-2.0 --language en

    Args:
        source: Directory of a run, or of a Hugging Face model.
        out: Directory to write: new, or empty.
        part: The model with its head, or the bare encoder.
        family: Model type, such as electra; None takes the first whose config can say the model.
        labels: Names of a classifier's classes, in order; without, those it has.
        step: Checkpoint of the run; None: the newest.
        license: For the model card: an SPDX identifier. None: not stated.
        language: For the model card: codes of ISO 639, such as en.
        average: Write the mean of this many of the run's last checkpoints.
    """
    from bert_jax.exchange import export_source

    print(
        export_source(
            source,
            out,
            part=part,
            family=family,
            labels=labels or None,
            step=step,
            license=license,
            language=language,
            average=average,
        )
    )


def report(run: Path, /) -> None:
    """Write a run's report.html again, from its logs: curves, configuration, final numbers.

    Example:
        bert-jax report runs/first

    Args:
        run: Directory of the run.
    """
    from bert_jax.train.report import write_report

    print(write_report(run))


def compare(
    experiment: tuple[str, ...],
    /,
    *,
    out: Path,
    unit: Literal["flops", "tokens", "seconds"] = "flops",
    amount: float | None = None,
    seeds: tuple[int, ...] = (0, 1),
    data: Path | None = None,
    then: str | None = None,
) -> int:
    """Train experiments at an equal budget, and put their held-out scores beside each other.

    Writes a table, a chart and a sheet; every run has its directory, and an interrupted comparison
    goes on with the same command. Unequal budgets are refused.

    Example:
        bert-jax compare first.py second.py --out runs/compare --amount 1e13

    Args:
        experiment: Python files or names of recipes, two or more.
        out: Directory of the runs, the table (comparison.md), the page and the sheet.
        unit: Of the budget: operations of all models in training, a generator's and a teacher's
            included; tokens that are read; or seconds of training.
        amount: What each may spend; None: its own steps, which must cost the same.
        seeds: A run of each experiment for each of them.
        data: A store for all, instead of their own.
        then: An experiment that is trained from each result in the same way: its scores compare
            even if the objectives do not.

    Returns:
        Exit code: 0; 130 if it was interrupted.
    """
    from bert_jax.compare_command import compare_files

    return compare_files(
        experiment, out=out, unit=unit, amount=amount, seeds=seeds, data=data, then=then
    )


def recipes(word: tuple[str, ...] = (), /) -> int:
    """List the published recipes, show one, compare two, or check one against its sources.

    Without words: every recipe with its size, tokens, hardware and a published score. NAME shows
    sources, scores, known deviations and every field; NAME:2 its second phase. `diff A B` compares
    two, field by field; either may be a Python file. `check NAME` (or all) holds a recipe against
    numbers written out by hand; the exit code is 1 if one differs. A recipe's name stands for an
    experiment file: bert-jax train roberta-base.

    Example:
        bert-jax recipes diff bert-base roberta-base

    Args:
        word: Nothing, a recipe, or diff or check with what they are about.

    Returns:
        Exit code: 0; 1 if a check failed.
    """
    from bert_jax.recipes_command import run

    text, code = run(word)
    print(text)
    return code

"""What `bert-jax import` and `bert-jax export` do and print."""

from __future__ import annotations

import dataclasses
import datetime
import json
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from bert_jax import __version__
from bert_jax.config import digest
from bert_jax.data.store import Store
from bert_jax.evaluate.run import Run, load_run
from bert_jax.experiment import Experiment
from bert_jax.interop.export import ExportReport, export_hf
from bert_jax.interop.huggingface import Loaded, import_hf
from bert_jax.interop.model_card import LANGUAGES, LICENCE, NAME
from bert_jax.interop.parity import ParityReport, parity, read_reference
from bert_jax.models.model import EncoderModel
from bert_jax.models.sizes import parameter_count
from bert_jax.objectives.causal_lm import CausalLmObjective
from bert_jax.objectives.distillation import DistillationObjective
from bert_jax.objectives.masked_lm import MaskedLmObjective
from bert_jax.objectives.replaced_tokens import ReplacedTokensObjective
from bert_jax.objectives.sentence_pairs import SentencePairsObjective
from bert_jax.train.log import read_metrics

Part = Literal["model", "encoder"]

REFERENCE = "reference.npz"
_SHOWN = 8  # names in a line


def import_directory(
    directory: Path, *, reference: Path | None = None
) -> tuple[str, ParityReport | None]:
    """Reads a Hugging Face directory.

    Args:
        directory: The directory.
        reference: Outputs to compare with; None: ``reference.npz`` in the directory, if there.

    Returns:
        What to print, and the comparison; None without a reference.
    """
    loaded = import_hf(directory)
    text = _describe(directory, loaded)
    beside = directory / REFERENCE
    if reference is None and not beside.exists():
        return f"{text}\nparity         not checked: no {REFERENCE} beside it", None
    path = beside if reference is None else reference
    compared = parity(loaded, read_reference(path))
    if not compared.checks:
        raise ValueError(
            f"{path} holds nothing to compare; beside in.input_ids give out.logits, "
            f"out.last_hidden_state, or out.loss with label.labels."
        )
    verdict = "passed" if compared.passed else "FAILED"
    table = "\n".join(f"  {line}" for line in compared.table().splitlines())
    return f"{text}\nparity         {verdict}, against {path}\n{table}", compared


def _describe(directory: Path, loaded: Loaded) -> str:
    c, report = loaded.model.config, loaded.report
    tokenizer = loaded.tokenizer
    lines = {
        "architecture": f"{report.architecture} ({report.model_type}), here "
        f"{type(loaded.model).__name__}",
        "encoder": f"{c.applied_layers} layers, width {c.hidden_size}, {c.num_heads} heads, "
        f"{c.vocab_size:,} vocabulary entries, inputs of up to {c.positions.max_length:,} tokens",
        "parameters": f"{parameter_count(loaded.model):,}",
        "tokenizer": "none beside it" if tokenizer is None else str(tokenizer),
        "new": _listed(report.new, "none: every parameter is the checkpoint's"),
        "unused": _listed(report.unused, "none"),
        "unexpected": _listed(report.unexpected, "none"),
        "renamed": _listed(report.renamed, "none"),
    }
    lines |= {"note" if i == 0 else "": note for i, note in enumerate(report.notes)}
    return "\n".join([str(directory), *(f"{name:<14} {text}" for name, text in lines.items())])


def _listed(names: Sequence[str], otherwise: str) -> str:
    if not names:
        return otherwise
    rest = f", and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{len(names)}: {', '.join(names[:_SHOWN])}{rest}"


# ---------------------------------------------------------------------------------------- export


def export_source(
    source: Path,
    out: Path,
    *,
    part: Part = "model",
    family: str | None = None,
    labels: Sequence[str] | None = None,
    step: int | None = None,
    license: str | None = None,
    language: Sequence[str] = (),
    average: int = 1,
) -> str:
    """Exports a run of `bert-jax train`, or a Hugging Face directory again.

    Args:
        source: Either.
        out: Directory to write.
        part: ``encoder``: without the head.
        family: ``model_type``; None: the first that fits.
        labels: Names of the classes; None: those of the Hugging Face directory.
        step: Checkpoint of the run; None: the newest.
        license: For the model card, an SPDX identifier.
        language: Codes of ISO 639.
        average: Take the mean of this many of the run's last checkpoints.

    Returns:
        What to print.
    """
    if not (source / "config.json").is_file():
        raise ValueError(
            f"{source} holds no config.json; give a run directory of `bert-jax train`, or a "
            f"Hugging Face model directory."
        )
    try:
        raw = json.loads((source / "config.json").read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{source / 'config.json'} is not JSON ({error}); restore it.") from error
    given = {LICENCE: license, LANGUAGES: ", ".join(language)}
    stated = {name: value for name, value in given.items() if value}
    if "model_type" in raw:
        if step is not None or average != 1:
            option = "--average" if step is None else "--step"
            raise ValueError(
                f"{source} is a Hugging Face directory and has no steps; omit {option}."
            )
        report = _export_directory(source, out, raw, part, family, labels, stated)
    else:
        report = _export_run(source, out, part, family, labels, step, average, stated)
    return _written(out, report)


def _written(out: Path, report: ExportReport) -> str:
    lines = [f"{out}: {report.architecture}", f"files  {', '.join(report.files)}"]
    return "\n".join([*lines, *(f"note   {note}" for note in report.notes)])


def _export_directory(
    source: Path,
    out: Path,
    raw: Mapping[str, Any],
    part: Part,
    family: str | None,
    labels: Sequence[str] | None,
    stated: Mapping[str, str],
) -> ExportReport:
    loaded = import_hf(source, model=EncoderModel if part == "encoder" else None)
    named = raw.get("id2label", {})
    has_classes = hasattr(loaded.model, "num_labels")
    if labels is None and has_classes and len(named) == getattr(loaded.model, "num_labels", 0):
        labels = [named[str(i)] for i in range(len(named))]
    return _quietly(
        out,
        loaded.model,
        loaded.params,
        loaded.tokenizer,
        family=family or raw["model_type"],
        labels=labels,
        facts={**stated, "Source": f"the Hugging Face directory {source.resolve().name}"},
    )


def _export_run(
    source: Path,
    out: Path,
    part: Part,
    family: str | None,
    labels: Sequence[str] | None,
    step: int | None,
    average: int,
    stated: Mapping[str, str],
) -> ExportReport:
    run = load_run(source, step=step, average=average)
    model, params = run.model, run.params
    if part == "encoder":
        model, params = EncoderModel(model.config), {"encoder": params["encoder"]}
    facts = {**run_facts(source, run, datetime.date.today()), **stated}
    if average > 1:
        facts |= {"Averaged": f"the mean of the last {average} checkpoints"}
    return _quietly(out, model, params, run.tokenizer, family=family, labels=labels, facts=facts)


def _quietly(*args: Any, **kwargs: Any) -> ExportReport:
    """`export_hf`, whose warnings are notes of the report, which is printed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return export_hf(*args, **kwargs)


def run_facts(run_dir: Path, run: Run, today: datetime.date) -> dict[str, str]:
    """What a run tells its model card.

    Args:
        run_dir: Directory of the run, for its logs and versions.
        run: The same, opened.
        today: Date of the export.
    """
    e = run.experiment
    about = json.loads((run_dir / "config.json").read_text(encoding="utf-8"))
    records = [r for r in read_metrics(run_dir) if r["step"] <= run.step]
    facts = {
        NAME: e.name,
        "Training data": _data(e),
        "Started from": Path(e.init_from).name if e.init_from else "random numbers",
        "Objective": _objective(e),
        "Steps": f"{run.step:,} of {e.steps:,}",
        "Rows a step": f"{e.batch_size:,}",
        "Sequence length": f"{e.packing.seq_length:,} tokens",
        "Optimizer": _in_words(e.optimizer),
        "Learning rate": f"peak {e.optimizer.learning_rate:g}, {_in_words(e.schedule)}; in "
        f"{e.clock}, to {e.schedule_end:,.0f}",
        "Training loss": _last(records, "train"),
        "Held-out results": _last(records, "evaluation"),
        "Seed": str(e.seed),
        "Configuration digest": digest(e),
        "Trained with": f"bert-jax {about.get('versions.bert_jax')}, jax "
        f"{about.get('versions.jax')}, on {about.get('run.devices')} x {about.get('run.device')}",
        "Exported": f"{today.isoformat()}, with bert-jax {__version__}",
    }
    return {name: text for name, text in facts.items() if text}


def _data(e: Experiment) -> str:
    path = Path(e.data)
    if e.data == "synthetic":
        return "synthetic tokens, no text"
    if not path.is_dir():
        return f"the store {path.name} (gone when this was written)"
    train = Store.open(path).split("train")
    return f"the store {path.name}: {train.num_documents:,} documents, {train.num_tokens:,} tokens"


def _in_words(record: Any) -> str:
    """A record on a line: its kind and its numbers."""
    numbers = ", ".join(
        f"{field.name.replace('_', ' ')} {getattr(record, field.name)}"
        for field in dataclasses.fields(record)
    )
    return f"{type(record).__name__}: {numbers}" if numbers else type(record).__name__


_OBJECTIVES = {
    MaskedLmObjective: "masked language modelling",
    CausalLmObjective: "causal language modelling",
    SentencePairsObjective: "masked language modelling and pairs of texts",
    ReplacedTokensObjective: "replaced-token detection",
    DistillationObjective: "distillation and masked language modelling",
}


def _objective(e: Experiment) -> str:
    m = e.masking
    name = _OBJECTIVES.get(type(e.objective)) or _in_words(e.objective)
    if isinstance(e.objective, CausalLmObjective):
        return name
    unchanged = max(0.0, 1 - m.mask_prob - m.random_prob)
    return (
        f"{name}: {m.rate:.0%} of {m.unit}s ({m.count} count), of which "
        f"{m.mask_prob:.0%} masked, {m.random_prob:.0%} random, {unchanged:.0%} unchanged"
    )


def _last(records: Sequence[Mapping[str, Any]], kind: str) -> str:
    """The last numbers of a kind; empty if there are none."""
    found = [record for record in records if record["kind"] == kind]
    if not found or found[-1].get("loss") is None:
        return ""
    last = found[-1]
    text = f"masked cross-entropy {last['loss']:.3f} nats"
    if last.get("standard_error") is not None:
        text += f" (standard error {last['standard_error']:.3f}, {last['targets']:,} targets)"
    if last.get("accuracy") is not None:
        text += f", accuracy {last['accuracy']:.3f}"
    return f"{text}, at step {last['step']:,}"

"""What a run says while it trains: ``metrics.jsonl``, TensorBoard, a progress line, W&B.

``metrics.jsonl`` holds one JSON object a line, with ``kind``, ``step`` (steps done) and ``time``
(seconds since 1970):

    train       the numbers given to `RunLog.log`; ``tokens_per_second``, ``mfu`` on a known chip
    evaluation  the numbers given to `RunLog.evaluation`
    note        ``text``
    start       a call of `train` began (or went on) here

A number that is not finite is null, which JSON has a word for.
"""

from __future__ import annotations

import itertools
import json
import math
import shutil
import sys
import time
import uuid
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, runtime_checkable

from bert_jax.data.shards import write_whole
from bert_jax.experiment import Logging
from bert_jax.train.metrics import Throughput

METRICS = "metrics.jsonl"
TENSORBOARD = "tensorboard"
_WANDB_ID = "wandb_id"
_CLEAR_LINE = "\r\x1b[K"


@runtime_checkable
class Stream(Protocol):
    """What the progress line is written to: any text file."""

    def write(self, text: str, /) -> int:
        """Writes."""
        ...

    def flush(self) -> None:
        """Hands on what was written."""
        ...

    def isatty(self) -> bool:
        """Whether it is a terminal."""
        ...


class RunLog:
    """Writes what a run says; a context manager. Processes other than 0 write nothing.

    On a terminal the progress line is rewritten in place; elsewhere each is a line of its own.
    """

    def __init__(
        self,
        run_dir: str | Path,
        *,
        logging: Logging,
        total_steps: int,
        tokens_per_step: float,
        flops_per_token: float | None = None,
        peak_flops: float | None = None,
        steps_done: int = 0,
        process_index: int = 0,
        name: str | None = None,
        config: Mapping[str, Any] | None = None,
        stream: Stream | None = None,
    ):
        """Opens the logs of a run.

        Args:
            run_dir: Directory of the run; must exist.
            logging: Says whether W&B is written to. How often `log` is called is the caller's part.
            total_steps: Steps of the run, for the progress line.
            tokens_per_step: Real tokens (no padding) of a mean batch.
            flops_per_token: Model operations of a step divided by ``tokens_per_step``
                (`bert_jax.models.flops.model_flops_per_step`); None leaves out ``mfu``.
            peak_flops: Peak operations a second of all devices together; None if unknown.
            steps_done: Where the run starts or goes on. Lines about later steps belong to steps
                that are trained again, and are removed; at 0 all are.
            process_index: ``jax.process_index()``.
            name: Name of the run at W&B; the directory's by default.
            config: Configuration to show at W&B.
            stream: Where people read; stdout by default.

        Raises:
            ValueError: A W&B project is given and the package is missing, or ``metrics.jsonl`` is
                damaged before its last line.
        """
        self._writes = process_index == 0
        self._total = total_steps
        self._step = steps_done
        self._tokens_per_step = tokens_per_step
        self._mfu_per_token = None
        if flops_per_token is not None and peak_flops is not None:
            self._mfu_per_token = flops_per_token / peak_flops
        self._meter = Throughput()
        if not self._writes:
            return
        directory = Path(run_dir)
        self._progress = _Progress(sys.stdout if stream is None else stream)
        path = directory / METRICS
        _keep_until(path, steps_done)
        self._sinks = _sinks(directory, logging, steps_done, name or directory.name, config or {})
        self._file = path.open("a", encoding="utf-8")
        self._write("start", {})

    def __enter__(self) -> RunLog:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def log(self, step: int, values: Mapping[str, float], *, tokens: float | None = None) -> None:
        """Writes the training numbers of the steps since the last call.

        Args:
            step: Steps done.
            values: Numbers by name. The progress line shows ``loss`` and ``accuracy``, the report
                also ``learning_rate``, ``gradient_norm`` and the sum of ``skipped_steps``.
            tokens: Real tokens of these steps, if they were counted.
        """
        if tokens is None:
            tokens = (step - self._step) * self._tokens_per_step
        self._step = step
        self._meter.update(step, tokens)
        if not self._writes:
            return
        values = {**values, **self._speed()}
        self._write("train", values)
        for sink in self._sinks:
            sink.write("train", step, values)
        remaining = self._meter.remaining(self._total)
        self._progress.show(_progress_line(step, self._total, values, remaining))

    def evaluation(self, step: int, values: Mapping[str, float]) -> None:
        """Writes held-out numbers of the state after ``step`` steps."""
        if not self._writes:
            return
        self._write("evaluation", values, step)
        for sink in self._sinks:
            sink.write("evaluation", step, values)
        numbers = ", ".join(f"{name} {_short(value)}" for name, value in values.items())
        self._progress.say(f"held out at step {step:,}: {numbers}")

    def note(self, text: str, *, step: int | None = None) -> None:
        """Says a sentence (a step was skipped, the run was resumed) and writes it down.

        Args:
            text: The sentence.
            step: Steps done when it became true; by default those of the last `log`.
        """
        if not self._writes:
            return
        self._write("note", {"text": text}, step)
        self._progress.say(text)

    def untimed(self) -> AbstractContextManager[None]:
        """A context whose time does not count as training time: for evaluations."""
        return self._meter.excluded()

    def close(self) -> None:
        """Ends the progress line and closes everything."""
        if self._writes and not self._file.closed:
            self._progress.end()
            self._file.close()
            for sink in self._sinks:
                sink.close()

    def _speed(self) -> dict[str, float]:
        rate = self._meter.tokens_per_second
        if rate is None:
            return {}
        speed = {"tokens_per_second": rate}
        if self._mfu_per_token is not None:
            speed["mfu"] = rate * self._mfu_per_token
        return speed

    def _write(self, kind: str, values: Mapping[str, Any], step: int | None = None) -> None:
        record = {"kind": kind, "step": self._step if step is None else step}
        record |= {"time": round(time.time(), 3)}
        record |= {name: _finite(value) for name, value in values.items()}
        self._file.write(json.dumps(record, allow_nan=False) + "\n")
        self._file.flush()


def read_metrics(run_dir: str | Path) -> list[dict[str, Any]]:
    """The lines of ``metrics.jsonl``, in order; a last line that was cut short is left out.

    Raises:
        FileNotFoundError: The directory has no ``metrics.jsonl``.
        ValueError: Another line is damaged.
    """
    path = Path(run_dir) / METRICS
    if not path.is_file():
        raise FileNotFoundError(
            f"{run_dir} holds no {METRICS}; give a run directory that `bert-jax train` wrote."
        )
    *whole, _unfinished = path.read_bytes().split(b"\n")
    records = []
    for number, line in enumerate(whole, 1):
        try:
            record = json.loads(line)
            records.append({"kind": record["kind"], "step": int(record["step"]), **record})
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(
                f"{path}:{number} is damaged ({line[:40]!r}); remove that line."
            ) from error
    return records


def _keep_until(path: Path, steps_done: int) -> None:
    """Removes the lines about steps after ``steps_done``, and a last one that was cut short."""
    if not path.exists():
        return
    earlier = read_metrics(path.parent) if steps_done else []
    kept = [record for record in earlier if record["step"] <= steps_done]
    write_whole(path, "".join(json.dumps(record) + "\n" for record in kept))


def _finite(value: Any) -> Any:
    """A JSON value: Python's own numbers, and None for what is not finite."""
    if isinstance(value, (str, int)):
        return value
    number = float(value)
    return number if math.isfinite(number) else None


@runtime_checkable
class _Sink(Protocol):
    """Another place that numbers go to."""

    def write(self, group: str, step: int, values: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


def _sinks(
    directory: Path, logging: Logging, steps_done: int, name: str, config: Mapping[str, Any]
) -> list[_Sink]:
    sinks: list[_Sink] = []
    if logging.wandb_project is not None:
        sinks.append(_Wandb(directory, logging.wandb_project, name, config))
    sinks.append(_TensorBoard(directory / TENSORBOARD, steps_done))
    return sinks


class _TensorBoard:
    """Event files, without TensorFlow."""

    def __init__(self, directory: Path, steps_done: int):
        from tensorboardX import SummaryWriter

        # TensorBoard hides what earlier files say of the step that is named here and later ones.
        purge = steps_done + 1 if directory.exists() else None
        # The suffix: two calls within a second would write to one file, and the first be lost.
        self._writer = SummaryWriter(
            str(directory), purge_step=purge, flush_secs=30, filename_suffix=f".{steps_done}"
        )

    def write(self, group: str, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            if math.isfinite(value):  # it warns of others on stderr, once for each
                self._writer.add_scalar(f"{group}/{name}", float(value), step)

    def close(self) -> None:
        self._writer.close()


class _Wandb:
    """Weights & Biases; a resumed run goes on under the id that is kept in its directory."""

    def __init__(self, directory: Path, project: str, name: str, config: Mapping[str, Any]):
        try:
            import wandb  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise ValueError(
                f"logging.wandb_project is {project!r} and the package wandb is not installed; "
                f"pip install 'bert-jax[wandb]', or leave that field out."
            ) from error
        kept = directory / _WANDB_ID
        if not kept.exists():
            write_whole(kept, uuid.uuid4().hex[:8])
        self._run = wandb.init(
            project=project,
            name=name,
            id=kept.read_text(encoding="utf-8"),
            resume="allow",
            dir=str(directory),
            config=dict(config),
        )

    def write(self, group: str, step: int, values: Mapping[str, float]) -> None:
        self._run.log({f"{group}/{key}": value for key, value in values.items()}, step=step)

    def close(self) -> None:
        self._run.finish()


class _Progress:
    """A line that is rewritten in place on a terminal, and sentences above it."""

    def __init__(self, stream: Stream):
        self._stream = stream
        self._live = stream.isatty()
        self._line = ""

    def show(self, line: str) -> None:
        if not self._live:
            self._print(line + "\n")
            return
        self._line = line
        width = shutil.get_terminal_size().columns
        self._print(_CLEAR_LINE + line[: width - 1])  # a full line would wrap, and pile up

    def say(self, text: str) -> None:
        self._print((_CLEAR_LINE if self._line else "") + text + "\n")
        if self._line:
            self.show(self._line)

    def end(self) -> None:
        if self._line:
            self._print("\n")
            self._line = ""

    def _print(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


def _progress_line(
    step: int, total: int, values: Mapping[str, float], remaining: float | None
) -> str:
    parts = [f"step {step:,}/{total:,}"]
    parts += [f"{name} {values[name]:.3f}" for name in ("loss", "accuracy") if name in values]
    if "tokens_per_second" in values:
        parts.append(f"{values['tokens_per_second']:,.0f} tokens/s")
    if "mfu" in values:
        parts.append(f"MFU {100 * values['mfu']:.1f} %")
    if remaining is not None:
        parts.append(f"{duration(remaining)} left")
    return "  ".join(parts)


def _short(value: float) -> str:
    """A number for reading: counts whole, the rest with three decimals."""
    return f"{value:,}" if isinstance(value, int) else f"{value:.3f}"


def duration(seconds: float) -> str:
    """A time for reading, in its two largest units: ``3 min 20 s``."""
    whole = round(seconds)
    units = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))
    for (size, name), (smaller, smaller_name) in itertools.pairwise(units):
        if whole >= size:
            return f"{whole // size} {name} {whole % size // smaller} {smaller_name}"
    return f"{whole} s"

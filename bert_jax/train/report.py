"""``report.html``: a run as one page, from its logs; self-contained, without scripts."""

from __future__ import annotations

import itertools
import json
import math
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from bert_jax.data.shards import write_whole
from bert_jax.train.chart import Series, line_chart
from bert_jax.train.log import duration, read_metrics

REPORT = "report.html"
_CONFIG = "config.json"

Records = Sequence[Mapping[str, Any]]


def write_report(run_dir: str | Path) -> Path:
    """Writes ``report.html`` from ``metrics.jsonl`` and ``config.json``; a run may be unfinished.

    Args:
        run_dir: Directory of the run.

    Returns:
        The page's path.

    Raises:
        FileNotFoundError: It is no run directory.
        ValueError: One of the two files is damaged.
    """
    directory = Path(run_dir)
    config = _read_config(directory)
    records = read_metrics(directory)
    path = directory / REPORT
    write_whole(path, _page(str(config.get("name") or directory.name), config, records))
    return path


def _read_config(directory: Path) -> dict[str, Any]:
    path = directory / _CONFIG
    if not path.is_file():
        raise FileNotFoundError(
            f"{directory} holds no {_CONFIG}; give a run directory that `bert-jax train` wrote."
        )
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(
            f"{path} is damaged ({error}); start the run again in another directory, or restore "
            f"the file from a copy."
        ) from error
    return _flat(config)


def _flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, Mapping) and value:
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat


def _of(records: Records, kind: str) -> list[Mapping[str, Any]]:
    return [record for record in records if record["kind"] == kind]


def _page(name: str, config: Mapping[str, Any], records: Records) -> str:
    about = {key: value for key, value in config.items() if _is_about(key)}
    fields = {key: value for key, value in config.items() if not _is_about(key)}
    title = escape(name)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{title}</title>
<style>{STYLE}</style>
</head>
<body>
<h1>{title}</h1>
<p class="lead">{escape(_lead(config, records))}</p>
{_tiles(_numbers(records))}
{_figures(records)}
{_table("Configuration", fields)}
{_table("Machine and versions", about)}
{_notes(_of(records, "note"))}
</body>
</html>
"""


def _is_about(key: str) -> bool:
    return key.startswith(("run.", "versions."))


def _lead(config: Mapping[str, Any], records: Records) -> str:
    """Where the run stands, in a sentence."""
    step = max((r["step"] for r in _of(records, "train")), default=0)
    total = config.get("steps")
    if total is None:
        state = f"step {step:,}"
    elif step >= total:
        state = f"finished: {step:,} steps"
    else:
        state = f"unfinished: step {step:,} of {total:,}"
    parts = [state]
    if records:
        stamp = time.strftime("%Y-%m-%d %H:%M", time.localtime(records[-1]["time"]))
        parts += [f"{duration(_elapsed(records))} of running", f"last written {stamp}"]
    return " · ".join(parts)


def _elapsed(records: Records) -> float:
    """Seconds of all calls together: what lies between one and the next is not counted."""
    pairs = itertools.pairwise(records)
    return sum(max(0.0, b["time"] - a["time"]) for a, b in pairs if b["kind"] != "start")


def _numbers(records: Records) -> dict[str, str]:
    """The final numbers, by what they are called."""
    train, held = _of(records, "train"), _of(records, "evaluation")
    numbers: dict[str, str] = {}
    if held:
        last = held[-1]
        loss, error = _decimals(last.get("loss")), last.get("standard_error")
        numbers["held-out loss (nats)"] = loss if error is None else f"{loss} ± {error:.3f}"
        numbers["held-out accuracy"] = _decimals(last.get("accuracy"))
        others = {k: v for k, v in last.items() if k not in _SHOWN_OF_EVALUATION}
        numbers |= {f"held-out {k.replace('_', ' ')}": _text(v) for k, v in others.items()}
    if train:
        numbers["training loss (nats)"] = _decimals(train[-1].get("loss"))
        numbers["training accuracy"] = _decimals(train[-1].get("accuracy"))
        speeds = [r["tokens_per_second"] for r in train if r.get("tokens_per_second")]
        if speeds:
            numbers["tokens/s (median)"] = f"{statistics.median(speeds):,.0f}"
        used = [r["mfu"] for r in train if r.get("mfu")]
        if used:
            numbers["MFU (median)"] = f"{100 * statistics.median(used):.1f} %"
        numbers["skipped steps"] = f"{sum(r.get('skipped_steps') or 0 for r in train):,.0f}"
    numbers["times resumed"] = str(max(0, len(_of(records, "start")) - 1))
    return {name: value for name, value in numbers.items() if value}


_SHOWN_OF_EVALUATION = ("kind", "step", "time", "loss", "standard_error", "accuracy")


def _decimals(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float) and not value.is_integer():
        return f"{value:.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    return f"{value:,.0f}" if isinstance(value, (int, float)) else str(value)


def _tiles(numbers: Mapping[str, str]) -> str:
    tiles = (
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>"
        for name, value in numbers.items()
    )
    return f'<dl class="tiles">{"".join(tiles)}</dl>'


def _figures(records: Records) -> str:
    train, held = _of(records, "train"), _of(records, "evaluation")

    def trained(key: str, name: str = "training") -> Series:
        return Series(name, [r["step"] for r in train], [r.get(key) for r in train])

    def held_out(key: str) -> Series:
        values = [r.get(key) for r in held]
        return Series("held out", [r["step"] for r in held], values, marks="dots")

    wide, small = (960, 320), (470, 210)
    norms = [r["gradient_norm"] for r in train if r.get("gradient_norm")]
    wild = bool(norms) and max(norms) > 20 * min(norms)
    both = ("loss", "accuracy")
    loss, accuracy = ([trained(key), held_out(key)] for key in both)
    figures = [
        _figure("Loss", "nats per predicted token", loss, wide),
        '<div class="pair">',
        _figure("Masked accuracy", "share right", accuracy, small),
        _figure("Learning rate", "", [trained("learning_rate")], small, "zero"),
        _figure(
            "Gradient norm",
            "L2, before clipping" + (", logarithmic" if wild else ""),
            [trained("gradient_norm")],
            small,
            "log" if wild else "zero",
        ),
        _figure("Throughput", "tokens a second", [trained("tokens_per_second")], small, "zero"),
        "</div>",
    ]
    return "\n".join(figures)


def _figure(
    title: str, unit: str, series: list[Series], size: tuple[int, int], scale: Any = "linear"
) -> str:
    shown = [one for one in series if any(y is not None and math.isfinite(y) for y in one.y)]
    keys = "".join(
        f'<span class="key curve-{i}">{escape(one.name)}</span>'
        for i, one in enumerate(series)
        if len(series) > 1 and one in shown
    )
    about = f"{title} by step"
    chart = line_chart(series, width=size[0], height=size[1], scale=scale, about=about)
    caption = f"<b>{escape(title)}</b> <small>{escape(unit)}</small>{keys}"
    return f"<figure><figcaption>{caption}</figcaption><div>{chart}</div></figure>"


def _table(title: str, rows: Mapping[str, Any]) -> str:
    body = "".join(
        f"<tr><th>{escape(key)}</th><td>{escape(_json(value))}</td></tr>"
        for key, value in rows.items()
    )
    return f"<h2>{escape(title)}</h2>\n<table>{body}</table>" if rows else ""


def _json(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _notes(notes: Iterable[Mapping[str, Any]]) -> str:
    items = "".join(
        f"<tr><th>step {note['step']:,}</th><td><pre>{escape(str(note['text']))}</pre></td></tr>"
        for note in notes
    )
    return f"<h2>Notes</h2>\n<table>{items}</table>" if items else ""


STYLE = """
:root { color-scheme: light dark; --paper: #fff; --ink: #1d2430; --faint: #657083; --rule: #d9dee6;
  --tile: #f4f6f9; --first: #1769aa; --second: #c2410c; }
@media (prefers-color-scheme: dark) { :root { --paper: #14181f; --ink: #e4e8ee; --faint: #98a3b3;
  --rule: #303844; --tile: #1d232d; --first: #6cb6f5; --second: #ff9e64; } }
* { box-sizing: border-box; }
body { margin: 2rem auto; max-width: 960px; padding: 0 1rem; background: var(--paper);
  color: var(--ink); font: 15px/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { margin: 0; font-size: 1.7rem; line-height: 1.2; }
h2 { margin: 2.2rem 0 .6rem; font-size: 1.1rem; }
.lead { margin: .3rem 0 1.4rem; color: var(--faint); }
.tiles { display: grid; grid-template-columns: repeat(auto-fill, minmax(150px, 1fr)); gap: .6rem;
  margin: 0 0 1.6rem; }
.tiles div { padding: .6rem .8rem; border-radius: 6px; background: var(--tile); }
dt { color: var(--faint); font-size: .78rem; }
dd { margin: 0; font-size: 1.25rem; font-variant-numeric: tabular-nums; }
figure { margin: 0 0 1.4rem; min-width: 0; }
figure > div { overflow-x: auto; }
body > figure svg { min-width: 640px; }
figcaption { display: flex; flex-wrap: wrap; align-items: baseline; gap: .2rem .6rem; }
figcaption small { color: var(--faint); flex: 1; }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(380px, 100%), 1fr));
  gap: 0 20px; }
.key { font-size: .82rem; }
.key::before { content: ""; display: inline-block; width: 1.1em; height: 3px; margin-right: .4em;
  vertical-align: .25em; border-radius: 2px; background: var(--curve); }
svg { display: block; width: 100%; height: auto; }
svg text { fill: var(--faint); font-size: 11px; font-variant-numeric: tabular-nums; }
.grid { stroke: var(--rule); fill: none; }
.axis { stroke: var(--faint); fill: none; }
.curve-0 { --curve: var(--first); }
.curve-1 { --curve: var(--second); }
.line { fill: none; stroke: var(--curve); stroke-width: 1.6; stroke-linejoin: round; }
.band { fill: var(--curve); opacity: .2; }
circle { fill: var(--curve); }
.empty { margin: .5rem 0; padding: 1.5rem; border: 1px dashed var(--rule); border-radius: 6px;
  color: var(--faint); text-align: center; }
table { width: 100%; border-collapse: collapse; font-size: .86rem; }
th, td { padding: .22rem .6rem .22rem 0; border-bottom: 1px solid var(--rule); text-align: left;
  vertical-align: top; }
th { width: 40%; font-weight: 500; color: var(--faint); }
pre { margin: 0; font-size: .95em; white-space: pre-wrap; }
"""

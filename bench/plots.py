"""Draw results: one picture per suite and metric, a bar per system with its 99th percentile."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from bench.report import labels
from bench.results import Row, SuiteResult

_WIDTH = 0.8


def draw(result: SuiteResult, folder: Path) -> list[Path]:
    """Write ``<suite>_<metric>.png`` for each metric; return the files.

    Raises:
        ImportError: if matplotlib is missing; names the extra.
    """
    folder.mkdir(parents=True, exist_ok=True)
    title = " ".join([result.suite, *labels(result)])
    return [
        _draw_metric(metric, [row for row in result.rows if row.metric == metric], title, path)
        for metric in dict.fromkeys(row.metric for row in result.rows)
        for path in [folder / f"{_safe(result.suite)}_{_safe(metric)}.png"]
    ]


def _draw_metric(metric: str, rows: Sequence[Row], title: str, path: Path) -> Path:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("plots need matplotlib: pip install 'rag-accel[bench]'") from error
    workloads = list(dict.fromkeys(row.workload for row in rows))
    systems = list(dict.fromkeys(row.system for row in rows))
    height = _WIDTH / len(systems)
    picture = Figure(figsize=(8, 1.2 + 0.3 * len(workloads) * len(systems)), layout="constrained")
    axes = picture.subplots()
    for number, system in enumerate(systems):
        own = [row for row in rows if row.system == system]
        places = [workloads.index(row.workload) + number * height for row in own]
        axes.barh(places, [row.median for row in own], height, label=f"{system}, median")
        tails = [(row.p99, at) for row, at in zip(own, places, strict=True) if row.p99 is not None]
        if tails:
            axes.scatter(*zip(*tails, strict=True), marker="|", color="black", zorder=3)
    axes.set_yticks([at + (_WIDTH - height) / 2 for at in range(len(workloads))], workloads)
    axes.invert_yaxis()
    axes.set_xlabel(f"{metric} (mark: 99th percentile)")
    axes.set_title(title)
    axes.legend()
    picture.savefig(path)
    return path


def _safe(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]+", "_", name)

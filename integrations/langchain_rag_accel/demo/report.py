"""Say what the demo found, for people and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langchain_rag_accel.demo.compare import Comparison
from langchain_rag_accel.demo.load import Level, Load


def as_json(comparison: Comparison, levels: Sequence[Level], explain: str) -> dict[str, Any]:
    """Return the machine-readable result."""
    return {
        "identical": comparison.identical,
        "ties": comparison.ties,
        "total": comparison.total,
        "different": list(comparison.different),
        "levels": [
            {
                "users": level.users,
                "shape": level.shape,
                "plain_torch_threads": level.plain_threads,
                "plain": _figures(level.plain),
                "accelerated": _figures(level.accelerated),
            }
            for level in levels
        ],
        "explain": explain,
    }


def _figures(load: Load) -> dict[str, float]:
    return {
        "throughput_rps": round(load.throughput_rps, 2),
        "p50_ms": round(load.median_ms, 2),
        "p99_ms": round(load.percentile_ms(0.99), 2),
    }


def samples(questions: Sequence[str], answers: Sequence[Any], count: int = 3) -> str:
    """Return a few questions with their answers and what the citations stand for."""
    step = max(1, len(questions) // count)
    lines: list[str] = []
    for index in range(0, len(questions), step):
        lines += ["", f"Q: {questions[index]}", f"A: {answers[index]['answer']}"]
        for number, document in enumerate(answers[index]["documents"], start=1):
            if f"[{number}]" in answers[index]["answer"]:
                lines.append(f"   [{number}] {document.metadata['id']}")
    return "\n".join(lines[: 7 * count])


def table(levels: Sequence[Level]) -> str:
    """Return throughput and latency of both arms, one level a line."""
    head = f"{'users':>5}  {'shape':<8}{'arm':<13}{'answers/s':>10}{'p50 ms':>10}{'p99 ms':>10}"
    lines = [head, "-" * len(head)]
    for level in levels:
        for name, load in (("plain", level.plain), ("accelerated", level.accelerated)):
            figures = _figures(load)
            lines.append(
                f"{level.users:>5}  {level.shape:<8}{name:<13}"
                f"{figures['throughput_rps']:>10.1f}{figures['p50_ms']:>10.1f}"
                f"{figures['p99_ms']:>10.1f}"
            )
    return "\n".join(lines)


def time_spent(snapshot: dict[str, Any]) -> str:
    """Return where the accelerated arm's time went, one engine a line."""
    lines = [f"{'engine':<58}{'calls':>7}{'mean batch':>12}{'busy s':>9}{'waited ms':>11}"]
    for name, cells in sorted(snapshot.get("engines", {}).items()):
        waited = 1000 * _mean(cells["queue_wait_s"])
        lines.append(
            f"{name[-57:]:<58}{cells['steps']:>7}{_mean(cells['batch_size']):>12.1f}"
            f"{cells['step_s']['sum']:>9.2f}{waited:>11.2f}"
        )
    return "\n".join(lines)


def _mean(histogram: dict[str, Any]) -> float:
    return histogram["sum"] / histogram["count"] if histogram["count"] else 0.0

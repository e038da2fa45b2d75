"""Measure engines in actors of Ray against engines here, and against actors written by hand.

Ray of the environment of ``make test-ray``, a cluster on this machine. Three kinds of steps: an
empty one; an embedding of texts by MiniLM (torch) of 20 ms or more; exact searches of one flat
index. The opponents are the same engine in this process on as many threads, an actor that holds
sentence-transformers or FAISS's flat index as a user of Ray would write it, and Ray Serve's handle
of the same class. An index in shards has a core for each, the one here as many threads as shards.

Arms take turns, another one first each time, with texts and queries of their own in each turn, the
same for all arms. Vectors must be equal within 1e-5 and ids must be equal; answers that are not
fail the suite. Where the environment is missing there is one row, ``missing``.

Ratios:
    hop_ms: against the engine here: the time of an empty step through ``RayEngine`` - its (lower is
        better); medians of all calls.
    hop_over_ray_ms: against an empty call of a plain actor: the time of an empty step through
        ``RayEngine`` - its (lower is better); medians of all calls.
    hosted_over_local: against the engine here: the time of an embedding through ``RayEngine`` / its
        (lower is better); median over turns.
    hosted_over_actor: against a plain actor: the same against its (lower is better).
    hosted_over_serve: against Ray Serve's handle: the same against its (lower is better).
    shards_vs_one_b1: against one index here: its time / that of the shards, 1 search; median over
        turns.
    shards_vs_one_b16: against one index here: the same for 16 searches.
    shards_vs_actors_b1: against FAISS's flat indexes in plain actors: their time / that of the
        shards, 1 search; median over turns.
    shards_vs_actors_b16: against FAISS's flat indexes in plain actors: the same for 16 searches.
"""

from __future__ import annotations

import json
import logging
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.baselines.peer_process import PeerProcess
from bench.local_llm.choices import missing_row
from bench.measure import median
from bench.results import Row, SuiteResult, row_of, sizes_of

ROOT = Path(__file__).parents[2]
PYTHON = Path(".venv-ray/bin/python")
SCRIPT = Path(__file__).parents[1] / "ray_hosting" / "hosting_load.py"
#: The package of this checkout, whichever was installed.
_ENV = {
    "PYTHONPATH": ":".join(map(str, (ROOT, ROOT / "integrations", ROOT / "adapters"))),
    "RAY_USAGE_STATS_ENABLED": "0",
    "OMP_NUM_THREADS": "1",
}
HERE, HOSTED, ACTOR, SERVE = "here", "RayEngine", "plain actor", "Serve handle"
ONE_INDEX, SHARDS, ACTORS = "one index here", "RayShards", "plain actors"
HOP, EMBEDDING = "hop", "embedding"
#: How far numbers of equal vectors may be apart: torch adds in another order on other threads.
_APART = 1e-5
_logger = logging.getLogger("bench.ray")


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured.

    Args:
        calls: empty ones of each arm in a turn.
        texts: of an embedding.
        words: of a text.
        rows: of the index.
        dimension: of its vectors.
        shards: of it.
        batches: searches at a time.
        threads: on which an embedding computes.
        turns: of each arm, after one that warms up.
    """

    calls: int = 100
    texts: int = 2
    words: int = 60
    rows: int = 200_000
    dimension: int = 256
    shards: int = 2
    batches: tuple[int, ...] = (1, 16)
    threads: int = 1
    turns: int = 30


QUICK = Sizes(calls=40, rows=100_000, turns=10)
FULL = Sizes()

Times = dict[tuple[str, str], list[list[float]]]
"""Seconds of each turn, by workload and arm."""


def run(quick: bool, sizes: Sizes | None = None, python: Path = PYTHON) -> SuiteResult:
    """Measure; by default in the sizes that ``quick`` stands for."""
    chosen = sizes or (QUICK if quick else FULL)
    times: Times = {}
    wrong: list[str] = []
    for workload, arms in workloads(chosen).items():
        with tempfile.TemporaryDirectory() as folder:
            asked = workload, json.dumps(sizes_of(chosen)), folder
            try:
                process = PeerProcess(python, SCRIPT, *asked, env=_ENV)
            except FileNotFoundError as error:
                rows = (missing_row("Ray", f"{error}; make test-ray"),)
                return SuiteResult("ray", rows, {}, sizes=sizes_of(chosen))
            with process:
                wrong += _measure(process, workload, arms, chosen.turns, times)
    return SuiteResult(
        "ray", tuple(rows_of(times)), ratios_of(times), sizes=sizes_of(chosen), wrong=tuple(wrong)
    )


def _measure(
    process: PeerProcess, workload: str, arms: list[str], turns: int, times: Times
) -> list[str]:
    """Note the times of a workload; return a line for each wrong answer."""
    wrong: list[str] = []
    for turn in range(turns + 1):
        order = arms[turn % len(arms) :] + arms[: turn % len(arms)]
        answers = {arm: process.ask({"arm": arm, "turn": turn}) for arm in order}
        wrong += different(workload, arms[0], answers)
        if turn:  # the first warms up
            for arm, answer in answers.items():
                times.setdefault((workload, arm), []).append(answer["seconds"])
    taken_ms = {arm: round(1000 * _median_s(times[workload, arm]), 3) for arm in arms}
    _logger.info("%s, ms: %s", workload, taken_ms)
    process.ask({"end": True})
    return wrong


def workloads(sizes: Sizes) -> dict[str, list[str]]:
    """Return the arms of each workload; the first one's answers are right."""
    searches = {f"{batch} searches": [ONE_INDEX, SHARDS, ACTORS] for batch in sizes.batches}
    return {HOP: [HERE, HOSTED, ACTOR], EMBEDDING: [HERE, HOSTED, ACTOR, SERVE], **searches}


def different(workload: str, right: str, answers: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return a line for each arm whose answer is not that of the arm that is right."""
    expected = answers[right].get("same")
    if expected is None:
        return []
    apart = _APART if workload == EMBEDDING else 0.0
    return [
        f"{workload}: {arm} answers otherwise than {right}"
        for arm, answer in answers.items()
        if np.shape(answer["same"]) != np.shape(expected)
        or np.abs(np.subtract(answer["same"], expected)).max() > apart
    ]


def rows_of(times: Times) -> list[Row]:
    """Return the milliseconds of each arm's calls."""
    return [
        row_of(arm, workload, "latency_ms", [1000 * one for turn in turns for one in turn])
        for (workload, arm), turns in times.items()
    ]


def ratios_of(times: Times) -> dict[str, float]:
    """Return the ratios that the docstring defines."""

    def extra_ms(opponent: str) -> float:
        return 1000 * (_median_s(times[HOP, HOSTED]) - _median_s(times[HOP, opponent]))

    def over(workload: str, one: str, other: str) -> float:
        pairs = zip(times[workload, one], times[workload, other], strict=True)
        return median([first[0] / second[0] for first, second in pairs])

    found = {"hop_ms": extra_ms(HERE), "hop_over_ray_ms": extra_ms(ACTOR)}
    for name, opponent in (("local", HERE), ("actor", ACTOR), ("serve", SERVE)):
        found[f"hosted_over_{name}"] = over(EMBEDDING, HOSTED, opponent)
    for workload, _ in times:
        if workload not in (HOP, EMBEDDING):
            batch = workload.split()[0]
            found[f"shards_vs_one_b{batch}"] = over(workload, ONE_INDEX, SHARDS)
            found[f"shards_vs_actors_b{batch}"] = over(workload, ACTORS, SHARDS)
    return found


def _median_s(turns: Sequence[Sequence[float]]) -> float:
    return median([one for turn in turns for one in turn])

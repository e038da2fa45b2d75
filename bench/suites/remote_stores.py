"""Measure stores on servers: LangChain's ``Chroma``.

The server runs on this machine, in a process of its own; the store and all callers in the
environment of ``make test-in ENV=stores``. Vectors of 384 numbers lie around 200 centres, in an
HNSW index of the server's; no model takes part, embeddings are looked up. Both arms search the same
collection, by programs that differ in ``accelerate(store)`` only.

Many callers call ``similarity_search_with_score`` in turns of all arms, another one first each
time. The opponent is the plain store in whichever of these forms does best: a thread for each
caller, 8 or 16 threads that the callers wait for, or tasks of a loop. Accelerated callers are
threads; tasks have rows of their own. One caller calls a retriever, plain and accelerated in turn.

Each answer must be the plain one's: documents, order and scores equal. So must they be while a
document is written each second: each write is followed by a search for it, and its answers are
those of the same writes and searches one after another. Where the environment is missing there is
one row, ``missing``.

Ratios:
    chroma_64: against the plain Chroma store in its best form: searches/s of 64 threads accelerated
        / plain; median over turns, and the lower of the sizes.
    chroma_64_p99: against the plain Chroma store in the form whose calls end soonest: the 99th
        percentile of a call of 64 callers accelerated / plain (lower is better); median over turns,
        and the higher of the sizes.
    chroma_1: against the plain Chroma store: the time of one caller's retriever accelerated / plain
        (lower is better); median over pairs, and the higher of ``invoke`` and ``ainvoke``.
    one_user: against the plain Chroma store: the same (lower is better; accepted: at most 1.03),
        the higher of the sizes.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from bench.local_llm.choices import missing_row
from bench.process_tree import run_tree
from bench.results import SuiteResult, from_json, sizes_of
from bench.running import FULL_LIMIT_S
from rag_accel.errors import EngineError

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-stores/bin/python"
_SCRIPT = "bench.stores.searches"


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured.

    Args:
        documents: of each store that is searched.
        dimension: of their vectors.
        callers: at the same time.
        searches: of all callers, in a run of an arm.
        turns: runs of each arm, after one that warms up.
        pairs: of one caller's calls.
        writes: while callers search, one each ``write_s`` seconds.
    """

    documents: tuple[int, ...] = (20_000, 200_000)
    dimension: int = 384
    callers: int = 64
    searches: int = 1024
    turns: int = 7
    pairs: int = 300
    writes: int = 10
    write_s: float = 1.0


QUICK = Sizes(documents=(5_000,), turns=3, pairs=100, writes=4)
FULL = Sizes()


def run(quick: bool, sizes: Sizes | None = None, python: Path = PYTHON) -> SuiteResult:
    """Measure; by default in the sizes that ``quick`` stands for."""
    chosen = sizes or (QUICK if quick else FULL)
    if not python.exists():
        lacks = f"no environment {python}: make test-in ENV=stores"
        rows = (missing_row("stores on servers", lacks),)
        return SuiteResult("remote_stores", rows, {}, sizes=sizes_of(chosen))
    with tempfile.TemporaryDirectory() as folder:
        asked, found = Path(folder, "sizes.json"), Path(folder, "result.json")
        asked.write_text(json.dumps(sizes_of(chosen)))
        line = [str(python), "-m", _SCRIPT, str(asked), str(found)]
        if (code := run_tree(line, ROOT, FULL_LIMIT_S)) != 0:
            raise EngineError(
                "the searches of stores on servers failed",
                where=str(python),
                found="no end" if code is None else f"exit code {code}",
                hint="read what it printed; remove .venv-stores and run make test-in ENV=stores",
            )
        given = json.loads(found.read_text())
    wrong = tuple(given.pop("wrong"))
    return replace(from_json(given, _SCRIPT), wrong=wrong)

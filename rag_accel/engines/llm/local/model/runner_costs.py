"""Measured seconds of the runners of a model, kept beside its trace for each kind of machine."""

from __future__ import annotations

import json
import math
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rag_accel.engines.llm.local.batching.rows import Runner, SequenceRows
from rag_accel.engines.llm.local.paged.sequences import BLOCK
from rag_accel.engines.torch_threads import thread_count
from rag_accel.system.files import replaced_file
from rag_accel.system.processor import cpu_model

#: What is measured: a piece of a prompt, and a token behind it, of which an answer has some.
_PROMPT, _TOKENS, _TIMES = 128, 32, 3
#: Rows that are computed again, and the past of which they are the last block.
_ROWS, _PAST = BLOCK, 64 * BLOCK
#: The share of a row's own time that a single one must take besides, before rows are chosen by
#: blocks: those are not the tokens that matter most. Recovered of full reuse's divergence with
#: SmolLM2 and 15 %: 0.51 by single rows and 0.30 by blocks at 500 tokens, 0.54 by blocks at 2,300.
_WORTH_BLOCKS = 0.4
_MEASURED = ("paged", "torch", "rows")


@dataclass(frozen=True, slots=True)
class RunnerCosts:
    """Seconds of a piece of a prompt and of a token, by both runners.

    Of paged attention, also of rows behind a long past, as single ones and as a block.
    """

    threads: int
    paged: tuple[float, float]
    torch: tuple[float, float]
    rows: tuple[float, float]

    @property
    def is_faster(self) -> bool:
        """Tell whether a short answer takes less time by paged attention."""
        paged, torch = (prompt + _TOKENS * token for prompt, token in (self.paged, self.torch))
        return paged <= torch

    @property
    def blocks_from(self) -> float:
        """Return the tokens of a prompt from which on blocks of its rows save enough.

        What a single row takes besides grows with what it looks at, which is half of the prompt.
        """
        single, block = self.rows
        slot_s = (single - block) / (_ROWS * _PAST)
        row_s = self.paged[0] / _PROMPT
        return 2 * _WORTH_BLOCKS * row_s / slot_s if slot_s > 0 else math.inf

    def __str__(self) -> str:
        paged, torch = (
            f"{1000 * token:.0f} ms a token and {1000 * prompt:.0f} ms for {_PROMPT} of a prompt"
            for prompt, token in (self.paged, self.torch)
        )
        threads = "1 thread" if self.threads == 1 else f"{self.threads} threads"
        return f"{paged} by paged attention, {torch} by torch, measured on {threads}"

    @classmethod
    def measure(cls, paged: Runner, torch: Runner, threads: int) -> RunnerCosts:
        """Return what both take now; the least of a few runs, which other load changes least."""
        with thread_count(threads):
            return cls(threads, _seconds(paged), _seconds(torch), _row_seconds(paged))

    @classmethod
    def of(cls, folder: Path, threads: int) -> RunnerCosts | None:
        """Return what was measured on this machine before; None if nothing was."""
        with suppress(OSError, ValueError, TypeError, KeyError, IndexError):
            kept = json.loads(_file(folder, threads).read_text(encoding="utf-8"))
            pairs = [(float(kept[name][0]), float(kept[name][1])) for name in _MEASURED]
            return cls(threads, *pairs)
        return None

    @classmethod
    def all_of(cls, folder: Path) -> list[RunnerCosts]:
        """Return what was measured on this machine before, by ascending numbers of threads."""
        names = [path.stem.rpartition("-")[2] for path in folder.glob(_file(folder, "*").name)]
        found = [cls.of(folder, int(name)) for name in names if name.isdecimal()]
        return sorted(filter(None, found), key=lambda costs: costs.threads)

    def keep(self, folder: Path) -> None:
        """Write it beside the trace; where that cannot be written it is measured again."""
        told = json.dumps({name: getattr(self, name) for name in _MEASURED})
        with suppress(OSError), replaced_file(_file(folder, self.threads)) as file:
            file.write(told.encode())


def _file(folder: Path, threads: int | Literal["*"]) -> Path:
    machine = "".join(letter if letter.isalnum() else "-" for letter in cpu_model())
    return folder / f"measured-{machine[:80]}-{threads}.json"


def _seconds(runner: Runner) -> tuple[float, float]:
    size = min(_PROMPT, runner.context - _TIMES - 1)
    lane = runner.pool.take(size + _TIMES + 1)
    if lane is None:
        raise ValueError("the pool has no room for a measurement")
    prompts, tokens = [], []
    try:
        for _ in range(_TIMES):
            rows = SequenceRows(lane, [1] * size, range(size), range(size), (size - 1,))
            prompts.append(_time(runner, rows))
        for at in range(size, size + _TIMES + 1):
            place = range(at, at + 1)
            tokens.append(_time(runner, SequenceRows(lane, [1], place, place, (0,))))
    finally:
        runner.pool.free(lane)
    return min(prompts), min(tokens)


def _row_seconds(runner: Runner) -> tuple[float, float]:
    """Return the seconds of a block's rows as single ones and together, behind a long past.

    What that past holds does not matter to them. Where it has no room, single ones are as good.
    """
    lane = runner.pool.take(_PAST)
    if lane is None:
        return 1.0, 1.0
    found: list[float] = []
    try:
        last = range(_PAST - 1, _PAST)
        runner.run([SequenceRows(lane, [1], last, last)])  # from here on it holds so many slots
        places = range(_PAST - _ROWS, _PAST)
        for rows in (range(_PAST - 2 * _ROWS, _PAST, 2), places):
            given = SequenceRows(lane, [1] * len(rows), rows, rows, (0,))
            found.append(min(_time(runner, given) for _ in range(_TIMES)))
    finally:
        runner.pool.free(lane)
    return found[0], found[1]


def _time(runner: Runner, rows: SequenceRows) -> float:
    started = time.perf_counter()
    runner.run([rows])
    return time.perf_counter() - started

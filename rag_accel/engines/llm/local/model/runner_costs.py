"""Measured seconds of the runners of a model, kept beside its trace for each kind of machine."""

from __future__ import annotations

import json
import math
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Literal

from rag_accel.engines.llm.local.batching.rows import Runner, SequenceRows
from rag_accel.engines.llm.local.paged.sequences import BLOCK
from rag_accel.engines.torch_threads import thread_count
from rag_accel.system.files import read_regular, replaced_file
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
#: Kept seconds beyond this were not measured.
_MOST_S = 3600.0


@dataclass(frozen=True, slots=True)
class RunnerCosts:
    """Seconds of the runners of a model on a number of threads, as far as they were measured.

    Args:
        threads: the most of a forward.
        paged: of a piece of a prompt and of a token, by paged attention.
        torch: of the same by torch.
        rows: of rows behind a long past by paged attention, as single ones and as a block.
        compared: the day when both runners were measured.
    """

    threads: int
    paged: tuple[float, float] | None = None
    torch: tuple[float, float] | None = None
    rows: tuple[float, float] | None = None
    compared: date | None = None

    @property
    def is_faster(self) -> bool | None:
        """Tell whether a short answer takes less time by paged attention; None if not measured."""
        if self.paged is None or self.torch is None:
            return None
        paged, torch = (prompt + _TOKENS * token for prompt, token in (self.paged, self.torch))
        return paged <= torch

    @property
    def blocks_from(self) -> float:
        """Return the tokens of a prompt from which on blocks of its rows save enough.

        What a single row takes besides grows with what it looks at, which is half of the prompt.
        Where rows were not measured, single ones are as good.
        """
        if self.rows is None or self.paged is None:
            return math.inf
        single, block = self.rows
        slot_s = (single - block) / (_ROWS * _PAST)
        row_s = self.paged[0] / _PROMPT
        return 2 * _WORTH_BLOCKS * row_s / slot_s if slot_s > 0 else math.inf

    def __str__(self) -> str:
        """Say in a few words what either runner takes, as far as it was measured, and since when.

        They are kept, and may come of a day when the machine was busy.
        """
        said = [
            f"{1000 * seconds[1]:.0f} ms a token and {1000 * seconds[0]:.0f} ms for {_PROMPT} of a"
            f" prompt by {kind}"
            for kind, seconds in (("paged attention", self.paged), ("torch", self.torch))
            if seconds is not None
        ]
        threads = "1 thread" if self.threads == 1 else f"{self.threads} threads"
        said.append(f"measured on {threads}")
        if self.compared is not None:
            said[-1] += f" on {self.compared}"
            said.append("to measure again: rag-accel cache purge --traces")
        return ", ".join(said)

    def with_both(self, paged: Runner, torch: Runner) -> RunnerCosts:
        """Return these with both runners' seconds; the least of a few runs, as load comes and goes.

        Both are measured now, whatever was before: of two times, the load was another in each.

        Raises:
            ValueError: a pool has no room for a measurement.
        """
        with thread_count(self.threads):
            found = {"paged": _seconds(paged), "torch": _seconds(torch)}
        return replace(self, **found, compared=date.today())

    def with_rows(self, paged: Runner) -> RunnerCosts:
        """Return these with the seconds of rows, measured where they are not known.

        In a pool without room for a prompt so long they stay unknown: there, none is.
        """
        if self.rows is not None or not paged.pool.fits(_PAST):
            return self
        with thread_count(self.threads):
            prompt = _seconds(paged) if self.paged is None else self.paged
            return replace(self, paged=prompt, rows=_row_seconds(paged))

    @classmethod
    def of(cls, folder: Path, threads: int) -> RunnerCosts:
        """Return what was measured on this machine before, which may be nothing."""
        damages = OSError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError
        with suppress(*damages, RecursionError):
            kept = json.loads(read_regular(_file(folder, threads)))
            day = kept.pop("compared", None)
            seconds = {name: (_checked(pair[0]), _checked(pair[1])) for name, pair in kept.items()}
            return cls(
                threads, **seconds, compared=None if day is None else date.fromisoformat(day)
            )
        return cls(threads)

    @classmethod
    def all_of(cls, folder: Path) -> list[RunnerCosts]:
        """Return what was measured on this machine before, by ascending numbers of threads."""
        names = [path.stem.rpartition("-")[2] for path in folder.glob(_file(folder, "*").name)]
        found = [cls.of(folder, int(name)) for name in names if name.isdecimal()]
        told = [costs for costs in found if costs.paged is not None or costs.torch is not None]
        return sorted(told, key=lambda costs: costs.threads)

    def keep(self, folder: Path) -> None:
        """Write it beside the trace; where that cannot be written it is measured again."""
        found = {name: getattr(self, name) for name in _MEASURED}
        if self.compared is not None:
            found["compared"] = self.compared.isoformat()
        told = json.dumps({name: value for name, value in found.items() if value is not None})
        with suppress(OSError), replaced_file(_file(folder, self.threads)) as file:
            file.write(told.encode())


def _checked(seconds: float) -> float:
    if not 0 < seconds <= _MOST_S:
        raise ValueError(seconds)
    return float(seconds)


def _file(folder: Path, threads: int | Literal["*"]) -> Path:
    machine = "".join(letter if letter.isalnum() else "-" for letter in cpu_model())
    return folder / f"measured-{machine[:80]}-{threads}.json"


def _seconds(runner: Runner) -> tuple[float, float]:
    size = min(_PROMPT, runner.context - _TIMES - 1)
    lane = _lane(runner, size + _TIMES + 1)
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

    What that past holds does not matter to them.
    """
    lane = _lane(runner, _PAST)
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


def _lane(runner: Runner, tokens: int) -> int:
    lane = runner.pool.take(tokens)
    if lane is None:
        raise ValueError("the pool has no room for a measurement")
    return lane


def _time(runner: Runner, rows: SequenceRows) -> float:
    started = time.perf_counter()
    runner.run([rows])
    return time.perf_counter() - started

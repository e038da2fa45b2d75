"""Measured seconds of the runners of a model, kept beside its trace for each kind of machine."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Literal

from rag_accel.engines.llm.local.batching.rows import Runner, SequenceRows
from rag_accel.engines.torch_threads import thread_count
from rag_accel.system.files import read_regular, replaced_file
from rag_accel.system.processor import cpu_model

#: What is measured: a piece of a prompt, and a token behind it, of which an answer has some.
_PROMPT, _TOKENS, _TIMES = 128, 32, 3
_MEASURED = ("paged", "torch")
#: Kept seconds beyond this were not measured.
_MOST_S = 3600.0


@dataclass(frozen=True, slots=True)
class RunnerCosts:
    """Seconds of the runners of a model on a number of threads, as far as they were measured.

    Args:
        threads: the most of a forward.
        paged: of a piece of a prompt and of a token, by paged attention.
        torch: of the same by torch.
        compared: the day when both runners were measured.
    """

    threads: int
    paged: tuple[float, float] | None = None
    torch: tuple[float, float] | None = None
    compared: date | None = None

    @property
    def is_faster(self) -> bool | None:
        """Tell whether a short answer takes less time by paged attention; None if not measured."""
        if self.paged is None or self.torch is None:
            return None
        paged, torch = (prompt + _TOKENS * token for prompt, token in (self.paged, self.torch))
        return paged <= torch

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

    @classmethod
    def of(cls, folder: Path, threads: int) -> RunnerCosts:
        """Return what was measured on this machine before, which may be nothing."""
        damages = OSError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError
        with suppress(*damages, RecursionError):
            kept = json.loads(read_regular(_file(folder, threads)))
            day = kept.pop("compared", None)
            kept.pop("rows", None)  # of an earlier release
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


def _lane(runner: Runner, tokens: int) -> int:
    lane = runner.pool.take(tokens)
    if lane is None:
        raise ValueError("the pool has no room for a measurement")
    return lane


def _time(runner: Runner, rows: SequenceRows) -> float:
    started = time.perf_counter()
    runner.run([rows])
    return time.perf_counter() - started

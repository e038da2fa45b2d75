"""Thread-safe counters and fixed-bucket histograms, read as a nested dict.

Code that updates a cell keeps a reference to it, so an update costs one lock and no look-up. The
blocks under those locks call nothing and allocate no container: no finalizer can run inside one
and come back for the same lock.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TypedDict, TypeVar, cast

import numpy as np

from rag_accel.errors import ConfigError

SECONDS_BOUNDS = (
    *(1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2),
    *(0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0),
)
"""Bucket bounds for durations, in seconds: two per decade from 10 microseconds to 100 s."""

SIZE_BOUNDS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0)
"""Bucket bounds for numbers of items in a batch."""

TOKENS = (
    "prompt_tokens_computed",
    "prompt_tokens_from_prefix",
    "prompt_tokens_from_chunks",
    "prompt_tokens_recomputed",
    "prompt_tokens_approximate",
    "completion_tokens",
)
"""Counters of an engine that generates: its prompts' tokens by where their state came from.

Those recomputed are among those computed, and those of texts that were reused or encoded for their
prompt are approximate, see ``PromptUse``.
"""

HELD = "_bytes"
"""The suffix of counters of memory held now: these may fall, too."""


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest of some values that at least ``share`` of them do not exceed."""
    return float(np.percentile(values, 100 * share, method="inverted_cdf"))


class HistogramSnapshot(TypedDict):
    """A histogram's state as plain JSON values.

    ``counts[i]`` is the number of values in ``(bounds[i - 1], bounds[i]]``; the last one, which has
    no bound, counts the values above the last bound. ``min`` and ``max`` are None without a value.
    """

    count: int
    sum: float
    min: float | None
    max: float | None
    bounds: list[float]
    counts: list[int]


Snapshot = dict[str, "int | HistogramSnapshot | Snapshot"]


class Counter:
    """A count that rises from zero."""

    __slots__ = ("_lock", "_value")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._value = 0

    def add(self, amount: int = 1) -> None:
        """Add ``amount``."""
        with self._lock:
            self._value += amount

    def merge(self, other: Counter) -> None:
        """Add the count of another."""
        self.add(other.value)

    @property
    def value(self) -> int:
        """Return the count."""
        return self._value

    def snapshot(self) -> int:
        """Return the count."""
        return self._value

    def reset(self) -> None:
        """Start again from zero."""
        with self._lock:
            self._value = 0


class Histogram:
    """Counts of finite values in buckets whose upper bounds are fixed at construction.

    Raises:
        ConfigError: if ``bounds`` is empty or does not rise strictly.
    """

    __slots__ = ("_bounds", "_counts", "_high", "_lock", "_low", "_sum")

    def __init__(self, bounds: tuple[float, ...] = SECONDS_BOUNDS) -> None:
        rising = all(low < high for low, high in pairwise(bounds))
        if not bounds or not rising:
            raise ConfigError(
                "bad histogram bounds", found=bounds, valid="at least one, strictly rising"
            )
        self._bounds = bounds
        self._lock = threading.Lock()
        self.reset()

    def observe(self, value: float, times: int = 1) -> None:
        """Add a value, as often as it was measured."""
        index = bisect_left(self._bounds, value)
        with self._lock:
            self._counts[index] += times
            self._sum += value * times
            if value < self._low:
                self._low = value
            if value > self._high:
                self._high = value

    def merge(self, other: Histogram) -> None:
        """Add the values of another with the same bounds."""
        with other._lock:
            counts, total, low, high = list(other._counts), other._sum, other._low, other._high
        with self._lock:
            for index, count in enumerate(counts):
                self._counts[index] += count
            self._sum += total
            self._low, self._high = min(self._low, low), max(self._high, high)

    def snapshot(self) -> HistogramSnapshot:
        """Return a consistent copy of the state."""
        counts = [0] * (len(self._bounds) + 1)
        with self._lock:
            counts[:] = self._counts
            total, low, high = self._sum, self._low, self._high
        count = sum(counts)
        return HistogramSnapshot(
            count=count,
            sum=total,
            min=low if count else None,
            max=high if count else None,
            bounds=list(self._bounds),
            counts=counts,
        )

    def reset(self) -> None:
        """Forget all values."""
        counts = [0] * (len(self._bounds) + 1)
        with self._lock:
            self._counts = counts
            self._sum = 0.0
            self._low, self._high = float("inf"), float("-inf")


class EngineMetrics:
    """Measurements of one engine; times in seconds, sizes in items."""

    __slots__ = (
        "batch_size",
        "failures",
        "items",
        "pass_through",
        "queue_wait_s",
        "step_s",
        "steps",
    )

    def __init__(self, metrics: Metrics, name: str) -> None:
        path = ("engines", name)
        self.items = metrics.counter(*path, "items")
        self.steps = metrics.counter(*path, "steps")
        self.failures = metrics.counter(*path, "failures")
        self.pass_through = metrics.counter(*path, "pass_through")
        self.batch_size = metrics.histogram(*path, "batch_size", bounds=SIZE_BOUNDS)
        self.queue_wait_s = metrics.histogram(*path, "queue_wait_s")
        self.step_s = metrics.histogram(*path, "step_s")

    def record_step(self, items: int, duration_s: float, ok: bool = True) -> None:
        """Record one finished step over ``items`` items, or one that raised."""
        self.steps.add()
        self.items.add(items)
        self.batch_size.observe(items)
        self.step_s.observe(duration_s)
        if not ok:
            self.failures.add()

    def record_calls(self, durations_s: Sequence[float], failures: int) -> None:
        """Record finished calls of one item each; ``failures`` of them raised."""
        self.steps.add(len(durations_s))
        self.items.add(len(durations_s))
        self.batch_size.observe(1, len(durations_s))
        for duration_s in durations_s:
            self.step_s.observe(duration_s)
        if failures:
            self.failures.add(failures)


Cell = TypeVar("Cell", Counter, Histogram)


class Metrics:
    """All cells of one accelerator by path, such as ``("engines", "embedder", "items")``."""

    __slots__ = ("_cells", "_engines", "_lock")

    def __init__(self) -> None:
        # Re-entrant: a finalizer may look up a cell while its own thread adds one.
        self._lock = threading.RLock()
        self._cells: dict[tuple[str, ...], Counter | Histogram] = {}
        self._engines: dict[str, EngineMetrics] = {}

    def counter(self, *path: str) -> Counter:
        """Return the counter at ``path``, made on first use.

        Raises:
            ConfigError: if the path is empty, or meets a histogram or a group.
        """
        return self._cell(path, Counter())

    def histogram(self, *path: str, bounds: tuple[float, ...] = SECONDS_BOUNDS) -> Histogram:
        """Return the histogram at ``path``, made on first use; its first bounds stay.

        Raises:
            ConfigError: if the path is empty, or meets a counter or a group.
        """
        return self._cell(path, Histogram(bounds))

    def engine(self, name: str) -> EngineMetrics:
        """Return the cells of one engine, made on first use."""
        found = self._engines.get(name)
        if found is None:
            found = self._engines.setdefault(name, EngineMetrics(self, name))
        return found

    def record_tokens(self, name: str, **counts: int) -> None:
        """Add tokens of an engine's generations to its counters, made on first use."""
        for cell in TOKENS:
            self.counter("engines", name, cell).add(counts[cell])

    def record_counts(self, name: str, changes: Iterable[tuple[str, int]]) -> None:
        """Add an engine's own counts to its counters, made on first use."""
        for cell, change in changes:
            self.counter("engines", name, cell).add(change)

    def retire_engine(self, name: str) -> None:
        """Move the measurements of an engine that is gone to those of its kind that have left.

        The kind is the part of its name before ``#``; the engine's own cells are removed.
        """
        gone = self._engines.pop(name, None)
        if gone is None:
            return
        into = self.engine(f"{name.partition('#')[0]}#left")
        for slot in EngineMetrics.__slots__:
            getattr(into, slot).merge(getattr(gone, slot))
            with self._lock:
                self._cells.pop(("engines", name, slot), None)
        with self._lock:
            others = [path for path in self._cells if path[:2] == ("engines", name)]
            cells = [(path[2], self._cells.pop(path)) for path in others]
        for cell, count in cells:
            # The memory of an engine is free once it has left.
            if isinstance(count, Counter) and not cell.endswith(HELD):
                self.counter("engines", f"{name.partition('#')[0]}#left", cell).merge(count)

    def snapshot(self) -> Snapshot:
        """Return all values nested by path; each cell is consistent in itself."""
        with self._lock:
            cells = list(self._cells.items())
        tree: Snapshot = {}
        for path, cell in cells:
            branch = tree
            for name in path[:-1]:
                child = branch.setdefault(name, {})
                branch = cast("Snapshot", child)  # _check_path keeps cells out of inner places
            branch[path[-1]] = cell.snapshot()
        return tree

    def reset(self) -> None:
        """Set every cell to zero; references to cells stay good."""
        with self._lock:
            cells = list(self._cells.values())
        for cell in cells:
            cell.reset()

    def _cell(self, path: tuple[str, ...], fresh: Cell) -> Cell:
        with self._lock:
            found = self._cells.get(path)
            if found is None:
                self._check_path(path)
                self._cells[path] = fresh
                return fresh
        if isinstance(found, type(fresh)):
            return found
        raise _path_error(path, f"a {type(found).__name__}")

    def _check_path(self, path: tuple[str, ...]) -> None:
        if not path:
            raise _path_error(path, "an empty path")
        for other in self._cells:
            shared = min(len(path), len(other))
            if path[:shared] == other[:shared]:
                raise _path_error(path, "a group" if len(other) > shared else "a cell above it")


def _path_error(path: tuple[str, ...], found: str) -> ConfigError:
    return ConfigError(
        "a metric's path is taken",
        where="/".join(path),
        found=found,
        valid="one kind of cell per path, and no cell inside another",
    )

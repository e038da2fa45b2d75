"""Results of served requests, and their counts and latencies by workflow."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NewType, TypedDict

from rag_accel.engine_api import TokenUsage
from rag_accel.telemetry.metrics import Snapshot, percentile

ServedId = NewType("ServedId", int)

RequestState = Literal["finished", "failed", "cancelled"]


@dataclass(frozen=True, slots=True)
class ServedResult:
    """The outcome of one request.

    Args:
        id: as ``Server.add_request`` returned it; ids rise in the order of the requests.
        program: name of the workflow it ran.
        state: ``finished`` with ``output``; ``failed`` with ``error``, also past its deadline;
            ``cancelled`` by ``Server.cancel``.
        latency_s: seconds from ``add_request`` to its end.
        output: the graph's result; None unless it has finished.
        error: the exception that ended it, the original object; None if it has finished.
        usage: tokens of its generations on owned engines.
        retries: further attempts its stages have had, by stage.
        fallbacks: how often the fallbacks of its stages have run, by stage.
    """

    id: ServedId
    program: str
    state: RequestState
    latency_s: float
    output: Any = None
    error: BaseException | None = None
    usage: TokenUsage = field(default_factory=TokenUsage)
    retries: Mapping[str, int] = field(default_factory=dict[str, int])
    fallbacks: Mapping[str, int] = field(default_factory=dict[str, int])

    def unwrap(self) -> Any:
        """Return the output; raise what ended the request if it has not finished."""
        if self.error is not None:
            raise self.error
        return self.output


#: latencies kept per workflow; quantiles are of the newest
WINDOW = 1024

#: workflows counted by name; further ones are counted together
MAX_PROGRAMS = 256

OTHERS = "(other workflows)"


class LatencySummary(TypedDict):
    """Quantiles in seconds of the newest ``count`` latencies, at most ``WINDOW``.

    A quantile is the smallest latency that at least this share of them does not exceed; None
    without any.
    """

    count: int
    p50: float | None
    p90: float | None
    p99: float | None
    max: float | None


class WorkflowStats(TypedDict):
    """The counts of one workflow. ``latency_s`` is of its requests that have finished."""

    live: int
    finished: int
    failed: int
    cancelled: int
    latency_s: LatencySummary


class ServerStats(TypedDict):
    """All counts of a server.

    ``refused`` counts requests that raised BusyError, ``unfetched`` the results that wait to be
    fetched, ``dropped`` those that were given up because no caller fetched them. ``accelerator`` is
    the accelerator's own measurements (``Metrics.snapshot``), with those of its other users.
    """

    live: int
    finished: int
    failed: int
    cancelled: int
    refused: int
    unfetched: int
    dropped: int
    workflows: dict[str, WorkflowStats]
    accelerator: Snapshot


@dataclass(slots=True)
class _Program:
    live: int = 0
    ended: dict[RequestState, int] = field(
        default_factory=lambda: {"finished": 0, "failed": 0, "cancelled": 0}
    )
    latencies_s: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))

    def stats(self) -> WorkflowStats:
        return WorkflowStats(live=self.live, **self.ended, latency_s=summarise(self.latencies_s))


class WorkflowCounters:
    """Counts and latencies of the requests of each workflow. Not thread-safe."""

    def __init__(self) -> None:
        self._programs: dict[str, _Program] = {}

    def started(self, program: str) -> None:
        """Count a request that lives from now on."""
        self._of(program).live += 1

    def withdrawn(self, program: str) -> None:
        """Forget a request that was started and then was not taken in."""
        self._of(program).live -= 1

    def ended(self, program: str, state: RequestState, latency_s: float) -> None:
        """Count the end of a request that lived."""
        counts = self._of(program)
        counts.live -= 1
        counts.ended[state] += 1
        if state == "finished":
            counts.latencies_s.append(latency_s)

    def workflows(self) -> dict[str, WorkflowStats]:
        """Return the counts by workflow, in the order in which these were first seen."""
        return {name: program.stats() for name, program in self._programs.items()}

    def _of(self, program: str) -> _Program:
        found = self._programs.get(program)
        if found is None:
            known = program if len(self._programs) < MAX_PROGRAMS else OTHERS
            found = self._programs.setdefault(known, _Program())
        return found


def summarise(latencies_s: Iterable[float]) -> LatencySummary:
    """Return the quantiles of some latencies in seconds."""
    values = tuple(latencies_s)

    def quantile(share: float) -> float | None:
        return percentile(values, share) if values else None

    return LatencySummary(
        count=len(values),
        p50=quantile(0.5),
        p90=quantile(0.9),
        p99=quantile(0.99),
        max=quantile(1.0),
    )

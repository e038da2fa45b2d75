"""Both arms of the demo at several numbers of users."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from langchain_rag_accel import prepare
from rag_accel.accelerator import Accelerator
from rag_accel.telemetry import MemorySink
from rag_accel.telemetry.events import StepEnded, TraceEvent
from rag_accel_demo.extent import Extent
from rag_accel_demo.load import Load, Shape, run_load, torch_threads
from rag_accel_demo.progress import PhaseBar

#: Most seconds to wait until the models of a chain are compiled.
PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True)
class EngineStep:
    """A step of an engine that worked for requests.

    Args:
        engine: its name.
        start_s: when it began, in seconds of a clock that never goes back.
        end_s: when it ended.
        requests: how many requests it worked for together.
    """

    engine: str
    start_s: float
    end_s: float
    requests: int


@dataclass(frozen=True, slots=True)
class Level:
    """Both arms with so many users, in the shape in which the accelerated arm gains least.

    Args:
        users: who ask at once.
        shape: how they call.
        questions: of both arms.
        plain: the run of the plain arm.
        accelerated: the run of the accelerated arm.
        plain_threads: torch threads of the plain arm.
        steps: of the engines, during the accelerated run.
    """

    users: int
    shape: Shape
    questions: tuple[str, ...]
    plain: Load
    accelerated: Load
    plain_threads: int
    steps: tuple[EngineStep, ...] = ()

    @property
    def gain(self) -> float:
        """Return answers a second, accelerated / plain."""
        return self.accelerated.throughput_rps / self.plain.throughput_rps


def mean_batch(steps: Sequence[EngineStep]) -> float:
    """Return the mean number of requests in a step; 0 where no engine made any."""
    return sum(step.requests for step in steps) / len(steps) if steps else 0.0


class RecordedSteps:
    """The steps of an accelerator's engines in a block, read after it."""

    def __init__(self) -> None:
        self._sink = MemorySink()

    @property
    def steps(self) -> tuple[EngineStep, ...]:
        """Return them in the order in which they ended."""
        return tuple(_steps(self._sink.events))

    @contextmanager
    def of(self, accelerator: Accelerator) -> Iterator[None]:
        """Record while the block runs."""
        accelerator.tracer.add_sink(self._sink, (StepEnded,))
        try:
            yield
        finally:
            accelerator.tracer.remove_sink(self._sink)


def _steps(events: Sequence[TraceEvent]) -> Iterator[EngineStep]:
    for event in events:
        # A step without members only prepares the engine's next one.
        if isinstance(event, StepEnded) and event.members:
            requests = len({request for request, _ in event.members})
            yield EngineStep(event.engine, event.time_s - event.duration_s, event.time_s, requests)


def measure(
    plain: Any,
    accelerated: Any,
    questions: Sequence[str],
    extent: Extent,
    accelerator: Accelerator,
    progress: PhaseBar,
) -> list[Level]:
    """Return one ``Level`` per number of users of the extent.

    The accelerated arm sets its own number of torch threads, the plain arm runs with the extent's.
    """
    progress.begin("warm up")
    # A request never waits for a model to be compiled; here both states would be measured mixed.
    prepare(accelerated, timeout_s=PATIENCE_S)
    tuning = questions[: extent.tuning_questions]
    for chain in (plain, accelerated):
        run_load(chain, tuning, max(extent.users), "threads")
        progress.add(len(tuning))
    return [
        _level(plain, accelerated, questions, users, extent, accelerator, progress)
        for users in extent.users
    ]


def _level(
    plain: Any,
    accelerated: Any,
    questions: Sequence[str],
    users: int,
    extent: Extent,
    accelerator: Accelerator,
    progress: PhaseBar,
) -> Level:
    progress.begin(f"{users} user{'s' * (users > 1)}")
    asked = tuple(questions[: extent.count(users)])
    found: list[Level] = []
    for shape in extent.shapes:
        threads = _best_threads(plain, questions, users, shape, extent, progress)
        recorded = RecordedSteps()
        with torch_threads(threads):
            before = run_load(plain, asked, users, shape)
            progress.add(len(asked))
            with recorded.of(accelerator):
                after = run_load(accelerated, asked, users, shape)
            progress.add(len(asked))
        if extent.shows_details:
            progress.write(
                f"  {users:>2} users, {shape}: plain {before.throughput_rps:6.1f}/s, "
                f"accelerated {after.throughput_rps:6.1f}/s"
            )
        found.append(Level(users, shape, asked, before, after, threads, recorded.steps))
    return min(found, key=lambda level: level.gain)


def _best_threads(
    plain: Any,
    questions: Sequence[str],
    users: int,
    shape: Shape,
    extent: Extent,
    progress: PhaseBar,
) -> int:
    counts = extent.plain_threads()
    if len(counts) == 1:
        return counts[0]
    rates: dict[int, float] = {}
    tuning = questions[: extent.tuning_questions]
    for count in counts:
        with torch_threads(count):
            rates[count] = run_load(plain, tuning, users, shape).throughput_rps
        progress.add(len(tuning))
    return max(rates, key=lambda count: rates[count])

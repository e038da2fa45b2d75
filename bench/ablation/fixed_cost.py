"""Embed on engines whose time is not the processor's: a GPU's step, a server's answer.

A step takes as long whatever it holds, so that callers who are parted into two steps wait twice. A
server answers each text by itself after a while, so that who is not handed over at once waits for
somebody else's answer.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack

import numpy as np

from bench.ablation import switches
from bench.ablation.measured import STEP_TIMEOUT_S, Ablation, Arm, Gave, ablate, same_vectors, under
from bench.ablation.switches import Lacking
from bench.arms import bench_accelerator
from rag_accel.accelerator import Accelerator
from rag_accel.engine_api import (
    Capability,
    Engine,
    EngineBase,
    EngineOutput,
    EngineProfile,
    EngineRequest,
    PrimitiveKind,
    StepBudget,
    TextBatch,
    WorkId,
)
from rag_accel.engines.embedding.callable_engine import CallableEmbeddingEngine
from rag_accel.leaves.leaves import Work
from rag_accel_demo.load import Shape, run_load

RATE = "texts_per_s"
STEP_S = 0.01
#: What a task computes in Python before each call, as a framework does.
OWN_S = 0.0005
_DIMENSION = 8

LACKING: Mapping[str, Lacking] = {
    "waiting_for_newcomers": Lacking({"batch_wait_ms": 0.0}),
    "starting_together": Lacking(switch=switches.one_event_at_a_time),
    "gathered_tasks": Lacking(switch=switches.tasks_each_by_themselves),
    "one_wake_a_loop": Lacking(switch=switches.a_wake_for_each_task),
}
#: Lacking of what waits for a server.
OF_SERVER: Mapping[str, Lacking] = {"joining_waiting_steps": Lacking(switch=switches.no_interrupts)}
_FOR_TASKS = ("starting_together", "gathered_tasks", "one_wake_a_loop")
CROWDS: Mapping[tuple[int, Shape], tuple[str, ...]] = {
    (2, "threads"): ("waiting_for_newcomers",),
    (16, "threads"): ("waiting_for_newcomers", "starting_together"),
    (16, "tasks"): _FOR_TASKS,
    (64, "tasks"): _FOR_TASKS,
}
_AT_A_SERVER: tuple[int, Shape] = (4, "threads")


def measure(turns: int, each: int) -> list[Ablation]:
    """Measure what brings callers into one step, and what need not wait for one.

    A run has ``each`` texts for each caller.
    """
    server = {_AT_A_SERVER: tuple(OF_SERVER)}
    return [
        *_measure(_sleeping, "fixed cost", CROWDS, LACKING, turns, each),
        *_measure(_Server, "a server", server, OF_SERVER, turns, each),
    ]


def _measure(
    engine: Callable[[], Engine],
    where: str,
    crowds: Mapping[tuple[int, Shape], tuple[str, ...]],
    lacking: Mapping[str, Lacking],
    turns: int,
    each: int,
) -> list[Ablation]:
    found: list[Ablation] = []
    with ExitStack() as stack:
        on = _Caller(stack, engine, {})
        arms = {name: _Caller(stack, engine, one.options) for name, one in lacking.items()}
        for (callers, shape), names in crowds.items():
            off = {
                name: under(lacking[name].switch, _load(arms[name], callers, shape, each))
                for name in names
            }
            regime = f"{callers} {shape} {where}"
            arm = _load(on, callers, shape, each)
            found += ablate(regime, RATE, arm, off, turns, same=same_vectors)
    return found


def _sleeping() -> Engine:
    return CallableEmbeddingEngine(_embed)


def _embed(texts: Sequence[str]) -> list[list[float]]:
    time.sleep(STEP_S)
    return list(map(_vector, texts))


def _vector(text: str) -> list[float]:
    return np.random.default_rng(len(text)).random(_DIMENSION).tolist()


class _Server(EngineBase):
    """A server that answers each text ``STEP_S`` after it was handed over, at any number."""

    def __init__(self) -> None:
        self._asked: deque[tuple[float, EngineRequest]] = deque()
        self._interrupted = threading.Event()

    @property
    def profile(self) -> EngineProfile:
        """Return that it computes elsewhere."""
        return EngineProfile(
            frozenset({PrimitiveKind.EMBEDDING}),
            max_threads=0,
            stepped=True,
            interruptible=True,
            capabilities=frozenset({Capability.BOUNDS_ITS_WORK}),
        )

    def submit(self, work: Sequence[EngineRequest]) -> None:
        """Hand work over."""
        due = time.perf_counter() + STEP_S
        self._asked.extend((due, request) for request in work)

    def step(self, budget: StepBudget) -> list[EngineOutput]:
        """Wait for the next answers, or for an interrupt."""
        if self._asked:
            wait_s = max(0.0, self._asked[0][0] - time.perf_counter())
            self._interrupted.wait(wait_s if budget.time_s is None else min(wait_s, budget.time_s))
            self._interrupted.clear()
        done: list[EngineOutput] = []
        while self._asked and self._asked[0][0] <= time.perf_counter():
            request = self._asked.popleft()[1]
            vectors = np.array([_vector(text) for text in request.payload.texts], dtype=np.float32)
            done.append(EngineOutput(request.id, "final", value=vectors))
        return done

    def interrupt(self) -> None:
        """Return from a step that waits."""
        self._interrupted.set()

    def cancel(self, ids: Sequence[WorkId]) -> None:
        """Forget work."""
        self._asked = deque(one for one in self._asked if one[1].id not in ids)


class _Caller:
    """A caller, called as a chain is, that embeds a text a call through its own accelerator."""

    def __init__(
        self, stack: ExitStack, engine: Callable[[], Engine], options: Mapping[str, object]
    ) -> None:
        self._accelerator: Accelerator = stack.enter_context(
            bench_accelerator(step_timeout_s=STEP_TIMEOUT_S, **options)
        )
        self._engine = self._accelerator.own(self, "embedder", engine)

    def invoke(self, text: str) -> object:
        """Return the vector of one text."""
        leaves, identity = self._accelerator.leaves, self._accelerator.anonymous()
        return leaves.compute(identity, self._work(text))

    async def ainvoke(self, text: str) -> object:
        """Do the same from a task."""
        started = time.perf_counter()
        while time.perf_counter() < started + OWN_S:
            pass
        leaves, identity = self._accelerator.leaves, self._accelerator.anonymous()
        return await leaves.acompute(identity, self._work(text))

    def _work(self, text: str) -> Work:
        return Work(self._engine, PrimitiveKind.EMBEDDING, TextBatch((text,), "query"))


def _load(caller: _Caller, callers: int, shape: Shape, each: int) -> Arm:
    asked = ["x" * number for number in range(each * callers)]

    def run(turn: int) -> Gave:
        load = run_load(caller, asked, callers, shape)
        return Gave(load.throughput_rps, load.answers)

    return run

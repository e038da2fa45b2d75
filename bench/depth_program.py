"""Run one LangGraph program whose vectors come from an engine that sleeps as a script says.

``Scheduled`` asks through the accelerator, text by text; ``Queued`` is what a plain program has:
one worker before the same engine, which serves calls in the order in which they come.
"""

from __future__ import annotations

import asyncio
import operator
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Protocol

from langgraph.graph import START, StateGraph
from typing_extensions import TypedDict

from rag_accel.accelerator import Accelerator, Work
from rag_accel.engine_api import (
    Engine,
    EngineRequest,
    LatencyModel,
    PrimitiveKind,
    StepBudget,
    TextBatch,
    WorkId,
)
from rag_accel.errors import SchedulingError
from rag_accel.interception.identity import find_identity
from rag_accel.testing import FAKE_PROFILE, FakeEngine

STEPS = 4
ENGINE_LATENCY = LatencyModel(base_s=0.005, per_item_s=0.002)

Vectors = dict[str, tuple[float, ...]]
"""What a run answers: the vector of every text it asked for."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured.

    Args:
        turns: how often every arm runs, with each number of users.
        wide: texts that the wide node asks for.
        batch: most texts of one step of the engine.
        answer_s: how long the model takes.
    """

    turns: int
    wide: int = 96
    batch: int = 8
    answer_s: float = 0.06


class State(TypedDict):
    """What each user asks, and the vectors so far."""

    question: str
    vectors: Annotated[Vectors, operator.or_]


class Embedder(Protocol):
    """A source of vectors for a program."""

    async def embed(self, text: str) -> Any:
        """Return the vector of one text."""
        ...

    async def embed_all(self, texts: Sequence[str]) -> Sequence[Any]:
        """Return the vectors of many texts, asked for as this program asks for them."""
        ...


class Scheduled:
    """An embedder on the accelerator's owned engine, for many texts all at once."""

    def __init__(self, accelerator: Accelerator, sizes: Sizes) -> None:
        self._accelerator = accelerator
        self._engine = accelerator.own(self, "embedding", lambda: scripted_engine(sizes))

    async def embed(self, text: str) -> Any:
        """Return the vector of one text."""
        identity = find_identity()
        if identity is None:
            raise SchedulingError("a call of the program was not intercepted", where="bench")
        work = Work(self._engine, PrimitiveKind.EMBEDDING, TextBatch((text,)))
        (vector,) = await self._accelerator.leaves.acompute(identity, work)
        return vector

    async def embed_all(self, texts: Sequence[str]) -> Sequence[Any]:
        """Make a call for each text; the scheduler puts them together."""
        return await asyncio.gather(*map(self.embed, texts))


class Queued:
    """An embedder with one worker, which finishes a call before it begins the next.

    Args:
        sizes: of the engine's steps.
        texts_per_call: most texts of one call, where there are many; one call after another, so
            that whoever else asks comes in between.
    """

    def __init__(self, sizes: Sizes, texts_per_call: int) -> None:
        self._engine = scripted_engine(sizes)
        self._batch = sizes.batch
        self._texts_per_call = texts_per_call
        self._worker = ThreadPoolExecutor(max_workers=1)
        self._calls = 0

    async def embed(self, text: str) -> Any:
        """Return the vector of one text."""
        (vector,) = await self._call([text])
        return vector

    async def embed_all(self, texts: Sequence[str]) -> Sequence[Any]:
        """Make calls of at most ``texts_per_call`` texts."""
        found: list[Any] = []
        for part in _parts(texts, self._texts_per_call):
            found += await self._call(part)
        return found

    def close(self) -> None:
        """Stop the worker."""
        self._worker.shutdown()
        self._engine.close()

    async def _call(self, texts: Sequence[str]) -> list[Any]:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._worker, self._work, texts)

    def _work(self, texts: Sequence[str]) -> list[Any]:
        return [vector for part in _parts(texts, self._batch) for vector in self._step(part)]

    def _step(self, texts: Sequence[str]) -> list[Any]:
        self._calls += 1
        asked = [
            EngineRequest(
                WorkId(f"{self._calls}, {place}"),
                "bench",
                PrimitiveKind.EMBEDDING,
                TextBatch((one,)),
            )
            for place, one in enumerate(texts)
        ]
        self._engine.submit(asked)
        values = {one.id: one.value for one in self._engine.step(StepBudget())}
        return [values[one.id][0] for one in asked]


@dataclass
class Program:
    """A graph, built and run for some users at once.

    Args:
        embedder: gives the vectors.
        sizes: how much work a run is.
        accelerated: makes the compiled graph what is run.
    """

    embedder: Embedder
    sizes: Sizes
    accelerated: Callable[[Any], Any] = lambda graph: graph
    graph: Any = field(init=False)

    def __post_init__(self) -> None:
        graph = StateGraph(State)
        graph.add_node("wide", self._wide)
        graph.add_node("line", self._line())
        graph.add_edge(START, "wide")
        graph.add_edge(START, "line")
        self.graph = self.accelerated(graph.compile())

    async def run(self, users: int) -> Run:
        """Run once for each user, all started at once."""

        async def one(number: int) -> tuple[float, Vectors]:
            started = time.perf_counter()
            found = await self.graph.ainvoke({"question": f"question {number}", "vectors": {}})
            return time.perf_counter() - started, found["vectors"]

        found = await asyncio.gather(*map(one, range(users)))
        mean_s = sum(seconds for seconds, _ in found) / users
        return Run(mean_s, tuple(vectors for _, vectors in found))

    def _line(self) -> Any:
        line = StateGraph(State)
        names = [f"step{number}" for number in range(STEPS)]
        for name in names:
            line.add_node(name, self._step(name))
        for source, target in zip([START, *names], names, strict=False):
            line.add_edge(source, target)
        return line.compile()

    async def _wide(self, state: State) -> dict[str, Any]:
        texts = [f"{state['question']}, part {number}" for number in range(self.sizes.wide)]
        found = await self.embedder.embed_all(texts)
        return {"vectors": dict(zip(texts, map(_plain, found), strict=True))}

    def _step(self, name: str) -> Any:
        async def step(state: State) -> dict[str, Any]:
            text = f"{state['question']}, {name}"
            vector = await self.embedder.embed(text)
            await asyncio.sleep(self.sizes.answer_s)  # a remote model answers
            return {"vectors": {text: _plain(vector)}}

        return step


@dataclass(frozen=True, slots=True)
class Run:
    """What one run for some users gave: the mean of their latencies, and each one's answer."""

    mean_s: float
    answers: tuple[Vectors, ...]


def scripted_engine(sizes: Sizes) -> Engine:
    """Return an engine whose step sleeps 5 ms and 2 ms a text."""
    profile = replace(FAKE_PROFILE, max_batch=sizes.batch, latency=ENGINE_LATENCY)
    return FakeEngine(profile, wait=time.sleep)


def _parts(texts: Sequence[str], most: int) -> list[Sequence[str]]:
    return [texts[start : start + most] for start in range(0, len(texts), most)]


def _plain(vector: Any) -> tuple[float, ...]:
    return tuple(vector.tolist())

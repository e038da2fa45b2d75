"""With the passes and without: equal values, equal calls of the user's, whatever ends first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from operator import add
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rag_accel import END, START, RAGraph
from rag_accel.engine_api import (
    KINDS,
    BorrowedEngine,
    Capability,
    Document,
    EngineProfile,
    PrimitiveKind,
)
from rag_accel.graph.primitives import Primitive
from rag_accel.requests.engines import NamedEngine
from rag_accel.requests.kinds import checked, stored
from rag_accel.requests.plan import GraphPlan, Progress
from rag_accel.requests.request import SlicedWork
from rag_accel.requests.user_calls import user_call
from rag_accel.requests.values import Values
from rag_accel.scheduler.messages import EngineName
from rag_accel.testing import FAKE_PROFILE, compute

NOTHING: frozenset[str] = frozenset()


def find(query: str, k: int) -> list[Document]:
    return [Document(f"{query[:9]}/{n}", f"{query[:20]} {n}") for n in range(k)]


def bound(name: str, profile: EngineProfile | BorrowedEngine, call: Any = None) -> NamedEngine:
    return NamedEngine(EngineName(name), profile, call)


RERANKER = replace(
    FAKE_PROFILE, pure=False, max_batch=1, capabilities=frozenset({Capability.ITEMWISE})
)
ENGINES = {
    "llm": bound("llm", FAKE_PROFILE),
    "embedder": bound("embedder", FAKE_PROFILE),
    "index": bound("index", replace(FAKE_PROFILE, kinds=frozenset({PrimitiveKind.SEARCHING}))),
    "reranker": bound("reranker", RERANKER),
    "theirs": bound("theirs", BorrowedEngine("theirs", frozenset({PrimitiveKind.SEARCHING})), find),
}


@dataclass
class Execution:
    """Run one request without a scheduler: ``choose`` says what starts or ends next."""

    graph: RAGraph
    passes: frozenset[str] | None
    choose: Any
    failing: str | None = None
    done: set[str] = field(default_factory=set)
    waiting: list[Primitive] = field(default_factory=list)
    running: list[tuple[Primitive, Any]] = field(default_factory=list)

    def run(self) -> dict[str, Any] | str:
        """Return all values, or the stage that failed."""
        self.progress = Progress(GraphPlan(self.graph.freeze(), ENGINES, 64, self.passes))
        self.values = Values(self.graph.freeze(), INPUTS)
        self.work = SlicedWork(self.values)
        self.waiting += self.progress.start().primitives
        while moves := self.moves():
            move, place = self.choose(moves)
            if move == "start":
                primitive = self.waiting.pop(place)
                self.running.append((primitive, self.begin(primitive)))
                continue
            primitive, asked = self.running.pop(place)
            if primitive.stage == self.failing:
                return self.failing
            self.end(primitive, asked)
        assert not self.waiting, "something was never ready"
        return self.values.snapshot()

    def moves(self) -> list[tuple[str, int]]:
        starts = [
            ("start", place)
            for place, primitive in enumerate(self.waiting)
            if self.done.issuperset(primitive.after)
        ]
        return [*starts, *(("end", place) for place in range(len(self.running)))]

    def begin(self, primitive: Primitive) -> Any:
        """Return what a call returned, or what an engine was given."""
        if primitive.kind is PrimitiveKind.AGGREGATE:
            return self.work.joined(primitive)
        if primitive.engine is None or ENGINES[primitive.engine].call is not None:
            call = user_call(primitive, self.values, ENGINES, lambda: True)
            return call()
        return self.work.payload(primitive)

    def end(self, primitive: Primitive, asked: Any) -> None:
        self.done.add(primitive.name)
        if primitive.kind is PrimitiveKind.CONDITION:
            self.waiting += self.progress.decide(primitive, asked).primitives
        elif primitive.engine is None:
            self.values.write(str(primitive.output), primitive.instance, asked)
        elif ENGINES[primitive.engine].call is not None:
            value = checked(primitive, self.values, asked)
            self.values.write(str(primitive.output), primitive.instance, value)
        else:
            value = asked
            if not KINDS[primitive.kind].prefills:
                value = stored(primitive, compute(asked))
            self.values.write(str(primitive.output), primitive.instance, value)


def first_of(moves: Sequence[Any]) -> Any:
    """Choose as a program without overlap does."""
    return moves[-1]


MOVABLE = ("generate", "retrieve", "rerank")
DRAWN = (*MOVABLE * 4, "theirs", "function", "log")
CHAINS = "abz"
INPUTS: dict[str, Any] = {
    "input": "question",
    **{f"{chain}.{place}": f"{chain} {place}" for chain in CHAINS for place in range(2)},
    **{f"{chain}.found": tuple(find(chain, 3)) for chain in CHAINS},
}


@dataclass
class Written:
    """Hold a generated graph, and what its functions note when they are called."""

    graph: RAGraph = field(default_factory=lambda: RAGraph(list(INPUTS)))
    calls: dict[str, list[Any]] = field(default_factory=dict)
    owned: list[str] = field(default_factory=list)
    logs: bool = False

    def add_chain(self, draw: Any, chain: str, size: int, readable: Sequence[str]) -> list[str]:
        """Add stages one after the other that write few values often; return their names."""
        names = [f"{chain}{place}" for place in range(size)]
        for name in names:
            output = draw(st.sampled_from([f"{chain}.0", f"{chain}.1"]))
            kind = draw(st.sampled_from(DRAWN))
            reads = draw(st.tuples(st.sampled_from(readable), st.sampled_from(readable)))
            self.add(kind, name, chain, reads, output)
        for source, target in pairwise(names):
            self.graph.add_edge(source, target)
        return names

    def add(self, kind: str, name: str, chain: str, reads: Any, output: str) -> None:
        found = f"{chain}.found"
        if kind not in ("function", "log", "theirs"):
            self.owned.append(name)
        match kind:
            case "generate":
                prompt = f"{{{reads[0]}}} and {{{reads[1]}}}"
                self.graph.add_generation(name, prompt=prompt, output=output)
            case "retrieve":
                self.graph.add_retrieval(name, query=reads[0], top_k=2, output=found)
            case "theirs":
                self.graph.add_retrieval(name, query=reads[0], output=found, engine="theirs")
            case "rerank":
                self.graph.add_rerank(
                    name, query=reads[0], documents=found, top_n=2, output=f"{chain}.found"
                )
            case "log":
                self.logs = True
                self.graph.add_function(name, lambda text: [(name, text)], reads[0], "log")
            case _:

                def function(*given: Any) -> str:
                    calls = self.calls.setdefault(chain, [])
                    calls.append((name, given))
                    return f"{name}({len(calls)})"

                self.graph.add_function(name, function, reads, output)


@st.composite
def written(draw: Any) -> Written:
    """Return a graph of parallel chains that meet in one more, which may turn again."""
    made = Written()
    turns = draw(st.integers(1, 3))
    last = made.add_chain(draw, "z", draw(st.integers(1, 6)), [*INPUTS])
    before = draw(st.integers(0, 2))
    for chain in CHAINS[:before]:
        own = ["input", *(name for name in INPUTS if name.startswith(chain))]
        names = made.add_chain(draw, chain, draw(st.integers(1, 6)), own)
        made.graph.add_edge(START, names[0]).add_edge(names[-1], last[0])
    if not before:
        made.graph.add_edge(START, last[0])

    def again(values: Any) -> str:
        seen = made.calls.setdefault("conditions", [])
        seen.append(dict(values))
        return END if len(seen) >= turns else last[0]

    made.graph.add_edge(last[-1], again, targets=[last[0], END])
    if made.logs:
        made.graph.add_reducer("log", add)
    return made


def outcome(made: Written, **options: Any) -> tuple[Any, dict[str, Any]]:
    """Return what a run gives, and the calls of the user's that it made."""
    made.calls = {}
    result = Execution(made.graph, **options).run()
    return plain(result), {
        chain: [plain(call) for call in made.calls[chain]] for chain in made.calls
    }


def plain(value: Any) -> Any:
    """Return a value with its arrays as lists, so that it can be compared."""
    match value:
        case np.ndarray():
            return value.tolist()
        case dict():
            return {key: plain(one) for key, one in value.items()}
        case _:
            return value


@given(written(), st.data())
def test_the_passes_change_no_value_and_no_call_of_the_users(made: Written, data: Any) -> None:
    expected = outcome(made, passes=NOTHING, choose=first_of)
    found = outcome(
        made, passes=None, choose=lambda moves: data.draw(st.sampled_from(moves), label="next")
    )
    assert found == expected


@given(written(), st.data())
def test_what_fails_has_the_calls_of_the_users_before_it_and_none_after(
    made: Written, data: Any
) -> None:
    if not made.owned:
        return
    failing = data.draw(st.sampled_from(made.owned), label="failing")
    chain = failing[0]
    expected = outcome(made, passes=NOTHING, choose=first_of, failing=failing)
    found = outcome(
        made,
        passes=None,
        choose=lambda moves: data.draw(st.sampled_from(moves), label="next"),
        failing=failing,
    )
    assert found[0] == expected[0]
    assert found[1].get(chain) == expected[1].get(chain)


def primitives(graph: RAGraph, **options: Any) -> tuple[Progress, dict[str, Primitive]]:
    progress = Progress(GraphPlan(graph.freeze(), ENGINES, 64, **options))
    return progress, {one.name: one for one in progress.start().primitives}


def test_a_later_region_waits_for_what_an_earlier_one_no_longer_says() -> None:
    graph = RAGraph().add_generation("plan", prompt="{input}").add_retrieval("search")
    graph.add_function("ask", lambda values: None).add_generation("answer", prompt="{plan}")
    graph.add_edge(START, ["plan", "ask"]).add_edge("plan", "search").add_edge("search", "answer")
    graph.add_function("more", lambda values: None).add_edge("more", "answer")
    graph.add_edge("ask", lambda values: "more", targets=["more", END]).add_edge("answer", END)
    progress, first = primitives(graph)
    assert first["search.embedding"].after == ()
    (again, *_) = [
        one
        for one in progress.decide(first["ask?.condition"], "more").primitives
        if one.stage == "answer"
    ]
    assert again.name == "answer#2.decoding"
    assert {"search.searching", "plan.decoding"} <= set(again.after)

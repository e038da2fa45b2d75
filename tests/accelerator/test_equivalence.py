"""Whatever the graph, engines, passes and way: the result is that of a plain program.

A random program is a tree of stages, sequences, parallel parts, branches and loops. One half of
this file turns it into a ``RAGraph``; the other half runs it as ordinary Python, knowing nothing
of graphs, and renders, searches and folds by itself. Prompts are long, searches find more than a
batch, and lists are read off completions, so that every pass has something to do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import pytest
from accel_harness import LLMS, WAYS, opened
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from rag_accel import END, START, RAGraph
from rag_accel.engine_api import Capability, Document, RerankBatch, ScoredDocument, SearchQuery
from rag_accel.graph.list_functions import UnionFunction
from rag_accel.passes.manager import STATIC_PASSES
from rag_accel.testing import FAKE_PROFILE, FakeEngine, compute, vector_of
from rag_accel.workflows.steps import Nth, Queries

RULES = "Answer briefly, and only from the passages. " * 6
NUM_ITEMS = 2


@dataclass
class Stage:
    """Be one stage; ``picks`` choose what it reads among what was surely written before."""

    kind: str
    picks: tuple[int, int]
    name: str = ""
    reads: tuple[str, ...] = ()


@dataclass
class Seq:
    """Run the parts one after the other."""

    parts: list[Any]


@dataclass
class Par:
    """Run the parts side by side."""

    parts: list[Any]


@dataclass
class If:
    """Run one of two parts, by the length of a text."""

    then: Any
    otherwise: Any
    pick: int
    enter: str = ""
    leave: str = ""
    read: str = ""


@dataclass
class Loop:
    """Run the body again and again."""

    body: Any
    times: int
    enter: str = ""
    turn: str = ""
    leave: str = ""


picks = st.tuples(st.integers(0, 99), st.integers(0, 99))
kinds = st.sampled_from(
    ["sync", "async", "all", "generate", "retrieve", "rerank", "merge", "expand", "log", "log"]
)
plain = st.recursive(
    st.builds(Stage, kinds, picks),
    lambda inner: (
        st.builds(Seq, st.lists(inner, min_size=1, max_size=3))
        | st.builds(Par, st.lists(inner, min_size=1, max_size=3))
    ),
    max_leaves=6,
)
programs = st.recursive(
    plain,
    lambda inner: (
        st.builds(Seq, st.lists(inner, min_size=1, max_size=3))
        | st.builds(If, inner, inner, st.integers(0, 99))
        | st.builds(Loop, inner, st.integers(1, 3))
    ),
    max_leaves=5,
)

# What stages do, in both halves ------------------------------------------------------------------


class Boom(Exception):
    """Be raised by a stage that is told to."""


def shorten(*texts: str) -> str:
    """Combine texts to one that stays short, so that loops do not blow it up."""
    joined = "+".join(texts)
    return joined if len(joined) < 60 else joined[:20] + "..." + joined[-20:]


class Chained(UnionFunction):
    """Put lists one after the other."""

    def __call__(self, *lists: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(chain.from_iterable(lists))


def find(query: str, k: int) -> list[Document]:
    """Be a borrowed index."""
    return [Document(f"{len(query)}-{n}", f"{query[:12]} #{n}") for n in range(k)]


# As a graph --------------------------------------------------------------------------------------


@dataclass
class Builder:
    """Turn a program into a graph; names its stages and settles what they read."""

    raising: int | None
    graph: RAGraph = field(default_factory=RAGraph)
    count: int = 0

    def build(self, program: Any) -> RAGraph:
        entries, exits, _ = self.add(program, {"input": "text"}, parallel=False)
        self.graph.add_edge(START, entries)
        self.graph.add_edge(exits, END)
        if self.logs:
            self.graph.add_reducer("log", lambda left, right: left + right)
        return self.graph

    logs: bool = False

    def name(self) -> str:
        self.count += 1
        return f"n{self.count}"

    def passing(self, fn: Callable[[Any], Any] = lambda values: None) -> str:
        name = self.name()
        self.graph.add_function(name, fn)
        return name

    def add(
        self, block: Any, scope: dict[str, str], parallel: bool
    ) -> tuple[list[str], list[str], dict[str, str]]:
        """Return a block's first and last stages, and what is surely written after it, by type."""
        match block:
            case Stage():
                return self.add_stage(block, scope, parallel)
            case Seq():
                return self.add_seq(block, scope, parallel)
            case Par():
                parts = [self.add(part, scope, True) for part in block.parts]
                entries = [name for part in parts for name in part[0]]
                exits = [name for part in parts for name in part[1]]
                return entries, exits, {k: v for part in parts for k, v in part[2].items()}
            case If():
                return self.add_if(block, scope)
            case _:
                return self.add_loop(block, scope)

    def add_seq(self, block: Seq, scope: dict[str, str], parallel: bool) -> Any:
        first: list[str] = []
        last: list[str] = []
        for part in block.parts:
            entries, exits, scope = self.add(part, scope, parallel)
            if last:
                self.graph.add_edge(last, entries)
            first, last = first or entries, exits
        return first, last, scope

    def add_if(self, block: If, scope: dict[str, str]) -> Any:
        block.enter, block.leave = self.passing(), self.passing()
        texts = [name for name, kind in scope.items() if kind == "text"]
        block.read = read = texts[block.pick % len(texts)]
        then, then_exits, _ = self.add(block.then, scope, False)
        otherwise, other_exits, _ = self.add(block.otherwise, scope, False)
        self.graph.add_edge(
            block.enter,
            lambda values: then if len(values[read]) % 2 else otherwise,
            [*then, *otherwise],
        )
        self.graph.add_edge([*then_exits, *other_exits], block.leave)
        return [block.enter], [block.leave], scope

    def add_loop(self, block: Loop, scope: dict[str, str]) -> Any:
        enter, leave = self.passing(), self.passing()
        counter = f"{enter}.turns"
        block.enter, block.leave = enter, leave
        entries, exits, after = self.add(block.body, scope, False)
        turn = block.turn = self.name()
        # Starting over: the counter counts this loop's turns since it was entered last.
        self.graph.add_function(f"{enter}.zero", lambda: 0, inputs=(), output=counter)
        self.graph.add_function(turn, lambda turns: turns + 1, inputs=counter, output=counter)
        self.graph.add_edge(enter, f"{enter}.zero")
        self.graph.add_edge(f"{enter}.zero", entries)
        self.graph.add_edge(exits, turn)
        times = block.times
        self.graph.add_edge(
            turn, lambda values: entries if values[counter] < times else leave, [*entries, leave]
        )
        return [enter], [leave], after

    def add_stage(self, stage: Stage, scope: dict[str, str], parallel: bool) -> Any:
        stage.name = name = self.name()
        kind = stage.kind
        texts = [one for one, type_ in scope.items() if type_ == "text"]
        found = [one for one, type_ in scope.items() if type_ == "docs"]
        if kind in ("rerank", "merge") and not found:
            kind = stage.kind = "retrieve"
        read = texts[stage.picks[0] % len(texts)]
        shown = texts + found
        if not parallel and "log" in scope:
            shown = [*shown, "log"]
        other = shown[stage.picks[1] % len(shown)]
        if self.raising == self.count:
            stage.kind = "raise"
            return self.add_raising(name, scope)
        return getattr(self, f"add_{kind}")(stage, name, read, other, found, scope)

    def add_raising(self, name: str, scope: dict[str, str]) -> Any:
        def boom() -> None:
            raise Boom(name)

        self.graph.add_function(name, boom, inputs=())
        return [name], [name], {**scope, name: "text"}

    def add_sync(self, stage: Any, name: str, read: str, other: str, found: Any, scope: Any) -> Any:
        second = other if scope.get(other) == "text" else read
        stage.reads = (read, second)
        self.graph.add_function(name, lambda a, b: shorten(name, a, b), inputs=stage.reads)
        return [name], [name], {**scope, name: "text"}

    def add_async(
        self, stage: Any, name: str, read: str, other: str, found: Any, scope: Any
    ) -> Any:
        async def combine(a: str) -> str:
            await asyncio.sleep(0)
            return shorten(name, a)

        stage.reads = (read,)
        self.graph.add_function(name, combine, inputs=read)
        return [name], [name], {**scope, name: "text"}

    def add_all(self, stage: Any, name: str, read: str, other: str, found: Any, scope: Any) -> Any:
        stage.reads = (read,)
        self.graph.add_function(name, lambda values: shorten(name, values[read], values["input"]))
        return [name], [name], {**scope, name: "text"}

    def add_generate(
        self, stage: Any, name: str, read: str, other: str, found: Any, scope: Any
    ) -> Any:
        stage.reads = (read, other)
        self.graph.add_generation(
            name,
            prompt=f"{RULES}{{{read}}} with {{{other}}}",
            output=f"{name}.raw",
            system="{input}!",
        )
        cut = self.name()
        self.graph.add_function(cut, shorten, inputs=f"{name}.raw")
        self.graph.add_edge(name, cut)
        return [name], [cut], {**scope, cut: "text"}

    def add_retrieve(
        self, stage: Any, name: str, read: str, other: str, found: Any, scope: Any
    ) -> Any:
        stage.reads = (read,)
        self.graph.add_retrieval(name, query=read, top_k=1 + stage.picks[1] % 5)
        return [name], [name], {**scope, name: "docs"}

    def add_merge(
        self, stage: Any, name: str, read: str, other: str, found: Any, scope: Any
    ) -> Any:
        stage.reads = tuple(found[pick % len(found)] for pick in stage.picks)
        self.graph.add_function(name, Chained(), inputs=stage.reads)
        return [name], [name], {**scope, name: "docs"}

    def add_expand(
        self, stage: Any, name: str, read: str, other: str, found: Any, scope: Any
    ) -> Any:
        """Search the items that a generation lists."""
        stage.reads = (read,)
        prompt, queries = f"one\n{{{read}}}\nthree\nfour", f"{name}.list"
        self.graph.add_generation(name, prompt=prompt, output=f"{name}.raw", system="{input}!")
        self.graph.add_function(queries, Queries(NUM_ITEMS), inputs=[f"{name}.raw", "input"])
        self.graph.add_edge(name, queries)
        searches = [f"{name}.search{place}" for place in range(NUM_ITEMS)]
        for place, search in enumerate(searches):
            item = f"{name}.item{place}"
            self.graph.add_function(item, Nth(place), inputs=queries)
            self.graph.add_retrieval(search, query=item, top_k=3)
            self.graph.add_edge(queries, item).add_edge(item, search)
        self.graph.add_function(f"{name}.join", Chained(), inputs=searches)
        self.graph.add_edge(searches, f"{name}.join")
        return [name], [f"{name}.join"], {**scope, f"{name}.join": "docs"}

    def add_rerank(
        self, stage: Any, name: str, read: str, other: str, found: Any, scope: Any
    ) -> Any:
        stage.reads = (read, found[stage.picks[1] % len(found)])
        self.graph.add_rerank(name, query=read, documents=stage.reads[1], top_n=2)
        return [name], [name], {**scope, name: "docs"}

    def add_log(self, stage: Any, name: str, read: str, other: str, found: Any, scope: Any) -> Any:
        self.logs = True
        stage.reads = (read,)
        self.graph.add_function(name, lambda a: [shorten(name, a)], inputs=read, output="log")
        return [name], [name], {**scope, "log": "log"}


# As a plain program ------------------------------------------------------------------------------


@dataclass
class Interpreter:
    """Run a program one stage after the other."""

    borrowed_index: bool
    values: dict[str, Any]
    runs: dict[str, int] = field(default_factory=dict)
    logged: dict[tuple[int, int], list[str]] = field(default_factory=dict)

    def run(self, block: Any) -> None:
        match block:
            case Stage():
                self.run_stage(block)
            case Seq() | Par():
                for part in block.parts:
                    self.run(part)
            case If():
                odd = len(self.values[block.read]) % 2
                self.run(block.then if odd else block.otherwise)
            case _:
                for _ in range(block.times):
                    self.run(block.body)

    def run_stage(self, stage: Stage) -> None:
        name = stage.name
        given = [self.values[read] for read in stage.reads]
        match stage.kind:
            case "raise":
                raise Boom(name)
            case "sync":
                self.values[name] = shorten(name, *given)
            case "async":
                self.values[name] = shorten(name, *given)
            case "all":
                self.values[name] = shorten(name, *given, self.values["input"])
            case "generate":
                text = f"reply to: {RULES}{show(given[0])} with {show(given[1])}"
                self.values[f"{name}.raw"] = text
                self.values[f"n{int(name[1:]) + 1}"] = shorten(text)
            case "retrieve":
                self.values[name] = self.search(given[0], 1 + stage.picks[1] % 5)
            case "merge":
                self.values[name] = Chained()(*given)
            case "expand":
                raw = f"reply to: one\n{given[0]}\nthree\nfour"
                items = Queries(NUM_ITEMS)(raw, self.values["input"])
                searches = [self.search(item, 3) for item in items]
                self.values |= {f"{name}.raw": raw, f"{name}.list": items}
                for place, found in enumerate(searches):
                    self.values[f"{name}.item{place}"] = items[place]
                    self.values[f"{name}.search{place}"] = found
                self.values[f"{name}.join"] = Chained()(*searches)
            case "rerank":
                documents = tuple(one.document for one in given[1])
                self.values[name] = compute(RerankBatch(given[0], documents, 2))
            case _:
                self.runs[name] = self.runs.get(name, 0) + 1
                self.logged[self.runs[name], int(name[1:])] = [shorten(name, *given)]
                lines = [line for _, line in sorted(self.logged.items())]
                self.values["log"] = [one for line in lines for one in line]

    def search(self, query: str, k: int) -> Any:
        if self.borrowed_index:
            return tuple(ScoredDocument(one, 0.0) for one in find(query, k))
        return compute(SearchQuery(vector_of(query), k))


def show(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, tuple):
        return "\n\n".join(f"[{n + 1}] {one.document.text}" for n, one in enumerate(value))
    return "\n".join(value)


# Both --------------------------------------------------------------------------------------------


def outputs_of(values: dict[str, Any]) -> list[str]:
    return [name for name in values if name != "input"]


def reply_with_system(prompt: str) -> str:
    """Be a borrowed model: it gets the system message in front of the prompt."""
    _, _, asked = prompt.partition("!\n\n")
    return f"reply to: {asked}"


async def areply_with_system(prompt: str) -> str:
    await asyncio.sleep(0)
    return reply_with_system(prompt)


MODELS = {**LLMS, "sync": lambda: reply_with_system, "async": lambda: areply_with_system}


def reranker() -> FakeEngine:
    return FakeEngine(
        replace(FAKE_PROFILE, max_batch=2, capabilities=frozenset({Capability.ITEMWISE}))
    )


#: a program that each pass rewrites: its stages read the question, or those before them
REWRITTEN = Seq(
    [
        Stage("retrieve", (0, 3)),
        Stage("retrieve", (0, 4)),
        Stage("merge", (0, 1)),
        Stage("rerank", (0, 2)),
        Stage("expand", (0, 0)),
        Stage("retrieve", (0, 1)),
        Stage("rerank", (0, 0)),
        Stage("generate", (0, 6)),
    ]
)


def test_a_graph_gives_what_the_plain_program_gives() -> None:
    did = set[str]()

    @example(
        program=REWRITTEN,
        raising=None,
        llm="owned, in steps",
        borrowed_index=False,
        passes="all",
        way="run",
    )
    @settings(suppress_health_check=list(HealthCheck))
    @given(
        program=programs,
        raising=st.none() | st.integers(1, 12),
        llm=st.sampled_from(sorted(MODELS)),
        borrowed_index=st.booleans(),
        passes=st.sampled_from(["none", "all", "all"]),
        way=st.sampled_from(sorted(WAYS)),
    )
    def check(
        program: Any, raising: int | None, llm: str, borrowed_index: bool, passes: str, way: str
    ) -> None:
        graph = Builder(raising).build(program)
        plainly = Interpreter(borrowed_index, {"input": "question"})
        index: Any = find if borrowed_index else FakeEngine()
        engines = {"llm": MODELS[llm](), "embedder": FakeEngine(), "index": index}
        with opened(**engines, reranker=reranker(), passes=passes) as acc:
            told = acc.explain(graph, "e-graph").partition("passes:\n")[2]
            did.update(one.name for one in STATIC_PASSES if _did(one.name, told))
            boom = _boom(plainly, program)
            if boom is not None:
                with pytest.raises(Boom) as caught:
                    WAYS[way](acc, graph, input="question")
                assert caught.value.args == boom.args
                return
            expected = {name: plainly.values[name] for name in outputs_of(plainly.values)}
            found = WAYS[way](acc, graph, outputs=list(expected), input="question")
        assert found == expected

    check()
    assert did == {one.name for one in STATIC_PASSES}


def _did(name: str, told: str) -> bool:
    return f"  {name}: " in told and f"  {name}: nothing to change" not in told


def _boom(plainly: Interpreter, program: Any) -> Boom | None:
    try:
        plainly.run(program)
    except Boom as error:
        return error
    return None

"""Whatever the graph: all static passes together give the values that none of them gives.

Graphs are layers of stages; each stage reads values of earlier layers. Prompts are long, searches
find more than a batch, and lists are read off completions, so that every pass has something to do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import pytest
from accel_harness import WAYS, opened
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rag_accel import END, START, Accelerator, RAGraph
from rag_accel.engine_api import Capability
from rag_accel.graph.list_functions import UnionFunction
from rag_accel.passes.manager import STATIC_PASSES
from rag_accel.testing import FAKE_PROFILE, FakeEngine, FakeSyncCall
from rag_accel.workflows.steps import Nth, Queries

RULES = "Answer briefly, and only from the passages. " * 6
BATCH = 8
NUM_ITEMS = 2


def reranker() -> FakeEngine:
    return FakeEngine(
        replace(FAKE_PROFILE, max_batch=BATCH, capabilities=frozenset({Capability.ITEMWISE}))
    )


def hybrid_index() -> FakeEngine:
    return FakeEngine(replace(FAKE_PROFILE, capabilities=frozenset({Capability.READS_TEXT})))


ENGINES: Mapping[str, Callable[[], dict[str, Any]]] = {
    "owned": lambda: {"llm": FakeEngine(), "index": FakeEngine()},
    "steps, hybrid index": lambda: {
        "llm": FakeEngine(steps=3),
        "index": hybrid_index(),
    },
    "borrowed index": lambda: {"llm": FakeEngine(steps=2), "index": FakeSyncCall(find)},
}


def find(query: str, k: int) -> list[str]:
    return [f"{query[:9]} {place}" for place in range(k)]


@dataclass(frozen=True)
class StagePlan:
    """Say what a stage does; ``picks`` choose what it reads among what there is."""

    kind: str
    picks: tuple[int, int, int]


@dataclass
class Values:
    """Name what was surely written, by type."""

    texts: list[str] = field(default_factory=lambda: ["input"])
    found: list[str] = field(default_factory=list)

    def extend(self, other: Values) -> None:
        self.texts += other.texts
        self.found += other.found


@dataclass(frozen=True)
class Names:
    """List what a function sees: what was surely written, and what no stage writes."""

    written: frozenset[str]

    def __call__(self, values: Mapping[str, Any]) -> str:
        return " ".join(sorted(one for one in values if one in self.written or "." in one))


class Chained(UnionFunction):
    """Put lists one after the other, what two of them hold twice."""

    def __call__(self, *lists: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(chain.from_iterable(lists))


KINDS = ("generate", "generate", "retrieve", "rerank", "rerank", "merge", "expand", "all")
stages = st.builds(StagePlan, st.sampled_from(KINDS), st.tuples(*[st.integers(0, 30)] * 3))
layers = st.lists(st.lists(stages, min_size=1, max_size=3), min_size=2, max_size=6)


@dataclass
class Builder:
    """Turn layers into a graph that ends with all its values; may turn back or skip a layer."""

    turns: bool
    skips: bool
    graph: RAGraph = field(default_factory=RAGraph)
    count: int = 0

    def build(self, plan: list[list[StagePlan]]) -> RAGraph:
        graph, known, last = self.graph, Values(), [START]
        if self.turns:
            graph.add_function("turn", lambda: 0, inputs=(), output="turns").add_edge(START, "turn")
            graph.add_function("begin", lambda n: n + 1, inputs="turns", output="turns")
            graph.add_edge("turn", "begin")
            last = ["begin"]
        for place, layer in enumerate(plan):
            written = Values([], [])
            parts = [self.add(stage, known, written) for stage in layer]
            names, ends = [first for first, _ in parts], [end for _, end in parts]
            if self.skips and place == 1:
                graph.add_function("join", lambda values: None)
                graph.add_function("fork", lambda values: None).add_edge(last, "fork")
                chosen = names
                graph.add_edge(
                    "fork",
                    lambda values, chosen=chosen: chosen if len(values["input"]) % 2 else "join",
                    targets=[*names, "join"],
                )
                last = ["join"]
                graph.add_edge(ends, last)
                continue  # what a skipped layer writes may be missing
            graph.add_edge(last, names)
            known.extend(written)
            last = ends
        graph.add_function("end", dict).add_edge(last, "end")
        if not self.turns:
            return graph.add_edge("end", END)
        return graph.add_edge(
            "end", lambda values: "begin" if values["turns"] < 2 else END, targets=["begin", END]
        )

    def add(self, stage: StagePlan, known: Values, written: Values) -> tuple[str, str]:
        """Add a stage that reads what is known; return where it begins and ends."""
        self.count += 1
        name, kind = f"{stage.kind}{self.count}", stage.kind
        one, other, third = stage.picks
        text = known.texts[one % len(known.texts)]
        if kind == "all" or (kind in ("rerank", "merge") and not known.found):
            self.graph.add_function(name, Names(frozenset(known.texts + known.found)))
            written.texts.append(name)
        elif kind == "retrieve":
            self.graph.add_retrieval(name, query=text, top_k=1 + other)
            written.found.append(name)
        elif kind == "rerank":
            documents = known.found[other % len(known.found)]
            top_n = third or None
            self.graph.add_rerank(name, documents=documents, query=text, top_n=top_n)
            written.found.append(name)
        elif kind == "merge":
            inputs = [known.found[pick % len(known.found)] for pick in (other, third)]
            self.graph.add_function(name, Chained(), inputs=inputs)
            written.found.append(name)
        elif kind == "expand":
            return self.add_expansion(name, text, other % 2 == 0, written)
        else:
            self.add_generation(name, stage.picks, known)
            written.texts.append(name)
        return name, name

    def add_expansion(
        self, name: str, text: str, reranks: bool, written: Values
    ) -> tuple[str, str]:
        """Add searches of the items that a generation lists; rerank what they find, or not."""
        prompt, join = f"one\n{{{text}}}\nthree\nfour", f"{name}join"
        self.graph.add_generation(name, prompt=prompt)
        self.graph.add_function(f"{name}list", Queries(NUM_ITEMS), inputs=[name, "input"])
        self.graph.add_edge(name, f"{name}list")
        for place in range(NUM_ITEMS):
            item, search = f"{name}item{place}", f"{name}search{place}"
            self.graph.add_function(item, Nth(place), inputs=f"{name}list")
            self.graph.add_retrieval(search, query=item, top_k=3)
            self.graph.add_edge(f"{name}list", item).add_edge(item, search)
            self.graph.add_edge(search, join)
            written.texts.append(item)
            written.found.append(search)
        if not reranks:
            self.graph.add_function(join, lambda values: None)
            return name, join
        searches = [f"{name}search{place}" for place in range(NUM_ITEMS)]
        self.graph.add_function(join, Chained(), inputs=searches).add_edge(join, f"{name}best")
        self.graph.add_rerank(f"{name}best", documents=join, query=text, top_n=4)
        written.found.append(f"{name}best")
        return name, f"{name}best"

    def add_generation(self, name: str, picks: tuple[int, int, int], known: Values) -> None:
        values = [*known.texts, *known.found]
        one, other, third = (f"{{{values[pick % len(values)]}}}" for pick in picks)
        prompts = [
            f"{RULES}{one} and {other}",
            f"first\nsecond\n{one}",
            f"{one} {RULES}{{{{ {other}",
            f"{one}",
        ]
        systems = [None, RULES, f"{RULES} {third} {one}", ""]
        prompt, system = prompts[picks[0] % len(prompts)], systems[picks[1] % len(systems)]
        self.graph.add_generation(name, prompt=prompt, system=system)


@contextmanager
def accelerators(passes: str) -> Iterator[dict[str, Accelerator]]:
    """Open an accelerator for each choice of engines."""
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(
                opened(**make(), embedder=FakeEngine(), reranker=reranker(), passes=passes)
            )
            for name, make in ENGINES.items()
        }


def check_graphs(max_examples: int) -> set[str]:
    """Compare the values of generated graphs; return the names of the passes that did something."""
    did: set[str] = set()

    @settings(max_examples=max_examples, deadline=None, suppress_health_check=[*HealthCheck])
    @given(
        plan=layers,
        turns=st.booleans(),
        skips=st.booleans(),
        question=st.text(max_size=30),
        engines=st.sampled_from(sorted(ENGINES)),
        way=st.sampled_from(sorted(WAYS)),
    )
    def check(plan: Any, turns: bool, skips: bool, question: str, engines: str, way: str) -> None:
        graph = Builder(turns, skips).build(plan)
        expected = WAYS[way](plain[engines], graph, input=question)
        assert WAYS[way](passed[engines], graph, input=question) == expected
        told = passed[engines].explain(graph, "e-graph").partition("passes:\n")[2]
        did.update(one.name for one in STATIC_PASSES if _did(one.name, told))

    with accelerators("none") as plain, accelerators("all") as passed:
        check()
    return did


def _did(name: str, told: str) -> bool:
    return f"  {name}: " in told and f"  {name}: nothing to change" not in told


def test_some_graphs_give_the_same_with_all_passes_as_with_none() -> None:
    check_graphs(25)


@pytest.mark.slow
def test_graphs_give_the_same_with_all_passes_as_with_none() -> None:
    assert check_graphs(300) == {one.name for one in STATIC_PASSES}

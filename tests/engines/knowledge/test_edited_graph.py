"""A graph that was edited and merged, in any order, finds what one made anew does."""

from __future__ import annotations

import copy
import pickle
import random
import tempfile
from pathlib import Path
from typing import Any

import pytest
from edited_graph import Expected, check, settle
from graph_harness import Triple, embed
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from rag_accel.engines import MemoryGraph
from rag_accel.engines.knowledge import base

ENTITIES = ["a", "A", "b b", "B b c", "n\nl", "x -> y", "é", "É c", "", "\U0001f600 a", "c a b"]
RELATIONS = ["r", "s t", "R", "a"]

names = st.sampled_from(ENTITIES)
triple = st.tuples(names, st.sampled_from(RELATIONS), names)
triples = st.lists(triple, max_size=5)
texts = st.dictionaries(names, st.sampled_from(["", "told", "told twice"]), max_size=2)
options = st.fixed_dictionaries(
    {
        "relations": st.sampled_from([None, (), ("r",), ("s t", "R", "unknown"), ("a", "R", "r")]),
        "direction": st.sampled_from(["out", "in", "both"]),
        "fan_out": st.sampled_from([0, 1, 2, 32]),
        "limit": st.sampled_from([1, 4, 256]),
    }
)


class EditedGraph(RuleBasedStateMachine):
    """Edits and questions in any order, with merges after a few edits."""

    @initialize(held=st.lists(triple, max_size=30), told=texts, merge_after=st.integers(1, 6))
    def start(self, held: list[Triple], told: dict[str, str], merge_after: int) -> None:
        self.graph = MemoryGraph(held, told, merge_after=merge_after)
        self.expected = Expected()
        self.expected.add(held, told)

    @rule(added=triples, told=texts)
    def add(self, added: list[Triple], told: dict[str, str]) -> None:
        self.graph.add(added, told)
        self.expected.add(added, told)

    @rule(source=st.randoms(use_true_random=False), num=st.integers(0, 4), unknown=triples)
    def remove(self, source: random.Random, num: int, unknown: list[Triple]) -> None:
        held = list(self.expected.triples)
        dropped = [*source.sample(held, min(num, len(held))), *unknown[:1]]
        self.graph.remove(dropped)
        self.expected.remove(dropped, ())

    @rule(gone=st.lists(names, max_size=2))
    def remove_entities(self, gone: list[str]) -> None:
        self.graph.remove(entities=gone)
        self.expected.remove((), gone)

    @rule(held=st.lists(triple, max_size=12), told=texts)
    def replace(self, held: list[Triple], told: dict[str, str]) -> None:
        self.graph.replace(held, told)
        self.expected.replace(held, told)

    @rule()
    def embed(self) -> None:
        waiting = set(self.expected.names) - self.expected.embedded
        assert self.graph.embed(embed, batch=2) == len(waiting)
        self.expected.embedded |= waiting

    @rule(asked=st.lists(names, max_size=3), how=options)
    def ask(self, asked: list[str], how: dict[str, Any]) -> None:
        check(self.graph, self.expected, asked, how)

    @rule()
    def look(self) -> None:
        self.graph.view()

    @rule()
    def settle(self) -> None:
        settle(self.graph)

    @rule()
    def save_and_load(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "g"
            self.graph.save(path)
            loaded = MemoryGraph.load(path)
        assert list(loaded.view().names) == self.expected.names
        assert len(loaded) == len(self.expected.triples)

    @rule(
        how=st.sampled_from([copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
    )
    def copy(self, how: Any) -> None:
        before, self.graph = self.graph, how(self.graph)
        before.remove(entities=ENTITIES)

    @invariant()
    def counts(self) -> None:
        if hasattr(self, "graph"):
            assert len(self.graph) == len(self.expected.triples)


@pytest.mark.parametrize("most_unused", [1, 1024])
def test_any_edits_and_merges_find_what_a_new_graph_does(
    monkeypatch: pytest.MonkeyPatch, most_unused: int
) -> None:
    monkeypatch.setattr(base, "_MOST_UNUSED", most_unused)
    EditedGraph.TestCase.settings = settings(
        max_examples=60,
        stateful_step_count=25,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    EditedGraph.TestCase().runTest()

"""A graph that was edited and merged, in any order, finds what one made anew does."""

from __future__ import annotations

import copy
import math
import pickle
import random
import tempfile
from pathlib import Path
from typing import Any

import pytest
from edited_graph import Expected, check, merge
from graph_harness import Triple, embed
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from rag_accel.engines import MemoryGraph
from rag_accel.engines.knowledge import memory

ENTITIES = ["a", "A", "b b", "B b c", "n\nl", "x -> y", "é", "É c", "", "\U0001f600 a", "c a b"]
RELATIONS = ["r", "s t", "R", "a"]

names = st.sampled_from(ENTITIES)
triple = st.tuples(names, st.sampled_from(RELATIONS), names)
triples = st.lists(triple, max_size=5)
random_source = st.randoms(use_true_random=False)
texts = st.dictionaries(names, st.sampled_from(["", "told", "told twice"]), max_size=2)
options = st.fixed_dictionaries(
    {
        "relations": st.sampled_from([None, (), ("r",), ("s t", "R", "unknown"), ("a", "R", "r")]),
        "direction": st.sampled_from(["out", "in", "both"]),
        "fan_out": st.sampled_from([0, 1, 2, 3, 32]),
        "limit": st.sampled_from([1, 4, 256]),
    }
)
asked = st.tuples(st.lists(names, max_size=3), st.integers(1, 3), options)
Asked = tuple[list[str], int, dict[str, Any]]


class EditedGraph(RuleBasedStateMachine):
    """Edits in any order over a sorted graph, each followed by questions of every kind.

    Nothing is merged but where a rule says so: what a question finds is what the edits over the
    base, however many, and that base give.
    """

    @initialize(held=st.lists(triple, max_size=30), told=texts, is_sorted=st.booleans())
    def start(self, held: list[Triple], told: dict[str, str], is_sorted: bool) -> None:
        self.graph = MemoryGraph(held, told)
        self.expected = Expected()
        self.expected.add(held, told)
        self.gone = list[Triple]()
        if is_sorted:
            merge(self.graph)

    def add_both(self, added: list[Triple], told: dict[str, str]) -> None:
        self.graph.add(added, told)
        self.expected.add(added, told)

    def remove_both(self, dropped: list[Triple], gone: list[str]) -> None:
        before = set(self.expected.triples)
        self.graph.remove(dropped, gone)
        self.expected.remove(dropped, gone)
        self.gone += sorted(before - set(self.expected.triples))

    @rule(added=triples, told=texts, ask=asked)
    def add(self, added: list[Triple], told: dict[str, str], ask: Asked) -> None:
        self.add_both(added, told)
        check(self.graph, self.expected, *ask)

    @rule(source=random_source, num=st.integers(1, 4), unknown=triples, ask=asked)
    def remove(self, source: random.Random, num: int, unknown: list[Triple], ask: Asked) -> None:
        held = list(self.expected.triples)
        self.remove_both([*source.sample(held, min(num, len(held))), *unknown[:1]], [])
        check(self.graph, self.expected, *ask)

    @rule(gone=st.lists(names, min_size=1, max_size=2), ask=asked)
    def remove_entities(self, gone: list[str], ask: Asked) -> None:
        self.remove_both([], gone)
        check(self.graph, self.expected, *ask)

    @precondition(lambda self: self.gone)
    @rule(num=st.integers(1, 3), ask=asked)
    def put_back(self, num: int, ask: Asked) -> None:
        self.add_both(self.gone[-num:], {})
        del self.gone[-num:]
        check(self.graph, self.expected, *ask)

    @rule(held=st.lists(triple, max_size=12), told=texts, is_sorted=st.booleans(), ask=asked)
    def replace(
        self, held: list[Triple], told: dict[str, str], is_sorted: bool, ask: Asked
    ) -> None:
        self.graph.replace(held, told)
        self.expected.replace(held, told)
        if is_sorted:
            merge(self.graph)
        check(self.graph, self.expected, *ask)

    @rule(ask=asked)
    def embed(self, ask: Asked) -> None:
        waiting = set(self.expected.names) - self.expected.embedded
        assert self.graph.embed(embed, batch=2) == len(waiting)
        self.expected.embedded |= waiting
        check(self.graph, self.expected, *ask)

    @rule(ask=asked)
    def merge(self, ask: Asked) -> None:
        merge(self.graph)
        check(self.graph, self.expected, *ask)

    @rule(source=random_source, added=triples, told=texts, gone=names, ask=asked)
    def edit_during_a_merge(
        self,
        source: random.Random,
        added: list[Triple],
        told: dict[str, str],
        gone: str,
        ask: Asked,
    ) -> None:
        held = list(self.expected.triples)

        def edit() -> None:
            self.remove_both(source.sample(held, min(2, len(held))), [gone])
            self.add_both([*added, *self.gone[-1:]], told)

        merge(self.graph, edit)
        check(self.graph, self.expected, *ask)

    @rule()
    def save_and_load(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "g"
            self.graph.save(path)
            loaded = MemoryGraph.load(path)
        assert list(loaded.view().names) == self.expected.names
        assert len(loaded) == len(self.expected.triples)

    @rule(
        how=st.sampled_from(
            [copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))]
        ),
        ask=asked,
    )
    def copy(self, how: Any, ask: Asked) -> None:
        before, self.graph = self.graph, how(self.graph)
        before.remove(entities=ENTITIES)
        check(self.graph, self.expected, *ask)


def test_any_edits_and_merges_find_what_a_new_graph_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_AT_ONCE", math.inf)
    EditedGraph.TestCase.settings = settings(
        max_examples=16,
        stateful_step_count=16,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    EditedGraph.TestCase().runTest()


def test_an_entity_of_a_text_alone_goes_with_it() -> None:
    held = [("a", "r", str(number)) for number in range(9)]
    graph, expected = MemoryGraph(held, {"c a b": "told"}), Expected()
    expected.add(held, {"c a b": "told"})
    graph.view()
    graph.remove(entities=["c a b"])
    expected.remove((), ["c a b"])
    assert len(graph.view().base.texts) == 1, "nothing was merged"
    for _ in range(2):
        check(graph, expected, ["c a b", "a"], 2, {"relations": None, "fan_out": 32})
        merge(graph)

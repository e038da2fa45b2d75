"""Edits of a real Neo4j while property graph programs ask it: each finds what is there."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

pytest.importorskip("llama_index.graph_stores.neo4j")

from li_graph_programs import GraphLLM
from li_graph_stores import NEO4J_MARKS, same, words
from li_programs import run_in_loop
from llama_index.core.graph_stores.types import EntityNode, Relation
from llama_index.core.indices.property_graph import LLMSynonymRetriever, PGRetriever
from llama_index.graph_stores.neo4j import Neo4jPropertyGraphStore

from llama_index_rag_accel import accelerate
from rag_accel import Accelerator

AT_ONCE = 16
ROUNDS = 8
#: rounds after which the edits of a thread should long have been seen
MANY_ROUNDS = 200

pytestmark = NEO4J_MARKS


def test_edits_between_requests_are_seen(
    graph_store: Neo4jPropertyGraphStore, accelerator: Accelerator
) -> None:
    program = words(graph_store, "E1", path_depth=1)
    before = same(program, accelerator)
    graph_store.upsert_relations([Relation(label="new", source_id="E1", target_id="E2")])
    assert same(program, accelerator) != before
    graph_store.delete(entity_names=["E1"])
    assert same(program, accelerator) == []


class Editor:
    """A thread that edits a graph all the while, and knows how many edits are complete.

    An edit changes one property of one relation, which is all that the server changes at once for
    those who read, and upserts and deletes a triplet apart from it.
    """

    def __init__(self, store: Neo4jPropertyGraphStore) -> None:
        self._store = store
        self._is_over = threading.Event()
        self.begun = self.completed = 0
        store.upsert_nodes([EntityNode(name=name) for name in ("Hub", "Rim", "Apart", "Aside")])
        store.upsert_relations([Relation(label="turns", source_id="Hub", target_id="Rim")])
        self._set(0)

    @contextmanager
    def editing(self) -> Iterator[None]:
        """Edit until the block ends; raise what an edit raises."""
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(self._edit)
            try:
                yield
            finally:
                self._is_over.set()
        running.result()

    def _edit(self) -> None:
        while not self._is_over.is_set():
            self.begun += 1
            self._set(self.begun)
            self.completed = self.begun
            relation = Relation(label="apart", source_id="Apart", target_id="Aside")
            self._store.upsert_relations([relation])
            self._store.delete(relation_names=["apart"])

    def _set(self, number: int) -> None:
        query = "MATCH (:__Entity__ {id: 'Hub'})-[r:turns]->() SET r.at = $number"
        self._store.structured_query(query, {"number": number})


def turns(store: Neo4jPropertyGraphStore) -> PGRetriever:
    """Return a retriever whose answer shows how many edits it has seen."""
    sub = LLMSynonymRetriever(
        store, include_text=False, include_properties=True, llm=GraphLLM(words="hub")
    )
    return PGRetriever([sub])


def seen_in(nodes: list[Any]) -> int:
    """Return the number of the last edit that an answer shows, which is one triplet."""
    (node,) = nodes
    shown = re.fullmatch(r"Hub .* -> turns \(\{'at': (\d+)\}\) -> Rim .*", node.text)
    assert shown, node.text
    return int(shown[1])


Asked = tuple[int, int, int]


def in_threads(program: Any, editor: Editor) -> list[Asked]:
    """Ask in several threads at once; return what was complete, seen and begun for each."""

    def ask(question: str) -> Asked:
        completed = editor.completed
        return completed, seen_in(program.retrieve(question)), editor.begun

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(ask, ["What turns?"] * AT_ONCE))


def on_a_loop(program: Any, editor: Editor) -> list[Asked]:
    """Do as ``in_threads`` on one loop."""

    async def ask(question: str) -> Asked:
        completed = editor.completed
        return completed, seen_in(await program.aretrieve(question)), editor.begun

    async def all_at_once() -> list[Asked]:
        return await asyncio.gather(*(ask("What turns?") for _ in range(AT_ONCE)))

    return run_in_loop(all_at_once())


@pytest.mark.cross_product(keep=2)
@pytest.mark.parametrize("is_accelerated", [False, True])
@pytest.mark.parametrize("ask", [in_threads, on_a_loop])
def test_equal_questions_see_every_edit_that_was_complete_when_they_were_asked(
    graph_store: Neo4jPropertyGraphStore,
    accelerator: Accelerator,
    ask: Callable[[Any, Editor], list[Asked]],
    is_accelerated: bool,
) -> None:
    editor = Editor(graph_store)
    program: Any = turns(graph_store)
    if is_accelerated:
        program = accelerate(program, accelerator=accelerator)
    states = set[int]()
    with editor.editing():
        for number in range(MANY_ROUNDS):
            for completed, seen, begun in ask(program, editor):
                assert completed <= seen <= begun
                states.add(seen)
            if number >= ROUNDS and len(states) > 2:
                break
    assert len(states) > 2
    assert seen_in(program.retrieve("What turns?")) == editor.completed

"""Hops of LlamaIndex's graph retrievers: what each finds alone, in steps that all callers share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from idle_accelerators import soon_idle
from li_graph_programs import AskedGraph, GraphLLM, filled, found, vectors
from li_programs import HashEmbedding, run_in_loop
from llama_index.core.graph_stores import SimplePropertyGraphStore
from llama_index.core.graph_stores.types import (
    KG_SOURCE_REL,
    TRIPLET_SOURCE_KEY,
    EntityNode,
    Relation,
)
from llama_index.core.indices.property_graph import (
    LLMSynonymRetriever,
    PGRetriever,
    VectorContextRetriever,
)
from llama_index.core.schema import TextNode

from llama_index_rag_accel import accelerate, activate, explain
from rag_accel import Accelerator
from rag_accel.adoption.triplets import TripletView
from rag_accel_adapters.llama_index import graph_stores

AT_ONCE = 16
QUESTIONS = [f"What does E{at} lead to?" for at in range(AT_ONCE)]
#: searches of an unchanged store before its triplets are indexed
WARM = 2


@pytest.fixture(autouse=True)
def any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let steps be shared over small stores, too."""
    monkeypatch.setattr(graph_stores, "MIN_TRIPLETS", 1)
    monkeypatch.setattr(graph_stores, "MIN_SHARED_TRIPLETS", 1)


def context(store: Any, **options: Any) -> VectorContextRetriever:
    """Return a retriever by vectors."""
    embedding = HashEmbedding()
    options = {"path_depth": 2, "limit": 50, **options}
    return VectorContextRetriever(
        store, embed_model=embedding, vector_store=vectors(embedding), **options
    )


def synonyms(store: Any, **options: Any) -> LLMSynonymRetriever:
    """Return a retriever by words of a model."""
    return LLMSynonymRetriever(store, llm=GraphLLM(), **{"path_depth": 2, **options})


def together(program: Any, questions: list[str]) -> list[Any]:
    """Return what tasks of one loop find, each what ``found`` shows."""

    async def all_at_once() -> list[Any]:
        return await asyncio.gather(*(program.aretrieve(one) for one in questions))

    return [found(nodes) for nodes in run_in_loop(all_at_once())]


def steps(accelerator: Accelerator) -> tuple[int, int]:
    """Return the steps of all engines of hops, and the hops that they made."""
    engines = accelerator.metrics.snapshot()["engines"]
    ours = [counts for name, counts in engines.items() if name.startswith("graph#")]
    return sum(one["steps"] for one in ours), sum(one["hop_requests"] for one in ours)


def shared(accelerator: Accelerator, hops: int) -> bool:
    """Tell whether so many hops were made, each step by several callers.

    A quiet machine takes one step a hop; a busy one may begin before the last callers are there.
    """
    num_steps, num_hops = steps(accelerator)
    return num_hops == hops and 0 < num_steps <= hops // 2


def warm(program: Any) -> None:
    """Have the triplets of a program's store indexed."""
    for _ in range(WARM):
        program.retrieve(QUESTIONS[0])


def alone(program: Any) -> list[Any]:
    """Return what a plain program finds for each question."""
    return [found(program.retrieve(question)) for question in QUESTIONS]


MAKE: dict[str, Callable[..., Any]] = {"context": context, "synonyms": synonyms}


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("name", MAKE)
def test_callers_on_one_loop_share_steps(accelerator: Accelerator, name: str, depth: int) -> None:
    store = filled(SimplePropertyGraphStore())
    program = PGRetriever([MAKE[name](store, path_depth=depth, limit=10_000)])
    plain = alone(program)
    assert all(plain)
    fast = accelerate(program, accelerator=accelerator)
    warm(fast)
    assert together(fast, QUESTIONS) == plain
    assert shared(accelerator, AT_ONCE * depth)


Edge = tuple[int, int, int]
EDGES = st.lists(st.tuples(st.integers(0, 11), st.integers(0, 3), st.integers(0, 11)), max_size=30)
LABELS = ("r0", "r1", "r2", KG_SOURCE_REL)


def store_of(edges: list[Edge]) -> SimplePropertyGraphStore:
    """Return a store with loops, ignored relations, and triplets with a source and without."""
    store = SimplePropertyGraphStore()
    store.upsert_llama_nodes([TextNode(text="A chunk.", id_="c0")])  # type: ignore[list-item]
    store.upsert_nodes(
        [
            EntityNode(name=f"E{at}", properties={TRIPLET_SOURCE_KEY: "c0"} if at % 2 else {})
            for at in range(12)
        ]
    )
    store.upsert_relations(
        [
            Relation(label=LABELS[label], source_id=f"E{head}", target_id=f"E{tail}")
            for head, label, tail in edges
        ]
    )
    return store


@pytest.mark.parametrize("is_active", [False, True], ids=["accelerated", "activated"])
def test_random_stores_give_what_each_caller_finds_alone(
    accelerator: Accelerator, is_active: bool
) -> None:
    num_hops = 0

    @settings(max_examples=15, deadline=None)
    @given(
        EDGES,
        st.integers(0, 3),
        st.sampled_from([1, 3, 30]),
        st.booleans(),
        st.booleans(),
        st.sampled_from([None, 0.2]),
    )
    def check(
        edges: list[Edge], depth: int, limit: int, text: bool, properties: bool, least: float | None
    ) -> None:
        options = {
            "path_depth": depth,
            "limit": limit,
            "include_text": text,
            "include_properties": properties,
        }
        store = store_of(edges)
        program = PGRetriever(
            [context(store, similarity_score=least, **options), synonyms(store, **options)]
        )
        plain = alone(program)
        if is_active:
            with activate(accelerator):
                warm(program)
                assert together(program, QUESTIONS) == plain
        else:
            fast = accelerate(program, accelerator=accelerator)
            warm(fast)
            assert together(fast, QUESTIONS) == plain
        nonlocal num_hops
        num_hops = max(num_hops, steps(accelerator)[1])

    check()
    assert num_hops


@pytest.mark.parametrize("use_async", [True, False])
def test_callers_in_threads_find_what_each_finds_alone(
    accelerator: Accelerator, use_async: bool
) -> None:
    store = filled(SimplePropertyGraphStore())
    program = PGRetriever([context(store)], use_async=use_async)
    plain = alone(program)
    fast = accelerate(program, accelerator=accelerator)
    warm(fast)
    searches = graph_stores.shared(store)
    assert searches is not None
    # As long as somebody else searches, each caller asks for a step.
    with searches.graph.joined(), ThreadPoolExecutor(AT_ONCE) as pool:
        assert [found(nodes) for nodes in pool.map(fast.retrieve, QUESTIONS)] == plain
    num_steps, num_hops = steps(accelerator)
    assert 2 <= num_steps <= num_hops == 2 * AT_ONCE


def test_a_caller_that_blocks_its_loop_takes_no_step(accelerator: Accelerator) -> None:
    store = filled(SimplePropertyGraphStore())
    program = PGRetriever([context(store)], use_async=False)
    plain = alone(program)
    fast = accelerate(program, accelerator=accelerator)
    warm(fast)
    searches = graph_stores.shared(store)
    assert searches is not None

    async def blocking() -> list[Any]:
        return [found(fast.retrieve(question)) for question in QUESTIONS]

    with searches.graph.joined():
        assert run_in_loop(blocking()) == plain
    assert steps(accelerator) == (0, 0)


def _link(store: SimplePropertyGraphStore) -> None:
    store.upsert_relations([Relation(label="r9", source_id="E1", target_id="E2")])


CHANGES: dict[str, Callable[[SimplePropertyGraphStore], object]] = {
    "relation added": _link,
    "triplets taken out": lambda store: store.graph.triplets.difference_update(
        [one for one in store.graph.triplets if "E1" in one]
    ),
    "triplets deleted": lambda store: store.delete(relation_names=["r1"]),
    "node replaced": lambda store: store.upsert_nodes(
        [EntityNode(name="E1", properties={TRIPLET_SOURCE_KEY: "c4"})]
    ),
    "renamed in place": lambda store: setattr(store.graph.nodes["E1"], "name", "renamed"),
    "other graph": lambda store: setattr(
        store, "graph", filled(SimplePropertyGraphStore(), 5).graph
    ),
}


@pytest.mark.parametrize("how", CHANGES)
def test_a_change_between_questions_is_seen_by_the_next(accelerator: Accelerator, how: str) -> None:
    store = filled(SimplePropertyGraphStore())
    program = PGRetriever([context(store)])
    fast = accelerate(program, accelerator=accelerator)
    warm(fast)
    before = together(fast, QUESTIONS)
    CHANGES[how](store)
    expected = _alone_or_error(program)
    for _ in range(3):
        assert _together_or_error(fast) == expected
    assert expected != before


def test_the_first_relation_of_a_node_is_seen_by_the_next_question(
    accelerator: Accelerator,
) -> None:
    store = store_of([(8, 0, 9), (9, 1, 10)])  # none of the nodes that the model names
    program = PGRetriever([synonyms(store)])
    fast = accelerate(program, accelerator=accelerator)
    warm(fast)
    assert not any(together(fast, QUESTIONS))
    _link(store)
    expected = alone(program)
    assert all(expected)
    assert together(fast, QUESTIONS) == expected


def _alone_or_error(program: Any) -> Any:
    try:
        return alone(program)
    except (KeyError, ValueError) as error:
        return type(error), str(error)


def _together_or_error(program: Any) -> Any:
    try:
        return together(program, QUESTIONS)
    except (KeyError, ValueError) as error:
        return type(error), str(error)


@pytest.mark.parametrize("how", ["relation added", "triplets taken out"])
def test_a_change_before_the_first_hop_is_made_is_seen(
    accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    store = filled(SimplePropertyGraphStore())
    program = PGRetriever([context(store, include_text=False)])
    fast = accelerate(program, accelerator=accelerator)
    warm(fast)
    changes = iter([CHANGES[how]])
    expand = TripletView.expand

    def changed_first(view: TripletView, asked: Any) -> Any:
        for change in changes:
            change(store)
        return expand(view, asked)

    monkeypatch.setattr(TripletView, "expand", changed_first)
    answers = together(fast, QUESTIONS)
    assert answers == alone(program)
    assert shared(accelerator, AT_ONCE)


@pytest.mark.parametrize("how", ["relation added", "triplets taken out"])
def test_a_change_between_two_hops_leaves_one_state_or_the_other(
    accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    store = filled(SimplePropertyGraphStore())
    program = PGRetriever([context(store, include_text=False)])
    before = alone(program)
    fast = accelerate(program, accelerator=accelerator)
    warm(fast)
    changes = iter([CHANGES[how]])
    expand = TripletView.expand

    def changed_after(view: TripletView, asked: Any) -> Any:
        edges = expand(view, asked)
        for change in changes:
            change(store)
        return edges

    monkeypatch.setattr(TripletView, "expand", changed_after)
    answers = together(fast, QUESTIONS)
    after = alone(program)
    for answer, *states in zip(answers, before, after, strict=True):
        assert answer in states
    assert before != after


class OtherContext(VectorContextRetriever):
    """A subclass of the program's, which changes nothing."""


def _patched(store: Any, **options: Any) -> Any:
    retriever = context(store, **options)
    retriever._get_kg_ids = retriever._get_kg_ids  # type: ignore[method-assign]
    return retriever


def _patched_store(store: Any, **options: Any) -> Any:
    store.get_rel_map = store.get_rel_map
    return context(store, **options)


def _subclass(store: Any, **options: Any) -> Any:
    embedding = HashEmbedding()
    return OtherContext(
        store, embed_model=embedding, vector_store=vectors(embedding), path_depth=2, **options
    )


LEFT: dict[str, tuple[Callable[..., Any], type[Any], str]] = {
    "subclass": (_subclass, SimplePropertyGraphStore, "OtherContext is not one of LlamaIndex's"),
    "patched": (_patched, SimplePropertyGraphStore, "one of its methods was replaced"),
    "other store": (context, AskedGraph, "AskedGraph, which is asked itself"),
    "patched store": (
        _patched_store,
        SimplePropertyGraphStore,
        "the searches of its store are not those that are known",
    ),
}


@pytest.mark.parametrize("how", LEFT)
def test_what_is_not_known_stays_as_it_is_and_says_why(accelerator: Accelerator, how: str) -> None:
    make, cls, reason = LEFT[how]
    program = PGRetriever([make(filled(cls()), include_text=False)])
    plain = alone(program)
    fast = accelerate(program, accelerator=accelerator)
    warm(fast)
    assert together(fast, QUESTIONS) == plain
    assert steps(accelerator) == (0, 0)
    (line,) = [one for one in explain(fast).splitlines() if "no graph retrieval" in one]
    assert reason in line


def test_a_method_replaced_in_the_class_is_called(
    accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = PGRetriever([context(filled(SimplePropertyGraphStore()))])
    fast = accelerate(program, accelerator=accelerator)
    warm(fast)
    assert "graph retrieval: once its store" in explain(fast)
    monkeypatch.setattr(VectorContextRetriever, "_get_kg_ids", lambda self, nodes: ["E3"])
    expected = alone(program)
    assert together(fast, QUESTIONS) == expected
    assert steps(accelerator) == (0, 0)
    assert "one of its methods was replaced" in explain(fast)


def test_a_cancelled_caller_leaves_the_others_their_step(accelerator: Accelerator) -> None:
    program = PGRetriever([context(filled(SimplePropertyGraphStore()))])
    plain = alone(program)
    fast = accelerate(program, accelerator=accelerator)
    warm(fast)

    async def one_gives_up() -> list[Any]:
        tasks = [asyncio.ensure_future(fast.aretrieve(question)) for question in QUESTIONS]
        await asyncio.sleep(0)
        tasks[3].cancel()
        return await asyncio.gather(*tasks, return_exceptions=True)

    ended = run_in_loop(one_gives_up())
    assert isinstance(ended.pop(3), asyncio.CancelledError)
    assert [found(nodes) for nodes in ended] == [*plain[:3], *plain[4:]]
    assert soon_idle(accelerator)


def test_an_error_of_the_engine_leaves_each_search_to_its_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program = PGRetriever([context(filled(SimplePropertyGraphStore()))])
    plain = alone(program)

    def fail(*_: Any) -> Any:
        raise RuntimeError("damaged")

    with Accelerator() as accelerator:
        fast = accelerate(program, accelerator=accelerator)
        warm(fast)
        monkeypatch.setattr(TripletView, "expand", fail)
        assert together(fast, QUESTIONS) == plain
        assert sum(accelerator.bypassed.values()) == AT_ONCE


def test_tenants_share_no_step(accelerator: Accelerator) -> None:
    program = PGRetriever([context(filled(SimplePropertyGraphStore()))])
    plain = alone(program)
    with Accelerator(strict=True, namespace="other") as other:
        both = [accelerate(program, accelerator=one) for one in (accelerator, other)]
        for fast in both:
            warm(fast)

        async def all_at_once() -> list[Any]:
            asked = [fast.aretrieve(question) for fast in both for question in QUESTIONS]
            return await asyncio.gather(*asked)

        given = [found(nodes) for nodes in run_in_loop(all_at_once())]
        assert given == [*plain, *plain]
        assert shared(accelerator, 2 * AT_ONCE)
        assert shared(other, 2 * AT_ONCE)

"""A large ``SimpleVectorStore`` is searched by an engine, and finds what it finds by itself."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from li_programs import EchoLLM, HashEmbedding, nodes_of, recording, run_in_loop
from li_stores import (
    COUNT,
    DIMENSION,
    aoutcome,
    node,
    outcome,
    question,
    searched,
    store_of,
    vectors,
)
from llama_index.core import VectorStoreIndex
from llama_index.core.base.embeddings import base
from llama_index.core.indices.query import embedding_utils
from llama_index.core.schema import TextNode
from llama_index.core.vector_stores import MetadataFilter, MetadataFilters, simple
from llama_index.core.vector_stores.simple import SimpleVectorStore
from llama_index.core.vector_stores.types import (
    VectorStoreQuery,
    VectorStoreQueryMode,
)

from llama_index_rag_accel import accelerate, activate
from llama_index_rag_accel.owned_search import is_recognised
from rag_accel import Accelerator
from rag_accel.adoption import store_copies

# Upstream divides by the length of zero vectors.
pytestmark = pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")


@pytest.fixture
def any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a copy be made of stores of any size, at the first search."""
    monkeypatch.setattr(store_copies, "MIN_ENTRIES", 1)
    monkeypatch.setattr(store_copies, "MIN_NUMBERS", 1)
    monkeypatch.setattr(store_copies, "SEARCHES", 0)


@pytest.fixture
def store() -> SimpleVectorStore:
    """Give a store of random vectors."""
    return store_of(vectors(COUNT, seed=5))


@pytest.mark.usefixtures("any_size")
@pytest.mark.parametrize("k", [1, 4, COUNT - 1, COUNT, COUNT + 1])
def test_a_search_finds_what_the_store_finds(
    store: SimpleVectorStore, accelerator: Accelerator, k: int
) -> None:
    asked = [question(one, k) for one in vectors(4)]
    plain = [outcome(store, one) for one in asked]
    with activate(accelerator):
        assert [outcome(store, one) for one in asked] == plain
    fast = accelerate(store, accelerator=accelerator)
    assert [outcome(fast, one) for one in asked] == plain
    assert searched(accelerator) == 8


@pytest.mark.usefixtures("any_size")
def test_coroutines_find_the_same_in_shared_steps(
    store: SimpleVectorStore, accelerator: Accelerator
) -> None:
    asked = [question(one) for one in vectors(32)]
    plain = [store.query(one) for one in asked]
    fast = accelerate(store, accelerator=accelerator)

    async def search() -> Any:
        return await asyncio.gather(*map(fast.aquery, asked))

    assert run_in_loop(search()) == plain
    engines: Any = accelerator.metrics.snapshot()["engines"]
    (engine,) = (one for name, one in engines.items() if name.startswith("retrieval#"))
    assert engine["items"] == 32
    assert engine["steps"] < 32


@pytest.mark.usefixtures("any_size")
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_a_program_over_the_store_shows_the_same(accelerator: Accelerator, is_async: bool) -> None:
    nodes = [TextNode(id_=str(number), text=f"text {number}") for number in range(40)]
    index = VectorStoreIndex(nodes, embed_model=HashEmbedding())
    plain = index.as_query_engine(llm=EchoLLM(), similarity_top_k=3)

    def ask(engine: Any) -> Any:
        answer = run_in_loop(engine.aquery("when?")) if is_async else engine.query("when?")
        return str(answer), nodes_of(answer)

    with recording() as expected:
        answer = ask(plain)
    with recording() as found:
        assert ask(accelerate(plain, accelerator=accelerator)) == answer
    assert found == expected
    assert searched(accelerator) == 1


FEW = st.lists(st.integers(-2, 2), min_size=2, max_size=2)
CHANGE = st.tuples(
    st.sampled_from(["add", "delete", "again", "replace", "shared", "clear"]),
    st.integers(0, 9),
    FEW,
)


def change(store: SimpleVectorStore, how: str, number: int, numbers: list[int]) -> None:
    """Change a store in one of the ways in which programs do."""
    id_, held = str(number), store.data.embedding_dict
    row = [*map(float, numbers), *[0.0] * (DIMENSION - 2)]
    if how == "delete":
        store.delete(f"document {id_}")
    elif how == "again":
        store.delete_nodes([id_])
        store.add([node(id_, row)])
    elif how == "shared" and held:
        store.add([node(id_, row)])
        held[id_] = next(iter(held.values()))
    elif how == "clear" and number == 0:
        store.clear()
    else:
        store.add([node(id_, row)])


@pytest.mark.usefixtures("any_size")
@settings(max_examples=15)
@given(changes=st.lists(CHANGE, max_size=20), numbers=FEW, k=st.integers(1, 6))
def test_ties_zeros_and_changes_come_out_as_the_store_has_them(
    changes: list[tuple[str, int, list[int]]], numbers: list[int], k: int
) -> None:
    store = store_of([])
    asked = question([1.5 + numbers[0], 0.7 + numbers[1], *[0.0] * (DIMENSION - 2)], k)
    with Accelerator(strict=True) as accelerator:
        for one in changes:
            change(store, *one)
            plain = outcome(store, asked)
            with activate(accelerator):
                assert outcome(store, asked) == plain


@pytest.mark.usefixtures("any_size")
@pytest.mark.parametrize(
    "odd",
    [
        [0.0] * DIMENSION,
        [1e-200] * DIMENSION,
        [1e200] * DIMENSION,
        [float("nan")] * DIMENSION,
        [float("inf"), *[1.0] * (DIMENSION - 1)],
        [1] * DIMENSION,
        [1.0] * (DIMENSION + 1),
        np.ones(DIMENSION, dtype=np.float32),
        None,
    ],
    ids=["zero", "tiny", "huge", "nan", "infinity", "integers", "longer", "array", "none"],
)
@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
def test_odd_vectors_and_queries_are_left_to_the_store(
    store: SimpleVectorStore, accelerator: Accelerator, odd: Any
) -> None:
    (usual,) = vectors(1)
    plain = outcome(store, question(odd))
    with activate(accelerator):
        assert outcome(store, question(odd)) == plain
    store.data.embedding_dict["odd"] = odd
    plain = outcome(store, question(usual))
    with activate(accelerator):
        assert outcome(store, question(usual)) == plain
        assert outcome(store, question(usual)) == plain
    assert searched(accelerator) == 0


@pytest.mark.usefixtures("any_size")
@pytest.mark.parametrize("k", [0, -1, None, True, 2.5, "2"])
def test_an_odd_count_means_what_it_means_to_the_store(
    store: SimpleVectorStore, accelerator: Accelerator, k: Any
) -> None:
    asked = question(vectors(1)[0], k)
    plain = outcome(store, asked)
    with activate(accelerator):
        assert outcome(store, asked) == plain
    assert searched(accelerator) == 0


MORE: dict[str, dict[str, Any]] = {
    "mmr": {"mode": VectorStoreQueryMode.MMR},
    "svm": {"mode": VectorStoreQueryMode.SVM},
    "another mode": {"mode": VectorStoreQueryMode.SPARSE},
    "node ids": {"node_ids": ["3", "7", "11", "none"]},
    "no node": {"node_ids": []},
    "filter": {"filters": MetadataFilters(filters=[MetadataFilter(key="last", value="7")])},
}


@pytest.mark.usefixtures("any_size")
@pytest.mark.parametrize("more", MORE)
def test_other_questions_are_the_stores_own(
    store: SimpleVectorStore, accelerator: Accelerator, more: str
) -> None:
    asked = question(vectors(1)[0], **MORE[more])
    plain = outcome(store, asked)
    fast = accelerate(store, accelerator=accelerator)
    assert outcome(fast, asked) == plain
    assert run_in_loop(aoutcome(fast, asked)) == plain
    assert searched(accelerator) == 0


@pytest.mark.usefixtures("any_size")
def test_only_stores_that_search_as_upstreams_are_recognised(accelerator: Accelerator) -> None:
    class Renamed(SimpleVectorStore):
        def add(self, nodes: Any, **kwargs: Any) -> list[str]:
            return super().add(list(nodes), **kwargs)

    class Backwards(SimpleVectorStore):
        def query(self, query: VectorStoreQuery, **kwargs: Any) -> Any:
            found = super().query(query, **kwargs)
            return type(found)(ids=(found.ids or [])[::-1], similarities=found.similarities)

    assert is_recognised(Renamed)
    assert is_recognised(type(accelerate(Renamed(), accelerator=accelerator)))
    assert not is_recognised(Backwards)
    other = Backwards(store_of(vectors(40)).data)
    plain = outcome(other, question(vectors(1)[0]))
    with activate(accelerator):
        assert outcome(other, question(vectors(1)[0])) == plain
    assert searched(accelerator) == 0


@pytest.mark.usefixtures("any_size")
@pytest.mark.parametrize(
    ("module", "name"),
    [
        (simple, "get_top_k_embeddings"),
        (simple, "build_metadata_filter_fn"),
        (embedding_utils, "default_similarity_fn"),
        (base, "similarity"),
        (SimpleVectorStore, "query"),
    ],
)
def test_a_function_of_upstreams_that_was_replaced_is_the_one_that_runs(
    store: SimpleVectorStore,
    accelerator: Accelerator,
    monkeypatch: pytest.MonkeyPatch,
    module: Any,
    name: str,
) -> None:
    calls, original = list[str](), getattr(module, name)

    def counted(*args: Any, **kwargs: Any) -> Any:
        calls.append(name)
        return original(*args, **kwargs)

    asked = question(vectors(1)[0])
    with monkeypatch.context() as patch:
        patch.setattr(module, name, counted)
        plain, num_calls = outcome(store, asked), len(calls)
        calls.clear()
        with activate(accelerator):
            assert outcome(store, asked) == plain
        assert len(calls) == num_calls
    assert searched(accelerator) == 0

"""What is changed of a store, or put in the place of its functions, while searches go on."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from idle_accelerators import soon_idle
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.vectorstores import InMemoryVectorStore, in_memory, utils

from langchain_rag_accel import activate
from rag_accel import Accelerator
from rag_accel.adoption import store_copies

DIMENSION = 8
COUNT = 60
QUERY = [1.0, 0.5, *[0.0] * (DIMENSION - 2)]
NEAR, FAR = QUERY, [-one for one in QUERY]


@pytest.fixture(autouse=True)
def any_store_is_adopted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a copy be made of stores of any size, at the first search."""
    monkeypatch.setattr(store_copies, "MIN_ENTRIES", 1)
    monkeypatch.setattr(store_copies, "MIN_NUMBERS", 1)
    monkeypatch.setattr(store_copies, "SEARCHES", 0)


@pytest.fixture
def store() -> InMemoryVectorStore:
    """Give a store of random vectors, with one near the query and one far from it."""
    made = InMemoryVectorStore(DeterministicFakeEmbedding(size=DIMENSION))
    for number, row in enumerate(np.random.default_rng(5).normal(size=(COUNT, DIMENSION))):
        put(made, str(number), row.tolist())
    put(made, "near", list(NEAR))
    put(made, "far", list(FAR))
    return made


def put(store: InMemoryVectorStore, id: str, vector: Any) -> None:
    """Put an entry into a store beside its methods."""
    store.store[id] = {"id": id, "vector": vector, "text": id, "metadata": {"text": id}}


def searched(accelerator: Accelerator) -> int:
    assert soon_idle(accelerator)
    found: Any = accelerator.metrics.snapshot().get("engines", {})
    return sum(one["items"] for name, one in found.items() if name.startswith("retrieval#"))


async def test_a_task_that_changes_the_store_without_an_await_is_seen_whole_or_not_at_all(
    store: InMemoryVectorStore, accelerator: Accelerator
) -> None:
    torn, is_over = list[str | None](), False
    one, other = store.store["near"], store.store["far"]

    async def swap() -> None:
        while not is_over:
            for part in ("vector", "text", "metadata", "id"):
                one[part], other[part] = other[part], one[part]
            await asyncio.sleep(0)

    async def search() -> None:
        for _ in range(20):
            ((document, score), *_) = await store.asimilarity_search_with_score("q", 1)
            (found,) = await store.asimilarity_search_by_vector(QUERY, 1)
            assert document.metadata["text"] == document.page_content == document.id
            assert score <= 1.0 + 1e-9
            torn.extend(text for text in (found.id, found.page_content) if text != "near")

    with activate(accelerator):
        swapping = asyncio.create_task(swap())
        await asyncio.gather(*(search() for _ in range(8)))
        is_over = True
        await swapping
    assert torn == []


Change = Callable[[InMemoryVectorStore], None]


def nearer(store: InMemoryVectorStore) -> None:
    """Add another vector that is found."""
    put(store, "nearer", [2 * one for one in NEAR])
    store.store["near"]["vector"][0] += 0.01


CHANGES: dict[str, Change] = {
    "added": nearer,
    "deleted": lambda store: store.delete(["near"]),
    "replaced": lambda store: put(store, "near", list(FAR)),
    "vector": lambda store: store.store["near"].update(vector=list(FAR), text="now far"),
    "numbers": lambda store: store.store["near"]["vector"].__setitem__(0, -9.0),
    "numbers and text": lambda store: (
        store.store["near"]["vector"].__setitem__(0, -9.0),
        store.store["near"].update(text="now far"),
    )[0],
    "text": lambda store: store.store["near"].update(text="new text"),
    "metadata": lambda store: store.store["near"].update(metadata={"text": "new"}),
    "another store": lambda store: setattr(
        store, "store", dict(list(store.store.items())[COUNT - 9 : COUNT])
    ),
    "other vectors": lambda store: setattr(store, "store", {"x": {**store.store["far"]}}),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("is_sync", [False, True], ids=["async", "sync"])
async def test_a_change_while_an_engine_searches_is_seen_whole_or_not_at_all(
    store: InMemoryVectorStore,
    accelerator: Accelerator,
    monkeypatch: pytest.MonkeyPatch,
    change: str,
    is_sync: bool,
) -> None:
    async def find() -> Any:
        if is_sync:
            return store.similarity_search_by_vector(QUERY, 3)
        return await store.asimilarity_search_by_vector(QUERY, 3)

    leaves, is_changed = type(accelerator.leaves), False
    original, aoriginal = leaves.compute, leaves.acompute

    def make_change() -> None:
        nonlocal is_changed
        if not is_changed:
            is_changed = True
            CHANGES[change](store)

    def compute(*args: Any) -> Any:
        found = original(*args)
        make_change()
        return found

    async def acompute(*args: Any) -> Any:
        found = await aoriginal(*args)
        make_change()
        return found

    before = await find()
    monkeypatch.setattr(leaves, "compute", compute)
    monkeypatch.setattr(leaves, "acompute", acompute)
    with activate(accelerator):
        found = await find()
    assert is_changed
    assert found in (before, await find())
    if change in {"text", "metadata"}:
        assert found == before  # the moment at which the store was looked at


@pytest.mark.parametrize(
    "name", ["_similarity_search_with_score_by_vector", "similarity_search_with_score_by_vector"]
)
@pytest.mark.parametrize("where", ["instance", "class"])
async def test_a_method_that_was_replaced_is_the_one_that_runs(
    store: InMemoryVectorStore,
    accelerator: Accelerator,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    where: str,
) -> None:
    class Derived(InMemoryVectorStore):
        pass

    store.__class__ = Derived
    with activate(accelerator):
        await store.asimilarity_search_by_vector(QUERY)
        assert searched(accelerator) == 1
        with monkeypatch.context() as patch:
            patch.setattr(store if where == "instance" else Derived, name, lambda *_, **__: [])
            assert await store.asimilarity_search_by_vector(QUERY) == []
            assert await store.asimilarity_search("x") == []
            assert await store.asimilarity_search_with_score("x") == []
            assert store.similarity_search_by_vector(QUERY) == []
        assert searched(accelerator) == 1
        assert len(await store.asimilarity_search_by_vector(QUERY)) == 4
    assert searched(accelerator) == 2


@pytest.mark.parametrize(
    ("module", "name"),
    [
        (in_memory, "cosine_similarity"),
        (in_memory, "maximal_marginal_relevance"),
        (utils, "_cosine_similarity"),
        (utils, "maximal_marginal_relevance"),
    ],
)
async def test_a_function_of_langchains_that_was_replaced_is_the_one_that_runs(
    store: InMemoryVectorStore,
    accelerator: Accelerator,
    monkeypatch: pytest.MonkeyPatch,
    module: Any,
    name: str,
) -> None:
    async def find() -> Any:
        return (
            await store.asimilarity_search_with_score("x"),
            await store.amax_marginal_relevance_search("x"),
            store.similarity_search_with_score("x"),
            store.max_marginal_relevance_search("x"),
        )

    original = getattr(module, name)

    def turned(*args: Any, **kwargs: Any) -> Any:
        found = original(*args, **kwargs)
        return -found if isinstance(found, np.ndarray) else found[:1]

    known = await find()
    with activate(accelerator):
        assert await find() == known
        assert searched(accelerator) == 4
    with monkeypatch.context() as patch:
        patch.setattr(module, name, turned)
        plain = await find()
        with activate(accelerator):
            assert await find() == plain
        assert searched(accelerator) == 4
        is_seen = (module, name) != (utils, "maximal_marginal_relevance")
        assert (plain != known) == is_seen


def test_no_second_matrix_stays(accelerator: Accelerator) -> None:
    count, dimension = 2000, 256
    store = InMemoryVectorStore(DeterministicFakeEmbedding(size=dimension))
    rows = np.random.default_rng(5).normal(size=(count, dimension))
    rows[1] = rows[0]
    for number, row in enumerate(rows.tolist()):
        put(store, str(number), row)
    size = count * dimension * np.dtype(np.float64).itemsize
    tracemalloc.start()
    try:
        plain = store.similarity_search_with_score_by_vector(rows[0].tolist())
        before, _ = tracemalloc.get_traced_memory()
        with activate(accelerator):
            for _ in range(3):
                assert store.similarity_search_with_score_by_vector(rows[0].tolist()) == plain
            after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert searched(accelerator) == 3
    assert after - before < size * 3 / 4

"""A store is given to an owned engine only where that pays; any other search is its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from idle_accelerators import soon_idle
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.vectorstores import InMemoryVectorStore

from langchain_rag_accel import activate
from rag_accel import Accelerator
from rag_accel.adoption import store_copies
from rag_accel_adapters.langchain.stores import IN_MEMORY

DIMENSION = 384
LARGE = 200

Find = Callable[[InMemoryVectorStore, list[float]], Awaitable[Any]]


async def sync(store: InMemoryVectorStore, query: list[float]) -> Any:
    return await asyncio.to_thread(store.similarity_search_with_score, str(query[0]))


async def on_loop(store: InMemoryVectorStore, query: list[float]) -> Any:
    return await store.asimilarity_search_with_score(str(query[0]))


async def diverse(store: InMemoryVectorStore, query: list[float]) -> Any:
    """Search on the loop for documents that differ."""
    return await store.amax_marginal_relevance_search(str(query[0]))


WAYS = pytest.mark.parametrize("find", [sync, on_loop, diverse])


def store_of(count: int) -> InMemoryVectorStore:
    store = InMemoryVectorStore(DeterministicFakeEmbedding(size=DIMENSION))
    add(store, *(str(number) for number in range(count)))
    return store


def add(store: InMemoryVectorStore, *names: str) -> None:
    store.add_texts(list(names), ids=list(names))


def queries(count: int) -> list[list[float]]:
    return np.random.default_rng(3).normal(size=(count, DIMENSION)).tolist()


def searched(accelerator: Accelerator) -> int:
    """Return how many searches an owned engine has done."""
    assert soon_idle(accelerator)
    found: Any = accelerator.metrics.snapshot().get("engines", {})
    return sum(one["items"] for name, one in found.items() if name.startswith("retrieval#"))


async def search(find: Find, store: InMemoryVectorStore, accelerator: Accelerator, n: int) -> int:
    """Search as often, compare with the plain store, and return how often an engine did it."""
    before = searched(accelerator)
    for query in queries(n):
        plain = await find(store, query)
        with activate(accelerator):
            assert await find(store, query) == plain
    return searched(accelerator) - before


@WAYS
async def test_a_large_store_is_adopted_after_three_searches(
    accelerator: Accelerator, find: Find
) -> None:
    store = store_of(LARGE)
    assert await search(find, store, accelerator, 3) == 0
    assert await search(find, store, accelerator, 3) == 3


@WAYS
async def test_a_small_store_is_never_adopted(accelerator: Accelerator, find: Find) -> None:
    store = store_of(LARGE - 1)
    assert await search(find, store, accelerator, 8) == 0
    add(store, "one more")
    assert await search(find, store, accelerator, 5) == 2


@pytest.mark.cross_product(keep=4)
@WAYS
@pytest.mark.parametrize("change", ["add", "delete", "replace", "vector", "order"])
async def test_every_change_starts_the_count_anew(
    accelerator: Accelerator, find: Find, change: str
) -> None:
    def make_change() -> None:
        if change == "add":
            add(store, "new")
        elif change == "delete":
            store.delete(["3"])
        elif change == "replace":
            add(store, "4")
        elif change == "vector":
            store.store["5"]["vector"] = queries(1)[0]
        else:
            store.store["6"] = store.store.pop("6")

    store = store_of(LARGE + 20)
    assert await search(find, store, accelerator, 5) == 2
    make_change()
    assert await search(find, store, accelerator, 3) == 0
    assert await search(find, store, accelerator, 2) == 2


@WAYS
async def test_a_store_made_for_a_request_starts_no_thread(
    accelerator: Accelerator, find: Find
) -> None:
    await search(find, store_of(20), accelerator, 1)  # threads of the loop and the scheduler
    before = set(threading.enumerate())
    for count in (20, LARGE):
        for _ in range(4):
            assert await search(find, store_of(count), accelerator, 2) == 0
    new = [one.name for one in set(threading.enumerate()) - before]
    assert [name for name in new if name.startswith("rag-accel")] == []


async def test_no_vector_of_a_small_store_is_looked_at(
    accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unexpected(*_: Any) -> Any:
        raise AssertionError("looked at")

    for name in ("copy_of", "_dimension", "are_same"):
        monkeypatch.setattr(store_copies, name, unexpected)
    store = store_of(store_copies.MIN_ENTRIES - 1)
    assert await search(on_loop, store, accelerator, 5) == 0


@WAYS
async def test_a_search_that_is_the_stores_own_runs_where_it_runs_plainly(
    accelerator: Accelerator, find: Find
) -> None:
    threads = set[threading.Thread]()
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))  # both meet its thread

    class Entry(dict[str, Any]):
        def __getitem__(self, key: str) -> Any:
            threads.add(threading.current_thread())
            return super().__getitem__(key)

    store = store_of(20)
    store.store = {name: Entry(entry) for name, entry in store.store.items()}
    plain = await find(store, queries(1)[0])
    expected, _ = set(threads), threads.clear()
    with activate(accelerator):
        assert await find(store, queries(1)[0]) == plain
    assert (threading.main_thread() in threads) == (find is not sync)
    assert threads == expected


async def test_a_store_that_shrinks_is_forgotten(accelerator: Accelerator) -> None:
    store = store_of(LARGE)
    assert await search(on_loop, store, accelerator, 4) == 1
    assert store in store_copies._copies
    store.delete([str(number) for number in range(150)])
    assert await search(on_loop, store, accelerator, 1) == 0
    assert store not in store_copies._copies


async def test_tasks_that_search_at_once_are_counted_and_then_share_steps(
    accelerator: Accelerator,
) -> None:
    store = store_of(LARGE)
    plain = [await on_loop(store, query) for query in queries(32)]
    with activate(accelerator):
        first = await asyncio.gather(*(on_loop(store, query) for query in queries(32)))
        assert searched(accelerator) == 0  # each had begun before the third had ended
        then = await asyncio.gather(*(on_loop(store, query) for query in queries(32)))
    assert first == then == plain
    assert searched(accelerator) == 32


async def test_a_copy_that_settles_no_search_is_given_up_until_the_store_changes(
    accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_copies, "MAX_OPEN", 4)
    store = store_of(LARGE)
    for entry in list(store.store.values()):
        entry["vector"] = queries(1)[0]
    assert await search(on_loop, store, accelerator, 3) == 0
    assert await search(on_loop, store, accelerator, 6) == 4  # then it is given up
    assert store_copies.copy_of(IN_MEMORY, store)._copied is None
    add(store, "no tie")
    assert await search(on_loop, store, accelerator, 4) == 1

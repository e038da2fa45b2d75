"""What is changed of a store while an engine searches it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from li_programs import run_in_loop
from li_stores import (
    COUNT,
    DIMENSION,
    aoutcome,
    node,
    outcome,
    question,
    store_of,
    vectors,
)
from llama_index.core.vector_stores.simple import SimpleVectorStore, SimpleVectorStoreData

from llama_index_rag_accel import accelerate, activate
from rag_accel import Accelerator
from rag_accel.recognition import store_copies


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


Change = Callable[[SimpleVectorStore], object]
NEAR, FAR = [1.0] * DIMENSION, [-1.0] * DIMENSION
CHANGES: dict[str, Change] = {
    "added": lambda store: store.add([node("nearer", NEAR)]),
    "deleted": lambda store: store.delete("document near"),
    "replaced": lambda store: store.data.embedding_dict.__setitem__("near", list(FAR)),
    "numbers": lambda store: store.data.embedding_dict["near"].__setitem__(0, -9.0),
    "cleared": lambda store: store.clear(),
    "other data": lambda store: setattr(
        store, "data", SimpleVectorStoreData({"x": list(FAR)}, {"x": "None"}, {"x": {}})
    ),
}


@pytest.mark.usefixtures("any_size")
@pytest.mark.parametrize("how", CHANGES)
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_a_change_while_an_engine_searches_is_seen_whole_or_not_at_all(
    store: SimpleVectorStore,
    accelerator: Accelerator,
    monkeypatch: pytest.MonkeyPatch,
    how: str,
    is_async: bool,
) -> None:
    store.add([node("near", [1.1, *NEAR[1:]])])
    asked, changes = question(list(NEAR), 2), list[str]()
    leaves = type(accelerator.leaves)
    original, aoriginal = leaves.compute, leaves.acompute

    def make_change() -> None:
        if not changes:
            changes.append(how)
            CHANGES[how](store)

    def compute(*args: Any) -> Any:
        found = original(*args)
        make_change()
        return found

    async def acompute(*args: Any) -> Any:
        found = await aoriginal(*args)
        make_change()
        return found

    before = outcome(store, asked)
    monkeypatch.setattr(leaves, "compute", compute)
    monkeypatch.setattr(leaves, "acompute", acompute)
    fast = accelerate(store, accelerator=accelerator)
    if how == "other data":  # of a twin's original, which has its own
        fast = store
    with activate(accelerator):
        found = run_in_loop(aoutcome(fast, asked)) if is_async else outcome(fast, asked)
    assert changes == [how]
    assert found in (before, outcome(store, asked))


@pytest.mark.usefixtures("any_size")
def test_tasks_of_one_loop_change_the_store_between_searches(
    store: SimpleVectorStore, accelerator: Accelerator
) -> None:
    near, is_over = list(NEAR), False
    store.add([node("near", near)])

    async def shuffle() -> None:
        number = 0
        while not is_over:
            store.delete(f"document more {number}")
            number = (number + 1) % 20
            store.add([node(f"more {number}", FAR)])
            await asyncio.sleep(0)

    async def search() -> list[Any]:
        return [(await fast.aquery(question(near, 1))).ids for _ in range(10)]

    async def all_of_them() -> Any:
        nonlocal is_over
        shuffling = asyncio.create_task(shuffle())
        try:
            return await asyncio.gather(*(search() for _ in range(8)))
        finally:
            is_over = True
            await shuffling

    fast = accelerate(store, accelerator=accelerator)
    assert run_in_loop(all_of_them()) == [[["near"]] * 10] * 8


@pytest.mark.usefixtures("any_size")
def test_searches_of_threads_beside_changes_find_what_was_there(
    store: SimpleVectorStore, accelerator: Accelerator
) -> None:
    store.add([node("near", NEAR)])
    held, stop = store.data.embedding_dict, threading.Event()

    def shuffle() -> None:
        while not stop.is_set():
            for number in range(COUNT):  # the dict keeps its size: plain searches iterate over it
                held[str(number)] = list(FAR)

    changer = threading.Thread(target=shuffle)
    with activate(accelerator), ThreadPoolExecutor(4) as pool:
        changer.start()
        try:
            found = list(pool.map(lambda _: store.query(question(NEAR, 1)).ids, range(40)))
        finally:
            stop.set()
            changer.join()
    assert found == [["near"]] * 40

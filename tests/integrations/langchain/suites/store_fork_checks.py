"""Fork while threads search and change a store, use it in each child, and say what came of it.

Not collected: ``test_fork.py`` runs it as ``store_fork_checks.py FORKS``.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from lc_fakes import FakeEmbeddings

from langchain_rag_accel import RagAccelVectorStore, accelerate

GROUP = 4
WAIT_S = 30


def add(store: RagAccelVectorStore, name: str) -> None:
    """Add a group of documents, or put others in their place."""
    texts = [f"{name} {place}" for place in range(GROUP)]
    store.add_texts(texts, [{"group": name}] * GROUP, ids=texts)


def search(store: RagAccelVectorStore) -> None:
    """Check that groups are there whole or not at all."""
    found = store.similarity_search("x", k=10_000)
    assert len(found) % GROUP == 0
    assert len(store.similarity_search("x", k=99, filter={"group": "first"})) == GROUP


def use(store: RagAccelVectorStore) -> None:
    """Do everything in a child."""
    search(store)
    add(store, "child")
    assert len(store.get_by_ids([f"child {place}" for place in range(GROUP)])) == GROUP
    asyncio.run(store.aadd_texts(["more"], ids=["more"]))
    assert len(asyncio.run(store.asimilarity_search("x", k=10_000))) % GROUP == 1
    fast = accelerate(store.as_retriever(search_kwargs={"k": 3}))
    assert len(fast.invoke("x")) == 3
    store.delete(["more"])
    search(store)


def main(forks: int) -> None:
    """Fork, and print the exit status of each child."""
    store = RagAccelVectorStore(FakeEmbeddings())
    add(store, "first")
    stop = threading.Event()

    def work(thread: int) -> None:
        number = 0
        while not stop.is_set():
            number += 1
            if thread % 2:
                search(store)
            else:
                name = f"t{thread}-{number % 20}"
                add(store, name)
                store.delete([f"t{thread}-{(number + 5) % 20} {place}" for place in range(GROUP)])

    statuses: list[int] = []
    with ThreadPoolExecutor(6) as pool:
        working = [pool.submit(work, thread) for thread in range(6)]
        try:
            for _ in range(forks):
                pid = os.fork()
                if pid == 0:
                    signal.alarm(WAIT_S)
                    status = 1
                    try:
                        use(store)
                        status = 0
                    except BaseException as error:
                        sys.excepthook(type(error), error, error.__traceback__)
                    os._exit(status)
                statuses.append(os.waitpid(pid, 0)[1])
        finally:
            stop.set()
        for one in working:
            one.result(WAIT_S)
    search(store)
    print(json.dumps(statuses))


if __name__ == "__main__":
    main(int(sys.argv[1]))

"""Fork while threads search and change an index, use it in each child, and say what came of it.

Not collected: ``test_forked_indexes.py`` runs it as ``forking.py KIND FORKS``.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import faiss
import numpy as np

from rag_accel.engine_api import Document
from rag_accel.engines.retrieval import DocumentIndex, IndexKind, IndexSpec
from rag_accel.engines.retrieval.hybrid.lexical import LexicalIndex
from rag_accel.engines.retrieval.vectors.vectors import thread_count

DIMENSION = 32
GROUP = 5
ALL = 10**6
WAIT_S = 30


def add_group(index: DocumentIndex, name: str, number: int) -> None:
    """Add documents with one vector, or put others in their place."""
    vectors = np.full((GROUP, DIMENSION), number % 7 + 1, dtype=np.float32)
    ids = [f"{name}-{place}" for place in range(GROUP)]
    index.add([Document(id, f"ant {number}", {"group": name}) for id in ids], vectors)


def search(index: DocumentIndex) -> int:
    """Check that every group is there whole or not at all; return how many documents there are."""
    (row,) = index.search(np.ones((1, DIMENSION)), ALL)
    for hit in row:
        number = hit.document.text.removeprefix("ant ")
        assert hit.score == DIMENSION * (int(number) % 7 + 1), hit
    groups = Counter((hit.document.id.rsplit("-", 1)[0], hit.document.text) for hit in row)
    assert set(groups.values()) <= {GROUP}, groups
    assert len(index.search(np.ones((1, DIMENSION)), ALL, where={"group": "old3"})[0]) == GROUP
    return len(row)


def check(index: DocumentIndex, lexical: LexicalIndex) -> None:
    """Check an index that nobody changes, wherever one looks."""
    count = search(index)
    assert count == len(index) == len(lexical.search(["ant"], ALL)[0])


def use(index: DocumentIndex, lexical: LexicalIndex) -> None:
    """Search and change in a child, in the thread that forked and in others."""
    check(index, lexical)
    add_group(index, "child", 3)
    check(index, lexical)
    with thread_count(2):
        index.search(np.ones((50, DIMENSION)), 10)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda number: add_group(index, f"child{number}", number), range(4)))
        pool.submit(check, index, lexical).result(WAIT_S)
    assert index.delete(f"child-{place}" for place in range(GROUP)) == GROUP
    check(index, lexical)
    pid = os.fork()  # and a child of the child
    if pid == 0:
        run(lambda: check(index, lexical))
    assert os.waitpid(pid, 0)[1] == 0


def run(call: Callable[[], Any]) -> None:
    """Make a call and end the process: 0 if all is well, killed by an alarm if it hangs."""
    signal.alarm(WAIT_S)
    status = 1
    try:
        call()
        status = 0
    finally:
        if status:
            sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        os._exit(status)


def main(kind: IndexKind, forks: int) -> None:
    """Fork, and print the exit status of each child."""
    spec = IndexSpec(DIMENSION, kind=kind, num_clusters=4, nprobe=4, train_size=100)
    index = DocumentIndex(spec)
    lexical = LexicalIndex(index)
    for number in range(60):
        add_group(index, f"old{number}", number)
    faiss.omp_set_num_threads(2)
    index.search(np.ones((100, DIMENSION)), 10)  # this thread has worked with others
    stop = threading.Event()

    def work(thread: int) -> None:
        number = 0
        while not stop.is_set():
            number += 1
            if thread % 2:
                search(index)
                lexical.search(["ant"], 1)
            else:
                add_group(index, f"t{thread}-{number % 40}", number)
                index.delete(f"t{thread}-{(number + 9) % 40}-{place}" for place in range(GROUP))

    statuses: list[int] = []
    with ThreadPoolExecutor(6) as pool:
        working = [pool.submit(work, thread) for thread in range(6)]
        try:
            for _ in range(forks):
                pid = os.fork()
                if pid == 0:
                    run(lambda: use(index, lexical))
                statuses.append(os.waitpid(pid, 0)[1])
        finally:
            stop.set()
        for one in working:
            one.result(WAIT_S)
    check(index, lexical)
    print(json.dumps(statuses))


if __name__ == "__main__":
    main(IndexKind(sys.argv[1]), int(sys.argv[2]))

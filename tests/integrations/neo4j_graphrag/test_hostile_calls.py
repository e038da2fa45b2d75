"""Searches that are wrong, interrupted, nested or among many on a real server end as plainly."""

from __future__ import annotations

import threading
from typing import Any

import neo4j
import pytest
from idle_accelerators import soon_idle
from neo4j_graphrag.retrievers import VectorRetriever
from neo4j_graphrag.types import RetrieverResultItem
from ng_kit import (
    ARMS,
    DIMENSION,
    KINDS,
    GraphPrograms,
    HashEmbedder,
    outcome,
    running,
    side_by_side,
    steps,
)

from neo4j_graphrag_rag_accel import accelerate, activate
from rag_accel import Accelerator

pytestmark = pytest.mark.neo4j

ASKED: list[dict[str, Any]] = [
    {"query_text": ""},
    {"query_text": "bridge", "top_k": 0},
    {"query_text": "bridge", "top_k": -1},
    {"query_text": "bridge", "query_vector": [0.5] * DIMENSION},
    {"query_text": "bridge", "filters": {"at": {"$gte": 3}}},
    {"query_text": "bridge", "filters": {"at": {"$unknown": 3}}},
    {"query_text": "bridge", "filters": {}},
    {"query_text": None},
    {"query_vector": []},
]


@pytest.mark.parametrize("kind", KINDS)
def test_a_wrong_search_among_others_ends_as_plainly(
    kind: str, programs: GraphPrograms, accelerator: Accelerator
) -> None:
    plain = programs.retriever(kind)
    calls = [one for asked in ASKED for one in (asked, {"query_text": "bridge"})]
    expected = [outcome(lambda asked=asked: plain.search(**asked)) for asked in calls]
    fast = accelerate(plain, accelerator=accelerator)
    assert side_by_side(lambda asked: fast.search(**asked), calls) == expected
    assert any(isinstance(one, tuple) for one in expected)


def test_two_databases_of_a_server_are_asked_apart(
    programs: GraphPrograms, accelerator: Accelerator
) -> None:
    both = [programs.vector(), programs.vector()]
    both[0].neo4j_database = "another"  # which is not there
    expected = outcome(lambda: both[0].search(query_text="bridge"))
    fast = [accelerate(one, accelerator=accelerator) for one in both]
    found = side_by_side(lambda at: fast[at % 2].search(query_text="bridge"), list(range(8)))
    assert found[::2] == [expected] * 4
    assert issubclass(expected[0], Exception)
    assert found[1::2] == [both[1].search(query_text="bridge")] * 4


@pytest.mark.parametrize("arm", ARMS)
def test_a_formatter_may_search_again(
    arm: str, programs: GraphPrograms, accelerator: Accelerator
) -> None:
    inner = programs.hybrid()

    def form(record: neo4j.Record) -> RetrieverResultItem:
        found = inner.search(query_text=record["node"]["text"][:9].replace('"', ""))
        return RetrieverResultItem(content=str([item.content for item in found.items]))

    plain = VectorRetriever(
        programs.driver, "facts", programs.embedder, ["text"], result_formatter=form
    )
    expected = plain.search(query_text="bridge", top_k=2)
    with running(arm, plain, accelerator) as fast:
        assert fast.search(query_text="bridge", top_k=2) == expected


class SlowEmbedder(HashEmbedder):
    """Says that it has begun, and goes on once it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.over = threading.Event(), threading.Event()

    def embed_query(self, text: str) -> list[float]:
        self.begun.set()
        assert self.over.wait(20)
        return super().embed_query(text)


def test_switching_off_amid_a_call_lets_it_end(
    programs: GraphPrograms, accelerator: Accelerator
) -> None:
    programs.embedder = slow = SlowEmbedder()
    plain, found = programs.vector(), list[Any]()
    thread = threading.Thread(target=lambda: found.append(plain.search(query_text="bridge")))
    with activate(accelerator):
        thread.start()
        assert slow.begun.wait(20)
    slow.over.set()
    thread.join()
    assert found == [plain.search(query_text="bridge")]
    assert soon_idle(accelerator)


def test_switching_on_amid_a_call_lets_it_end(
    programs: GraphPrograms, accelerator: Accelerator
) -> None:
    programs.embedder = slow = SlowEmbedder()
    plain, found = programs.vector(), list[Any]()
    thread = threading.Thread(target=lambda: found.append(plain.search(query_text="bridge")))
    thread.start()
    assert slow.begun.wait(20)
    with activate(accelerator):
        slow.over.set()
        thread.join()
        found.append(plain.search(query_text="bridge"))
    assert found == [plain.search(query_text="bridge")] * 2
    assert soon_idle(accelerator)
    assert steps(accelerator)["VectorRetriever"] == 1  # the call that began plainly ended so


@pytest.mark.cross_product(keep=3)
@pytest.mark.parametrize("arm", ARMS)
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("where", ["embedder", "driver"])
def test_an_interrupt_inside_a_leaf_leaves_nothing_behind(
    where: str,
    error: type[BaseException],
    arm: str,
    programs: GraphPrograms,
    accelerator: Accelerator,
) -> None:
    def interrupt(*_: Any, **__: Any) -> Any:
        raise error("stop")

    plain: Any = programs.vector()
    expected = plain.search(query_text="bridge")
    held: Any = programs.embedder if where == "embedder" else _WrappedDriver(programs.driver)
    plain.driver = held if where == "driver" else plain.driver
    name = "embed_query" if where == "embedder" else "execute_query"
    with running(arm, plain, accelerator) as fast:
        setattr(held, name, interrupt)
        with pytest.raises(error, match="stop"):
            fast.search(query_text="bridge")
        assert soon_idle(accelerator)
        delattr(held, name)
        assert fast.search(query_text="bridge") == expected
    assert soon_idle(accelerator)


class _WrappedDriver:
    """An object of a program's own that stands for its driver."""

    def __init__(self, driver: Any) -> None:
        self._driver = driver

    def __getattr__(self, name: str) -> Any:
        return getattr(self._driver, name)

"""The suite of stores on servers: its result, what it counts as wrong, and servers that fail."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langchain_core.vectorstores import InMemoryVectorStore

from bench.results import as_json, from_json
from bench.stores.servers import chroma_server
from bench.suites import ratio_definitions, remote_stores
from rag_accel.errors import EngineError

TINY = remote_stores.Sizes((200,), 64, 9, 36, turns=2, pairs=10, writes=3, write_s=0.1)
PYTHON = Path(sys.executable)


def test_a_process_that_fails_is_named(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.symlink_to("/bin/false")
    with pytest.raises(EngineError, match="exit code 1"):
        remote_stores.run(True, TINY, python)


@pytest.fixture
def searches() -> Any:
    pytest.importorskip("langchain_chroma")
    from bench.stores import searches

    return searches


@pytest.mark.timeout(300)
def test_the_result_is_whole_and_searches_share_calls(searches: Any) -> None:
    found = remote_stores.run(True, TINY, PYTHON)
    assert from_json(as_json(found), found.suite) == found
    assert len({row.key for row in found.rows}) == len(found.rows)
    assert set(found.ratios) == set(ratio_definitions(found.suite))
    assert found.wrong == ()
    shared = {row.workload: row.median for row in found.rows if row.metric == "searches_per_call"}
    assert shared["chroma, 200 documents, 9 callers"] > 1


class BackwardsStore(InMemoryVectorStore):
    def similarity_search_with_score(self, *args: Any, **kwargs: Any) -> Any:
        return super().similarity_search_with_score(*args, **kwargs)[::-1]


class StaleStore(InMemoryVectorStore):
    def add_texts(self, *args: Any, **kwargs: Any) -> list[str]:
        return []


@pytest.mark.parametrize(
    ("cls", "is_wrong"),
    [(InMemoryVectorStore, False), (BackwardsStore, True), (StaleStore, True)],
)
def test_other_answers_while_documents_are_written_are_counted(
    searches: Any, cls: type[InMemoryVectorStore], is_wrong: bool
) -> None:
    table = searches.Table(TINY, 200)
    plain, other = InMemoryVectorStore(table), cls(table)
    for store in (plain, other):
        InMemoryVectorStore.add_texts(store, table.documents, ids=table.documents)
    right = [plain.similarity_search_with_score(text, searches.K) for text in table.queries]
    arms = {"plain": plain, searches.OURS: other}
    rows = [*searches._while_written("load", arms, table, TINY, right)]
    different = {row.system: row.median for row in rows if row.metric == "different_answers"}
    assert different["plain"] == 0
    assert (different[searches.OURS] > 0) is is_wrong


@pytest.fixture
def failing_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    pytest.importorskip("chromadb")
    server = tmp_path / "chroma"
    server.write_text("#!/bin/sh\necho the port is taken\nexit 1\n")
    server.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    return tmp_path


def test_a_server_that_ends_is_named_with_what_it_said(failing_server: Path) -> None:
    with pytest.raises(EngineError, match="the port is taken"), chroma_server(failing_server):
        pytest.fail("given a client")

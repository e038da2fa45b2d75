"""A graph in memory: its edits, its vectors and its file."""

from __future__ import annotations

import stat
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from graph_harness import embed, walk

from rag_accel.engines import KnowledgeEngine, MemoryGraph
from rag_accel.errors import ClosedError, ConfigError, GraphFileError, GraphLinkError

ODD = [
    ("a -> b", "r,\ts", "c\nd"),
    ('q"uote', "'", "back\\slash"),
    ("", "", "\ud800"),
    ("MATCH (n) DETACH DELETE n", "`]->()", "\U0001f600\0"),
]


def names(graph: MemoryGraph) -> list[str]:
    return list(graph.view().names)


def test_an_edit_makes_another_version() -> None:
    graph = MemoryGraph([("a", "r", "b")])
    before = graph.view()
    assert graph.view() is before
    graph.add([("b", "r", "c")])
    assert graph.view().version != before.version
    assert (list(before.names), names(graph)) == (["a", "b"], ["a", "b", "c"])


def test_a_replaced_graph_keeps_the_vectors_of_entities_that_stay() -> None:
    graph = MemoryGraph([("a", "r", "b")], {"a": "one"})
    graph.embed(embed)
    graph.replace([("b", "s", "a")], {"a": "another"})
    assert [one.id for one in graph.unembedded()] == ["a"]
    assert len(graph) == 1


@pytest.mark.parametrize("bad", ["abc", ("a", "b"), ("a", 1, "b"), None, 3])
def test_what_is_no_triple_is_refused_and_nothing_is_added(bad: Any) -> None:
    graph = MemoryGraph()
    with pytest.raises(ConfigError, match="no triple"):
        graph.add([("a", "r", "b"), bad])
    assert len(graph) == 0


def test_a_removal_of_what_is_no_triple_removes_nothing() -> None:
    graph = MemoryGraph([("a", "r", "b")])
    bad: Any = [("a", "r", "b"), "no triple"]
    with pytest.raises(ConfigError, match="no triple"):
        graph.remove(bad)
    assert len(graph) == 1


def test_only_entities_without_a_vector_are_embedded() -> None:
    graph = MemoryGraph([("a", "r", "b")], {"a": "the first"})
    calls: list[list[str]] = []

    def record(texts: list[str]) -> np.ndarray:
        calls.append(texts)
        return embed(texts)

    graph.embed(record, "m")
    graph.add([("a", "r", "c")], {"b": "the second"})
    graph.embed(record, "m")
    assert calls == [["a: the first", "b"], ["b: the second", "c"]]


def test_another_model_embeds_all_entities_anew() -> None:
    graph = MemoryGraph([("a", "r", "b")])
    graph.embed(embed, "one")
    assert graph.embed(lambda texts: np.ones((len(texts), 3)), "another") == 2


def test_entities_are_embedded_in_batches() -> None:
    graph = MemoryGraph([(str(number), "r", "x") for number in range(9)])
    sizes: list[int] = []
    graph.embed(lambda texts: sizes.append(len(texts)) or embed(texts), batch=4)
    assert sizes == [4, 4, 2]


@pytest.mark.parametrize(
    "vectors", [np.ones((1, 3)), np.full((2, 3), np.nan), np.ones(2), np.ones((2, 5))], ids=str
)
def test_vectors_that_do_not_fit_are_a_named_error(vectors: np.ndarray) -> None:
    graph = MemoryGraph([("a", "r", "b"), ("a", "r", "c")])
    graph.set_vectors(["c"], np.ones((1, 3)))
    with pytest.raises(GraphLinkError):
        graph.set_vectors(["a", "b"], vectors)


def test_a_closed_graph_has_no_view() -> None:
    graph = MemoryGraph([("a", "r", "b")])
    graph.close()
    with pytest.raises(ClosedError):
        graph.view()


def test_edits_from_many_threads_are_all_kept() -> None:
    graph = MemoryGraph()

    def add(first: int) -> None:
        for number in range(50):
            graph.add([(f"{first}/{number}", "r", "x")])
            graph.view()

    threads = [threading.Thread(target=add, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(graph) == 200
    assert len(names(graph)) == 201


def test_a_saved_graph_comes_back_with_its_names(tmp_path: Path) -> None:
    graph = MemoryGraph(ODD, {"a -> b": "told\n\x00", "alone": ""})
    graph.save(tmp_path / "g")
    again = MemoryGraph.load(tmp_path / "g")
    assert names(again) == names(graph)
    start = [one[0] for one in ODD]
    found, expected = (walk(KnowledgeEngine(one), start, 2) for one in (again, graph))
    assert found == expected != []
    again.save(tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == (tmp_path / "g").read_bytes()


def test_only_the_owner_may_read_the_file(tmp_path: Path) -> None:
    MemoryGraph(ODD).save(tmp_path / "g")
    assert stat.S_IMODE((tmp_path / "g").stat().st_mode) == 0o600


def test_any_changed_byte_is_a_named_error(tmp_path: Path) -> None:
    path = tmp_path / "g"
    MemoryGraph([("a", "r", "b")], {"a": "text"}).save(path)
    data = path.read_bytes()
    for place in range(len(data)):
        path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        with pytest.raises(GraphFileError):
            MemoryGraph.load(path)


def test_a_file_cut_short_anywhere_is_a_named_error(tmp_path: Path) -> None:
    path = tmp_path / "g"
    MemoryGraph([("a", "r", "b")]).save(path)
    data = path.read_bytes()
    for size in range(len(data)):
        path.write_bytes(data[:size])
        with pytest.raises(GraphFileError):
            MemoryGraph.load(path)


def test_a_newer_version_is_named(tmp_path: Path) -> None:
    path = tmp_path / "g"
    MemoryGraph().save(path)
    data = bytearray(path.read_bytes())
    data[8] = 9
    path.write_bytes(data)
    with pytest.raises(GraphFileError) as caught:
        MemoryGraph.load(path)
    assert (caught.value.found, caught.value.valid) == ("version 9", "version 1")


def test_a_failed_save_leaves_the_file_that_was_there(tmp_path: Path) -> None:
    path = tmp_path / "g"
    MemoryGraph([("a", "r", "b")]).save(path)
    with pytest.raises(OSError, match="No such file"):
        MemoryGraph().save(tmp_path / "missing" / "g")
    assert len(MemoryGraph.load(path)) == 1

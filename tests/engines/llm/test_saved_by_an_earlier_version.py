"""What an earlier version saved is read: an index, a graph, states of texts and paths, verdicts.

The archive was written by commit 399a4ac of 29 November 2026, by the tiny model of the tests.
"""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("transformers")

from chunk_prompts import A, B, answer
from chunk_prompts import asked as asked_texts
from tiny_chat import model
from tree_prompts import FUJI, LANE, engine_on, torch_runner
from tree_prompts import asked as asked_paths

from rag_accel.engines import MemoryGraph
from rag_accel.engines.retrieval import load_index
from rag_accel.kv.verdicts import DEPENDENCY, FUSED, INT8

ARCHIVE = Path(__file__).with_name("saved_by_an_earlier_version.tar.gz")


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="tar")
    (tmp_path / "states").chmod(0o700)
    return tmp_path


def test_an_index_answers_as_it_did(saved: Path) -> None:
    index = load_index(saved / "documents.index", fingerprint="embedder 1")
    (found,) = index.search(np.array([[3.0, 4.0, 5.0]], np.float32), 2)
    assert [scored.document.id for scored in found] == ["1", "0"]
    assert found[0].document.metadata == {"n": 1}


def test_a_graph_has_its_facts(saved: Path) -> None:
    graph = MemoryGraph.load(saved / "facts.graph")
    facts = {("Ada", "wrote to", "Charles"), ("Charles", "designed", "the engine")}
    assert facts < set(graph.triples())


@pytest.mark.parametrize("kv_reuse", ["full", "dependency", "full+dependency"])
def test_states_of_texts_and_paths_are_taken(saved: Path, kv_reuse: str) -> None:
    options: dict[str, Any] = {"kv_folder": str(saved / "states"), "reuse_always": True}
    engine = engine_on("torch", kv_reuse=kv_reuse, **options)
    works = {
        "full": asked_texts("one", A, B),
        "dependency": asked_paths("two", *FUJI[:2], *LANE[:2]),
    }
    for kind in kv_reuse.split("+"):
        use = answer(engine, works[kind]).use
        assert use is not None
        assert use.from_chunks == use.approximate > 0
    engine.close()


def test_verdicts_are_trusted(saved: Path) -> None:
    identity = (saved / "model.txt").read_text().strip()
    assert torch_runner(model()).identity() == identity
    fused, paths = (kind.read(saved / "states", identity) for kind in (FUSED, DEPENDENCY))
    assert fused is not None
    assert (fused.passes(0.15), fused.passes(0.1)) == (True, False)
    assert paths is not None
    assert (paths.passes(), paths.kl) == (False, 0.3)
    assert INT8.read(saved / "states", identity) is None

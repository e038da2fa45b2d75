"""Arguments of another type are refused at once, by every integration."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from rag_accel import Accelerator, ConfigError, Options
from rag_accel.interception.identity import open_blocks
from rag_accel.interception.patches import patches


@pytest.fixture(params=["langchain", "llama_index", "neo4j_graphrag"])
def integration(request: pytest.FixtureRequest) -> ModuleType:
    """Give an integration."""
    frameworks = {"langchain": "langchain_core", "llama_index": "llama_index.core"}
    pytest.importorskip(frameworks.get(request.param, request.param))
    return pytest.importorskip(f"{request.param}_rag_accel")


def embeddings_for(integration: ModuleType) -> Any:
    """Return an embeddings object of a framework."""
    if integration.__name__.startswith("langchain"):
        from langchain_core.embeddings import DeterministicFakeEmbedding

        return DeterministicFakeEmbedding(size=4)
    if integration.__name__.startswith("neo4j"):
        from neo4j_graphrag.embeddings.base import Embedder

        return type("NoEmbedder", (Embedder,), {"embed_query": lambda self, text: []})()
    from llama_index.core import MockEmbedding

    return MockEmbedding(embed_dim=4)


@pytest.mark.parametrize("wrong", [3, "auto", Accelerator, Options()], ids=repr)
def test_accelerate_refuses_what_is_no_accelerator(integration: ModuleType, wrong: Any) -> None:
    with pytest.raises(ConfigError, match=r"accelerator is of another type.*valid: an Accelerator"):
        integration.accelerate(embeddings_for(integration), accelerator=wrong)


@pytest.mark.parametrize("wrong", [3, {"max_batch": 2}], ids=repr)
def test_accelerate_refuses_what_are_no_options(integration: ModuleType, wrong: Any) -> None:
    with pytest.raises(ConfigError, match=r"options is of another type.*valid: Options"):
        integration.accelerate(embeddings_for(integration), options=wrong)


def test_activate_refuses_what_is_no_accelerator(integration: ModuleType) -> None:
    wrong: Any = 3
    with (
        pytest.raises(ConfigError, match=r"accelerator is of another type; .*int"),
        integration.activate(accelerator=wrong),
    ):
        pytest.fail("the block has begun")
    assert open_blocks() == ()
    assert patches.patched() == []

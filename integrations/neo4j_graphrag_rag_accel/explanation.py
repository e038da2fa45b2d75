"""What was understood of an accelerated program, and how each part of it runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from neo4j_graphrag.embeddings.base import Embedder
from neo4j_graphrag.generation import GraphRAG
from neo4j_graphrag.retrievers.base import Retriever

from neo4j_graphrag_rag_accel.leaf_table import NEO4J_GRAPHRAG
from neo4j_graphrag_rag_accel.option_readers import parts_of
from rag_accel.accelerator import Accelerator, default_accelerator
from rag_accel.adoption import embedding_devices
from rag_accel.interception.explanation import BORROWED, NO_LEAF, NOT_UNDERSTOOD, headline
from rag_accel.interception.leaf_table import (
    is_composite,
    leaf_base,
    leaf_class,
    plain_class,
    plain_method,
)
from rag_accel.interception.unread_options import unread_lines
from rag_accel_adapters.neo4j_graphrag.models import EMBEDDERS
from rag_accel_adapters.neo4j_graphrag.walk import walk

#: The driver is the program's, and no leaf of its own.
_QUERIES = "; the queries that it sends over its driver are part of that call"


def explain(obj: Any) -> str:
    """Return what is inside an accelerated object and how each part runs, one part a line."""
    accelerator = getattr(type(obj), "__rag_accel_own__", None) or default_accelerator()
    seen = list(walk(obj))
    lines = [
        f"  {path}: {plain_class(type(part)).__name__}: {said}"
        for path, part in seen
        for said in _say(part, accelerator)
    ]
    if not any(leaf_base(type(part)) is not None for _, part in seen):
        lines += NO_LEAF
    lines += unread_lines(obj, accelerator, parts_of)
    return "\n".join([*headline(obj, NEO4J_GRAPHRAG.name, accelerator), *lines])


def _say(part: Any, accelerator: Accelerator) -> Iterator[str]:
    cls = plain_class(type(part))
    adopted = EMBEDDERS.adopt(part, cls, plain_method)
    known = leaf_class(cls)
    if isinstance(part, GraphRAG):
        yield "runs plainly around its leaves, each search is one request"
    elif adopted is not None:
        yield embedding_devices.describe(adopted, accelerator)
    elif is_composite(part):
        yield "runs plainly around the retrievers and the model that it asks"
    elif known.framework is NEO4J_GRAPHRAG:
        unused = (
            embedding_devices.describe_unused(accelerator) if isinstance(part, Embedder) else ""
        )
        yield f"{BORROWED}{_QUERIES}" if isinstance(part, Retriever) else f"{BORROWED}{unused}"
    elif known.base is not None:
        yield f"a leaf of {known.framework.name}: scheduled as its integration says"
    else:
        yield NOT_UNDERSTOOD


def hint(obj: Any) -> str:
    """Return what to do with an object that cannot be accelerated."""
    if isinstance(obj, type):
        return f"accelerate an instance: accelerate({obj.__name__}(...))"
    framework = type(obj).__module__.partition(".")[0]
    if framework.startswith(("langchain", "langgraph")):
        return "use accelerate of langchain_rag_accel: pip install 'rag-accel[langchain]'"
    if framework in ("llama_index", "workflows"):
        return "use accelerate of llama_index_rag_accel: pip install 'rag-accel[llama-index]'"
    if framework == "neo4j":
        return "accelerate the retriever that asks it"
    return "accelerate the GraphRAG or the retriever that uses it, or call it inside activate()"

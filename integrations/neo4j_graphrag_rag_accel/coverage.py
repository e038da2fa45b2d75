"""The meter of the calls of a neo4j-graphrag program that pass the scheduler."""

from __future__ import annotations

from typing import Final

from neo4j_graphrag_rag_accel.leaf_table import NEO4J_GRAPHRAG
from rag_accel.interception.coverage import OpenMeters

_NAMES = {
    "Retriever": "retriever",
    "Embedder": "embedder",
    "LLMInterface": "language model",
    "LLMInterfaceV2": "language model",
}

coverage: Final = OpenMeters(NEO4J_GRAPHRAG, _NAMES).coverage

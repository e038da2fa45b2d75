"""The meter of the calls of a neo4j-graphrag program that pass the scheduler."""

from __future__ import annotations

from typing import Final

from neo4j_graphrag_rag_accel.option_readers import parts_of
from rag_accel.interception.coverage import OpenMeters

_NAMES = {
    "Retriever": "retriever",
    "Embedder": "embedder",
    "LLMInterface": "language model",
    "LLMInterfaceV2": "language model",
}

coverage: Final = OpenMeters("rag_accel_neo4j_graphrag_coverage", _NAMES, parts_of).coverage

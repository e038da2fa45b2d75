"""The share of a LangChain program that passes the scheduler."""

from __future__ import annotations

from typing import Any, Final

from langchain_rag_accel.leaf_table import LANGCHAIN
from langchain_rag_accel.runnables import AcceleratedRunnable, graph_program
from rag_accel.accelerator import Accelerator
from rag_accel.interception.coverage import Coverage, CoverageRow, OpenMeters
from rag_accel.interception.program import AcceleratedProgram

__all__ = ["Coverage", "CoverageRow", "coverage"]

_NAMES = {
    "BaseChatModel": "chat model",
    "LLM": "language model",
    "BaseLLM": "language model",
    "BaseRetriever": "retriever",
    "VectorStore": "vector store",
    "Embeddings": "embeddings",
    "BaseDocumentCompressor": "compressor",
    "QueriedGraph": "knowledge graph",
}


def _inside(program: Any) -> tuple[Any, Accelerator | None]:
    is_binding = isinstance(program, AcceleratedRunnable)
    return (program.bound, program._accelerator) if is_binding else (program, None)


def program_of(made: Any) -> AcceleratedProgram | None:
    """Return the program that an accelerated object is; None for a single model or store."""
    return made.program if isinstance(made, AcceleratedRunnable) else graph_program(made)


def _name_of(program: Any) -> str | None:
    known = program_of(program)
    return None if known is None else known.name


_open = OpenMeters(LANGCHAIN, _NAMES, inside=_inside, name_of=_name_of)
coverage: Final = _open.coverage

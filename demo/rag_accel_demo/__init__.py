"""The demonstration: real questions over real documents, answered plain and accelerated.

It needs no network and no language model: its reader picks sentences. What it reads and asks is at
hand for examples and benchmarks, too.
"""

from typing import TYPE_CHECKING, Any

from rag_accel_demo.documents import load_folder
from rag_accel_demo.graph_questions import graph_questions, uniform_stream, zipf_stream
from rag_accel_demo.questions import corpus_questions, load_questions

if TYPE_CHECKING:
    from rag_accel_demo.extractive.engine import ExtractiveEngine

__all__ = [
    "ExtractiveEngine",
    "corpus_questions",
    "graph_questions",
    "load_folder",
    "load_questions",
    "uniform_stream",
    "zipf_stream",
]


def __getattr__(name: str) -> Any:
    # Only the reader needs more than numpy. Without it, the charts can still name their extra.
    if name != "ExtractiveEngine":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from rag_accel_demo.extractive.engine import ExtractiveEngine

    return ExtractiveEngine

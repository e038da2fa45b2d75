"""The demonstration: real questions over real documents, answered plain and accelerated.

It needs no network and no language model: its reader picks sentences. What it reads and asks is at
hand for examples and benchmarks, too.
"""

from rag_accel_demo.documents import load_folder
from rag_accel_demo.extractive.engine import ExtractiveEngine
from rag_accel_demo.graph_questions import graph_questions, uniform_stream, zipf_stream
from rag_accel_demo.questions import corpus_questions, load_questions

__all__ = [
    "ExtractiveEngine",
    "corpus_questions",
    "graph_questions",
    "load_folder",
    "load_questions",
    "uniform_stream",
    "zipf_stream",
]

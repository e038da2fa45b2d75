"""Documents, a graph, questions and a model for demo and benchmarks, real, without a network."""

from rag_accel.sample.corpus import read_corpus
from rag_accel.sample.documents import load_folder
from rag_accel.sample.file_text import LoadReport, SkippedDocument
from rag_accel.sample.graph_questions import (
    GraphQuestion,
    QuestionKind,
    chain_questions,
    graph_questions,
    uniform_stream,
    zipf_stream,
)
from rag_accel.sample.library_graph import LibraryGraph, read_library_graph
from rag_accel.sample.questions import (
    LoadedQuestions,
    Question,
    corpus_questions,
    load_questions,
    make_questions,
)
from rag_accel.sample.smollm2 import smollm2_folder

__all__ = [
    "GraphQuestion",
    "LibraryGraph",
    "LoadReport",
    "LoadedQuestions",
    "Question",
    "QuestionKind",
    "SkippedDocument",
    "chain_questions",
    "corpus_questions",
    "graph_questions",
    "load_folder",
    "load_questions",
    "make_questions",
    "read_corpus",
    "read_library_graph",
    "smollm2_folder",
    "uniform_stream",
    "zipf_stream",
]

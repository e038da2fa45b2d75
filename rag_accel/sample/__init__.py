"""Documents, a graph, questions and a model for checks and examples, real, without a network."""

from rag_accel.sample.corpus import LoadReport, read_corpus
from rag_accel.sample.graph_questions import GraphQuestion, QuestionKind, chain_questions
from rag_accel.sample.library_graph import LibraryGraph, read_library_graph
from rag_accel.sample.questions import Question, make_questions
from rag_accel.sample.smollm2 import smollm2_folder
from rag_accel.sample.source_files import SkippedDocument

__all__ = [
    "GraphQuestion",
    "LibraryGraph",
    "LoadReport",
    "Question",
    "QuestionKind",
    "SkippedDocument",
    "chain_questions",
    "make_questions",
    "read_corpus",
    "read_library_graph",
    "smollm2_folder",
]

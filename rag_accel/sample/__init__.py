"""Give the demo and the benchmarks real documents and questions, without a network."""

from rag_accel.sample.corpus import read_corpus
from rag_accel.sample.documents import load_folder
from rag_accel.sample.question_files import LoadedQuestions, Question, load_questions
from rag_accel.sample.questions import make_questions
from rag_accel.sample.report import LoadReport, SkippedDocument

__all__ = [
    "LoadReport",
    "LoadedQuestions",
    "Question",
    "SkippedDocument",
    "load_folder",
    "load_questions",
    "make_questions",
    "read_corpus",
]

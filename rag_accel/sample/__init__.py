"""Documents, questions and a model for demo and benchmarks, all real, without a network."""

from rag_accel.sample.corpus import read_corpus
from rag_accel.sample.documents import load_folder
from rag_accel.sample.file_text import LoadReport, SkippedDocument
from rag_accel.sample.questions import (
    LoadedQuestions,
    Question,
    corpus_questions,
    load_questions,
    make_questions,
)
from rag_accel.sample.smollm2 import smollm2_folder

__all__ = [
    "LoadReport",
    "LoadedQuestions",
    "Question",
    "SkippedDocument",
    "corpus_questions",
    "load_folder",
    "load_questions",
    "make_questions",
    "read_corpus",
    "smollm2_folder",
]

"""Fine-tuning of language models to answer behind trees of relation paths (DepCache, section 3.3).

A model is trained on causal text. Under the mask of a tree, a path does not see its siblings; some
tens of steps with that mask, and with the positions that the model is to be used with, adapt it.
"""

from rag_accel.fidelity.tuning.options import TuningOptions
from rag_accel.fidelity.tuning.questions import (
    GraphNames,
    GraphQuestions,
    GraphShape,
    generate_questions,
    load_graph_questions,
)
from rag_accel.fidelity.tuning.tune import TuningReport, tune_dependency

__all__ = [
    "GraphNames",
    "GraphQuestions",
    "GraphShape",
    "TuningOptions",
    "TuningReport",
    "generate_questions",
    "load_graph_questions",
    "tune_dependency",
]

"""The kinds of stages, each a row of its properties."""

from rag_accel.graph.stages.branch import Branch
from rag_accel.graph.stages.function import Function
from rag_accel.graph.stages.generation import Generation
from rag_accel.graph.stages.graph_retrieval import GraphRetrieval
from rag_accel.graph.stages.ingestion import Ingestion
from rag_accel.graph.stages.kind import (
    Stage,
    StageKind,
    Step,
    engines_of,
    kind_of,
    register_stage,
)
from rag_accel.graph.stages.rerank import Rerank
from rag_accel.graph.stages.retrieval import Retrieval, needs_embedder
from rag_accel.graph.stages.retry import Constant, Retry, retry_of

__all__ = [
    "Branch",
    "Constant",
    "Function",
    "Generation",
    "GraphRetrieval",
    "Ingestion",
    "Rerank",
    "Retrieval",
    "Retry",
    "Stage",
    "StageKind",
    "Step",
    "engines_of",
    "kind_of",
    "needs_embedder",
    "register_stage",
    "retry_of",
]

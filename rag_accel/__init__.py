"""Make the RAG application you already have answer sooner and carry more load."""

import logging

from rag_accel.accelerator import Accelerator, shutdown
from rag_accel.config import Options
from rag_accel.errors import (
    ApproximateVectorsWarning,
    BusyError,
    ChunkFileError,
    ClosedError,
    ConfigError,
    DeadlineError,
    DocumentError,
    EngineError,
    EngineLostError,
    EngineOutputError,
    ForkedError,
    GraphError,
    GraphFileError,
    GraphLinkError,
    GraphMergeError,
    IndexFileError,
    InvalidTransitionError,
    LoopLimitWarning,
    MemberPausedError,
    PassError,
    RagAccelError,
    RemoteEngineError,
    RequestCancelledError,
    SchedulingError,
    ServedRequestError,
    ShardsChangedError,
    TranslationError,
    UncheckedReuseWarning,
    UncheckedWeightsWarning,
    UnreadOptionWarning,
)
from rag_accel.graph.nodes import END, START
from rag_accel.graph.option_inputs import Input
from rag_accel.graph.ragraph import RAGraph
from rag_accel.graph.stages.retry import Constant, Retry
from rag_accel.plans import plan_of
from rag_accel.server.server import Server

# A library says nothing unless the program listens.
logging.getLogger("rag_accel").addHandler(logging.NullHandler())

__all__ = [
    "END",
    "START",
    "Accelerator",
    "ApproximateVectorsWarning",
    "BusyError",
    "ChunkFileError",
    "ClosedError",
    "ConfigError",
    "Constant",
    "DeadlineError",
    "DocumentError",
    "EngineError",
    "EngineLostError",
    "EngineOutputError",
    "ForkedError",
    "GraphError",
    "GraphFileError",
    "GraphLinkError",
    "GraphMergeError",
    "IndexFileError",
    "Input",
    "InvalidTransitionError",
    "LoopLimitWarning",
    "MemberPausedError",
    "Options",
    "PassError",
    "RAGraph",
    "RagAccelError",
    "RemoteEngineError",
    "RequestCancelledError",
    "Retry",
    "SchedulingError",
    "ServedRequestError",
    "Server",
    "ShardsChangedError",
    "TranslationError",
    "UncheckedReuseWarning",
    "UncheckedWeightsWarning",
    "UnreadOptionWarning",
    "plan_of",
    "shutdown",
]

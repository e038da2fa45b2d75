"""Make the RAG application you already have answer sooner and carry more load."""

from rag_accel.accelerator import Accelerator, shutdown
from rag_accel.config import Options
from rag_accel.errors import (
    BusyError,
    ClosedError,
    ConfigError,
    DeadlineError,
    DocumentError,
    EngineError,
    EngineLostError,
    EngineOutputError,
    ForkedError,
    GraphError,
    IndexFileError,
    InvalidTransitionError,
    PassError,
    RagAccelError,
    RemoteEngineError,
    RequestCancelledError,
    SchedulingError,
    TranslationError,
)

__all__ = [
    "Accelerator",
    "BusyError",
    "ClosedError",
    "ConfigError",
    "DeadlineError",
    "DocumentError",
    "EngineError",
    "EngineLostError",
    "EngineOutputError",
    "ForkedError",
    "GraphError",
    "IndexFileError",
    "InvalidTransitionError",
    "Options",
    "PassError",
    "RagAccelError",
    "RemoteEngineError",
    "RequestCancelledError",
    "SchedulingError",
    "TranslationError",
    "shutdown",
]

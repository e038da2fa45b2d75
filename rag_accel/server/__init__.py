"""Requests of many workflows over shared engines: started now, their results fetched later."""

from rag_accel.server.server import Server
from rag_accel.server.stats import (
    LatencySummary,
    RequestState,
    ServedId,
    ServedResult,
    ServerStats,
    WorkflowStats,
)

__all__ = [
    "LatencySummary",
    "RequestState",
    "ServedId",
    "ServedResult",
    "Server",
    "ServerStats",
    "WorkflowStats",
]

"""The seam between the scheduler and the engines that execute primitives.

Two kinds of engine meet here. An *owned* engine implements ``Engine``: it is stepped in a worker
thread of its own, and methods but ``interrupt`` and ``hint`` are called on that thread only, so an
engine needs no locks. A *borrowed* engine is any object the user made: it is described by a
``BorrowedEngine``, the scheduler grants a permit and the call runs where the caller is.

Nothing here executes anything, and nothing here imports the scheduler or an engine.
"""

from rag_accel.engine_api.engine import (
    PATIENCE_S,
    AdmittingEngine,
    CompositeEngine,
    CountingEngine,
    Engine,
    EngineBase,
    EngineOutput,
    EngineRequest,
    ForgettingEngine,
    Handle,
    OutputKind,
    StepBudget,
    WorkId,
)
from rag_accel.engine_api.health import Health, HealthState, ReportingEngine, worst_state
from rag_accel.engine_api.kinds import KINDS, ROLES, HasKinds, KindSpec, PrimitiveKind
from rag_accel.engine_api.payloads import (
    MOST_NUMBER,
    ChunkSpan,
    Direction,
    Document,
    ExpandBatch,
    GenerationInput,
    GenerationOutput,
    GraphHit,
    GraphPath,
    HybridQuery,
    IngestBatch,
    LinkQuery,
    Message,
    PromptUse,
    PruneBatch,
    RerankBatch,
    Role,
    ScoredDocument,
    SearchQuery,
    TextBatch,
    TokenLogprob,
    TokenUsage,
)
from rag_accel.engine_api.profile import BorrowedEngine, Capability, EngineProfile, LatencyModel

__all__ = [
    "KINDS",
    "MOST_NUMBER",
    "PATIENCE_S",
    "ROLES",
    "AdmittingEngine",
    "BorrowedEngine",
    "Capability",
    "ChunkSpan",
    "CompositeEngine",
    "CountingEngine",
    "Direction",
    "Document",
    "Engine",
    "EngineBase",
    "EngineOutput",
    "EngineProfile",
    "EngineRequest",
    "ExpandBatch",
    "ForgettingEngine",
    "GenerationInput",
    "GenerationOutput",
    "GraphHit",
    "GraphPath",
    "Handle",
    "HasKinds",
    "Health",
    "HealthState",
    "HybridQuery",
    "IngestBatch",
    "KindSpec",
    "LatencyModel",
    "LinkQuery",
    "Message",
    "OutputKind",
    "PrimitiveKind",
    "PromptUse",
    "PruneBatch",
    "ReportingEngine",
    "RerankBatch",
    "Role",
    "ScoredDocument",
    "SearchQuery",
    "StepBudget",
    "TextBatch",
    "TokenLogprob",
    "TokenUsage",
    "WorkId",
    "worst_state",
]

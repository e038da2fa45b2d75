"""The seam between the co-scheduler and whatever executes primitives.

Two kinds of engine meet here. An *owned* engine implements ``Engine``: it is stepped in a worker
thread of its own, and every method but ``interrupt`` is called on that thread only, so an engine
needs no locks. A *borrowed* engine is any object the user made: it is described by a
``BorrowedEngine``, the scheduler grants a permit and the call runs where the caller is.

Nothing here executes anything, and nothing here imports the scheduler or an engine.
"""

from rag_accel.engine_api.engine import (
    CompositeEngine,
    CountingEngine,
    Engine,
    EngineBase,
    EngineOutput,
    EngineRequest,
    Handle,
    OutputKind,
    StepBudget,
    WorkId,
)
from rag_accel.engine_api.kinds import KINDS, ROLES, HasKinds, KindSpec, PrimitiveKind
from rag_accel.engine_api.payloads import (
    Document,
    GenerationInput,
    GenerationOutput,
    HybridQuery,
    IngestBatch,
    Message,
    Passage,
    PromptUse,
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
    "ROLES",
    "BorrowedEngine",
    "Capability",
    "CompositeEngine",
    "CountingEngine",
    "Document",
    "Engine",
    "EngineBase",
    "EngineOutput",
    "EngineProfile",
    "EngineRequest",
    "GenerationInput",
    "GenerationOutput",
    "Handle",
    "HasKinds",
    "HybridQuery",
    "IngestBatch",
    "KindSpec",
    "LatencyModel",
    "Message",
    "OutputKind",
    "Passage",
    "PrimitiveKind",
    "PromptUse",
    "RerankBatch",
    "Role",
    "ScoredDocument",
    "SearchQuery",
    "StepBudget",
    "TextBatch",
    "TokenLogprob",
    "TokenUsage",
    "WorkId",
]

"""Name the nodes and edges of a RAGraph (HedraRAG section 4.1); the stages stand in ``stages``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NewType, TypeAlias

from rag_accel.graph.prompt import ValueName

StageName = NewType("StageName", str)
EngineName = NewType("EngineName", str)

START: Final = StageName("START")
END: Final = StageName("END")
RESERVED: Final = frozenset({START, END})
TURN_MARK: Final = "#"

EdgeKind = Literal["data", "control", "condition"]
Answer: TypeAlias = str | int | Sequence[str | int]
Condition: TypeAlias = Callable[[Mapping[str, Any]], Answer]
Reducer: TypeAlias = Callable[[Any, Any], Any]
MetadataFilter: TypeAlias = tuple[tuple[str, Any], ...]

DEFAULT_QUERY: Final = ValueName("input")
DEFAULT_EMBEDDER: Final = EngineName("embedder")
DEFAULT_INDEX: Final = EngineName("index")
DEFAULT_LLM: Final = EngineName("llm")
DEFAULT_RERANKER: Final = EngineName("reranker")

NO_OUTPUT: Final = ValueName("")


@dataclass(frozen=True, slots=True)
class Edge:
    """Connect two stages.

    ``data``: the target reads what the source writes. ``control``: it only waits for it.
    ``condition``: the source is a Branch, which may choose the target.
    """

    source: StageName
    target: StageName
    kind: EdgeKind

"""The nodes and edges of a RAGraph (HedraRAG section 4.1), and names that are near a wrong one.

The stages stand in ``stages``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final, Literal, NewType, TypeAlias

from rag_accel.graph.prompt import ValueName

StageName = NewType("StageName", str)
EngineName = NewType("EngineName", str)

START: Final = StageName("START")
END: Final = StageName("END")
RESERVED: Final = frozenset({START, END})
TURN_MARK: Final = "#"

EdgeKind = Literal["data", "control", "condition"]
OnLoopLimit = Literal["raise", "end"]
Answer: TypeAlias = str | int | Sequence[str | int]
Condition: TypeAlias = Callable[[Mapping[str, Any]], Answer]
Reducer: TypeAlias = Callable[[Any, Any], Any]
MetadataFilter: TypeAlias = tuple[tuple[str, Any], ...]

DEFAULT_QUERY: Final = ValueName("input")
DEFAULT_EMBEDDER: Final = EngineName("embedder")
DEFAULT_GRAPH: Final = EngineName("graph")
DEFAULT_INDEX: Final = EngineName("index")
DEFAULT_LLM: Final = EngineName("llm")
DEFAULT_RERANKER: Final = EngineName("reranker")

NO_OUTPUT: Final = ValueName("")


@dataclass(frozen=True, slots=True)
class Edge:
    """A connection of two stages.

    ``data``: the target reads what the source writes. ``control``: it only waits for it.
    ``condition``: the source is a Branch, which may choose the target.
    """

    source: StageName
    target: StageName
    kind: EdgeKind


def listed(names: Iterable[str]) -> str:
    """Return the names as one line, or the word ``none``."""
    return ", ".join(names) or "none"


def suggestion(name: str, valid: Iterable[str]) -> str | None:
    """Return the question ``did you mean 'x'?`` if some valid name is like ``name``."""
    matches = get_close_matches(name, list(valid), n=1)
    return f"did you mean {matches[0]!r}?" if matches else None


def alternatives(name: str, valid: Iterable[str]) -> str:
    """Return the clause ``valid: a, b; did you mean 'a'?`` for an unknown name."""
    known = list(valid)
    guess = suggestion(name, known)
    return f"valid: {listed(known)}" + (f"; {guess}" if guess else "")

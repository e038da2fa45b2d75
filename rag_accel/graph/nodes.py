"""Define the stages and edges a RAGraph is made of (HedraRAG section 4.1).

A stage names the engine that serves it, the values it reads and the value it writes; it holds no
engine and no data. Stages are checked one by one here; how they fit together is ``spec.py``'s.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Literal, NewType, TypeAlias

from rag_accel.errors import GraphError
from rag_accel.graph.prompt import ValueName, placeholders

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

_NO_OUTPUT: Final = ValueName("")


@dataclass(frozen=True, slots=True)
class Edge:
    """Connect two stages.

    ``data``: the target reads what the source writes. ``control``: it only waits for it.
    ``condition``: the source is a Branch, which may choose the target.
    """

    source: StageName
    target: StageName
    kind: EdgeKind


@dataclass(frozen=True, slots=True)
class Generation:
    """Ask an LLM for one completion of ``prompt``.

    ``prompt`` and ``system`` are templates; what they name are the stage's ``inputs``. An empty
    ``output`` stands for the stage's own name.
    """

    name: StageName
    prompt: str
    output: ValueName = _NO_OUTPUT
    system: str | None = None
    stop: tuple[str, ...] = ()
    max_tokens: int | None = None
    engine: EngineName = EngineName("llm")
    inputs: tuple[ValueName, ...] = field(init=False)
    reads_all: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _check_name(self.name)
        _check_positive(self.name, "max_tokens", self.max_tokens)
        _name_output(self)
        named = (*placeholders(self.system or ""), *placeholders(self.prompt))
        object.__setattr__(self, "inputs", tuple(dict.fromkeys(named)))


@dataclass(frozen=True, slots=True)
class Retrieval:
    """Find the ``top_k`` documents nearest to the value ``query``.

    ``where`` keeps documents whose metadata equals every given value. ``embedder`` makes the
    query's vector unless the index engine embeds by itself.
    """

    name: StageName
    query: ValueName = DEFAULT_QUERY
    top_k: int = 5
    where: MetadataFilter = ()
    output: ValueName = _NO_OUTPUT
    engine: EngineName = EngineName("index")
    embedder: EngineName = DEFAULT_EMBEDDER
    inputs: tuple[ValueName, ...] = field(init=False)
    reads_all: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _check_name(self.name)
        _check_positive(self.name, "top_k", self.top_k)
        _name_output(self)
        object.__setattr__(self, "inputs", (self.query,))


@dataclass(frozen=True, slots=True)
class Rerank:
    """Order the value ``documents`` by relevance to the value ``query``; keep ``top_n``."""

    name: StageName
    documents: ValueName
    query: ValueName = DEFAULT_QUERY
    top_n: int | None = None
    output: ValueName = _NO_OUTPUT
    engine: EngineName = EngineName("reranker")
    inputs: tuple[ValueName, ...] = field(init=False)
    reads_all: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _check_name(self.name)
        _check_positive(self.name, "top_n", self.top_n)
        _name_output(self)
        object.__setattr__(self, "inputs", (self.query, self.documents))


@dataclass(frozen=True, slots=True)
class Ingestion:
    """Embed the value ``documents`` and add them to an index; the output is their ids.

    A search that is to find them has to run after it.
    """

    name: StageName
    documents: ValueName
    output: ValueName = _NO_OUTPUT
    engine: EngineName = EngineName("index")
    embedder: EngineName = DEFAULT_EMBEDDER
    inputs: tuple[ValueName, ...] = field(init=False)
    reads_all: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _check_name(self.name)
        _name_output(self)
        object.__setattr__(self, "inputs", (self.documents,))


@dataclass(frozen=True, slots=True)
class Function:
    """Run opaque user code, sync or async.

    ``fn`` is called with the values of ``inputs`` in order or, with ``reads_all``, with the one
    mapping of all values. What it returns is the output.
    """

    name: StageName
    fn: Callable[..., Any]
    inputs: tuple[ValueName, ...] = ()
    reads_all: bool = False
    output: ValueName = _NO_OUTPUT
    engine: ClassVar[None] = None

    def __post_init__(self) -> None:
        _check_name(self.name)
        _name_output(self)


@dataclass(frozen=True, slots=True)
class Branch:
    """Let ``condition`` choose what runs next from the mapping of all values.

    It answers with a stage name, a list of them or END. ``targets`` declares all it may answer;
    ``None`` leaves every stage and END possible.
    """

    name: StageName
    condition: Condition
    targets: tuple[StageName, ...] | None = None
    inputs: ClassVar[tuple[ValueName, ...]] = ()
    reads_all: ClassVar[bool] = True
    output: ClassVar[None] = None
    engine: ClassVar[None] = None

    def __post_init__(self) -> None:
        _check_name(self.name)


Stage: TypeAlias = Generation | Retrieval | Rerank | Ingestion | Function | Branch


def engines_of(stage: Stage) -> tuple[EngineName, ...]:
    """Return the engines a stage names, in the order they are used."""
    if isinstance(stage, Retrieval | Ingestion):
        return (stage.embedder, stage.engine)
    return () if stage.engine is None else (stage.engine,)


def _name_output(stage: Generation | Retrieval | Rerank | Ingestion | Function) -> None:
    if not stage.output:
        object.__setattr__(stage, "output", ValueName(stage.name))


def _check_name(name: str) -> None:
    if not name or TURN_MARK in name or name in RESERVED:
        raise GraphError(
            "bad stage name",
            found=repr(name),
            valid=f"non-empty text without {TURN_MARK!r}, neither START nor END",
        )


def _check_positive(stage: str, option: str, value: object) -> None:
    if value is not None and not (isinstance(value, int) and value >= 1):
        raise GraphError(
            "stage option out of range",
            where=f"{option} of stage {stage!r}",
            found=repr(value),
            valid="an integer from 1",
        )

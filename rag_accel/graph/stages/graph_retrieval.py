"""The stage that finds paths in a knowledge graph.

    facts: GraphRetrieval@graph(input)

becomes, for two hops on owned engines,

    facts.embedding.query: EMBEDDING@embedder(input) -> facts.vector
    facts.searching: SEARCHING@graph(facts.vector) -> facts.paths.0
    facts.expanding.1: EXPANDING@graph(facts.paths.0) -> facts.paths.1
    facts.expanding.2: EXPANDING@graph(facts.paths.1) -> facts.paths.2
    facts.embedding.paths: EMBEDDING@embedder(facts.paths.2) -> facts.vectors
    facts.pruning: PRUNING@graph(facts.vector, facts.paths.2, facts.vectors) -> facts
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal, get_args

from rag_accel.engine_api import MOST_NUMBER, BorrowedEngine, Direction, PrimitiveKind
from rag_accel.graph.nodes import (
    DEFAULT_EMBEDDER,
    DEFAULT_GRAPH,
    DEFAULT_QUERY,
    NO_OUTPUT,
    EngineName,
    StageName,
)
from rag_accel.graph.option_inputs import Input, is_input, probable
from rag_accel.graph.prompt import ValueName
from rag_accel.graph.stages.kind import (
    RECOVERY,
    Counts,
    Engines,
    StageKind,
    Step,
    is_texts,
    option_refused,
    register_stage,
    settle,
    write_list,
    write_plain,
    write_unless,
)
from rag_accel.graph.stages.retry import Constant, Retry

Link = Literal["vector", "words"]

LINKS: Final = get_args(Link)
DIRECTIONS: Final = get_args(Direction)
MOST_PATHS: Final = 256
_NUMBER = f"an integer from 0 to {MOST_NUMBER}"


@dataclass(frozen=True, slots=True)
class GraphRetrieval:
    """A stage that finds the ``top_k`` paths of a knowledge graph nearest to the value ``query``.

    Entities that the query means are found first, then all paths of 1 to ``hops`` hops from them;
    an encoder's cosine between the query and each path's text decides. Zero hops, or a ``top_k`` or
    ``seeds`` of zero, find nothing. Each number but ``hops`` may be an ``Input``.

    Args:
        query: the value that is looked for.
        top_k: most paths.
        hops: longest path, in edges.
        seeds: most entities to start from.
        link: how they are found: by ``vector``, or by the ``words`` of their names.
        keywords: a value that names them instead: a list of texts, or a text that separates them
            by commas or lines.
        relations: which relations to follow; ``None`` follows all.
        direction: along edges (``out``), against them (``in``) or both ways.
        fan_out: most edges of one entity in one direction.
        max_paths: most paths of each length.
        embedder: makes the vectors of the query and of paths.
    """

    name: StageName
    query: ValueName = DEFAULT_QUERY
    top_k: int | Input = 10
    hops: int = 2
    seeds: int | Input = 5
    link: Link = "vector"
    keywords: ValueName = NO_OUTPUT
    relations: tuple[str, ...] | None = None
    direction: Direction = "both"
    fan_out: int | Input = 32
    max_paths: int | Input = MOST_PATHS
    output: ValueName = NO_OUTPUT
    engine: EngineName = DEFAULT_GRAPH
    embedder: EngineName = DEFAULT_EMBEDDER
    retry: int | Retry | None = None
    fallback: str | Constant | None = None
    inputs: tuple[ValueName, ...] = field(init=False)
    reads_all: bool = field(default=False, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        settle(self, inputs=(self.query, self.keywords) if self.keywords else (self.query,))
        for option in ("top_k", "hops", "seeds", "fan_out", "max_paths"):
            if not _is_number(getattr(self, option)):
                raise option_refused(self, option, _NUMBER)
        if is_input(self.hops):
            raise option_refused(self, "hops", "a number: it shapes the graph, also for requests")
        if self.link not in LINKS:
            raise option_refused(self, "link", " or ".join(LINKS))
        if self.direction not in DIRECTIONS:
            raise option_refused(self, "direction", ", ".join(DIRECTIONS))
        if self.relations is not None and not is_texts(self.relations):
            raise option_refused(self, "relations", "a list of texts, or None for all relations")


def _steps(stage: GraphRetrieval, engines: Engines, counts: Counts) -> tuple[Step, ...]:
    if isinstance(engines.get(stage.engine), BorrowedEngine):
        attributes = (("top_k", stage.top_k),)
        return (Step(PrimitiveKind.PRUNING, stage.engine, attributes=attributes),)
    last = f"paths.{stage.hops}"
    most = probable(stage.max_paths, MOST_PATHS)
    paths = min(probable(stage.seeds, 5) * probable(stage.fan_out, 32), most) or 1
    return (
        Step(
            PrimitiveKind.EMBEDDING,
            stage.embedder,
            label="query",
            writes="vector",
            given=(stage.query,),
        ),
        _search(stage),
        *(_hop(stage, number) for number in range(1, stage.hops + 1)),
        Step(
            PrimitiveKind.EMBEDDING,
            stage.embedder,
            items=paths,
            label="paths",
            writes="vectors",
            reads=(last,),
            attributes=(("role", "path"),),
        ),
        Step(
            PrimitiveKind.PRUNING,
            stage.engine,
            reads=("vector", last, "vectors"),
            attributes=(("top_k", stage.top_k),),
        ),
    )


def _search(stage: GraphRetrieval) -> Step:
    link = "names" if stage.keywords else stage.link
    by_vector = link == "vector"
    return Step(
        PrimitiveKind.SEARCHING,
        stage.engine,
        writes="paths.0",
        reads=("vector",) if by_vector else (),
        given=() if by_vector else (stage.keywords or stage.query,),
        attributes=(("link", link), ("top_k", stage.seeds)),
    )


def _hop(stage: GraphRetrieval, number: int) -> Step:
    told = (
        ("relations", stage.relations),
        ("direction", stage.direction),
        ("fan_out", stage.fan_out),
        ("limit", stage.max_paths),
    )
    return Step(
        PrimitiveKind.EXPANDING,
        stage.engine,
        label=str(number),
        writes=f"paths.{number}",
        reads=(f"paths.{number - 1}",),
        attributes=tuple((key, value) for key, value in told if value is not None),
    )


def _is_number(value: object) -> bool:
    if is_input(value):
        return True
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST_NUMBER


register_stage(
    StageKind(
        GraphRetrieval,
        _steps,
        engines=("embedder", "engine"),
        line={
            "query": write_unless(DEFAULT_QUERY),
            "top_k": write_plain,
            "hops": write_plain,
            "seeds": write_plain,
            "link": write_plain,
            "keywords": write_unless(NO_OUTPUT),
            "relations": write_list,
            "direction": write_plain,
            "fan_out": write_plain,
            "max_paths": write_plain,
            "embedder": write_unless(DEFAULT_EMBEDDER),
            **RECOVERY,
        },
        written=lambda stage, counts: probable(stage.top_k, 10),
    )
)

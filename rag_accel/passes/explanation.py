"""A workflow as text: its stages, its primitives after the passes, and its engines.

The text is stable: equal graphs and engines give equal text in every process. What a pass saves is
estimated from the profiles of the engines; ``Accelerator.profile`` says it of recorded requests.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from types import NoneType
from typing import Any, Literal, TypeAlias, get_args

from rag_accel.engine_api import BorrowedEngine, EngineProfile
from rag_accel.engine_api.kinds import PrimitiveKind
from rag_accel.errors import ConfigError
from rag_accel.explained_text import ExplainedText
from rag_accel.graph.frozen import FrozenRAGraph
from rag_accel.graph.lines import Reference, References
from rag_accel.graph.primitive_text import format_primitives
from rag_accel.graph.primitives import PrimitiveGraph
from rag_accel.graph.ragraph import RAGraph
from rag_accel.graph.stages import Constant, Retrieval, engines_of, needs_embedder
from rag_accel.graph.text import format as format_graph
from rag_accel.passes.context import PassContext
from rag_accel.passes.decompose import Engines, decompose
from rag_accel.passes.early_prefill import EARLY_PREFILL, early_prefills
from rag_accel.passes.manager import run_passes
from rag_accel.passes.speculate import SPECULATE, speculative_edges

PlanStage: TypeAlias = Literal["ragraph", "p-graph", "e-graph"]


def explain_graph(
    graph: RAGraph | FrozenRAGraph,
    engines: Engines,
    stage: PlanStage = "ragraph",
    passes: frozenset[str] | None = None,
    parts: Mapping[str, Sequence[str]] | None = None,
    estimated: frozenset[str] = frozenset(),
) -> ExplainedText:
    """Return the graph at a stage of lowering, and how each engine it uses is driven.

    Args:
        stage: ``ragraph`` shows the stages as written, ``p-graph`` the primitives they become,
            ``e-graph`` these after the passes where the request is alone, and what each pass
            changed.
        passes: names of the passes that are on; by default all there are.
        parts: what engines are made of, a line for each part.
        estimated: names of further passes that are on where they are expected to save time.

    Raises:
        ConfigError: on another stage, or on a pass that does not exist (``e-graph`` only).
        GraphError: if the graph cannot be lowered to these engines (not for ``ragraph``).
    """
    frozen = graph.freeze()
    if stage == "ragraph":
        title = f"ragraph: {_count(len(frozen.stages), 'stage')}"
        plan = [title, *_indented(format_graph(frozen, _ShownConstants()).split("\n"))]
    elif stage == "p-graph":
        plan = _primitives(stage, frozen, decompose(frozen, engines))
    elif stage == "e-graph":
        plan = _e_graph(frozen, engines, passes, estimated)
    else:
        raise ConfigError(
            "no such stage to explain", found=repr(stage), valid=" | ".join(get_args(PlanStage))
        )
    used: list[str] = []
    for name in _used(frozen, engines):
        used += [
            f"{name}: {_driven(engines.get(name))}",
            *_indented([*(parts or {}).get(name, ())]),
        ]
    return ExplainedText("\n".join([*plan, "engines:", *_indented(used or ["none"])]))


class _ShortRepr(reprlib.Repr):
    """The beginning of a value in one line, the same in every process."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 2

    def repr_instance(self, x: Any, level: int) -> str:
        """Return a plain value; of any other object its class, as its own text has an address."""
        if isinstance(x, NoneType | bool | float | bytes):
            return super().repr_instance(x, level)
        return f"{type(x).__name__}(...)"


class _ShownConstant(Reference):
    """A constant as it is shown."""

    def __str__(self) -> str:
        return self.name


class _ShownConstants(References):
    """The names of objects that text cannot hold, but for constants, which are shown."""

    def name(self, value: object, fallback: str) -> Reference:
        if isinstance(value, Constant):
            return _ShownConstant(f"Constant({_ShortRepr().repr(value.value)})")
        return super().name(value, fallback)


def _e_graph(
    graph: FrozenRAGraph,
    engines: Engines,
    passes: frozenset[str] | None,
    estimated: frozenset[str],
) -> list[str]:
    reduced = frozenset(output for output, _ in graph.reducers)
    context = PassContext(engines, reduced, passes, estimated)
    plan = run_passes(decompose(graph, engines), context)
    told = [f"{name}: {_estimated(saved_s)}" for name, saved_s in plan.estimates.items()]
    told += [line for change in plan.journal for line in str(change).split("\n")]
    begun = early_prefills(plan.graph, context)
    told += [f"{EARLY_PREFILL}: {early.name} may run while nothing else does" for early in begun]
    told += [
        f"{SPECULATE}: {generation.name} may begin with what {search.name} has found so far"
        for search, generation in speculative_edges(plan.graph, context)
    ]
    shown = _primitives("e-graph", graph, plan.graph)
    return [*shown, "passes:", *_indented(told or ["none"])]


def _estimated(saved_s: float | None) -> str:
    """Return why a pass with something to change is on or off."""
    if saved_s is None:
        return "off, as no profile of its engines tells what it would save"
    if saved_s == 0:
        return "off, as no work would overlap"
    about = f"about {max(1, round(1000 * abs(saved_s)))} ms"
    if saved_s < 0:
        return f"off, as it would cost {about} more than it saves"
    return f"saves up to {about} where a request is alone; off where several live"


def _primitives(stage: PlanStage, graph: FrozenRAGraph, lowered: PrimitiveGraph) -> list[str]:
    longest = max((primitive.depth + 1 for primitive in lowered.primitives), default=0)
    title = (
        f"{stage}: {_count(len(graph.stages), 'stage')} as "
        f"{_count(len(lowered.primitives), 'primitive')}, longest path {longest}"
    )
    return [title, *_indented(format_primitives(lowered).split("\n")[1:])]


def _used(graph: FrozenRAGraph, engines: Engines) -> list[str]:
    names: dict[str, None] = {}
    for stage in graph.stages:
        named = engines_of(stage)
        if isinstance(stage, Retrieval) and not needs_embedder(engines.get(stage.engine)):
            named = (stage.engine,)
        fallback = getattr(stage, "fallback", None)
        names.update(dict.fromkeys(named))
        if isinstance(fallback, str):
            names[fallback] = None
    return list(names)


def _driven(engine: EngineProfile | BorrowedEngine | None) -> str:
    match engine:
        case None:
            return "not given"
        case EngineProfile():
            batch = f"batches of up to {engine.max_batch}"
            return f"owned, stepped in its own worker; {_kinds(engine.kinds)}; {batch}"
        case BorrowedEngine():
            limit = engine.max_concurrency
            calls = "any number of calls" if limit is None else f"up to {_count(limit, 'call')}"
            return f"borrowed, called where its caller is; {_kinds(engine.kinds)}; {calls} at once"


def _kinds(kinds: frozenset[PrimitiveKind]) -> str:
    return " + ".join(kind for kind in PrimitiveKind if kind in kinds) or "nothing"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _indented(lines: list[str]) -> list[str]:
    return [f"  {line}" for line in lines]

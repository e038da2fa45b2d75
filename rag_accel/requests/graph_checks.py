"""Refusals of graphs that these engines would run wrongly, before anything runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from rag_accel.engine_api import KINDS, BorrowedEngine, PrimitiveKind
from rag_accel.graph.frozen import FrozenRAGraph
from rag_accel.graph.nodes import StageName, alternatives, listed
from rag_accel.graph.option_inputs import Input
from rag_accel.graph.order import reachable
from rag_accel.graph.spec import refuse
from rag_accel.graph.stages import Ingestion, Retrieval, Stage, engines_of
from rag_accel.graph.stages.kind import kind_of
from rag_accel.requests.engines import Engines
from rag_accel.requests.recovery import fallback_graph, fallback_offenders

_REFUSED = "these engines cannot run the graph"


def check_engines(graph: FrozenRAGraph, engines: Engines) -> None:
    """Raise one GraphError that lists every stage whose engine does not fit it.

    ``known-engines``: a callable that was added to do something else; it would be called with
    arguments it does not take. Owned engines say themselves what they execute, and ``decompose``
    checks those.

    ``known-fields``: a filter on a metadata field that no document of an owned index has, or once
    had. The search would find nothing, and the answer would be made from nothing. An index without
    documents knows no fields and finds nothing, whatever is asked. A retrieval after user code is
    not looked at: that code may be what brings the documents.
    """
    unknown = _unknown_fields(filters(graph, engines), engines)
    refuse(_REFUSED, (*_wrong_callables(graph, engines), *unknown))


def refuse_fallbacks(graph: FrozenRAGraph, engines: Engines) -> None:
    """Raise one GraphError that lists every fallback whose engine does not fit its stage."""
    profiles = {name: named.profile for name, named in engines.items()}
    alone = [found for stage in graph.stages if (found := fallback_graph(stage)) is not None]
    wrong = tuple(line for found in alone for line in _wrong_callables(found, engines))
    told = tuple(f"{line} (its fallback)" for line in wrong)
    refuse(_REFUSED, told or tuple(fallback_offenders(graph, profiles)))


def check_fields(stages: Iterable[Retrieval], engines: Engines) -> None:
    """Look at ``known-fields`` alone: what documents an index has may have changed meanwhile."""
    refuse(_REFUSED, tuple(_unknown_fields(stages, engines)))


def filters(graph: FrozenRAGraph, engines: Engines) -> tuple[Retrieval, ...]:
    """Return the retrievals with a filter that no user code comes before."""
    later = _after_user_code(graph, engines)
    return tuple(
        stage
        for stage in graph.stages
        if isinstance(stage, Retrieval) and stage.where and stage.name not in later
    )


def _wrong_callables(graph: FrozenRAGraph, engines: Engines) -> Iterator[str]:
    for stage in graph.stages:
        for name, kind in _asked_of(stage, engines):
            bound = engines.get(name)
            if bound is None or bound.call is None or kind in bound.profile.kinds:
                continue
            does = listed(sorted(bound.profile.kinds))
            why = f"added for {does}; say add_engine({name!r}, fn, PrimitiveKind.{kind})"
            if bound.decided_by:
                why = f"that does {does} for stage {bound.decided_by!r}; name another one here"
            yield (
                f"known-engines: stage {stage.name!r} needs {kind}, but engine {name!r} is a "
                f"callable {why}"
            )


def with_asked_kinds(graph: FrozenRAGraph, engines: Engines) -> Engines:
    """Return the engines; an open callable does what the first of the graph's stages asks for."""
    if not any(engine.is_open for engine in engines.values()):
        return engines
    found = dict(engines)
    alone = [part for stage in graph.stages if (part := fallback_graph(stage)) is not None]
    for stage in (stage for part in (graph, *alone) for stage in part.stages):
        for name, kind in _asked_of(stage, engines):
            bound = found.get(name)
            if bound is not None and bound.is_open and KINDS[kind].role:
                does = BorrowedEngine(name, frozenset({kind}))
                found[name] = replace(bound, profile=does, is_open=False, decided_by=stage.name)
    return found


def _asked_of(stage: Stage, engines: Engines) -> Iterator[tuple[str, PrimitiveKind]]:
    """Yield the engine and kind of each of a stage's primitives."""
    profiles = {name: named.profile for name, named in engines.items()}
    for step in kind_of(stage).steps(stage, profiles, {}):
        if step.engine is not None:
            yield step.engine, step.kind


def _unknown_fields(stages: Iterable[Retrieval], engines: Engines) -> Iterator[str]:
    for stage in stages:
        bound = engines.get(stage.engine)
        known = bound.fields() if bound is not None and bound.fields is not None else None
        if known is None:
            continue
        where = () if isinstance(stage.where, Input) else stage.where
        for name, _ in where:
            if name not in known:
                yield (
                    f"known-fields: stage {stage.name!r} filters on {name!r}, which no document "
                    f"of engine {stage.engine!r} has; {alternatives(name, sorted(known, key=str))}"
                )


def _after_user_code(graph: FrozenRAGraph, engines: Engines) -> frozenset[StageName]:
    targets = [
        target
        for stage in graph.stages
        if _is_user_code(stage, engines)
        for target in graph.flow[stage.name]
    ]
    return frozenset(reachable(graph.flow, targets))


def _is_user_code(stage: Stage, engines: Engines) -> bool:
    named = engines_of(stage)
    called = (engines[name].call is not None for name in named if name in engines)
    return not named or any(called) or isinstance(stage, Ingestion)

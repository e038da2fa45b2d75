"""The static passes over a primitive graph: p-graph in, e-graph out (Teola Algorithm 1).

Each pass runs once, in the order of ``STATIC_PASSES``; after each the graph is verified and what
changed is written down. Passes that only overlap work of one request run by default where their
estimates say that they save time. Plans are kept: graphs of one structure, on engines of the same
profiles, are planned once, whatever functions and filters they hold.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Final, TypeAlias

from rag_accel.engine_api import BorrowedEngine, EngineProfile
from rag_accel.errors import ConfigError, PassError
from rag_accel.graph.nodes import listed, suggestion
from rag_accel.graph.primitives import Primitive, PrimitiveGraph, PrimitiveName
from rag_accel.graph.prompt import ValueName
from rag_accel.graph.spec import offenders, verify
from rag_accel.passes.changes import Change, change_between
from rag_accel.passes.context import PassContext
from rag_accel.passes.decompose_stages import decompose_stages
from rag_accel.passes.early_prefill import EARLY_PREFILL
from rag_accel.passes.estimates import estimate_cuts, estimate_items, estimate_slices
from rag_accel.passes.join_prefill import join_prefill
from rag_accel.passes.ordering import Freed, freed_from
from rag_accel.passes.pipeline_decoding import pipeline_decoding
from rag_accel.passes.prune_dependencies import prune_dependencies
from rag_accel.passes.rerank_by_source import rerank_by_source
from rag_accel.passes.speculate import SPECULATE
from rag_accel.passes.split_prefill import split_prefill

Rewrite: TypeAlias = Callable[[PrimitiveGraph, PassContext], PrimitiveGraph]
Estimate: TypeAlias = Callable[[PrimitiveGraph, PrimitiveGraph, PassContext], float | None]

PLANS_KEPT: Final = 256
"""How many plans are kept in this process; the one unused for longest makes room."""


@dataclass(frozen=True, slots=True)
class Pass:
    """A rewrite of primitive graphs.

    It sees texts and whole numbers among the attributes of a primitive; of other values, such as
    functions, it sees only that they are there.

    Args:
        name: the name of the pass among ``passes``.
        rewrite: returns the graph rewritten, or this very graph if there is nothing to rewrite.
        estimate: returns how many seconds a request that is alone ends sooner with the graph
            rewritten (its second argument) than with the graph before (its first), negative for a
            loss; None if nothing is known. A pass without an estimate runs by default. A pass with
            one runs by default where it is above 0 and the request is alone.
    """

    name: str
    rewrite: Rewrite
    estimate: Estimate | None = None


STATIC_PASSES: Final = (
    Pass("prune_dependencies", prune_dependencies),
    Pass("split_prefill", split_prefill),
    Pass("rerank_by_source", rerank_by_source, estimate_slices),
    Pass("decompose_stages", decompose_stages, estimate_cuts),
    Pass("pipeline_decoding", pipeline_decoding, estimate_items),
    Pass("join_prefill", join_prefill),
)
"""What is applied before a region starts, in this order."""

_registered: list[Pass] = []


def register_pass(new_pass: Pass) -> Pass:
    """Let accelerators made from now on apply a pass, after ours, and know it by its name.

    Raises:
        ConfigError: if another pass has this name.
    """
    if new_pass.name in _known(static_passes()):
        raise ConfigError("a pass is registered already", found=new_pass.name, valid="another name")
    _registered.append(new_pass)
    return new_pass


def static_passes() -> tuple[Pass, ...]:
    """Return the static passes there are, in the order in which they are applied."""
    return (*STATIC_PASSES, *_registered)


RUNTIME_PASSES: Final = ("split_nodes", EARLY_PREFILL, SPECULATE)
"""What rewrites no graph: ``split_nodes.py``, ``early_prefill.py`` and ``speculate.py``."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The result of the passes over one graph.

    Args:
        graph: what is executed.
        journal: what each pass changed, in the order in which they ran.
        freed: by primitive what had surely ended before it began, and need not have now.
        estimates: seconds saved, or None if unknown, by each estimated pass that has something to
            change; whatever is not above 0 was not applied.
    """

    graph: PrimitiveGraph
    journal: tuple[Change, ...]
    freed: Freed
    estimates: Mapping[str, float | None] = field(default_factory=dict[str, float | None])


def run_passes(
    graph: PrimitiveGraph, context: PassContext, passes: tuple[Pass, ...] | None = None
) -> Plan:
    """Apply the passes that the context enables; without any, the graph comes back untouched.

    Args:
        passes: those there are; by default all that are known.

    Raises:
        ConfigError: if the context enables a pass that does not exist.
        GraphError: if the graph is no valid p-graph.
        PassError: if a pass breaks a rule of e-graphs.
    """
    there_are = static_passes() if passes is None else passes
    enabled = context.enabled
    chosen = _chosen(None if enabled is None else enabled | context.estimated, there_are)
    if not chosen:
        return Plan(graph, (), {})
    key = _Key(
        tuple(_without_values(primitive) for primitive in graph.primitives),
        graph.external,
        _named_engines(graph, context),
        context.reduced,
        chosen,
        context.estimated,
    )
    plan = _kept_plan(key) if _is_hashable(key) else _plan(key)
    return replace(plan, graph=_with_values(plan.graph, graph))


def passes_named(text: str) -> frozenset[str] | None:
    """Read which passes are on: ``default``, ``all``, ``none``, or names separated by commas.

    Raises:
        ConfigError: if there is no pass of such a name.
    """
    match [name.strip() for name in text.split(",") if name.strip()]:
        case ["default"]:
            return frozenset(_known(static_passes())) - passes_estimated(text)
        case ["all"]:
            return None
        case ["none"]:
            return frozenset()
        case names:
            enabled = frozenset(names)
            _chosen(enabled, static_passes())
            return enabled


def passes_estimated(text: str) -> frozenset[str]:
    """Read which passes are on only where they are expected to save time; see ``passes_named``."""
    if text.strip(" ,") != "default":
        return frozenset()
    return frozenset(pass_.name for pass_ in static_passes() if pass_.estimate is not None)


def _known(passes: tuple[Pass, ...]) -> list[str]:
    return [*(pass_.name for pass_ in passes), *RUNTIME_PASSES]


def _chosen(enabled: frozenset[str] | None, passes: tuple[Pass, ...]) -> tuple[Pass, ...]:
    if enabled is None:
        return passes
    known = _known(passes)
    unknown = sorted(enabled.difference(known))
    if unknown:
        raise ConfigError(
            "no such pass",
            where="passes",
            found=listed(unknown),
            valid=listed(known),
            hint=suggestion(unknown[0], known),
        )
    return tuple(pass_ for pass_ in passes if pass_.name in enabled)


@dataclass(frozen=True, slots=True)
class _Key:
    """The cache key of a plan; of the user's objects it holds only names and prompts."""

    primitives: tuple[Primitive, ...]
    external: tuple[PrimitiveName, ...]
    engines: tuple[tuple[str, EngineProfile | BorrowedEngine], ...]
    reduced: frozenset[ValueName]
    passes: tuple[Pass, ...]
    estimated: frozenset[str]


def _plan(key: _Key) -> Plan:
    context = PassContext(dict(key.engines), key.reduced)
    before = graph = PrimitiveGraph(key.primitives, key.external)
    verify(graph, "p-graph", context.engines)
    journal: list[Change] = []
    estimates: dict[str, float | None] = {}
    for pass_ in key.passes:
        rewritten = pass_.rewrite(graph, context)
        _check(pass_, rewritten, context)
        change = change_between(pass_.name, graph, rewritten)
        if pass_.name in key.estimated and pass_.estimate and change != Change(pass_.name):
            saved_s = estimates[pass_.name] = pass_.estimate(graph, rewritten, context)
            if saved_s is None or saved_s <= 0:
                continue
        journal.append(change)
        graph = rewritten
    return Plan(graph, tuple(journal), freed_from(before, graph), estimates)


_kept_plan = lru_cache(PLANS_KEPT)(_plan)


def _check(pass_: Pass, graph: PrimitiveGraph, context: PassContext) -> None:
    broken = offenders(graph, "e-graph", context.engines)
    if broken:
        raise PassError(
            "a pass left a graph that cannot be executed",
            where=f"pass {pass_.name!r}",
            found="; ".join(broken),
            hint=f"switch {pass_.name!r} off and report this",
        )


def _named_engines(
    graph: PrimitiveGraph, context: PassContext
) -> tuple[tuple[str, EngineProfile | BorrowedEngine], ...]:
    names = dict.fromkeys(
        primitive.engine for primitive in graph.primitives if primitive.engine is not None
    )
    return tuple((name, context.engines[name]) for name in names if name in context.engines)


def _is_hashable(key: Hashable) -> bool:
    try:
        hash(key)
    except TypeError:  # another's profile may hold a list or a set
        return False
    return True


@dataclass(frozen=True, slots=True)
class _Slot:
    """A placeholder for the value of an attribute that no pass looks at."""

    primitive: PrimitiveName
    attribute: str


def _without_values(primitive: Primitive) -> Primitive:
    if all(_is_plain(value) for _, value in primitive.attributes):
        return primitive
    kept = (
        (key, value if _is_plain(value) else _Slot(primitive.name, key))
        for key, value in primitive.attributes
    )
    return replace(primitive, attributes=tuple(kept))


def _is_plain(value: object) -> bool:
    # By type: True equals 1, but is not the same attribute.
    return type(value) in (str, int)


def _with_values(planned: PrimitiveGraph, source: PrimitiveGraph) -> PrimitiveGraph:
    primitives = tuple(_filled(primitive, source) for primitive in planned.primitives)
    return PrimitiveGraph(primitives, planned.external)


def _filled(primitive: Primitive, source: PrimitiveGraph) -> Primitive:
    if not any(isinstance(value, _Slot) for _, value in primitive.attributes):
        return primitive
    return replace(primitive, attributes=tuple(_values(primitive.attributes, source)))


def _values(
    attributes: Iterable[tuple[str, Any]], source: PrimitiveGraph
) -> Iterable[tuple[str, Any]]:
    for key, value in attributes:
        if isinstance(value, _Slot):
            value = source.by_name[value.primitive].attribute(value.attribute)
        yield key, value

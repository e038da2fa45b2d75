"""Prefetch hints: documents on their way to a prompt of an engine that prefetches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

from rag_accel.engine_api import Capability, Document, EngineProfile, ScoredDocument
from rag_accel.graph.frozen import FrozenRAGraph
from rag_accel.graph.list_functions import ItemFunction, UnionFunction
from rag_accel.graph.prompt import ValueName
from rag_accel.graph.stages import Function, Generation, Rerank
from rag_accel.requests.engines import Engines
from rag_accel.scheduler.messages import EngineName

_NONE: frozenset[EngineName] = frozenset()


def hinted_values(graph: FrozenRAGraph, engines: Engines) -> Mapping[str, frozenset[EngineName]]:
    """Return the values whose documents are hinted at, with the engines that take these hints.

    Those are the values of searches, rerankings and the user's functions that a prompt names, or
    that become such a value by rerankings, unions and other functions of rag_accel. What a function
    of the user's makes of documents is not known before: its own value counts, not what it reads.
    """
    takers: dict[str, frozenset[EngineName]] = {}
    for stage in graph.stages:
        named = engines.get(stage.engine) if isinstance(stage, Generation) else None
        if named is not None and _takes_hints(named.profile):
            _add(takers, stage.inputs, frozenset({named.engine}))
    changes = bool(takers)
    while changes:
        changes = False
        for stage in graph.stages:
            readers = takers.get(stage.output or "", _NONE)
            if isinstance(stage, Rerank):
                changes |= _add(takers, (stage.documents,), readers)
            elif isinstance(stage, Function) and _hands_on(stage.fn):
                changes |= _add(takers, stage.inputs, readers)
    found: dict[str, frozenset[EngineName]] = {}
    for stage in graph.stages:
        hands_on = isinstance(stage, Function) and _hands_on(stage.fn)
        readers = takers.get(stage.output or "", _NONE)
        if readers and not (hands_on or isinstance(stage, Generation)):
            found[str(stage.output)] = readers
    return found


def texts_of(value: Any) -> Iterator[str]:
    """Yield the texts of the documents in a list; of anything else, none."""
    for item in cast("list[Any]", value) if isinstance(value, list | tuple) else ():
        document = item.document if isinstance(item, ScoredDocument) else item
        if isinstance(document, Document):
            yield document.text


def _takes_hints(profile: object) -> bool:
    return isinstance(profile, EngineProfile) and Capability.HINT in profile.capabilities


def _hands_on(function: Callable[..., Any]) -> bool:
    """Tell whether a function returns documents that it reads, as far as rag_accel knows."""
    module = getattr(function, "__module__", None)
    is_own = isinstance(module, str) and module.partition(".")[0] == "rag_accel"
    return is_own or isinstance(function, UnionFunction | ItemFunction)


def _add(
    takers: dict[str, frozenset[EngineName]],
    values: tuple[ValueName, ...],
    engines: frozenset[EngineName],
) -> bool:
    is_new = False
    for value in values:
        known = takers.get(value, _NONE)
        if not engines <= known:
            takers[value], is_new = known | engines, True
    return is_new

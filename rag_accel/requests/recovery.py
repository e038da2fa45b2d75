"""Attempts and fallbacks of stages as the scheduler takes them with a request's primitives.

    answer.decoding: DECODING@llm(input) -> answer  after search.searching

of a stage with ``fallback="llm2"`` brings along what takes its place after its last attempt:

    answer.fallback.decoding: DECODING@llm2(input) -> answer  after search.searching
        replaces="answer.decoding"

A fallback is the whole stage on another engine, lowered like any other and rewritten by no pass.
It works from the request's values, and waits for all that the stage waits for.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rag_accel.engine_api import BorrowedEngine, EngineProfile, PrimitiveKind
from rag_accel.errors import GraphError
from rag_accel.graph.frozen import FrozenRAGraph
from rag_accel.graph.growth import InstanceName, StageInstance
from rag_accel.graph.primitives import Primitive
from rag_accel.graph.stages import Constant, Function, Retry, Stage, retry_of
from rag_accel.passes.decompose import decompose
from rag_accel.scheduler.messages import Fallback, NodeSpec

Profiles = Mapping[str, EngineProfile | BorrowedEngine]
Specs = Callable[[Sequence[Primitive]], tuple[tuple[NodeSpec, ...], dict[str, Primitive]]]


@dataclass(frozen=True, slots=True)
class ConstantFunction:
    """A function that returns a deep copy of one value, which its reader may change."""

    value: Any

    def __call__(self) -> Any:
        """Return it; objects that cannot be copied are the same in all copies."""
        return _copied(self.value)


def fallback_stage(stage: Any) -> Stage | None:
    """Return what runs in a stage's place after its last attempt, if anything does."""
    fallback = getattr(stage, "fallback", None)
    if fallback is None:
        return None
    if isinstance(fallback, Constant):
        fn = ConstantFunction(fallback.value)
        return Function(stage.name, fn, (), output=stage.output)
    return replace(stage, engine=fallback, retry=None, fallback=None)


def fallback_graph(stage: Stage) -> FrozenRAGraph | None:
    """Return a graph of nothing but a stage's fallback, to be checked as a graph of its own."""
    instead = fallback_stage(stage)
    return None if instead is None else FrozenRAGraph((instead,))


def fallback_offenders(graph: FrozenRAGraph, profiles: Profiles) -> Iterable[str]:
    """Yield a line for each fallback that these engines cannot run."""
    for stage in graph.stages:
        alone = fallback_graph(stage)
        try:
            if alone is not None:
                decompose(alone, profiles)
        except GraphError as error:
            yield from (f"{line} (its fallback)" for line in error.offenders)


def with_recovery(
    grown: Sequence[StageInstance],
    primitives: Sequence[Primitive],
    specs: tuple[NodeSpec, ...],
    profiles: Profiles,
    specs_of: Specs,
) -> tuple[tuple[NodeSpec, ...], dict[str, Primitive], dict[str, Retry]]:
    """Return the specs with their fallbacks, the primitives of these, and the attempts by node."""
    by_instance: dict[InstanceName, list[Primitive]] = {}
    for primitive in primitives:
        if primitive.kind is not PrimitiveKind.PARTIAL_DECODING:
            by_instance.setdefault(primitive.instance, []).append(primitive)
    fallbacks: dict[str, Fallback] = {}
    added: dict[str, Primitive] = {}
    retries: dict[str, Retry] = {}
    for instance in grown:
        own = by_instance.get(instance.name, [])
        retry = retry_of(instance.stage)
        if retry is None or not own:
            continue
        retries.update((primitive.name, retry) for primitive in own if retry.attempts)
        lowered = _lowered(instance, own, profiles)
        if lowered:
            new, by_node = specs_of(lowered)
            added |= by_node
            last = _last(instance, own).name
            others = tuple(primitive.name for primitive in own if primitive.name != last)
            fallbacks |= dict.fromkeys((*others, last), Fallback(last, others, new))
    told = (replace(spec, fallback=fallbacks.get(spec.name)) for spec in specs)
    return tuple(told) if fallbacks else specs, added, retries


def drawn(
    specs: tuple[NodeSpec, ...], retries: Mapping[str, Retry], jitter: Callable[[], float]
) -> tuple[NodeSpec, ...]:
    """Return the specs of one request, with the waits of their attempts drawn for it."""
    if not retries:
        return specs
    return tuple(
        replace(spec, backoffs_s=retries[spec.name].backoffs_s(jitter))
        if spec.name in retries
        else spec
        for spec in specs
    )


def _copied(value: Any) -> Any:
    try:
        return copy.deepcopy(value)
    except Exception:  # something in it is a lock, a client or the like: the rest is still copied
        kind = type(value)
        if kind is dict:
            return {key: _copied(item) for key, item in value.items()}
        return kind(map(_copied, value)) if kind in (list, tuple, set) else value


def _last(instance: StageInstance, own: Sequence[Primitive]) -> Primitive:
    """Return the primitive that others wait for, which writes the stage's output."""
    return next(
        primitive for primitive in reversed(own) if primitive.output == instance.stage.output
    )


def _lowered(
    instance: StageInstance, own: Sequence[Primitive], profiles: Profiles
) -> tuple[Primitive, ...]:
    """Return the primitives of an instance's fallback; the last says what it replaces."""
    stage = fallback_stage(instance.stage)
    if stage is None:
        return ()
    graph = instance.graph.edit(replace=[stage])
    name = InstanceName(f"{instance.name}.fallback")
    alone = replace(instance, name=name, stage=stage, graph=graph)
    lowered = decompose([alone], profiles).primitives
    names = {primitive.name for primitive in own}
    waits = dict.fromkeys(name for primitive in own for name in primitive.after)
    outside = tuple(name for name in waits if name not in names)
    made = {primitive.name for primitive in lowered}
    told = [
        replace(
            primitive,
            instance=instance.name,
            after=tuple(dict.fromkeys((*primitive.after, *outside)))
            if made.isdisjoint(primitive.after)
            else primitive.after,
        )
        for primitive in lowered
    ]
    replaced = ("replaces", _last(instance, own).name)
    told[-1] = replace(told[-1], attributes=(*told[-1].attributes, replaced))
    return tuple(told)

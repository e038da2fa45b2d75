"""Estimates of the seconds that passes save a request that is alone.

    expand.decoding: DECODING@llm(input) -> text
    query1.function: PARTIAL_DECODING(list) -> query1  item=0 text="expand.decoding"
    search1.searching: SEARCHING@index(query1) -> found1  after query1.function

While the rest of the list is written, the index searches for its first item. That saves the search
where the two engines compute in different places. Engines that both compute in this process share
its cores: whatever runs earlier there makes the decoding later.

All is taken from the profiles of the engines (``EngineProfile.latency``), and nothing from what was
measured since. So a graph has the same plan in every process, and ``explain`` shows it. A step's
base is not saved: the last item needs a step of its own.
"""

from __future__ import annotations

from rag_accel.engine_api import LatencyModel
from rag_accel.engine_api.kinds import PrimitiveKind
from rag_accel.graph.primitives import Primitive, PrimitiveGraph
from rag_accel.passes.context import PassContext
from rag_accel.passes.ordering import all_earlier
from rag_accel.passes.pipeline_decoding import pipeline_decoding
from rag_accel.passes.split_prefill import LONG_VALUE_TOKENS

_UNKNOWN = LatencyModel()


def estimate_items(
    before: PrimitiveGraph, after: PrimitiveGraph, context: PassContext
) -> float | None:
    """Return what ``pipeline_decoding`` saves: the work on all items of a list but the last.

    At most that is the time in which the list is written after its first item, where the profile
    of the LLM tells it. None if no profile tells how long the work on an item takes.
    """
    takers: dict[str, list[Primitive]] = {}
    for primitive in after.primitives:
        if primitive.kind is PrimitiveKind.PARTIAL_DECODING and primitive not in before.primitives:
            takers.setdefault(primitive.attribute("list"), []).append(primitive)
    saved = [_saved_by_list(after, several, context) for several in takers.values()]
    known = [seconds for seconds in saved if seconds is not None]
    return sum(known) if known else None


def _saved_by_list(
    graph: PrimitiveGraph, takers: list[Primitive], context: PassContext
) -> float | None:
    by_name, earlier = graph.by_name, all_earlier(graph)
    read, decoding = (by_name[takers[0].attribute(name)] for name in ("list", "text"))
    llm, last = context.owned(decoding), read.attribute("items") - 1
    assert llm is not None, "lists are read off what owned engines write"
    early = {taker.name for taker in takers if taker.attribute("item") < last}
    late = {read.name, *(taker.name for taker in takers)} - early
    overlapping: list[tuple[int, LatencyModel]] = []
    for primitive in graph.primitives:
        engine, waited = context.owned(primitive), earlier[primitive.name]
        if engine is None or early.isdisjoint(waited) or not late.isdisjoint(waited):
            continue
        # Two names may stand for one engine; equal profiles are all that tells.
        if engine != llm and 0 in (engine.max_threads, llm.max_threads):
            overlapping.append((primitive.size, engine.latency))
    if overlapping and all(latency == _UNKNOWN for _, latency in overlapping):
        return None
    seconds = sum(latency.per_item_s * size for size, latency in overlapping)
    if llm.latency != _UNKNOWN:
        limit = decoding.attribute("max_tokens")
        tokens = min(limit, LONG_VALUE_TOKENS) if isinstance(limit, int) else LONG_VALUE_TOKENS
        seconds = min(seconds, llm.latency.predict_s(1) * tokens * last / (last + 1))
    return seconds


def estimate_slices(
    before: PrimitiveGraph, after: PrimitiveGraph, context: PassContext
) -> float | None:
    """Return what ``rerank_by_source`` adds to what ``pipeline_decoding`` saves, less its cost.

    Where no list is searched while it is written, searches end together and it only costs.
    """
    cost = _cost_of_slices(before, after, context)
    if cost is None:
        return None
    was, now = (
        estimate_items(graph, pipeline_decoding(graph, context), context) or 0.0
        for graph in (before, after)
    )
    return now - was - cost


def estimate_cuts(
    before: PrimitiveGraph, after: PrimitiveGraph, context: PassContext
) -> float | None:
    """Return what ``decompose_stages`` saves a request that is alone: less than nothing.

    Its slices are ready at the same time on one engine, and are read only when the last has ended.
    They let work of other requests in between.
    """
    cost = _cost_of_slices(before, after, context)
    return None if cost is None else 0.0 - cost


def _cost_of_slices(
    before: PrimitiveGraph, after: PrimitiveGraph, context: PassContext
) -> float | None:
    """Return the bases of the further steps, in seconds; None if no profile tells them."""
    cost = 0.0
    for whole in before.primitives:
        engine, join = context.owned(whole), after.by_name[whole.name]
        if engine is not None and join.kind is not whole.kind:
            if engine.latency == _UNKNOWN:
                return None
            cost += engine.latency.base_s * (len(join.inputs) - 1)
    return cost

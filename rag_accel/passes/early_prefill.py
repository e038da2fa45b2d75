"""Early prefill: the beginning of a prompt behind user code (Teola 4.2, Pass 3, as early work).

    search.searching: SEARCHING@store(input) -> docs
    format.function: FUNCTION(docs) -> text  after search.searching
    answer.decoding: DECODING@llm(history, text) -> answer  after format.function
        prompt="<instructions> {history} {text}"

stays as it is, and gets as early work, which no primitive waits for,

    answer.early_prefilling: PARTIAL_PREFILLING@llm(history)
        prompt="<instructions> {history} "

``split_prefill`` would have to move a primitive past code of the user's or past a borrowed engine.
Here none moves: the prompt is computed when and as it would be, and its beginning is looked up by
its tokens where the engine keeps beginnings. So a wrong beginning costs time and changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from rag_accel.engine_api.kinds import PrimitiveKind
from rag_accel.graph.primitives import Primitive, PrimitiveGraph, PrimitiveName
from rag_accel.passes.context import PassContext
from rag_accel.passes.ordering import all_earlier
from rag_accel.passes.split_prefill import beginnings

#: what names the pass among ``passes``
EARLY_PREFILL = "early_prefill"

_PROMPTED = frozenset({PrimitiveKind.PREFILLING, PrimitiveKind.DECODING})


def early_prefills(graph: PrimitiveGraph, context: PassContext) -> Iterator[Primitive]:
    """Yield the longest beginning of each prompt that is known before all the rest.

    It waits for the writers of its values in this region, and has no output. A prompt whose
    beginning holds no value is left out: the engine has it from the request before. So is a value
    that a reducer of the user's makes.
    """
    if context.enabled is not None and EARLY_PREFILL not in context.enabled:
        return
    earlier = all_earlier(graph)
    for whole in graph.primitives:
        engine = context.owned(whole)
        if engine is None or whole.kind not in _PROMPTED:
            continue
        if PrimitiveKind.PARTIAL_PREFILLING not in engine.kinds or _is_begun(whole, graph):
            continue
        waited = earlier[whole.name]
        found: Primitive | None = None
        for beginning in beginnings(whole):
            values = beginning.values
            writers = [one.name for value in values for one in graph.writers(value)]
            known = frozenset(writers).union(*(earlier[name] for name in writers))
            if values and context.reduced.isdisjoint(values) and not waited <= known:
                found = replace(
                    whole,
                    name=PrimitiveName(f"{whole.instance}.early_prefilling"),
                    kind=PrimitiveKind.PARTIAL_PREFILLING,
                    inputs=values,
                    output=None,
                    after=tuple(name for name in writers if name in waited),
                    attributes=beginning.attributes,
                )
        if found is not None:
            yield found


def _is_begun(whole: Primitive, graph: PrimitiveGraph) -> bool:
    """Tell whether ``split_prefill`` has cut its prompt."""
    return any(
        one.kind is PrimitiveKind.PARTIAL_PREFILLING and one.instance == whole.instance
        for one in graph.primitives
    )

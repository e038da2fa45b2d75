"""Prefill and decode, joined into one primitive where nothing happens between them.

    answer.prefilling: PREFILLING@llm(input, docs) -> answer.prefill  after search.searching
        prompt="{input} {docs}"
    answer.decoding: DECODING@llm(answer.prefill) -> answer  after answer.prefilling

becomes

    answer.decoding: DECODING@llm(input, docs) -> answer  after search.searching
        prompt="{input} {docs}"

Two works cost a scheduling turn between them, and an engine gives the first token with the last
prompt token only if it may decode at once. Stages are lowered to both kinds (Teola Algorithm 1) so
that other passes can work on the prefilling; this one runs last and takes back what none of them
used. What a partial prefilling has begun is resumed by the joined work.
"""

from __future__ import annotations

from dataclasses import replace

from rag_accel.engine_api.kinds import PrimitiveKind
from rag_accel.graph.primitives import Primitive, PrimitiveGraph
from rag_accel.passes.context import PassContext

_WHOLE = frozenset({PrimitiveKind.PREFILLING, PrimitiveKind.FULL_PREFILLING})


def join_prefill(graph: PrimitiveGraph, context: PassContext) -> PrimitiveGraph:
    """Join each prefilling with its decoding if no other work waits for what comes between.

    Partial decodings, which follow the decoding's text, then start with the joined work. Returns
    this very graph if there is nothing to join.
    """
    put: list[Primitive] = []
    remove: list[str] = []
    for prefilling in graph.primitives:
        waiting = [graph.by_name[name] for name in graph.successors[prefilling.name]]
        decodings = [primitive for primitive in waiting if _continues(primitive, prefilling)]
        if prefilling.kind not in _WHOLE or len(decodings) != 1:
            continue
        followers = [primitive for primitive in waiting if primitive is not decodings[0]]
        if all(follower.attribute("text") == decodings[0].name for follower in followers):
            put.append(_joined(prefilling, decodings[0]))
            put += [_waiting_for_the_same(follower, prefilling) for follower in followers]
            remove.append(prefilling.name)
    return graph.edit(put=put, remove=remove)


def _continues(decoding: Primitive, prefilling: Primitive) -> bool:
    return (
        decoding.kind is PrimitiveKind.DECODING
        and decoding.instance == prefilling.instance
        and decoding.engine == prefilling.engine
        and decoding.inputs == (prefilling.output,)
        and set(decoding.after) <= {prefilling.name, *prefilling.after}
    )


def _joined(prefilling: Primitive, decoding: Primitive) -> Primitive:
    return replace(
        decoding,
        inputs=prefilling.inputs,
        after=prefilling.after,
        attributes=(*prefilling.attributes, *decoding.attributes),
    )


def _waiting_for_the_same(follower: Primitive, prefilling: Primitive) -> Primitive:
    after = (name for name in follower.after if name != prefilling.name)
    return replace(follower, after=tuple(dict.fromkeys((*after, *prefilling.after))))

"""Stages that run in slices: what each slice is given, and what the slices make together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from rag_accel.engine_api import PrimitiveKind, RerankBatch, ScoredDocument
from rag_accel.graph.growth import InstanceName
from rag_accel.graph.primitives import Primitive
from rag_accel.passes.split_nodes import joined, part_of
from rag_accel.requests.engines import plain_documents
from rag_accel.requests.kinds import payload
from rag_accel.requests.prompts import as_text
from rag_accel.requests.values import Values

_NO_DOCUMENTS = RerankBatch("", ())


class SlicedWork:
    """The payloads and slices of one request's stages that run in slices, and their joined results.

    A stage's work is gathered once, when its first slice begins: documents may come from an
    iterator that gives them only once, and all slices must cut the same list. Slices of a union of
    searches each gather their own, from lists that are there for good.

    ``payload`` is called by the engine that runs the slices, on its one thread; ``joined`` may be
    called on another, once all slices of the stage have ended.
    """

    def __init__(self, values: Values) -> None:
        self._values = values
        self._whole: dict[InstanceName, RerankBatch] = {}

    def payload(self, primitive: Primitive) -> Any:
        """Return the payload of a primitive, or of its slice of the stage.

        Raises:
            GraphError: if a value it reads was not written.
        """
        if primitive.kind is PrimitiveKind.RERANKING and primitive.attribute("fn") is not None:
            return self._added_by_last(primitive)
        cut: tuple[int, int] | None = primitive.attribute("slice")
        if cut is None:
            return payload(primitive, self._values)
        whole = self._whole.get(primitive.instance)
        if whole is None:
            whole = self._whole[primitive.instance] = payload(primitive, self._values)
        place, count = cut
        low, high = (len(whole.documents) * edge // count for edge in (place, place + 1))
        return part_of(whole, low, high)

    def joined(self, primitive: Primitive) -> tuple[ScoredDocument, ...]:
        """Return the stage's result of those of its slices, which the primitive reads in order.

        Raises:
            EngineOutputError: if one of these is no ranking.
        """
        whole = self._whole.pop(primitive.instance, _NO_DOCUMENTS)
        rankings = [self._values.read(name) for name in primitive.inputs]
        return joined(replace(whole, top_n=primitive.attribute("top_n")), rankings, primitive.name)

    def _added_by_last(self, primitive: Primitive) -> RerankBatch:
        """Return the documents that a reranking's last list adds to the union of those before."""
        query, *lists = (self._values.read(name) for name in primitive.inputs)
        union: Callable[..., Sequence[Any]] = primitive.attribute("fn")
        known = len(union(*lists[:-1])) if len(lists) > 1 else 0
        return RerankBatch(as_text(query), plain_documents(union(*lists)[known:]), None)

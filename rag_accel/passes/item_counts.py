"""Say how many items primitives probably have, from what stages are asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import assert_never

from rag_accel.engine_api.kinds import PrimitiveKind
from rag_accel.graph.frozen import FrozenRAGraph
from rag_accel.graph.nodes import Function, Ingestion, Rerank, Retrieval, Stage
from rag_accel.graph.prompt import ValueName

EXPECTED_DOCUMENTS = 16
"""Of an ingestion, where nothing says how many it brings: more than a query, which is one text."""


def item_count(stage: Stage, kind: PrimitiveKind, sizes: Mapping[ValueName, int]) -> int:
    """Return how many items a stage's primitive of this kind probably has."""
    match stage:
        case Rerank():
            return sizes.get(stage.documents, 1)
        case Ingestion() if kind is PrimitiveKind.EMBEDDING:
            return sizes.get(stage.documents, EXPECTED_DOCUMENTS)
        case _:
            return 1


def document_counts(graph: FrozenRAGraph) -> dict[ValueName, int]:
    """Return how many documents each value probably holds, if any: reduced writers add up."""
    reduced = {output for output, _ in graph.reducers}
    counts: dict[ValueName, int] = {}
    for name in graph.forward:
        stage = graph.by_name.get(name)
        if isinstance(stage, Retrieval | Rerank | Function):
            written = _written(stage, counts)
            known = counts.get(stage.output, 0)
            if written:
                counts[stage.output] = known + written if stage.output in reduced else written
    return counts


def _written(stage: Retrieval | Rerank | Function, counts: Mapping[ValueName, int]) -> int:
    match stage:
        case Retrieval():
            return stage.top_k
        case Rerank():
            bounds = (counts.get(stage.documents), stage.top_n)
            return min((bound for bound in bounds if bound is not None), default=1)
        case Function():
            # What is made of documents is mostly all of them: merged, filtered, reordered.
            return sum(counts.get(name, 0) for name in stage.inputs)
        case _:
            assert_never(stage)

"""The choice of the paths nearest to a query by an encoder's cosine."""

from __future__ import annotations

import numpy as np

from rag_accel.engine_api import Document, GraphHit, GraphPath, PruneBatch
from rag_accel.engines.knowledge.paths import Paths
from rag_accel.engines.knowledge.vectors import unit
from rag_accel.engines.knowledge.words import best
from rag_accel.errors import EngineError


def prune(batch: PruneBatch) -> tuple[GraphHit, ...]:
    """Return the ``k`` paths of the highest cosine, best first; equal ones in their order.

    Raises:
        EngineError: if there is not one vector for each path, of the query's dimension.
    """
    paths: Paths = batch.paths
    walked = paths.walked()
    if not walked or not batch.k:
        return ()
    query = np.asarray(batch.query, dtype=np.float32).reshape(-1)
    vectors = np.asarray(batch.vectors, dtype=np.float32)
    if vectors.shape != (len(walked), len(query)):
        raise EngineError(
            "the vectors of paths do not fit the paths",
            found=f"shape {vectors.shape}",
            valid=f"({len(walked)}, {len(query)})",
        )
    scores = unit(vectors) @ unit(query[None, :])[0]
    chosen = best(np.arange(len(walked)), scores, batch.k)
    return tuple(_hit(walked[place], float(scores[place])) for place in chosen.tolist())


def _hit(path: GraphPath, score: float) -> GraphHit:
    told = {"entities": path.entities, "relations": path.relations}
    return GraphHit(Document(path.text, path.text, told), score, path)

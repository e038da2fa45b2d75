"""The work of a knowledge graph's engine: linking entities, hops, and pruning of paths."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from rag_accel.engine_api import ExpandBatch, LinkQuery, PruneBatch
from rag_accel.errors import GraphLinkError
from rag_accel.graph.primitives import Primitive
from rag_accel.requests.prompts import as_text
from rag_accel.requests.values import Readable


def link_query(link: str, value: Any, top_k: int) -> LinkQuery:
    """Return a search for the entities that a value means, by the way a stage links.

    Raises:
        GraphLinkError: if keywords are neither a text nor a list.
    """
    if link == "vector":
        return LinkQuery(top_k, vector=value)
    if link == "words":
        return LinkQuery(top_k, text=as_text(value))
    return LinkQuery(top_k, names=_keywords(value))


def _keywords(value: Any) -> tuple[str, ...]:
    """Return names from a list of them, or from a text that separates them.

    A name in a list may hold any character; in a text, commas and line ends separate. What stands
    around a name is most often a blank that does not belong to it, but it may: so a name is looked
    for both with and without, in a list first as it stands there, in a text first without.
    """
    if isinstance(value, str):
        pieces = [piece for piece in re.split(r"[,\n]", value) if piece.strip()]
        names = [name for piece in pieces for name in (piece.strip(), piece)]
    else:
        names = [name for piece in map(as_text, _list(value)) for name in (piece, piece.strip())]
    return tuple(dict.fromkeys(name for name in names if name))


def _list(value: Any) -> Iterable[Any]:
    if value is None:
        return ()
    if isinstance(value, Iterable) and not isinstance(value, bytes | bytearray | Mapping):
        return value
    raise GraphLinkError(
        "these are no keywords that could name entities",
        where="keywords",
        found=type(value).__name__,
        valid="a list of texts, or a text that separates them by commas or lines",
    )


def expand_batch(primitive: Primitive, values: Readable) -> ExpandBatch:
    """Return one hop from the paths that the primitive before it gave."""
    named = ("relations", "direction", "fan_out", "limit")
    told = {name: primitive.attribute(name) for name in named}
    told = {name: value for name, value in told.items() if value is not None}
    return ExpandBatch(values.read(primitive.inputs[0]), **told)


def prune_batch(primitive: Primitive, values: Readable) -> PruneBatch:
    """Return the paths to choose from; a callable finds its own, for the query's text."""
    query, *found = (values.read(name) for name in primitive.inputs)
    paths, vectors = found if len(found) == 2 else (None, None)
    return PruneBatch(paths, vectors, query, primitive.attribute("top_k"))

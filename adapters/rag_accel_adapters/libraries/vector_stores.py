"""Clients of vector stores on servers, a row for each class: Chroma's collections and Qdrant.

Searches of several callers go in one call only where nothing of a client's can look at who calls:
it is as shipped, and sends the same headers for everybody. A search of which some part is no plain
data is made alone.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

import numpy as np

from rag_accel.adoption.known_classes import NotAdoptedError
from rag_accel.adoption.remote_stores import ReadSearch, SearchedClient
from rag_accel.system.classes import full_name
from rag_accel_adapters.libraries.as_shipped import check_object
from rag_accel_adapters.libraries.openai_clients import http_values, is_value

#: What switches the batches of these classes off.
CHROMA_UNLESS = (
    "a client or a collection with a replaced method, or an HTTP client with hooks or an auth",
    "searches by texts, images or URIs",
)
QDRANT_UNLESS = (
    "`prefer_grpc=True`",
    "an `auth_token_provider`, or middleware",
    "a client in this process (`:memory:` or `path`), whose calls of several searches are a loop",
    "searches inside `qdrant_client.context_headers.headers`",
)

_FASTAPI = "chromadb.api.fastapi.FastAPI"
_RUST = "chromadb.api.rust.RustBindingsAPI"


def _check_chroma(collection: Any) -> None:
    check_object(collection, "collection")
    api = collection._client
    if full_name(type(api)) not in (_FASTAPI, _RUST):
        raise NotAdoptedError(
            f"its collection's client is a {full_name(type(api))}", f"{_FASTAPI} or {_RUST}"
        )
    check_object(api, "the collection's client")
    if full_name(type(api)) == _FASTAPI:
        http_values(api._session)


def _read_chroma(collection: Any, given: Mapping[str, Any]) -> ReadSearch | None:
    shared = {name: value for name, value in given.items() if name != "query_embeddings"}
    vector = _vector(given.get("query_embeddings"))
    is_by_vector = all(given.get(f"query_{name}") is None for name in ("texts", "images", "uris"))
    if vector is None or not is_by_vector or not is_value(shared):
        return None
    # A copy: the caller's own may change while the search waits, and is sent for others, too.
    shared = deepcopy(shared)
    # By length, too: a vector of a wrong one fails a call, and those that share it. By type, as
    # Chroma converts all vectors of a call as it does the first.
    form = (len(vector), str(getattr(vector, "dtype", "")))
    return ReadSearch((vector, shared), (str(collection.id), *form, repr(sorted(shared.items()))))


def _vector(given: Any) -> Any | None:
    """Return the only vector of a list of vectors, or a vector; None for anything else."""
    if isinstance(given, np.ndarray):
        given = given[None] if given.ndim == 1 else given
        is_vector = given.ndim == 2 and len(given) == 1 and given.size and given.dtype.kind in "fiu"
        return given[0] if is_vector else None
    if type(given) is not list or not given:
        return None
    if type(given[0]) is list or isinstance(given[0], np.ndarray):
        return _vector(given[0]) if len(given) == 1 else None
    return given if type(given[0]) in (float, int) else None


def _search_chroma(
    collection: Any, given: Mapping[str, Any], queries: list[tuple[Any, dict[str, Any]]]
) -> Sequence[dict[str, Any]]:
    vectors, shared = [vector for vector, _ in queries], queries[0][1]
    found = collection.query(query_embeddings=vectors, **shared)
    parts = {name: part for name, part in found.items() if name != "included"}
    if any(part is not None and len(part) != len(vectors) for part in parts.values()):
        raise ValueError("a part of the answer is not one for each vector")
    return [
        {
            name: part if name not in parts or part is None else part[at : at + 1]
            for name, part in found.items()
        }
        for at in range(len(vectors))
    ]


CHROMA = SearchedClient(
    name="chromadb.api.models.Collection.Collection",
    method="query",
    parameters=frozenset(
        {
            *("query_embeddings", "query_texts", "query_images", "query_uris", "ids"),
            *("n_results", "where", "where_document", "include"),
        }
    ),
    check=_check_chroma,
    read=_read_chroma,
    search=_search_chroma,
)

_QDRANT = "qdrant_client.qdrant_client.QdrantClient"
_REMOTE = "qdrant_client.qdrant_remote.QdrantRemote"
#: the parameters of a search, and what the requests of a batch call them
_QDRANT_FIELDS = {
    "query": "query",
    "using": "using",
    "prefetch": "prefetch",
    "query_filter": "filter",
    "search_params": "params",
    "limit": "limit",
    "offset": "offset",
    "with_payload": "with_payload",
    "with_vectors": "with_vector",
    "score_threshold": "score_threshold",
    "lookup_from": "lookup_from",
    "shard_key_selector": "shard_key",
}
_QDRANT_QUERIES = frozenset({"FusionQuery", "NearestQuery", "SparseVector"})
_QDRANT_SHARED = ("collection_name", "consistency", "timeout")
_QDRANT_DEFAULTS = {"limit": 10, "with_payload": True, "with_vectors": False}


def _check_qdrant(client: Any) -> None:
    check_object(client, "client")
    remote = client._client
    if full_name(type(remote)) != _REMOTE:
        raise NotAdoptedError(f"its client searches by a {full_name(type(remote))}", "a server")
    check_object(remote, "the client's connection")
    if remote._prefer_grpc:
        raise NotAdoptedError("its channel cannot be looked at", "prefer_grpc=False")
    if remote._auth_token_provider is not None:
        raise NotAdoptedError(
            "auth_token_provider may give each caller another key", "an api_key that is a text"
        )
    apis = remote.openapi_client
    for part, name in ((apis, "APIs"), (apis.search_api, "search API"), (apis.client, "sender")):
        check_object(part, f"the client's {name}")
    if apis.search_api.api_client is not apis.client:
        raise NotAdoptedError("the search API of its client sends by another client")
    _check_middleware(apis.client.middleware)
    http_values(apis.client._client)


def _check_middleware(middleware: Any) -> None:
    """Check that a client has no middleware but its own, which sends the headers of a context."""
    cells = [cell.cell_contents for cell in getattr(middleware, "__closure__", None) or ()]
    headers = sys.modules["qdrant_client.context_headers"].rest_headers_middleware
    others = [found for found in cells if found is not headers]
    if len(cells) != 2 or len(others) != 1 or type(others[0]).__name__ != "BaseMiddleware":
        raise NotAdoptedError("its client has middleware of the program's", "none")


def _read_qdrant(client: Any, given: Mapping[str, Any]) -> ReadSearch | None:
    if sys.modules["qdrant_client.context_headers"].get_context_headers():
        return None  # of this caller only
    if given.keys() - {*_QDRANT_FIELDS, *_QDRANT_SHARED}:
        return None
    shared = [given.get(name) for name in _QDRANT_SHARED]
    parts = {**_QDRANT_DEFAULTS, **given}
    query = {field: parts[name] for name, field in _QDRANT_FIELDS.items() if name in parts}
    vector = query.get("query")
    if isinstance(vector, np.ndarray) and vector.ndim == 1:
        query["query"] = vector = vector.tolist()
    kind = type(vector).__name__
    if not (kind == "list" or (kind in _QDRANT_QUERIES and _is_model(vector))):
        return None  # of these some are texts, which the client embeds
    if not is_value(shared) or not all(is_value(one) or _is_model(one) for one in query.values()):
        return None
    nearest = getattr(vector, "nearest", vector)
    length = len(nearest) if type(nearest) is list else 0
    return ReadSearch(query, (length, repr(query.get("using")), repr(shared)))


def _is_model(part: Any) -> bool:
    """Tell whether a part of a search is plain data in a class of Qdrant's own."""
    parts = part if type(part) is list else [part]
    return all(type(one).__module__ == "qdrant_client.http.models.models" for one in parts)


def _search_qdrant(
    client: Any, given: Mapping[str, Any], queries: list[dict[str, Any]]
) -> Sequence[Any]:
    models = sys.modules["qdrant_client.http.models"]
    shared = {name: given[name] for name in _QDRANT_SHARED if name in given}
    return client.query_batch_points(
        requests=[models.QueryRequest(**query) for query in queries], **shared
    )


QDRANT = SearchedClient(
    name=_QDRANT,
    method="query_points",
    parameters=frozenset({*_QDRANT_FIELDS, *_QDRANT_SHARED, "kwargs"}),
    check=_check_qdrant,
    read=_read_qdrant,
    search=_search_qdrant,
)

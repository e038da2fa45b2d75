"""The async methods of LlamaIndex that call a blocking one on their loop.

Each is given here a second time, as llama-index-core 0.14.25 has it, with its blocking call handed
to what makes it elsewhere. Whether a class has that version is told by its source: one of the
user's, or of a later LlamaIndex which no longer blocks, is not known.
"""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from llama_index.core.callbacks.schema import CBEventType, EventPayload
from llama_index.core.graph_stores.types import PropertyGraphStore
from llama_index.core.indices.query.query_transform.feedback_transform import (
    FeedbackQueryTransformation,
)
from llama_index.core.query_engine import RetryGuidelineQueryEngine
from llama_index.core.vector_stores.types import BasePydanticVectorStore

from llama_index_rag_accel.concurrency.layers import Method, kept, layers_of
from rag_accel.system.methods import digest_of, plain_class, plain_method

#: makes a blocking call elsewhere than on the running loop, given it and its arguments; awaiting it
#: gives its outcome, whose ``result()`` returns what the call returned or raises what it raised
Elsewhere = Callable[..., Awaitable[Any]]
Body = Callable[..., Awaitable[Any]]


def _query_given(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[object]:
    return [*args[:1], kwargs.get("query_bundle")]


@dataclass(frozen=True, slots=True)
class BlockingMethod:
    """One async method that makes a blocking call.

    Args:
        body: the same with that call made by its first argument.
        uses: returns what that call may use, of the method's object.
        digest: of the source that does the same.
        given: returns what that call may use of the method's arguments.
        only_named: whether it is moved for objects of the classes alone that the user has named.
    """

    body: Body
    uses: Callable[[Any], list[object]]
    digest: str
    given: Callable[[tuple[Any, ...], dict[str, Any]], list[object]] = _query_given
    only_named: bool = False


def _stored(base: type, name: str) -> Body:
    """Return a body that runs the method of ``base`` as a whole: it only calls its sync form."""

    async def body(elsewhere: Elsewhere, store: Any, *args: Any, **kwargs: Any) -> Any:
        method = plain_method(base, name)
        return (await elsewhere(_without_a_loop, method, store, *args, **kwargs)).result()

    return body


def _without_a_loop(method: Method, *args: Any, **kwargs: Any) -> Any:
    """Run a coroutine that awaits nothing."""
    coroutine = method(*args, **kwargs)
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    coroutine.close()
    raise RuntimeError(f"{method.__qualname__} awaits something")


def _one_of_each_class(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[object]:
    """Return the arguments; of a list, one object of each class, since nodes are known by it."""
    given = list[object]()
    for value in (*args, *kwargs.values()):
        if type(value) in (list, tuple):
            given.extend({type(item): item for item in value}.values())
        else:
            given.append(value)
    return given


#: Async methods of stores that only call their sync form, and their digests.
_OF_STORES: Mapping[type, Mapping[str, str]] = {
    BasePydanticVectorStore: {
        "aquery": "7b9e23d1929cf623",
        "async_add": "cd468cb755e986f0",
        "adelete": "adb62e892581df33",
        "adelete_nodes": "980378c33b46fa8c",
        "aget_nodes": "eafb4f7b54cddc43",
        "aclear": "712d63fbe68e7c66",
    },
    PropertyGraphStore: {
        "aget": "4c1232c838cb49d4",
        "aget_triplets": "858ea76e207958a8",
        "aget_rel_map": "bfb587166aeff8b3",
        "aupsert_nodes": "c196242f909a1df5",
        "aupsert_relations": "45b1dfa3799bfe8b",
        "adelete": "9885991f48c6060e",
        "adelete_llama_nodes": "0abdad07b80ec6ec",
        "astructured_query": "84839fe668a6e5fe",
        "avector_query": "24c155760ef9ee2f",
        "aget_schema": "8eef238d46d8afab",
    },
}


async def _transformed_query(elsewhere: Elsewhere, engine: Any, query_bundle: Any) -> Any:
    transform = engine._query_transform.run
    done = await elsewhere(transform, query_bundle, metadata=engine._transform_metadata)
    return await engine._query_engine.aquery(done.result())


async def _transformed_synthesis(
    elsewhere: Elsewhere,
    engine: Any,
    query_bundle: Any,
    nodes: Any,
    additional_source_nodes: Any = None,
) -> Any:
    transform = engine._query_transform.run
    done = await elsewhere(transform, query_bundle, metadata=engine._transform_metadata)
    return await engine._query_engine.asynthesize(
        query_bundle=done.result(), nodes=nodes, additional_source_nodes=additional_source_nodes
    )


async def _several_steps(elsewhere: Elsewhere, engine: Any, query_bundle: Any) -> Any:
    payload = {EventPayload.QUERY_STR: query_bundle.query_str}
    with engine.callback_manager.event(CBEventType.QUERY, payload=payload) as query_event:
        done = await elsewhere(engine._query_multistep, query_bundle)
        nodes, source_nodes, metadata = done.result()
        response = await engine._response_synthesizer.asynthesize(
            query=query_bundle, nodes=nodes, additional_source_nodes=source_nodes
        )
        response.metadata = metadata
        query_event.on_end(payload={EventPayload.RESPONSE: response})
    return response


def _sync_form(name: str) -> Body:
    """Return a body that calls the method of this name, with the same arguments."""

    async def body(elsewhere: Elsewhere, obj: Any, *args: Any, **kwargs: Any) -> Any:
        return (await elsewhere(getattr(obj, name), *args, **kwargs)).result()

    return body


async def _completion(
    elsewhere: Elsewhere, llm: Any, prompt: str, formatted: bool = False, **kwargs: Any
) -> Any:
    return (await elsewhere(llm.complete, prompt, formatted=formatted, **kwargs)).result()


async def _guided_query(elsewhere: Elsewhere, engine: Any, query_bundle: Any) -> Any:
    # Its transformer keeps the evaluation that it was given last: each call has one of its own.
    shared = engine.query_transformer
    own = copy.copy(engine)
    own.query_transformer = copy.copy(shared)
    done = await elsewhere(own._query, query_bundle)
    vars(shared).update(vars(own.query_transformer))
    return done.result()


def _its_transform(engine: Any) -> list[object]:
    return [engine._query_transform, engine._transform_metadata]


def _itself(engine: Any) -> list[object]:
    return [engine]


def _with_handlers(leaf: Any) -> list[object]:
    return [leaf, getattr(leaf, "callback_manager", None)]


def _guided(engine: Any) -> list[object]:
    """Return what such an engine holds, its transformer's parts instead of the transformer."""
    transformer = engine.query_transformer
    is_known = type(transformer) is FeedbackQueryTransformation
    if not is_known or plain_class(type(engine)) is not RetryGuidelineQueryEngine:
        return [engine]
    parts = [held for name, held in vars(transformer).items() if name != "evaluation"]
    return [*parts, *(held for held in vars(engine).values() if held is not transformer)]


_ENGINES = "llama_index.core.query_engine"
_TRANSFORM = f"{_ENGINES}.transform_query_engine.TransformQueryEngine"
_QUERY_ITSELF = "d69840932b7fb534"
_CORE = "llama_index.core"
#: Async methods that classes inherit, and their digests.
_DEFAULTS = {
    f"{_CORE}.base.base_retriever.BaseRetriever._aretrieve": (
        _sync_form("_retrieve"),
        "9f5d3a865ba95531",
    ),
    f"{_CORE}.base.embeddings.base.BaseEmbedding._aget_text_embedding": (
        _sync_form("_get_text_embedding"),
        "31be2c85aa6b343a",
    ),
    f"{_CORE}.llms.custom.CustomLLM.acomplete": (_completion, "6a5857269703f35f"),
    f"{_CORE}.llms.custom.CustomLLM.achat": (_sync_form("chat"), "8545783bbf3e6621"),
}
_BLOCKING: Mapping[str, BlockingMethod] = {
    **{
        place: BlockingMethod(body, _with_handlers, digest, only_named=True)
        for place, (body, digest) in _DEFAULTS.items()
    },
    **{
        f"{base.__module__}.{base.__qualname__}.{name}": BlockingMethod(
            _stored(base, name), _itself, digest, _one_of_each_class, only_named=True
        )
        for base, digests in _OF_STORES.items()
        for name, digest in digests.items()
    },
    f"{_TRANSFORM}._aquery": BlockingMethod(_transformed_query, _its_transform, "d16f958f49a25a02"),
    f"{_TRANSFORM}.asynthesize": BlockingMethod(
        _transformed_synthesis, _its_transform, "878445668e1ba5fb"
    ),
    f"{_ENGINES}.multistep_query_engine.MultiStepQueryEngine._aquery": BlockingMethod(
        _several_steps, _itself, "e966d52b03ba3f19"
    ),
    f"{_ENGINES}.retry_query_engine.RetryGuidelineQueryEngine._aquery": BlockingMethod(
        _guided_query, _guided, _QUERY_ITSELF
    ),
    **{
        f"{_ENGINES}.{name}._aquery": BlockingMethod(_sync_form("_query"), _itself, _QUERY_ITSELF)
        for name in (
            "retry_query_engine.RetryQueryEngine",
            "retry_source_query_engine.RetrySourceQueryEngine",
            "flare.base.FLAREInstructQueryEngine",
        )
    },
}


@kept
def blocking_method(method: Method | None) -> BlockingMethod | None:
    """Return what is known of a method, ``None`` for one that is not known."""
    layers = layers_of(method)
    if layers is None:
        return None
    known = _BLOCKING.get(f"{layers.function.__module__}.{layers.function.__qualname__}")
    # Of its code: a function that has been decorated leads to another.
    is_read = known is not None and digest_of(layers.function.__code__) == known.digest
    return known if is_read else None

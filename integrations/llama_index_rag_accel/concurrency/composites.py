"""The methods of LlamaIndex that make independent calls one by one.

Each is given here a second time, as llama-index-core 0.14.25 has it, with its calls handed to what
may run them side by side. Whether a class has that version, and makes its calls by the helper that
is known here, is told by their sources: one of the user's, or of a later LlamaIndex, is not known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar, cast

from llama_index.core.base.embeddings.base import mean_agg
from llama_index.core.callbacks.schema import CBEventType, EventPayload
from llama_index.core.utils import get_color_mapping, print_text

from llama_index_rag_accel.concurrency.extractors import EXTRACTORS
from llama_index_rag_accel.concurrency.independent_calls import IndependentCalls, RunCalls
from llama_index_rag_accel.concurrency.layers import Method, kept, layers_of
from rag_accel.system.methods import digest_of

T = TypeVar("T")

_SEPARATOR = "\n---------------------\n"


def _sub_questions(run_all: RunCalls, engine: Any, query_bundle: Any) -> Any:
    payload = {EventPayload.QUERY_STR: query_bundle.query_str}
    with engine.callback_manager.event(CBEventType.QUERY, payload=payload) as query_event:
        sub_questions = engine._question_gen.generate(engine._metadatas, query_bundle)
        colors = get_color_mapping([str(place) for place in range(len(sub_questions))])
        if engine._verbose:
            print_text(f"Generated {len(sub_questions)} sub questions.\n")
        calls = [
            partial(engine._query_subq, sub_question, color=colors[str(place)])
            for place, sub_question in enumerate(sub_questions)
        ]
        uses = [engine.callback_manager, *engine._query_engines.values()]
        pairs = [pair for pair in run_all(calls, uses) if pair]  # without those that failed
        nodes = [engine._construct_node(pair) for pair in pairs]
        sources = [node for pair in pairs for node in pair.sources]
        response = engine._response_synthesizer.synthesize(
            query=query_bundle, nodes=nodes, additional_source_nodes=sources
        )
        query_event.on_end(payload={EventPayload.RESPONSE: response})
    return response


def _fused_queries(run_all: RunCalls, fusion: Any, queries: Any) -> Any:
    retrievers = fusion._retrievers
    uses = [*retrievers, *queries]
    if len(queries) == 1:
        found = [_found_by_all(run_all, retrievers, queries[0], uses)]
    else:
        found = run_all(
            [partial(_found_by_all, _one_by_one, retrievers, query, uses) for query in queries],
            uses,
        )
    results: dict[tuple[str, int], Any] = {}
    for query, of_query in zip(queries, found, strict=True):
        for place, nodes in enumerate(of_query):
            results[(query.query_str, place)] = nodes
    return results


def _found_by_all(run_all: RunCalls, retrievers: Any, query: Any, uses: Sequence[object]) -> Any:
    """Return what each retriever finds for a query.

    The first that needs the query's embedding puts it there for the others, whatever their models:
    until it is there, they need each other.
    """
    found: list[Any] = []
    for retriever in retrievers:
        if query.embedding is not None:
            break
        found.append(retriever.retrieve(query))
    others = retrievers[len(found) :]
    return [*found, *run_all([partial(other.retrieve, query) for other in others], uses)]


def _one_by_one(calls: Sequence[Callable[[], T]], uses: Sequence[object]) -> list[T]:
    return [call() for call in calls]


def _accumulated(
    run_all: RunCalls,
    synthesizer: Any,
    query_str: str,
    text_chunks: Any,
    separator: str = _SEPARATOR,
    **response_kwargs: Any,
) -> Any:
    calls = [
        partial(
            synthesizer._give_responses,
            query_str,
            chunk,
            use_async=synthesizer._use_async,
            **response_kwargs,
        )
        for chunk in text_chunks
    ]
    given = [chunk for call in calls for chunk in call.args]
    outputs = run_all(calls, [*_predicting(synthesizer), *given, *response_kwargs.values()])
    return synthesizer._format_response(synthesizer.flatten_list(outputs), separator)


def _accumulated_messages(
    run_all: RunCalls,
    synthesizer: Any,
    query_str: str,
    message_chunks: Any,
    separator: str = _SEPARATOR,
    **response_kwargs: Any,
) -> Any:
    return _accumulated(
        run_all, synthesizer, query_str, message_chunks, separator, **response_kwargs
    )


def _predicting(synthesizer: Any) -> list[object]:
    return [
        synthesizer._llm,
        synthesizer._prompt_helper,
        synthesizer._chat_prompt_helper,
        synthesizer._text_qa_template,
        synthesizer._chat_content_qa_template,
        synthesizer._output_cls,
    ]


def _aggregated(run_all: RunCalls, embedding: Any, queries: Any, agg_fn: Any = None) -> Any:
    calls = [partial(embedding.get_query_embedding, query) for query in queries]
    return (agg_fn or mean_agg)(run_all(calls, [embedding]))


async def _aaggregated(run_all: RunCalls, embedding: Any, queries: Any, agg_fn: Any = None) -> Any:
    calls = [partial(embedding.aget_query_embedding, query) for query in queries]
    return (agg_fn or mean_agg)(await run_all(calls, [embedding]))


def _has_no_say(embedding: Any) -> bool:
    """Tell whether neither a cache nor a limiter has a say in what is computed, and when."""
    return embedding.embeddings_cache is None and embedding.rate_limiter is None


def _are_several(queries: Any = (), agg_fn: Any = None) -> bool:
    return not isinstance(queries, list) or len(cast("list[Any]", queries)) > 1


_CORE = "llama_index.core"
_SUB_QUESTION = f"{_CORE}.query_engine.sub_question_query_engine.SubQuestionQueryEngine"
_FUSION = f"{_CORE}.retrievers.fusion_retriever.QueryFusionRetriever"
_SYNTHESIZERS = f"{_CORE}.response_synthesizers"
_ACCUMULATE = f"{_SYNTHESIZERS}.accumulate.Accumulate"
_COMPACT = f"{_SYNTHESIZERS}.compact_and_accumulate.CompactAndAccumulate"
_EMBEDDING = f"{_CORE}.base.embeddings.base.BaseEmbedding"


def _accumulating(body: Method, digest: str) -> IndependentCalls:
    return IndependentCalls(
        body,
        digest,
        ("_give_responses", "6152b21bebd82253"),
        frozenset({_ACCUMULATE, _COMPACT}),
        applies=lambda synthesizer: not synthesizer._use_async and not synthesizer._streaming,
    )


_KNOWN: Mapping[str, IndependentCalls] = {
    **EXTRACTORS,
    f"{_SUB_QUESTION}._query": IndependentCalls(
        _sub_questions,
        "ad4e96c8e532776c",
        ("_query_subq", "2034a0a5d35778c7"),
        frozenset({_SUB_QUESTION}),
        applies=lambda engine: not engine._use_async,
    ),
    f"{_FUSION}._run_sync_queries": IndependentCalls(
        _fused_queries, "a3f6b852849147c1", None, frozenset({_FUSION})
    ),
    f"{_ACCUMULATE}.get_response": _accumulating(_accumulated, "a6f5d7755bf1924b"),
    f"{_ACCUMULATE}.get_response_from_messages": _accumulating(
        _accumulated_messages, "a1d3257a46f13b6f"
    ),
    f"{_EMBEDDING}.get_agg_embedding_from_queries": IndependentCalls(
        _aggregated,
        "9eb34d88a6e5d8f6",
        ("get_query_embedding", "f7ec176ca6d7702c"),
        applies=_has_no_say,
        is_leafs=True,
        are_several=_are_several,
    ),
    f"{_EMBEDDING}.aget_agg_embedding_from_queries": IndependentCalls(
        _aaggregated,
        "aaba98ac7692a309",
        ("aget_query_embedding", "be5c6932a1087294"),
        applies=_has_no_say,
        is_leafs=True,
        are_several=_are_several,
    ),
}


@kept
def composite_of(method: Method | None) -> IndependentCalls | None:
    """Return what is known of a method, ``None`` for one that is not known."""
    layers = layers_of(method)
    if layers is None:
        return None
    known = _KNOWN.get(f"{layers.function.__module__}.{layers.function.__qualname__}")
    is_read = known is not None and digest_of(layers.function.__code__) == known.digest
    return known if is_read else None

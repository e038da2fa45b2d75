"""The methods of LlamaIndex that make independent calls one by one.

Each is given here a second time, as llama-index-core 0.14.25 has it, with its calls handed to what
may run them side by side. Whether a class has that version, and makes its calls by the helper that
is known here, is told by their sources: one of the user's, or of a later LlamaIndex, is not known.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar, cast

from llama_index.core.async_utils import run_jobs
from llama_index.core.base.embeddings.base import mean_agg
from llama_index.core.callbacks.schema import CBEventType, EventPayload
from llama_index.core.utils import get_color_mapping, print_text

from llama_index_rag_accel.concurrency.layers import Method, kept, layers_of
from rag_accel.system.classes import full_name
from rag_accel.system.methods import digest_of, plain_class, plain_method

#: Runs calls that do not need each other, or one by one if it must, given what they may use, too.
#: Returns their results in order; raises the error of the first, in order, that fails. Of
#: coroutines, it returns one itself.
RunCalls = Callable[[Sequence[Callable[[], Any]], Sequence[object]], Any]


@dataclass(frozen=True, slots=True)
class IndependentCalls:
    """One method that makes independent calls one by one.

    Args:
        body: the same with its calls run by its first argument.
        digest: of the source that does the same.
        helper: the method that makes one call, and the digest of its source; empty if the calls
            are methods of other objects.
        classes: full names of the classes whose objects are known; empty if the calls' own
            thread-safety is told of the object itself.
        applies: tells whether an object, as it is set up now, makes them one by one.
        is_leafs: whether the calls are made by what is a leaf itself, and then has no permit yet.
        are_several: tells of the arguments whether there may be more than one call.
    """

    body: Method
    digest: str
    helper: tuple[str, str] | None
    classes: frozenset[str] = frozenset()
    applies: Callable[[Any], bool] = lambda obj: True
    is_leafs: bool = False
    are_several: Callable[..., bool] = lambda *args, **kwargs: True

    def fits(self, obj: Any, named: Sequence[str]) -> bool:
        """Tell whether an object makes its calls as it is known here.

        Args:
            obj: the object.
            named: full names of classes that are thread-safe, beside those known.
        """
        cls = plain_class(type(obj))
        if self.classes and full_name(cls) not in (*self.classes, *named):
            return False
        return self._has_helper(cls, obj) and self.applies(obj)

    def _has_helper(self, cls: type, obj: Any) -> bool:
        if self.helper is None:
            return True
        name, digest = self.helper
        if name in vars(obj):
            return False
        layers = layers_of(plain_method(cls, name))
        return layers is not None and digest_of(layers.function.__code__) == digest


_TRANSFORMATIONS = "llama_index.core.indices.property_graph.transformations"
_SIMPLE = f"{_TRANSFORMATIONS}.simple_llm.SimpleLLMPathExtractor"
_SCHEMA = f"{_TRANSFORMATIONS}.schema_llm.SchemaLLMPathExtractor"


async def _extracted(
    desc: str,
    run_all: Any,
    extractor: Any,
    nodes: Sequence[Any],
    show_progress: bool = False,
    **kwargs: Any,
) -> Any:
    workers = run_all.at_once(extractor.num_workers, [extractor.llm])
    jobs = [extractor._aextract(node) for node in nodes]
    return await run_jobs(jobs, workers=workers, show_progress=show_progress, desc=desc)


def _may_have_more(extractor: Any) -> bool:
    """Tell whether an extractor's number of workers is no limit that its user has chosen.

    Less than the class has by itself is one: the model's server takes no more, say. Without any
    worker upstream waits for ever, or raises.
    """
    own = _default_workers(plain_class(type(extractor)))
    return own is not None and extractor.num_workers >= max(own, 1)


def _default_workers(cls: type) -> int | None:
    """Return how many workers a class has that is made without a number; ``None`` if unknown."""
    for base in cls.__mro__:
        if "__init__" in vars(base):
            known = inspect.signature(base.__init__).parameters.get("num_workers")
            if known is not None:
                return known.default if type(known.default) is int else None
    return None


def _are_apart(nodes: Any = (), show_progress: bool = False, **kwargs: Any) -> bool:
    """Tell whether there are several nodes, and none is extracted from while another is changed."""
    if type(nodes) not in (list, tuple):
        return False
    several = cast("Sequence[Any]", nodes)
    apart = {id(getattr(node, "metadata", None)) for node in several}
    return len(several) > 1 and len(apart) == len(several)


def _extracting(name: str, desc: str, digest: str, helper: str) -> IndependentCalls:
    return IndependentCalls(
        partial(_extracted, desc),
        digest,
        ("_aextract", helper),
        frozenset({name}),
        applies=_may_have_more,
        are_several=_are_apart,
    )


#: By the full name of the method, what is known of each extractor.
EXTRACTORS: Mapping[str, IndependentCalls] = {
    f"{_SIMPLE}.acall": _extracting(
        _SIMPLE, "Extracting paths from text", "abd02dc859449ecb", "790b80a4f1361a8d"
    ),
    f"{_SCHEMA}.acall": _extracting(
        _SCHEMA, "Extracting paths from text with schema", "4dd8993bc72de9d2", "3d8a073d82e5fdc8"
    ),
}


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

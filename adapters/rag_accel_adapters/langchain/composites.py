"""The methods of LangChain's composite objects that make independent calls one by one.

Such a method is given here a second time, with its calls handed to what may run them side by
side. What it does before and after them is what LangChain's version does; whether a class has that
version is told by its source, so that one which is not known runs as it is. So it is told whether a
chain of ``langchain-classic`` has an async form of its own, or its blocking form in an executor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from langchain_core.documents import Document
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import patch_config

from rag_accel.system.classes import NamedClasses
from rag_accel.system.methods import digest_of

Method = Callable[..., Any]
#: Runs calls that do not need each other. Returns their results in order; raises the error of the
#: first, in order, that fails.
RunAll = Callable[[Sequence[Callable[[], Any]]], list[Any]]


def composite_of(method: Method | None) -> Method | None:
    """Return the same with its calls run by its first argument, ``None`` if it is not known.

    Nothing is known of another's wrapper, which has the name and source of what it wraps.
    """
    if hasattr(method, "__wrapped__"):
        return None
    place = f"{getattr(method, '__module__', '')}.{getattr(method, '__qualname__', '')}"
    body, digest = _KNOWN.get(place, (None, ""))
    return body if body is not None and digest_of(method) == digest else None


def _rank_fusion(
    run_all: RunAll,
    ensemble: Any,
    query: str,
    run_manager: Any,
    *,
    config: RunnableConfig | None = None,
) -> list[Document]:
    calls = [
        partial(
            retriever.invoke,
            query,
            patch_config(config, callbacks=run_manager.get_child(tag=f"retriever_{place}")),
        )
        for place, retriever in enumerate(ensemble.retrievers, 1)
    ]
    found = [
        [
            Document(page_content=document) if isinstance(document, str) else document
            for document in documents
        ]
        for documents in run_all(calls)
    ]
    return ensemble.weighted_reciprocal_rank(found)


def _retrieve_documents(
    run_all: RunAll, multi_query: Any, queries: list[str], run_manager: Any
) -> list[Document]:
    calls = [
        partial(multi_query.retriever.invoke, query, config={"callbacks": run_manager.get_child()})
        for query in queries
    ]
    return [document for documents in run_all(calls) for document in documents]


def _merge_documents(run_all: RunAll, merger: Any, query: str, run_manager: Any) -> list[Document]:
    calls = [
        partial(
            retriever.invoke,
            query,
            config={"callbacks": run_manager.get_child(f"retriever_{place}")},
        )
        for place, retriever in enumerate(merger.retrievers, 1)
    ]
    found = run_all(calls)
    most = max(map(len, found), default=0)
    return [documents[rank] for rank in range(most) for documents in found if rank < len(documents)]


def _compress_documents(
    run_all: RunAll,
    extractor: Any,
    documents: Sequence[Document],
    query: str,
    callbacks: Any = None,
) -> list[Document]:
    def extracted(document: Document) -> list[Document]:
        chain, given = extractor.llm_chain, extractor.get_input(query, document)
        text = _text(chain, chain.invoke(given, config={"callbacks": callbacks}))
        if len(text) == 0:
            return []
        return [Document(page_content=text, metadata=document.metadata)]

    found = run_all([partial(extracted, document) for document in documents])
    return [document for documents in found for document in documents]


def _convert_documents(
    run_all: RunAll,
    transformer: Any,
    documents: Sequence[Document],
    config: RunnableConfig | None = None,
) -> list[Any]:
    calls = [partial(transformer.process_response, document, config) for document in documents]
    return run_all(calls)


def _text(chain: Any, answer: Any) -> Any:
    """Return the text in an answer, which an old-style chain wraps in a dict."""
    from langchain_classic.chains.llm import LLMChain

    if not isinstance(chain, LLMChain):
        return answer
    text, parser = answer[chain.output_key], chain.prompt.output_parser
    return text if parser is None else parser.parse(text)


_RETRIEVERS = "langchain_classic.retrievers"
_TRANSFORMER = "langchain_experimental.graph_transformers.llm.LLMGraphTransformer"
#: By place, methods whose calls are run by their first argument, with the digests of those that do
#: the same one by one.
_KNOWN: dict[str, tuple[Method, str]] = {
    f"{_TRANSFORMER}.convert_to_graph_documents": (_convert_documents, "c841c430fa24afad"),
    f"{_RETRIEVERS}.ensemble.EnsembleRetriever.rank_fusion": (_rank_fusion, "9955a96eda0b2c18"),
    f"{_RETRIEVERS}.multi_query.MultiQueryRetriever.retrieve_documents": (
        _retrieve_documents,
        "27635c692b5aa01f",
    ),
    f"{_RETRIEVERS}.merger_retriever.MergerRetriever.merge_documents": (
        _merge_documents,
        "283a296237177ca4",
    ),
    f"{_RETRIEVERS}.document_compressors.chain_extract.LLMChainExtractor.compress_documents": (
        _compress_documents,
        "71bbe46008effe0e",
    ),
}


_DIGESTS = frozenset({"b70812a2c24e20e8"})


class ClassicChain(metaclass=NamedClasses, names=("langchain_classic.chains.base.Chain",)):
    """A chain of prompts, models and whatever else its class calls."""


def runs_in_executor(method: Method | None) -> bool:
    """Tell whether this is the ``_acall`` that runs ``_call`` in the executor of the loop."""
    # A wrapper of another's has the name and the source of what it wraps.
    return (
        getattr(method, "__qualname__", "") == "Chain._acall"
        and not hasattr(method, "__wrapped__")
        and digest_of(method) in _DIGESTS
    )


def blocking_call(chain: Any, inputs: Any, run_manager: Any = None) -> Callable[[], Any]:
    """Return the call that such an ``_acall`` with these arguments makes in a thread."""
    return partial(chain._call, inputs, run_manager.get_sync() if run_manager else None)

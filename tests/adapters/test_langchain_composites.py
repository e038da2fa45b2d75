"""Methods that make independent calls are known by their source, and spread as LangChain's do."""

from __future__ import annotations

import functools
import linecache
from collections.abc import Callable
from typing import Any

import pytest
from langchain_classic.retrievers import EnsembleRetriever, MergerRetriever, MultiQueryRetriever
from langchain_classic.retrievers.document_compressors import LLMChainExtractor, LLMChainFilter
from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import (
    RunnableLambda,
)

from rag_accel_adapters.langchain.composites import composite_of, digest_of

KNOWN: list[Callable[..., Any]] = [
    EnsembleRetriever.rank_fusion,
    MultiQueryRetriever.retrieve_documents,
    MergerRetriever.merge_documents,
    LLMChainExtractor.compress_documents,
]
MANAGER = CallbackManagerForRetrieverRun.get_noop_manager()


@pytest.mark.parametrize("method", KNOWN, ids=lambda method: method.__qualname__)
def test_the_installed_version_is_known(method: Callable[..., Any]) -> None:
    assert composite_of(method) is not None


@pytest.mark.parametrize(
    "method",
    [
        EnsembleRetriever.arank_fusion,
        EnsembleRetriever.weighted_reciprocal_rank,
        LLMChainFilter.compress_documents,
        len,
        None,
    ],
)
def test_others_are_not(method: Any) -> None:
    assert composite_of(method) is None


def _written(source: str, name: str = "merge_documents") -> Any:
    """Return a function of this source that claims to be LangChain's."""
    file = f"<written {hash(source)}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    scope: dict[str, Any] = {}
    exec(compile(source, file, "exec"), scope)
    function = scope[name]
    function.__module__ = MergerRetriever.merge_documents.__module__
    function.__qualname__ = MergerRetriever.merge_documents.__qualname__
    return function


def test_the_same_name_with_another_source_is_not_known() -> None:
    other = _written("def merge_documents(self, query, run_manager):\n    return []\n")
    assert composite_of(other) is None
    without_source = eval("lambda self: []")
    without_source.__module__ = other.__module__
    without_source.__qualname__ = other.__qualname__
    assert composite_of(without_source) is None


def test_a_wrapper_of_other_code_is_not_known() -> None:
    @functools.wraps(MergerRetriever.merge_documents)
    def watching(*args: Any, **kwargs: Any) -> Any:
        return MergerRetriever.merge_documents(*args, **kwargs)

    assert digest_of(watching) == digest_of(MergerRetriever.merge_documents)
    assert composite_of(watching) is None


def test_docstrings_comments_and_layout_do_not_count() -> None:
    digest = digest_of(_written("def f(a):\n    return a + 1\n", "f"))
    assert digest_of(_written('def f(a):\n    """Add."""\n    # one\n    return (a+1)\n', "f")) == (
        digest
    )
    assert digest_of(_written("def f(a):\n    return a + 2\n", "f")) != digest


class Numbered(BaseRetriever):
    """Find so many documents."""

    number: int

    def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
        return [Document(f"{query} {place}") for place in range(self.number)]


def _spread(method: Any) -> Any:
    body = composite_of(method)
    assert body is not None
    return functools.partial(body, _backwards)


def _backwards(calls: Any) -> list[Any]:
    """Make the calls in another order than LangChain does."""
    return [call() for call in calls[::-1]][::-1]


def _merger(*numbers: int) -> MergerRetriever:
    return MergerRetriever(retrievers=[Numbered(number=number) for number in numbers])


@pytest.mark.parametrize("numbers", [(), (2,), (0, 0), (1, 3), (3, 1, 0, 2)])
def test_what_is_merged_does_not_depend_on_the_order_of_calls(numbers: tuple[int, ...]) -> None:
    merge, merger = MergerRetriever.merge_documents, _merger(*numbers)
    assert _spread(merge)(merger, "q", MANAGER) == merge(merger, "q", MANAGER)


def test_arguments_may_be_given_by_name() -> None:
    plain, fast = (
        method(_merger(2, 1), query="q", run_manager=MANAGER)
        for method in (
            MergerRetriever.merge_documents,
            _spread(MergerRetriever.merge_documents),
        )
    )
    assert fast == plain
    ensemble = EnsembleRetriever(retrievers=_merger(2, 3).retrievers)
    fusion = EnsembleRetriever.rank_fusion
    given: dict[str, Any] = {"query": "q", "run_manager": MANAGER, "config": {"tags": ["t"]}}
    assert _spread(fusion)(ensemble, **given) == fusion(ensemble, **given)


def test_an_empty_extract_is_left_out() -> None:
    said = RunnableLambda(lambda given: "" if "0" in given["context"] else given["context"])
    extractor = LLMChainExtractor(llm_chain=said)
    found = Numbered(number=3).invoke("q")
    extract = LLMChainExtractor.compress_documents
    kept = _spread(extract)(extractor, found, "q")
    assert kept == extract(extractor, found, "q")
    assert len(kept) == 2

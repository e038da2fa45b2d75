"""``coverage()`` of LlamaIndex, and options that no part of its objects reads."""

from __future__ import annotations

import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
from li_programs import QUERY_ENGINES, HashEmbedding, Parts
from llama_index.core.schema import TextNode
from llama_index.core.vector_stores import SimpleVectorStore

from llama_index_rag_accel import accelerate, coverage
from rag_accel import Accelerator, UnreadOptionWarning

PLAIN = "outside of an accelerated program and of activate()"


def test_an_accelerated_engine_is_covered(accelerator: Accelerator) -> None:
    engine = accelerate(QUERY_ENGINES["compact"](Parts()), accelerator=accelerator)
    with coverage(engine) as seen:
        engine.query("When did the bridge open?")
    assert seen.passed_by == 0, str(seen)
    assert seen.borrowed == sum(row.scheduled for row in seen.rows())
    assert ("EchoLLM", "complete") in {(one.cls, one.method) for one in seen.calls}


def test_calls_of_its_engine_in_threads_of_a_pool_count(accelerator: Accelerator) -> None:
    engine, other = (
        accelerate(QUERY_ENGINES["compact"](Parts()), accelerator=accelerator) for _ in range(2)
    )
    with coverage(engine) as here:
        engine.query("When did the bridge open?")
        engine.query("When did the bridge open?")
    with coverage(engine) as seen, coverage(other) as last, ThreadPoolExecutor(2) as pool:
        list(pool.map(engine.query, ["When did the bridge open?"] * 2))
    assert (str(seen), last.calls) == (str(here), ())


def test_an_embedding_alone_counts_in_other_threads(accelerator: Accelerator) -> None:
    fast, other = (accelerate(HashEmbedding(), accelerator=accelerator) for _ in range(2))
    with coverage(fast) as seen, coverage(other) as last, ThreadPoolExecutor(2) as pool:
        list(pool.map(fast.get_text_embedding, "ab"))
    assert (seen.borrowed, seen.passed_by, last.calls) == (2, 0, ())


def test_a_plain_engine_passes_by_with_the_reason() -> None:
    engine = QUERY_ENGINES["compact"](Parts())
    with coverage(engine) as seen:
        engine.query("When did the bridge open?")
    assert (seen.scheduled, seen.borrowed) == (0, 0)
    assert seen.passed_by == sum(row.passed_by for row in seen.rows()) > 0
    assert {one.reason for one in seen.calls} == {PLAIN}


def test_a_plain_call_that_has_others_is_one() -> None:
    store = SimpleVectorStore()
    with coverage() as seen:
        store.add([TextNode(text="a", id_="1", embedding=[1.0, 0.0])])
    assert [(one.cls, one.method, one.passed_by) for one in seen.calls] == [
        ("SimpleVectorStore", "add", 1)
    ]


def test_options_name_the_parts_that_read_them(accelerator: Accelerator) -> None:
    engine = accelerate(QUERY_ENGINES["fusion"](Parts()), accelerator=accelerator)
    parts = {one.option: one.parts for one in coverage(engine).options}
    assert any("QueryFusionRetriever" in part for part in parts["parallel_calls"])
    assert parts["kv_reuse"] == ()


def test_an_index_is_not_judged_but_what_it_makes_is() -> None:
    parts = Parts()
    with Accelerator(kv_reuse="full") as accelerator:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            index = accelerate(parts.index(), accelerator=accelerator)
        with pytest.warns(UnreadOptionWarning, match="kv_reuse"):
            index.as_query_engine(llm=parts.llm)

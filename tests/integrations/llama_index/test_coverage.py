"""``coverage()`` of LlamaIndex, and options that no part of its objects reads."""

from __future__ import annotations

import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
from li_programs import QUERY_ENGINES, Parts

from llama_index_rag_accel import accelerate, coverage
from rag_accel import Accelerator, UnreadOptionWarning


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

"""Copies of the retriever of a knowledge graph's paths, and graphs in a database."""

from __future__ import annotations

import asyncio
import copy
import threading
from typing import Any

import pytest
from bolt_fakes import FakeDriver
from forked_child import in_child
from graph_facts import CHAIN, QUESTION, TRIPLES, by_stage, facts
from lc_fakes import FakeEmbeddings
from lc_graphs import assert_equal, retriever, soon, texts
from triples import fill

from rag_accel import Accelerator
from rag_accel.engines import MemoryGraph
from rag_accel.engines.knowledge.bolt import BoltGraph

NUM_CALLERS = 16


def test_a_copy_has_a_graph_of_its_own(accelerator: Accelerator) -> None:
    made = retriever(
        accelerator, graph=MemoryGraph(TRIPLES), embedding=FakeEmbeddings(), link="words"
    )
    found = made.invoke(QUESTION)
    copied = copy.deepcopy(made)
    made.graph.remove(entities=["Ada Lovelace"])
    assert copied.invoke(QUESTION) == found
    assert made.invoke(QUESTION) != found


@pytest.mark.processes
def test_a_forked_child_reads_the_graph_it_was_given() -> None:
    made = retriever(k=1)
    made.invoke(QUESTION)
    assert in_child(lambda: texts(made.invoke(QUESTION))) == [CHAIN]
    assert texts(made.invoke(QUESTION)) == [CHAIN]


async def test_a_graph_in_a_database_gives_the_same_paths(accelerator: Accelerator) -> None:
    in_memory, driver = facts(), FakeDriver(TRIPLES)
    made = retriever(accelerator, graph=BoltGraph(driver))
    expected = by_stage(in_memory, QUESTION, ["Ada Lovelace"])
    assert_equal(made.invoke(QUESTION, keywords=["Ada Lovelace"]), expected)
    assert_equal(await made.ainvoke(QUESTION, keywords=["Ada Lovelace"]), expected)
    assert driver.open_sessions == 0


async def test_a_question_whose_query_hangs_holds_up_no_other(accelerator: Accelerator) -> None:
    driver, go_on = FakeDriver(TRIPLES), threading.Event()
    driver.held["Mary Somerville"] = go_on
    made = retriever(accelerator, graph=BoltGraph(driver), hops=1)
    hanging = asyncio.create_task(made.ainvoke(QUESTION, keywords=["Mary Somerville"]))
    await soon(lambda: bool(driver.open_sessions))
    (found,) = await made.ainvoke(QUESTION, keywords=["Charles Babbage"], direction="out")
    assert found.page_content == "Charles Babbage -> designed -> the Analytical Engine"
    hanging.cancel()
    with pytest.raises(asyncio.CancelledError):
        await hanging
    go_on.set()
    await soon(lambda: not driver.open_sessions)


@pytest.mark.neo4j
async def test_a_real_database_gives_the_same_paths(
    neo4j_driver: Any, accelerator: Accelerator
) -> None:
    fill(neo4j_driver, TRIPLES)
    made = retriever(accelerator, graph=BoltGraph(neo4j_driver))
    expected = by_stage(facts(), QUESTION, ["Ada Lovelace"])
    assert_equal(made.invoke(QUESTION, keywords=["Ada Lovelace"]), expected)
    callers = (made.ainvoke(QUESTION, keywords=["Ada Lovelace"]) for _ in range(NUM_CALLERS))
    for found in await asyncio.gather(*callers):
        assert_equal(found, expected)

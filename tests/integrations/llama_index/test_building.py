"""Property graphs are built with the model's calls side by side, and are the plain program's."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from idle_accelerators import soon_idle
from li_building import (
    EXTRACTORS,
    TEXTS,
    GraphLLM,
    built,
    built_of,
    graph_in,
    model,
    text_nodes,
)
from li_off_loop import knowing, parents_of_spans
from li_programs import HashEmbedding, recording
from li_side_by_side import NUM_CALLS, ameeting, events_by_span

from llama_index_rag_accel import accelerate, activate
from llama_index_rag_accel.concurrency.composites import composite_of
from rag_accel import Accelerator
from rag_accel.interception.parallel_calls import MAX_AT_ONCE
from rag_accel.recognition.known_classes import full_name

every_extractor = pytest.mark.parametrize("name", EXTRACTORS)


pytestmark = pytest.mark.usefixtures("shared_models")


@pytest.fixture
def accelerator() -> Iterator[Accelerator]:
    """Give an accelerator to which the fakes are thread-safe."""
    with knowing(GraphLLM, HashEmbedding) as made:
        yield made


def _plain(name: str) -> Any:
    return built_of(EXTRACTORS[name](model())(text_nodes()))


# They overlap ------------------------------------------------------------------------------------


@every_extractor
def test_calls_of_an_accelerated_extractor_overlap(name: str, accelerator: Accelerator) -> None:
    extractor = accelerate(EXTRACTORS[name](model(ameeting())), accelerator=accelerator)
    assert built_of(extractor(text_nodes())) == _plain(name)
    assert soon_idle(accelerator)


@pytest.mark.parametrize("use_async", [True, False])
@every_extractor
def test_an_activated_index_is_built_of_the_same(
    name: str, use_async: bool, accelerator: Accelerator
) -> None:
    plain = graph_in(built(EXTRACTORS[name](model()), use_async=use_async))
    with activate(accelerator):
        fast = built(EXTRACTORS[name](model(ameeting())), use_async=use_async)
    assert graph_in(fast) == plain
    assert len(plain[0]) > NUM_CALLS


def test_no_more_calls_run_at_once_than_of_any_object(accelerator: Accelerator) -> None:
    running = most = 0

    async def during(_: str) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        for _turn in range(NUM_CALLS):
            await asyncio.sleep(0)
        running -= 1

    texts = TEXTS * MAX_AT_ONCE
    with activate(accelerator):
        EXTRACTORS["simple"](model(during))(text_nodes(texts))
    assert most == MAX_AT_ONCE


def test_more_workers_than_that_are_kept(accelerator: Accelerator) -> None:
    number = MAX_AT_ONCE + 3
    texts = [f"Pump {place} feeds tank 0." for place in range(number)]
    extractor = EXTRACTORS["simple"](model(ameeting(number)), num_workers=number)
    with activate(accelerator):
        assert len(extractor(text_nodes(texts))) == number


# They show the same ------------------------------------------------------------------------------


@every_extractor
def test_spans_and_events_are_those_of_the_plain_program(
    name: str, accelerator: Accelerator
) -> None:
    def shown(extractor: Any) -> Any:
        with recording() as counts, parents_of_spans() as parents, events_by_span() as events:
            result = built_of(extractor(text_nodes()))
        return result, counts, parents, events

    plain = shown(EXTRACTORS[name](model()))
    fast = accelerate(EXTRACTORS[name](model(ameeting())), accelerator=accelerator)
    assert shown(fast) == plain


@every_extractor
def test_upstream_is_what_is_known(name: str) -> None:
    cls = type(EXTRACTORS[name](model()))
    assert composite_of(cls.acall) is not None, full_name(cls)

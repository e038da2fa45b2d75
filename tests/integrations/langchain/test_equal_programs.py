"""An accelerated program gives the results, streams, callbacks and errors of the plain one."""

from __future__ import annotations

from typing import Any

import pytest
from lc_composites import CHAINS, HISTORY, RETRIEVERS
from lc_programs import ORDERED
from lc_programs import PROGRAMS as OTHERS
from lc_recording import plain
from lc_runs import WAYS, Runs, come, config_with

from langchain_rag_accel import accelerate
from langchain_rag_accel.coverage import coverage
from rag_accel import Accelerator

QUESTIONS = [f"question {word}" for word in ("one", "two", "three", "four")]
PROGRAMS = {**RETRIEVERS, **CHAINS, **OTHERS}
#: ways that run one input after the other
IN_ORDER = {"invoke", "ainvoke", "stream", "astream", "transform", "atransform"}


def _inputs(name: str) -> list[Any]:
    """Return what a program is asked; every second conversation has gone on for a while."""
    if name in RETRIEVERS:
        return [*QUESTIONS]
    histories = (HISTORY, [], HISTORY, [])
    pairs = zip(QUESTIONS, histories, strict=True)
    return [{"input": question, "chat_history": history} for question, history in pairs]


@pytest.mark.filterwarnings("ignore:`langchain-community` is being:DeprecationWarning")
@pytest.mark.cross_product(keep=45)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", PROGRAMS)
async def test_results_and_callbacks_are_those_of_the_plain_program(
    name: str, way: str, accelerator: Accelerator
) -> None:
    bare, fast = PROGRAMS[name](), accelerate(PROGRAMS[name](), accelerator=accelerator)
    of_bare, of_fast = Runs(), Runs()
    chosen = {"temperature": 0.5, "model": "second", "visible": 1}
    with coverage() as plain_meter:
        config = config_with(of_bare, configurable=chosen)
        expected = await come(way, bare, _inputs(name), config)
    with coverage() as meter:
        config = config_with(of_fast, configurable=chosen)
        found = await come(way, fast, _inputs(name), config)
    assert plain(found) == plain(expected)
    assert of_fast.forest() == of_bare.forest()
    assert of_fast.open() == []
    if name in ORDERED and way in IN_ORDER:
        assert of_fast.log == of_bare.log
    assert sum(row.scheduled for row in plain_meter.rows()) == 0
    assert meter.passed_by == 0, str(meter)
    assert sum(row.scheduled for row in meter.rows()) > 0

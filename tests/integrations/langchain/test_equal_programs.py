"""An accelerated program gives the results, streams, callbacks and errors of the plain one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from lc_programs import ORDERED, PROGRAMS
from lc_recording import Recorder, plain

from langchain_rag_accel import accelerate
from langchain_rag_accel.coverage import coverage
from rag_accel import Accelerator

INPUT = {"input": "question one"}
INPUTS = [{"input": f"question {word}"} for word in ("one", "two", "three", "four")]


def _config(recorder: Recorder) -> dict[str, Any]:
    return {
        "callbacks": [recorder],
        "tags": ["b-tag", "a-tag"],
        "metadata": {"user": "someone"},
        "run_name": "my run",
        "configurable": {"temperature": 0.5, "model": "second", "visible": 1},
    }


def _invoke(program: Any, config: Any) -> Any:
    return program.invoke(INPUT, config)


async def _ainvoke(program: Any, config: Any) -> Any:
    return await program.ainvoke(INPUT, config)


def _stream(program: Any, config: Any) -> Any:
    return list(program.stream(INPUT, config))


async def _astream(program: Any, config: Any) -> Any:
    return [chunk async for chunk in program.astream(INPUT, config)]


def _transform(program: Any, config: Any) -> Any:
    return list(program.transform(iter([INPUT]), config))


async def _atransform(program: Any, config: Any) -> Any:
    async def inputs() -> Any:
        yield INPUT

    return [chunk async for chunk in program.atransform(inputs(), config)]


def _batch(program: Any, config: Any) -> Any:
    return program.batch(INPUTS, config)


async def _abatch(program: Any, config: Any) -> Any:
    return await program.abatch(INPUTS, config)


def _batch_as_completed(program: Any, config: Any) -> Any:
    return sorted(map(repr, program.batch_as_completed(INPUTS, config)))


async def _abatch_as_completed(program: Any, config: Any) -> Any:
    return sorted([repr(done) async for done in program.abatch_as_completed(INPUTS, config)])


async def _astream_events(program: Any, config: Any) -> Any:
    return [event async for event in program.astream_events(INPUT, config, version="v2")]


WAYS: dict[str, Callable[[Any, Any], Any]] = {
    "invoke": _invoke,
    "ainvoke": _ainvoke,
    "stream": _stream,
    "astream": _astream,
    "transform": _transform,
    "atransform": _atransform,
    "batch": _batch,
    "abatch": _abatch,
    "batch_as_completed": _batch_as_completed,
    "abatch_as_completed": _abatch_as_completed,
    "astream_events": _astream_events,
}
#: the others run inputs, or hand over events, in no fixed order
IN_ORDER = {"invoke", "ainvoke", "stream", "astream", "transform", "atransform"}


async def _run(way: str, program: Any, recorder: Recorder) -> list[str]:
    """Return the result item by item, or the error."""
    try:
        result = WAYS[way](program, _config(recorder))
        result = await result if isinstance(result, Awaitable) else result
    except Exception as error:
        return [repr(error)]
    return [plain(item) for item in result] if isinstance(result, list) else [plain(result)]


@pytest.mark.cross_product(keep=33)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", PROGRAMS)
async def test_results_and_callbacks_are_those_of_the_plain_program(
    name: str, way: str, accelerator: Accelerator
) -> None:
    bare, fast = PROGRAMS[name](), accelerate(PROGRAMS[name](), accelerator=accelerator)
    of_bare, of_fast = Recorder(), Recorder()
    with coverage() as plain_meter:
        expected = await _run(way, bare, of_bare)
    with coverage() as meter:
        found = await _run(way, fast, of_fast)
    is_ordered = name in ORDERED and way in IN_ORDER
    assert (found if is_ordered else sorted(found)) == (
        expected if is_ordered else sorted(expected)
    )
    if is_ordered:
        assert of_fast.entries == of_bare.entries
    else:
        assert sorted(map(repr, of_fast.entries)) == sorted(map(repr, of_bare.entries))
    assert sum(row.scheduled for row in plain_meter.rows()) == 0
    assert meter.passed_by == 0, str(meter)
    assert sum(row.scheduled for row in meter.rows()) > 0

"""What can be asked of a program, or made of it, is the same for the accelerated one."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.load import dumpd, load
from langchain_core.runnables import Runnable, RunnableLambda
from lc_fakes import AsyncChat, SyncChat
from lc_programs import (
    PROGRAMS,
    QUESTION,
    model_chain,
)

from langchain_rag_accel import accelerate
from langchain_rag_accel.coverage import coverage
from langchain_rag_accel.runnables import AcceleratedRunnable
from rag_accel import Accelerator

INPUT = {"input": "question one"}


@pytest.mark.parametrize("name", PROGRAMS)
def test_graph_schemas_and_name_are_equal(name: str, accelerator: Accelerator) -> None:
    bare, fast = PROGRAMS[name](), accelerate(PROGRAMS[name](), accelerator=accelerator)
    assert fast.get_graph().to_json() == bare.get_graph().to_json()
    assert fast.get_graph().draw_mermaid() == bare.get_graph().draw_mermaid()
    assert fast.get_input_jsonschema() == bare.get_input_jsonschema()
    assert fast.get_output_jsonschema() == bare.get_output_jsonschema()
    assert fast.get_config_jsonschema() == bare.get_config_jsonschema()
    assert (fast.InputType, fast.OutputType) == (bare.InputType, bare.OutputType)
    assert fast.get_name() == bare.get_name()
    assert fast.config_specs == bare.config_specs


def _listened(program: Runnable[Any, Any]) -> Runnable[Any, Any]:
    return program.with_listeners(on_start=lambda run: None)


MADE_OF_IT: dict[str, Callable[[Any], Any]] = {
    "with_config": lambda program: program.with_config(tags=["x"], run_name="renamed"),
    "with_retry": lambda program: program.with_retry(stop_after_attempt=2),
    "with_fallbacks": lambda program: program.with_fallbacks([RunnableLambda(lambda _: "none")]),
    "with_listeners": _listened,
    "with_types": lambda program: program.with_types(output_type=str),
    "bind": lambda program: program.bind(stop=["to"]),
    "pipe": lambda program: program.pipe(RunnableLambda(lambda text: text.upper())),
    "or": lambda program: program | (lambda text: text[::-1]),
    "ror": lambda program: RunnableLambda(lambda given: given) | program,
    "pick from assign": lambda program: (
        RunnableLambda(lambda given: given).assign(answer=program).pick("answer")
    ),
}


@pytest.mark.parametrize("made", MADE_OF_IT)
async def test_what_is_made_of_an_accelerated_program_answers_alike(
    made: str, accelerator: Accelerator
) -> None:
    make = MADE_OF_IT[made]
    bare, fast = make(model_chain()), make(accelerate(model_chain(), accelerator=accelerator))
    assert fast.invoke(INPUT) == bare.invoke(INPUT)
    assert await fast.ainvoke(INPUT) == await bare.ainvoke(INPUT)
    assert list(fast.stream(INPUT)) == list(bare.stream(INPUT))
    assert [c async for c in fast.astream(INPUT)] == [c async for c in bare.astream(INPUT)]
    with coverage() as meter:
        assert fast.batch([INPUT] * 2) == bare.batch([INPUT] * 2)
    assert sum(row.scheduled for row in meter.rows()) == 2


@pytest.mark.parametrize("made", ["with_config", "with_retry", "with_listeners", "bind"])
def test_what_is_made_of_an_accelerated_program_keeps_its_accelerator(
    made: str, accelerator: Accelerator
) -> None:
    fast = MADE_OF_IT[made](accelerate(model_chain(), accelerator=accelerator))
    assert isinstance(fast, AcceleratedRunnable)
    assert fast.accelerator is accelerator


def test_attributes_of_the_program_stay_reachable(accelerator: Accelerator) -> None:
    bare = model_chain()
    fast = accelerate(bare, accelerator=accelerator)
    assert fast.steps == bare.steps
    assert fast.first is bare.first
    with pytest.raises(AttributeError, match="nothing_of_the_kind"):
        _ = fast.nothing_of_the_kind


def test_an_accelerated_program_is_accelerated_once(accelerator: Accelerator) -> None:
    fast = accelerate(model_chain(), accelerator=accelerator)
    assert accelerate(fast) is fast


def _picklable() -> Runnable[Any, Any]:
    return QUESTION | AsyncChat()


def test_a_pickled_program_arrives_with_its_options() -> None:
    with Accelerator(namespace="tenant", strict=True) as accelerator:
        fast = accelerate(_picklable(), accelerator=accelerator)
        arrived = pickle.loads(pickle.dumps(fast))
        with coverage() as meter, arrived.accelerator as other:
            assert other is not accelerator
            assert other.options == accelerator.options
            assert arrived.invoke(INPUT).content == fast.invoke(INPUT).content
        assert meter.passed_by == 0


def test_a_pickled_program_of_the_process_default_stays_one() -> None:
    arrived = pickle.loads(pickle.dumps(accelerate(_picklable())))
    assert arrived.accelerator is accelerate(_picklable()).accelerator


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda p: p.model_copy(deep=True)])
def test_a_copy_is_accelerated_and_outlives_the_original(
    copied: Callable[[Any], Any], accelerator: Accelerator
) -> None:
    made = copied(accelerate(model_chain(), accelerator=accelerator))
    assert made.accelerator is accelerator
    with coverage() as meter:
        assert made.invoke(INPUT) == model_chain().invoke(INPUT)
    assert meter.passed_by == 1  # of the plain one
    assert meter.rows()[0].scheduled == 1


@pytest.mark.filterwarnings("ignore:The function `load` is in beta")
def test_a_dumped_program_loads_as_a_plain_binding(accelerator: Accelerator) -> None:
    bare = QUESTION
    dumped = dumpd(accelerate(bare, accelerator=accelerator))
    assert "rag_accel" not in str(dumped)
    assert load(dumped, allowed_objects="all").invoke(INPUT) == bare.invoke(INPUT)


def test_the_master_switch_works_at_run_time(
    accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast = accelerate(QUESTION | SyncChat(), accelerator=accelerator)
    for switch, scheduled in (("0", 0), ("1", 1), ("off", 0)):
        monkeypatch.setenv("RAG_ACCEL", switch)
        with coverage() as meter:
            fast.invoke(INPUT)
        assert meter.rows()[0].scheduled == scheduled

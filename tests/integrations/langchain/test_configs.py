"""Configs reach an accelerated program's parts as they reach the plain one's."""

from __future__ import annotations

import asyncio
import threading
import uuid
from typing import Any

import pytest
from langchain_core.runnables import RunnableConfig, RunnableLambda
from lc_fakes import AsyncChat, SyncChat
from lc_programs import QUESTION, model_chain, retrieval_chain
from lc_runs import Runs

from langchain_rag_accel import accelerate
from rag_accel import Accelerator

INPUT = {"input": "question one"}
INPUTS = [{"input": f"question {number}"} for number in range(5)]


@pytest.fixture
def fast(accelerator: Accelerator) -> Any:
    """Give an accelerated chain of prompt, model and parser."""
    return accelerate(model_chain(), accelerator=accelerator)


async def test_a_run_id_given_by_the_user_is_the_roots(fast: Any) -> None:
    for run in (fast.invoke, fast.ainvoke, fast.stream, fast.astream):
        recorder, run_id = Runs(), uuid.uuid4()
        result = run(INPUT, {"run_id": run_id, "callbacks": [recorder]})
        if hasattr(result, "__await__"):
            await result
        elif hasattr(result, "__anext__"):
            _ = [chunk async for chunk in result]
        else:
            list(result)
        began = [run for event, run in recorder.order if event.endswith("_start")]
        assert began[0] == run_id
        assert run_id not in began[1:]


async def test_each_input_of_a_batch_has_its_config(fast: Any) -> None:
    bare = model_chain()
    for program_batch, plain_batch in ((fast.batch, bare.batch), (fast.abatch, bare.abatch)):
        seen: list[Any] = []
        for batch in (program_batch, plain_batch):
            recorders = [Runs() for _ in INPUTS]
            configs = [
                {"callbacks": [recorder], "tags": [f"tag{number}"], "run_name": f"run{number}"}
                for number, recorder in enumerate(recorders)
            ]
            result = batch(INPUTS, configs)
            if hasattr(result, "__await__"):
                result = await result
            seen.append((result, [recorder.log for recorder in recorders]))
        assert seen[0] == seen[1]


def test_configs_of_another_number_than_inputs_are_refused_alike(fast: Any) -> None:
    with pytest.raises(ValueError, match="same length") as of_bare:
        model_chain().batch(INPUTS, [{}])
    with pytest.raises(ValueError, match="same length") as of_fast:
        fast.batch(INPUTS, [{}])
    assert str(of_fast.value) == str(of_bare.value)


@pytest.mark.parametrize("limit", [1, 3])
async def test_max_concurrency_bounds_calls_as_in_the_plain_program(
    limit: int, accelerator: Accelerator
) -> None:
    for sync in (True, False):
        model = SyncChat() if sync else AsyncChat()
        fast = accelerate(QUESTION | model, accelerator=accelerator)
        config: RunnableConfig = {"max_concurrency": limit}
        found = fast.batch(INPUTS, config) if sync else await fast.abatch(INPUTS, config)
        assert [str(message.content) for message in found] == [
            str((QUESTION | SyncChat()).invoke(given).content) for given in INPUTS
        ]
        assert model.journal.peak <= limit


async def test_exceptions_of_a_batch_can_be_returned(accelerator: Accelerator) -> None:
    error = ValueError("not this one")

    def choose(given: dict[str, str]) -> dict[str, str]:
        if given["input"].endswith("2"):
            raise error
        return given

    bare = RunnableLambda(choose) | QUESTION | AsyncChat() | (lambda message: message.content)
    fast = accelerate(bare, accelerator=accelerator)
    expected = bare.batch(INPUTS, return_exceptions=True)
    assert fast.batch(INPUTS, return_exceptions=True) == expected
    assert await fast.abatch(INPUTS, return_exceptions=True) == expected
    assert expected[2] is error
    done = dict(fast.batch_as_completed(INPUTS, return_exceptions=True))
    assert [done[number] for number in range(5)] == expected


def test_the_callers_config_is_not_changed(fast: Any) -> None:
    config: RunnableConfig = {"configurable": {"one": 1}, "tags": ["a"], "metadata": {"m": 1}}
    fast.invoke(INPUT, config)
    list(fast.stream(INPUT, config))
    fast.batch(INPUTS, config)
    fast.batch(INPUTS, [config] * 5)
    assert config == {"configurable": {"one": 1}, "tags": ["a"], "metadata": {"m": 1}}


def _see(given: Any, config: RunnableConfig) -> Any:
    inside = config.get("configurable") or {}
    return {key: value for key, value in inside.items() if not key.startswith("__")}


async def test_configurable_values_reach_the_programs_functions(accelerator: Accelerator) -> None:
    fast = accelerate(RunnableLambda(_see), accelerator=accelerator)
    config: RunnableConfig = {"configurable": {"session": "s"}}
    assert fast.invoke(INPUT, config) == {"session": "s"}
    assert await fast.ainvoke(INPUT, config) == {"session": "s"}
    assert list(fast.stream(INPUT, config)) == [{"session": "s"}]
    assert fast.with_config(configurable={"session": "t"}).invoke(INPUT) == {"session": "t"}


def test_the_identity_appears_in_no_metadata_event_or_callback(fast: Any) -> None:
    recorder = Runs()
    fast.invoke(INPUT, {"callbacks": [recorder], "configurable": {"seen": 1}})
    assert "rag_accel" not in repr(recorder.log)


@pytest.mark.filterwarnings("ignore:astream_log is deprecated")
async def test_a_streamed_log_ends_in_the_same_state(fast: Any) -> None:
    async def last(program: Any) -> Any:
        log = None
        async for patch in program.astream_log(INPUT):
            log = patch if log is None else log + patch
        assert log is not None
        return log.state["final_output"], log.state["streamed_output"], sorted(log.state["logs"])

    assert await last(fast) == await last(model_chain())


def test_loops_in_several_threads_share_a_program(accelerator: Accelerator) -> None:
    fast, bare = accelerate(retrieval_chain(), accelerator=accelerator), retrieval_chain()
    found: dict[int, Any] = {}

    async def ask(number: int) -> Any:
        questions = [{"input": f"{number}-{turn}"} for turn in range(5)]
        return await asyncio.gather(*(fast.ainvoke(question) for question in questions))

    def work(number: int) -> None:
        found[number] = asyncio.run(ask(number))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, answers in found.items():
        assert answers == [bare.invoke({"input": f"{number}-{turn}"}) for turn in range(5)]

"""A batch of a translated program is one request per input, and else LangChain's batch."""

from __future__ import annotations

import asyncio
import threading
import uuid
from contextlib import contextmanager
from operator import itemgetter
from typing import Any

import pytest
from langchain_core.output_parsers import StrOutputParser
from langchain_core.runnables import Runnable, RunnableLambda, RunnableParallel, RunnablePassthrough
from lc_fakes import AsyncChat, AsyncRetriever, FakeLLM
from lc_programs import QUESTION, model_chain, retrieval_chain
from lc_translating import Runs, config_with, outcome, translated, until

from rag_accel import Accelerator
from rag_accel.accelerator import current_request

INPUTS = [{"input": f"question {number}"} for number in range(5)]
WAYS = ("batch", "abatch")


def _choosy(*bad: int, error: Exception | None = None) -> Runnable[Any, Any]:
    def check(given: Any) -> Any:
        if any(f"question {number}" in str(given) for number in bad):
            raise error or ValueError(f"no to {given}")
        return given

    return RunnableLambda(check)


@pytest.mark.parametrize("way", WAYS)
async def test_the_error_of_the_earliest_step_ends_every_input_of_a_sequence(
    way: str, accelerator: Accelerator
) -> None:
    late, early = ValueError("late"), KeyError("early")
    program = RunnablePassthrough() | _choosy(0, error=late) | _choosy(0, 4, error=early)
    first = _choosy(3, error=early) | RunnablePassthrough()
    program = first.with_config(run_name="first") | program
    of_bare, of_fast = Runs(), Runs()
    expected = await outcome(getattr(program, way), INPUTS, config_with(of_bare))
    fast = translated(program, accelerator)
    found = await outcome(getattr(fast, way), INPUTS, config_with(of_fast))
    assert expected == found == ("raised", early)

    def roots(runs: Runs) -> list[Any]:
        own = [run for run, up in runs._parents.items() if up is None]
        return sorted(map(repr, (runs._told[run] for run in own)))

    assert roots(of_fast) == roots(of_bare)


def test_no_input_begins_a_step_beyond_one_that_failed(accelerator: Accelerator) -> None:
    began: list[str] = []
    failed = threading.Event()

    def first(given: str) -> str:
        if given == "bad":
            raise ValueError("no")
        assert failed.wait(10.0)
        return given

    class Watching(Runs):
        def tell(self, event: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            super().tell(event, args, kwargs)
            if event == "on_chain_error":
                # The step's own run has failed; let the scheduler of the batch hear of it.
                threading.Timer(0.1, failed.set).start()

    program = RunnableLambda(first) | RunnableLambda(began.append)
    with pytest.raises(ValueError, match="no"):
        translated(program, accelerator).batch(["bad", "good"], {"callbacks": [Watching()]})
    assert began == []


@pytest.mark.parametrize("way", WAYS)
async def test_each_input_is_a_request_of_its_own(way: str, accelerator: Accelerator) -> None:
    requests: list[Any] = []

    def note(given: Any) -> Any:
        identity = current_request.get()
        requests.append(identity.request if identity is not None else None)

    program = RunnableLambda(note) | RunnableParallel(a=note, b=note) | RunnableLambda(note)
    await outcome(getattr(translated(program, accelerator), way), INPUTS)
    assert len(requests) == 4 * len(INPUTS)
    assert sorted(requests.count(one) for one in set(requests)) == [4] * len(INPUTS)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("limit", [1, 2, None])
async def test_max_concurrency_bounds_inputs(
    way: str, limit: int | None, accelerator: Accelerator
) -> None:
    model = AsyncChat()
    config: Any = {} if limit is None else {"max_concurrency": limit}
    kind, _ = await outcome(getattr(translated(QUESTION | model, accelerator), way), INPUTS, config)
    assert kind == "returned"
    assert model.journal.peak <= (limit or len(INPUTS))
    assert len(model.journal.calls) == len(INPUTS)


@pytest.mark.parametrize("way", ["invoke", "batch"])
def test_max_concurrency_bounds_branches(way: str, accelerator: Accelerator) -> None:
    peak, now, lock = [0], [0], threading.Lock()

    @contextmanager
    def counted() -> Any:
        with lock:
            now[0] += 1
            peak[0] = max(peak[0], now[0])
        yield
        with lock:
            now[0] -= 1

    def step(given: Any) -> Any:
        with counted():
            threading.Event().wait(0.005)

    program = RunnableParallel(a=step, b=step, c=step) | RunnablePassthrough()
    fast = translated(program, accelerator)
    given: Any = INPUTS[0] if way == "invoke" else INPUTS[:1]
    getattr(fast, way)(given, {"max_concurrency": 1})
    assert peak == [1]
    getattr(fast.with_config(max_concurrency=1), way)(given)
    assert peak == [1]


@pytest.mark.parametrize("way", WAYS)
async def test_a_config_per_input_is_that_inputs(way: str, accelerator: Accelerator) -> None:
    ids = [uuid.uuid4() for _ in INPUTS]
    all_runs = [Runs() for _ in INPUTS]
    configs = [
        {"run_id": run_id, "callbacks": [r]} for run_id, r in zip(ids, all_runs, strict=True)
    ]
    fast = translated(retrieval_chain(), accelerator)
    kind, _ = await outcome(getattr(fast, way), INPUTS, configs)
    assert kind == "returned"
    assert [runs.order[0][1] for runs in all_runs] == ids


@pytest.mark.parametrize("way", WAYS)
async def test_one_run_id_for_many_inputs_is_the_first_ones(
    way: str, accelerator: Accelerator
) -> None:
    runs, run_id = Runs(), uuid.uuid4()
    fast = translated(model_chain(), accelerator)
    with pytest.warns(RuntimeWarning, match="run_id"):
        await outcome(getattr(fast, way), INPUTS, {"run_id": run_id, "callbacks": [runs]})
    assert runs.order[0][1] == run_id
    assert len({run for run, up in runs._parents.items() if up is None}) == len(INPUTS)


@pytest.mark.parametrize("way", WAYS)
async def test_configs_that_do_not_fit_the_inputs_are_refused(
    way: str, accelerator: Accelerator
) -> None:
    expected = await outcome(getattr(model_chain(), way), INPUTS, [{}])
    fast = translated(model_chain(), accelerator)
    assert repr(await outcome(getattr(fast, way), INPUTS, [{}])) == repr(expected)


@pytest.mark.parametrize("way", WAYS)
async def test_an_empty_batch_is_empty(way: str, accelerator: Accelerator) -> None:
    fast = translated(model_chain(), accelerator)
    assert await outcome(getattr(fast, way), []) == ("returned", [])


@pytest.mark.parametrize("way", WAYS)
async def test_a_part_with_a_batch_of_its_own_keeps_it(way: str, accelerator: Accelerator) -> None:
    program = RunnableLambda(itemgetter("input")) | FakeLLM() | StrOutputParser()
    of_bare, of_fast = Runs(), Runs()
    expected = await outcome(getattr(program, way), INPUTS, config_with(of_bare))
    fast = translated(program, accelerator)
    assert await outcome(getattr(fast, way), INPUTS, config_with(of_fast)) == expected
    assert of_fast.forest() == of_bare.forest()
    assert "'batch_size': 5" in repr(of_fast.events())


async def test_inputs_do_not_wait_for_each_other_between_steps(accelerator: Accelerator) -> None:
    second = asyncio.Event()

    async def first(given: int) -> int:
        if given == 0:
            await second.wait()
        return given

    async def then(given: int) -> int:
        second.set()
        return given

    program = RunnableLambda(first) | RunnableLambda(then)
    async with asyncio.timeout(10.0):
        assert await translated(program, accelerator).abatch([0, 1]) == [0, 1]


async def test_cancelling_a_batch_ends_every_run(accelerator: Accelerator) -> None:
    gate, runs = asyncio.Event(), Runs()
    program = itemgetter("input") | RunnableParallel(a=AsyncRetriever(gate=gate), b=len)
    fast = translated(program, accelerator)
    task = asyncio.create_task(fast.abatch(INPUTS, config_with(runs)))
    started = "on_retriever_start"
    await until(lambda: [event for event, _ in runs.order].count(started) == len(INPUTS))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    # A retriever does not tell of the end of a call that was cancelled.
    await until(lambda: len(runs.open()) <= len(INPUTS))

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import HumanMessage
from langchain_core.runnables import RunnableLambda

from bench.arms import bench_accelerator
from bench.measure import Pairs
from bench.paired import PairedTimes
from bench.unbatched import rounds
from bench.unbatched.graphs import map_reduce
from bench.unbatched.leaves import LeafCalls, new_retriever, text_model
from bench.unbatched.program import Program, questions
from bench.unbatched.rounds import BUILDERS, Rounds, Way, time_rounds
from langchain_rag_accel import accelerate, activate
from langchain_rag_accel.coverage import coverage

each_program = pytest.mark.parametrize("build", BUILDERS, ids=lambda build: build.__name__)


class Starts(BaseCallbackHandler):
    """Count the chat model and retriever calls that LangChain tells of."""

    run_inline = True

    def __init__(self) -> None:
        self.models = self.retrievers = 0

    def on_chat_model_start(self, *args: Any, **kwargs: Any) -> None:
        self.models += 1

    def on_retriever_start(self, *args: Any, **kwargs: Any) -> None:
        self.retrievers += 1


async def _ask_all(program: Program, users: int, runnable: Any = None) -> list[list[Any]]:
    asked = questions(users)
    return await asyncio.gather(*(program.ask(runnable or program.runnable, one) for one in asked))


@each_program
async def test_a_request_makes_four_to_twenty_leaf_calls(build: Callable[[], Program]) -> None:
    program = build()
    for question in questions(16):
        before = program.calls.total
        await program.ask(program.runnable, question)
        assert 4 <= program.calls.total - before <= 20


@each_program
async def test_the_same_question_has_the_same_answer_in_a_fresh_program(
    build: Callable[[], Program],
) -> None:
    assert await _ask_all(build(), 4) == await _ask_all(build(), 4)


@each_program
async def test_users_get_different_answers(build: Callable[[], Program]) -> None:
    answers = await _ask_all(build(), 16)
    assert len({repr(one) for one in answers}) == 16


@each_program
async def test_all_leaf_calls_are_counted(build: Callable[[], Program]) -> None:
    program, starts = build(), Starts()
    await program.ask(program.runnable.with_config(callbacks=[starts]), questions(1)[0])
    assert program.calls.total == starts.models + 2 * starts.retrievers


@each_program
async def test_every_counted_call_is_scheduled_under_activate(
    build: Callable[[], Program],
) -> None:
    program = build()
    with bench_accelerator() as accelerator, activate(accelerator), coverage() as meter:
        await _ask_all(program, 2)
    assert sum(row.scheduled for row in meter.rows()) == program.calls.total
    assert meter.passed_by == 0


@each_program
async def test_an_accelerated_program_answers_as_the_plain_one(
    build: Callable[[], Program],
) -> None:
    program = build()
    with bench_accelerator() as accelerator:
        fast = accelerate(program.runnable, accelerator=accelerator)
        assert await _ask_all(program, 3, fast) == await _ask_all(build(), 3)


def test_no_two_users_ask_the_same() -> None:
    assert len(set(questions(100))) == 100


async def test_the_waiting_model_says_the_same_sync_and_async() -> None:
    model = text_model(str.upper, LeafCalls())
    asked = [HumanMessage("a"), HumanMessage("b")]
    assert model.invoke(asked).text == (await model.ainvoke(asked)).text == "A\nB"


async def test_the_retriever_finds_what_shares_words_with_the_question() -> None:
    retriever = new_retriever(LeafCalls())
    found = await retriever.ainvoke("The ferry was rebuilt after the flood")
    assert found == retriever.invoke("The ferry was rebuilt after the flood")
    assert found[0].page_content.startswith("The ferry was rebuilt")


@pytest.mark.bench
def test_rounds_are_timed_in_both_ways_and_plain() -> None:
    with bench_accelerator() as accelerator:
        found = time_rounds(map_reduce, accelerator, users=2, pairs=2, warm_up=0)
    rows = {(row.system, row.metric): row for row in found.rows()}
    for metric in ("wall_ms", "cpu_ms"):
        assert rows["plain", metric].n == 4
        assert rows["activate", metric].n == rows["accelerate", metric].n == 2
    assert rows["plain", "leaf_calls"].median == found.leaf_calls
    assert {row.workload for row in found.rows()} == {"map-reduce with an interrupt, 2 users"}
    fast = rows["accelerate / plain", "wall_ratio"].median
    assert found.ratio == max(fast, rows["activate / plain", "wall_ratio"].median)


def test_the_worse_of_both_ways_counts() -> None:
    def way(other_ms: float) -> Way:
        times = PairedTimes("work", Pairs((10.0, 10.0, 10.0), (other_ms,) * 3))
        return Way("way", wall=times, cpu=times)

    found = Rounds("work", 20, (way(11.0), way(14.0)))
    assert found.ratio == 1.4
    assert found.leaf_ms == 0.2
    assert Rounds("work", 20, (way(16.0), way(14.0))).ratio == 1.6


def test_other_answers_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    def change(runnable: Any, accelerator: object) -> Any:
        return runnable | RunnableLambda(lambda _: "something else")

    monkeypatch.setattr(rounds, "accelerate", change)
    with bench_accelerator() as accelerator:
        found = time_rounds(BUILDERS[-1], accelerator, users=2, pairs=2, warm_up=0)
    rows = {row.system: row for row in found.rows() if row.metric == "different_answers"}
    assert (rows["activate"].median, rows["activate"].n) == (0, 4)
    assert (rows["accelerate"].median, rows["accelerate"].n) == (4, 4)

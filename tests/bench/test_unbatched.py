from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.runnables import RunnableLambda

from bench.arms import bench_accelerator
from bench.measure import Pairs
from bench.paired import PairedTimes
from bench.unbatched import rounds
from bench.unbatched.program import Program, questions
from bench.unbatched.rounds import BUILDERS, Rounds, Way, time_rounds
from langchain_rag_accel import activate
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

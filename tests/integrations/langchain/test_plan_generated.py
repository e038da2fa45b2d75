"""Whatever program is made of declared parts: its plan does and tells the same."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langchain_core.documents import Document
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import PromptTemplate
from langchain_core.runnables import (
    Runnable,
    RunnableLambda,
    RunnableParallel,
    RunnablePassthrough,
    RunnablePick,
)
from lc_fakes import AsyncChat, AsyncRetriever, FakeLLM, StreamingChat, SyncChat, SyncRetriever
from lc_recording import plain
from lc_runs import Runs, compare_leaves, config_with, outcome, until

from rag_accel import Accelerator, plan_of

#: says what LangChain says of a pick or an assign that is given no dict: where several branches
#: fail on a loop, which of them is first is a matter of time
ERROR = ValueError("The input to RunnablePassthrough.assign() must be a dict.")
KEYS = ("a", "b", "c", "text")
PROMPT = PromptTemplate.from_template("say {text}")


def as_text(given: Any) -> str:
    """Return anything as the text that models and retrievers take."""
    if isinstance(given, list) and all(isinstance(one, Document) for one in given):
        return " + ".join(one.page_content for one in given)
    return plain(given)[:120]


def as_dict(given: Any) -> dict[str, Any]:
    """Return anything as the dict that prompts and assigns take."""
    # Last, over a message of that name: its id would be another one in every run.
    return {"a": 1, **(given if isinstance(given, dict) else {}), "text": as_text(given)}


def fail(given: Any) -> Any:
    raise ERROR


async def ashout(given: Any) -> str:
    return as_text(given).upper()


def shout(given: Any) -> str:
    return as_text(given).upper()


def delegate(given: Any) -> Runnable[Any, Any]:
    return RunnableLambda(shout) | StrOutputParser()


TEXTS = RunnableLambda(as_text)
DICTS = RunnableLambda(as_dict)


def _whole() -> st.SearchStrategy[Runnable[Any, Any]]:
    """Return parts that take anything: those that do not are led to what they take."""
    return st.sampled_from(
        [
            TEXTS,
            DICTS,
            TEXTS | AsyncChat(),
            TEXTS | SyncChat() | StrOutputParser(),
            TEXTS | StreamingChat().bind(stop=["to"]).with_config(tags=["bound"]),
            TEXTS | FakeLLM(),
            TEXTS | AsyncRetriever(),
            TEXTS | SyncRetriever(prefix="s"),
            DICTS | PROMPT | AsyncChat() | StrOutputParser(),
            DICTS | RunnablePick("text"),
            DICTS | RunnablePick(["text", "missing"]),
            RunnablePassthrough(),
            RunnableLambda(shout, afunc=ashout),
            RunnableLambda(delegate),
            RunnableLambda(fail),
            RunnablePick("text"),
        ]
    )


def _configured(part: Runnable[Any, Any], how: int) -> Runnable[Any, Any]:
    match how:
        case 1:
            return part.with_config(tags=["t"], metadata={"m": how})
        case 2:
            return part.with_config(run_name="named", configurable={"k": how})
        case 3:
            return part.bind().with_config(metadata={"outer": 1}).with_config(tags=["t", "u"])
        case _:
            return part


def _composite(
    parts: st.SearchStrategy[Runnable[Any, Any]],
) -> st.SearchStrategy[Runnable[Any, Any]]:
    branches = st.dictionaries(st.sampled_from(KEYS), parts, min_size=1, max_size=3)
    sequences = st.lists(parts, min_size=2, max_size=3).map(_sequence)
    parallels = branches.map(lambda steps: RunnableParallel(steps))
    assigns = branches.map(lambda steps: DICTS | RunnablePassthrough.assign(**steps))
    bare_assigns = branches.map(lambda steps: RunnablePassthrough.assign(**steps))
    made = st.one_of(sequences, parallels, assigns, bare_assigns)
    return st.builds(_configured, made, st.integers(0, 5))


def _sequence(parts: list[Runnable[Any, Any]]) -> Runnable[Any, Any]:
    first, *others = parts
    for part in others:
        first = first | part
    return first


PROGRAMS = st.recursive(_whole(), _composite, max_leaves=8)
QUICK = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.fixture(autouse=True)
def nothing_held() -> Iterator[None]:
    """Let go of the programs that the one error of all tests has passed through."""
    yield
    ERROR.__traceback__ = ERROR.__context__ = None


async def _compare(program: Runnable[Any, Any], way: str, accelerator: Accelerator) -> None:
    of_bare, of_plan = Runs(), Runs()
    given = {"text": "question one", "b": 2}
    expected = await outcome(getattr(program, way), given, config_with(of_bare))
    run = accelerator.run if way == "invoke" else accelerator.arun
    found = await outcome(run, plan_of(program), input=given, config=config_with(of_plan))
    await until(lambda: not of_bare.open())
    assert plain(found) == plain(expected)
    if expected[0] == "returned":  # else what stands beside the error need not have begun
        compare_leaves(program, of_bare, of_plan)


@pytest.mark.parametrize("way", ["invoke", "ainvoke"])
@QUICK
@given(program=PROGRAMS)
def test_a_plan_does_and_tells_what_its_program_does(
    way: str, program: Runnable[Any, Any], accelerator: Accelerator
) -> None:
    asyncio.run(_compare(program, way, accelerator))

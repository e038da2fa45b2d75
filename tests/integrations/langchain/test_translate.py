"""A translated program gives the results and tells the callbacks of the plain one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import itemgetter
from typing import Any

import pytest
from langchain_core.output_parsers import StrOutputParser
from langchain_core.runnables import (
    Runnable,
    RunnableLambda,
    RunnableParallel,
    RunnablePassthrough,
    RunnablePick,
)
from lc_fakes import AsyncChat, AsyncRetriever, StreamingChat
from lc_programs import (
    PROGRAMS,
    QUESTION,
    joined,
    model_chain,
)
from lc_recording import plain
from lc_translating import Runs, config_with, outcome, translated

from langchain_rag_accel.coverage import coverage
from rag_accel import Accelerator

INPUT = {"input": "question one"}

NOT_UNDERSTOOD = {
    "configurable fields",
    "configurable alternatives",
    "generator step",
    "map",
}


class AskingRetriever(AsyncRetriever):
    """Ask a model without passing on callbacks: who hears of it is a matter of the context."""

    model: Any = None

    def _get_relevant_documents(self, query: str, *, run_manager: Any) -> Any:
        return super()._get_relevant_documents(
            self.model.invoke(query).text, run_manager=run_manager
        )

    async def _aget_relevant_documents(self, query: str, *, run_manager: Any) -> Any:
        asked = await self.model.ainvoke(query)
        return await super()._aget_relevant_documents(asked.text, run_manager=run_manager)


def asking_retrievers() -> Runnable[Any, Any]:
    asking = AskingRetriever(model=AsyncChat())
    inner = (itemgetter("input") | asking | joined).with_config(run_name="inner")
    return inner | asking | joined | RunnableParallel(a=asking, b=len)


def bindings() -> Runnable[Any, Any]:
    model = AsyncChat().bind(stop=["to"]).with_config(tags=["model-tag"], metadata={"m": 1})
    chain = (QUESTION | model).with_config(tags=["x"], metadata={"deep": 2}, run_name="bound")
    both = RunnableParallel(a=chain, b=chain.bind().with_config(tags=["y"]))
    return both.with_config(run_name="both", configurable={"k": "v"}) | RunnablePick("a")


def kwargs_for_the_first_step() -> Runnable[Any, Any]:
    chain = RunnableLambda(str.upper) | AsyncChat()
    first = (AsyncChat() | StrOutputParser()).bind(stop=["to"])
    return itemgetter("input") | RunnableParallel(a=first, b=first.bind(stop=["answer"]), c=chain)


def tapped() -> Runnable[Any, Any]:
    seen: list[Any] = []
    tap = RunnablePassthrough(seen.append)
    return QUESTION | tap | StreamingChat() | RunnablePassthrough() | StrOutputParser()


def nothing_side_by_side() -> Runnable[Any, Any]:
    empty: Any = RunnableParallel({})
    return RunnablePassthrough.assign() | RunnableParallel(only=model_chain(), none=empty)


def listened_to() -> Runnable[Any, Any]:
    heard: list[Any] = []
    chain = model_chain().with_listeners(on_start=heard.append, on_end=heard.append)
    return chain | RunnableLambda(len)


def odd_keys() -> Runnable[Any, Any]:
    inner: Any = RunnableParallel({"b": len, "c#": len})
    both: Any = RunnableParallel({"a": inner, "a.b": len, "START": len, "": len, "input": len})
    return itemgetter("input") | both


MORE: dict[str, Callable[[], Runnable[Any, Any]]] = {
    function.__name__.replace("_", " "): function
    for function in (
        asking_retrievers,
        bindings,
        kwargs_for_the_first_step,
        tapped,
        nothing_side_by_side,
        listened_to,
        odd_keys,
    )
}
UNDERSTOOD = {**{n: p for n, p in PROGRAMS.items() if n not in NOT_UNDERSTOOD}, **MORE}


def _parts(fast: Any) -> Iterator[Any]:
    yield from fast.translation.root.walk()


@pytest.mark.cross_product(keep=13)
@pytest.mark.parametrize("way", ["invoke", "ainvoke"])
@pytest.mark.parametrize("name", UNDERSTOOD)
async def test_results_and_runs_are_those_of_the_plain_program(
    name: str, way: str, accelerator: Accelerator
) -> None:
    bare, fast = UNDERSTOOD[name](), translated(UNDERSTOOD[name](), accelerator)
    of_bare, of_fast = Runs(), Runs()
    expected = await outcome(getattr(bare, way), INPUT, config_with(of_bare))
    with coverage() as meter:
        found = await outcome(getattr(fast, way), INPUT, config_with(of_fast))
    assert expected[0] == "returned", expected
    assert plain(found) == plain(expected)
    assert of_fast.forest() == of_bare.forest()
    assert meter.passed_by == 0, str(meter)
    if not any(len(part.keys) > 1 and part.kind == "parallel" for part in _parts(fast)):
        assert [event for event, _ in of_fast.order] == [event for event, _ in of_bare.order]


MADE: dict[str, Callable[[Any], Any]] = {
    "with_config": lambda program: program.with_config(tags=["more"], run_name="renamed"),
    "bind": lambda program: program.bind(stop=["to"]),
    "both": lambda program: program.bind(stop=["to"]).with_config(metadata={"m": 1}),
}


@pytest.mark.cross_product(keep=13)
@pytest.mark.parametrize("way", ["invoke", "ainvoke", "batch", "abatch"])
@pytest.mark.parametrize("made", MADE)
async def test_what_is_made_of_it_is_what_is_made_of_the_plain_program(
    made: str, way: str, accelerator: Accelerator
) -> None:
    program = AsyncChat() | StrOutputParser() | RunnableParallel(a=len, b=RunnablePassthrough())
    bare, fast = MADE[made](program), MADE[made](translated(program, accelerator))
    given: Any = "question one" if "invoke" in way else ["question one", "question two"]
    of_bare, of_fast = Runs(), Runs()
    expected = await outcome(getattr(bare, way), given, {"callbacks": [of_bare]})
    assert await outcome(getattr(fast, way), given, {"callbacks": [of_fast]}) == expected
    assert of_fast.forest() == of_bare.forest()

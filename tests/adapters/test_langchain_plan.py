"""A LangChain program becomes a graph whose stages call its own parts."""

from __future__ import annotations

from operator import itemgetter
from typing import Any

import pytest
from graph_text import parse, references
from langchain_core.language_models import FakeListLLM
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import PromptTemplate
from langchain_core.runnables import (
    Runnable,
    RunnableBranch,
    RunnableLambda,
    RunnableParallel,
    RunnablePassthrough,
    RunnablePick,
    RunnableSequence,
)

from rag_accel.errors import TranslationError
from rag_accel.graph.framework_calls import FrameworkCall
from rag_accel.graph.nodes import END, START
from rag_accel.graph.spec import offenders
from rag_accel.graph.stages import Function
from rag_accel.graph.text import format
from rag_accel_adapters.langchain.plan import graph_of, parts_of

PROMPT = PromptTemplate.from_template("say {text}")


def _answer() -> Runnable[Any, Any]:
    return PROMPT | FakeListLLM(responses=["hello"]) | StrOutputParser()


def _rag() -> Runnable[Any, Any]:
    context = RunnableLambda(itemgetter("text")) | RunnableLambda(str.upper)
    both = RunnableParallel(context=context, text=lambda given: given["text"])
    return both | RunnablePassthrough.assign(answer=_answer()) | RunnablePick("answer")


def _run(program: Runnable[Any, Any], value: Any) -> Any:
    """Run the stages of a program's graph one after the other."""
    values: dict[str, Any] = {"input": value, "config": None}
    graph = graph_of(program, "program").freeze()
    for stage in graph.stages:
        assert isinstance(stage, Function)
        values[stage.output] = stage.fn(*(values[name] for name in stage.inputs))
    (last,) = graph.predecessors[END]
    return values[last]


def test_a_line_is_one_stage_per_runnable() -> None:
    assert format(graph_of(_answer(), "program")).split("\n") == [
        "ragraph(input, config)  optional=config",
        "prompt: Function(input, config) -> prompt  after START  fn=@PromptTemplate",
        "model: Function(prompt, config) -> model  after prompt  fn=@FakeListLLM",
        "parser: Function(model, config) -> parser  after model  fn=@StrOutputParser",
        "END: after parser",
    ]


def test_branches_are_gathered_and_an_assign_reads_its_input() -> None:
    graph = graph_of(_rag(), "program").freeze()
    assert graph.predecessors["context.function"] == (START,)
    assert graph.predecessors["text.function"] == (START,)
    assert graph.predecessors["parallel"] == ("context.function-2", "text.function")
    assert graph.by_name["assign"].inputs == ("parallel", "parallel-2")
    assert graph.predecessors[END] == ("pick",)


def test_a_stage_calls_the_frameworks_own_runnable() -> None:
    parser = StrOutputParser()
    first, second = graph_of(PROMPT | parser.with_config(tags=["t"]), "program").freeze().stages
    assert isinstance(first, Function)
    assert isinstance(second, Function)
    assert isinstance(first.fn, FrameworkCall)
    assert isinstance(second.fn, FrameworkCall)
    called: list[Any] = [first.fn.call, second.fn.call]
    assert called[0].__self__.part.runnable is PROMPT
    assert called[1].__self__.part.runnable.bound is parser
    assert first.fn.program == "program"


@pytest.mark.parametrize(
    "program",
    [
        _answer(),
        _rag(),
        RunnableParallel(a=_rag(), b=RunnableParallel(c=_answer(), d=_rag())) | RunnablePick("b"),
        RunnablePassthrough.assign(a=_answer(), b=_rag()),
        RunnablePassthrough.assign() | RunnableParallel(only=len),
        RunnableLambda(len),
        _rag().with_config(tags=["t"]),
        RunnableParallel({"a": RunnableParallel({"b": len, "c": len}), "a.b": len, "#": len}),
    ],
    ids=range(8),
)
def test_graphs_are_valid_readable_and_do_what_the_program_does(
    program: Runnable[Any, Any],
) -> None:
    graph = graph_of(program, "program").freeze()
    assert offenders(graph, "ragraph") == ()
    assert parse(format(graph), references(graph)) == graph
    assert _run(program, {"text": "q"}) == program.invoke({"text": "q"})


STEERED: dict[str, Any] = {
    "branch": RunnableBranch((lambda _: True, len), len),
    "fallbacks": FakeListLLM(responses=["x"]).with_fallbacks([FakeListLLM(responses=["y"])]),
    "retry": FakeListLLM(responses=["x"]).with_retry(stop_after_attempt=2),
}


@pytest.mark.parametrize("kind", STEERED)
def test_branches_fallbacks_and_retries_stay_whole(kind: str) -> None:
    for part in (STEERED[kind], STEERED[kind].with_config(tags=["t"])):
        found = parts_of(RunnablePassthrough() | part).children[1]
        assert found.kind == kind
        assert found.runnable is part
        assert not found.children


class Louder(RunnableSequence[Any, Any]):
    """Be a sequence that runs in a way of its own."""

    def invoke(self, input: Any, config: Any = None, **kwargs: Any) -> Any:
        return str(super().invoke(input, config, **kwargs)).upper()


def test_a_subclass_that_runs_otherwise_is_not_taken_apart() -> None:
    with pytest.raises(TranslationError) as raised:
        parts_of(RunnableParallel(a=len, b=Louder(RunnablePassthrough(), RunnablePassthrough())))
    assert raised.value.where == "program.b"
    assert "Louder" in str(raised.value.found)


def test_a_generic_alias_is_taken_apart() -> None:
    assert parts_of(RunnableParallel[Any](a=len, b=len)).kind == "parallel"


def test_a_bound_on_branches_is_refused() -> None:
    inner = RunnableParallel(a=len, b=len).with_config(max_concurrency=1)
    for program, place in ((RunnablePassthrough() | inner, "program.1"), (inner, "program")):
        with pytest.raises(TranslationError, match="max_concurrency") as raised:
            parts_of(program)
        assert raised.value.where == place
    alone = (RunnablePassthrough() | len).with_config(max_concurrency=1)
    assert parts_of(RunnablePassthrough() | alone | len).width == 0


def test_listeners_of_a_composite_are_refused_and_those_of_a_part_are_called() -> None:
    heard: list[Any] = []
    with pytest.raises(TranslationError, match="with_listeners") as raised:
        parts_of(RunnablePassthrough() | _answer().with_listeners(on_end=heard.append))
    assert raised.value.where == "program.1"
    listened: Any = RunnableLambda(len).with_listeners(on_end=heard.append)
    assert _run(RunnablePassthrough() | listened, "text") == 4
    assert len(heard) == 1

"""A LangChain program becomes a RAGraph whose stages hold its own runnables."""

from __future__ import annotations

import copy
from operator import itemgetter
from typing import Any

import pytest
from graph_text import parse, references
from langchain_core.language_models import FakeListLLM
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import PromptTemplate
from langchain_core.runnables import (
    Runnable,
    RunnableLambda,
    RunnableParallel,
    RunnablePassthrough,
    RunnablePick,
    RunnableSequence,
)

from rag_accel.errors import TranslationError
from rag_accel.graph.nodes import END, START
from rag_accel.graph.spec import offenders
from rag_accel.graph.stages import Function
from rag_accel.graph.text import format
from rag_accel_adapters.langchain.parts import parts_of
from rag_accel_adapters.langchain.runs import CallState, CompositeRun
from rag_accel_adapters.langchain.stages import Aside, Call, StageValue, entered
from rag_accel_adapters.langchain.translate import Translation, translate

PROMPT = PromptTemplate.from_template("say {text}")


def _answer() -> Runnable[Any, Any]:
    return PROMPT | FakeListLLM(responses=["hello"]) | StrOutputParser()


def _rag() -> Runnable[Any, Any]:
    context = RunnableLambda(itemgetter("text")) | RunnableLambda(str.upper)
    both = RunnableParallel(context=context, text=lambda given: given["text"])
    return both | RunnablePassthrough.assign(answer=_answer()) | RunnablePick("answer")


def _run(translation: Translation, value: Any) -> Any:
    """Run a translation's blocking graph, one stage after the other."""
    root = CompositeRun(translation.root, CallState(), None, value, {}).start()
    carried: Any = entered(translation.entry, root, value)
    graph = translation.sync_lines
    values: dict[str, StageValue] = {str(graph.inputs[0]): carried}
    for stage in graph.stages:
        assert isinstance(stage, Function)
        carried = values[stage.output] = stage.fn(*(values[name] for name in stage.inputs))
    result = root.result(carried.value)
    root.close(result)
    return result


def test_a_line_is_one_stage_per_runnable() -> None:
    assert format(translate(_answer()).graph).split("\n") == [
        "ragraph(input)",
        "0.prompt: Function(input) -> 0.prompt  after START  fn=@PromptTemplate",
        "1.llm: Function(0.prompt) -> 1.llm  after 0.prompt  fn=@FakeListLLM",
        "2.parser: Function(1.llm) -> 2.parser  after 1.llm  fn=@StrOutputParser",
        "END: after 2.parser",
    ]


def test_branches_wait_for_a_split_and_are_waited_for_by_a_join() -> None:
    graph = translate(_rag()).graph
    assert graph.predecessors["0.context.0.function"] == ("0.split",)
    assert graph.predecessors["0.text.function"] == ("0.split",)
    assert graph.predecessors["0.join"] == ("0.context.1.function", "0.text.function")
    assert graph.predecessors[END] == ("2.pick",)
    assert "1.split" not in graph.by_name


def test_a_stage_holds_the_frameworks_own_runnable() -> None:
    prompt, parser = PROMPT, StrOutputParser()
    translation = translate(prompt | parser.with_config(tags=["t"]))
    first, second = (stage.fn.acts for stage in translation.graph.stages)
    assert next(act.part.runnable for act in first if isinstance(act, Call)) is prompt
    assert next(act.part.runnable for act in second if isinstance(act, Call)).bound is parser


def test_steps_in_a_straight_line_run_as_one_stage() -> None:
    lines = translate(_rag()).sync_lines
    assert list(lines.by_name) == ["0.context.1.function", "0.text.function", "2.pick"]
    last = lines.by_name["2.pick"]
    assert last.inputs == ("0.context.1.function", "0.text.function")
    assert [part.kind for part in (act.part for act in last.fn.acts if isinstance(act, Call))] == [
        "prompt",
        "llm",
        "parser",
        "pick",
    ]


def test_a_split_before_everything_else_is_no_stage() -> None:
    translation = translate(_rag())
    assert translation.entry
    assert translation.sync_lines.successors[START] == ("0.context.1.function", "0.text.function")


def test_branches_of_the_whole_program_keep_their_own_splits() -> None:
    inner = RunnableParallel(x=len, y=len)
    translation = translate(RunnableParallel(a=inner, b=inner))
    assert translation.entry == ()
    assert {"a.split", "b.split"} <= set(translation.sync_lines.by_name)


def test_light_branches_are_done_before_the_one_that_is_not() -> None:
    context = RunnableLambda(itemgetter("text")) | RunnableLambda(str.upper)
    both = RunnableParallel(
        text=itemgetter("text"), context=context, all=RunnablePassthrough(), one=RunnablePick("x")
    )
    translation = translate(both | RunnablePick("context"))
    assert len(translation.graph.stages) == 8
    (line,) = translation.sync_lines.stages
    assert [act.part.path for act in line.fn.acts if isinstance(act, Call | Aside)] == [
        "program.0.text",
        "program.0.all",
        "program.0.one",
        "program.0.context.0",
        "program.0.context.1",
        "program.1",
    ]
    assert translation.num_branches == 0
    assert _run(translation, {"text": "q"}) == "Q"


def test_branches_that_are_all_light_run_as_one_line() -> None:
    both = RunnableParallel(a=RunnablePassthrough(), b=RunnableParallel(c=len, d=RunnablePick("x")))
    assert len(translate(both | len).sync_lines.stages) == 1
    tapped = RunnableParallel(a=RunnablePassthrough(print), b=RunnablePassthrough(print))
    assert len(translate(tapped).sync_lines.stages) == 3


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
    translation = translate(program)
    for graph in (translation.graph, translation.sync_lines, translation.async_lines):
        assert offenders(graph, "ragraph") == ()
        assert parse(format(graph), references(graph)) == graph
    assert _run(translation, {"text": "q"}) == program.invoke({"text": "q"})


def test_code_of_the_users_is_opaque() -> None:
    tap = RunnablePassthrough(print)
    bound = tap.with_config(tags=["t"])
    program = RunnableLambda(len) | RunnablePassthrough() | bound | StrOutputParser()
    assert [part.path for part in translate(program).opaque] == ["program.0", "program.2"]


def test_the_number_of_branches_is_that_of_the_widest_parallel() -> None:
    assert translate(_answer()).num_branches == 0
    assert translate(RunnableParallel(only=len) | len).num_branches == 0
    wide = RunnableParallel(a=RunnableParallel(x=len, y=len, z=len), b=len)
    assert translate(wide).num_branches == 3


def test_parts_with_a_batch_of_their_own_are_known() -> None:
    own = translate(_answer()).own_batch
    assert [part.path for part in own["batch"]] == ["program.1"]
    assert [part.path for part in own["abatch"]] == ["program.1"]
    bound = RunnablePassthrough() | FakeListLLM(responses=["x"]).bind(stop=["y"])
    assert [part.path for part in translate(bound).own_batch["batch"]] == ["program.1"]
    assert not any(translate(RunnablePassthrough() | len).own_batch.values())


def test_a_copy_is_translated_anew() -> None:
    program = _rag()
    copied, translation = copy.deepcopy((program, translate(program)))
    assert translation.program is copied
    assert translation.root.runnable is copied


class Louder(RunnableSequence[Any, Any]):
    """Be a sequence that runs in a way of its own."""

    def invoke(self, input: Any, config: Any = None, **kwargs: Any) -> Any:
        return str(super().invoke(input, config, **kwargs)).upper()


def test_a_subclass_that_runs_otherwise_is_not_taken_apart() -> None:
    with pytest.raises(TranslationError) as raised:
        translate(RunnableParallel(a=len, b=Louder(RunnablePassthrough(), RunnablePassthrough())))
    assert raised.value.where == "program.b"
    assert "Louder" in str(raised.value.found)


def test_a_generic_alias_is_taken_apart() -> None:
    program = RunnableParallel[Any](a=len, b=len)
    assert parts_of(program).kind == "parallel"


def test_a_bound_on_branches_inside_the_program_is_refused() -> None:
    inner = RunnableParallel(a=len, b=len).with_config(max_concurrency=1)
    with pytest.raises(TranslationError, match="max_concurrency") as raised:
        translate(RunnablePassthrough() | inner)
    assert raised.value.where == "program.1"
    assert translate(inner).num_branches == 2
    alone = (RunnablePassthrough() | len).with_config(max_concurrency=1)
    assert translate(RunnablePassthrough() | alone | len).num_branches == 0

"""A graph is verified and lowered once for the engines of an accelerator, not in every run."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from rag_accel import END, START, Accelerator, GraphError, RAGraph
from rag_accel.requests import plan as planning
from rag_accel.requests.execution import CompiledGraph

COMPILING = ("verify", "check_engines", "grow", "decompose", "run_passes")


def llm(prompt: str) -> str:
    return prompt.upper()


def line() -> RAGraph:
    graph = RAGraph().add_generation("answer", prompt="Say {input}")
    return graph.add_edge(START, "answer").add_edge("answer", END)


def loop() -> RAGraph:
    """Return a graph that goes on until its text has six letters."""
    graph = RAGraph().add_function("start", lambda values: values["input"], output="text")
    graph.add_function("double", lambda text: text * 2, "text", output="text")
    graph.add_edge(START, "start")
    graph.add_edge("start", lambda values: "double", ["double"])
    done = lambda values: END if len(values["text"]) >= 6 else "double"  # noqa: E731
    return graph.add_edge("double", done, ["double", END])


@pytest.fixture
def accelerator() -> Iterator[Accelerator]:
    with Accelerator(llm=llm) as made:
        yield made


@pytest.fixture
def compiling(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Note each call that verifies or lowers."""
    calls: list[str] = []

    def noted(name: str) -> Any:
        plain = getattr(planning, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            calls.append(name)
            return plain(*args, **kwargs)

        return call

    for name in COMPILING:
        monkeypatch.setattr(planning, name, noted(name))
    return calls


@pytest.mark.parametrize("make", [line, loop])
def test_a_second_run_verifies_and_lowers_nothing(
    make: Any, accelerator: Accelerator, compiling: list[str]
) -> None:
    graph = make()
    first = accelerator.run(graph, input="ab")
    assert set(compiling) == set(COMPILING)
    compiling.clear()
    assert accelerator.run(graph, input="ab") == first
    assert compiling == []


def test_runs_that_decide_otherwise_are_lowered_as_far_as_they_differ(
    accelerator: Accelerator, compiling: list[str]
) -> None:
    graph = loop()
    assert accelerator.run(graph, input="abc") == "abcabc"
    compiling.clear()
    assert accelerator.run(graph, input="a") == "a" * 8
    assert compiling.count("grow") == 2
    compiling.clear()
    assert [accelerator.run(graph, input=text) for text in ("abc", "a")] == ["abcabc", "a" * 8]
    assert compiling == []


def test_a_changed_graph_and_a_new_engine_are_compiled_again(
    accelerator: Accelerator, compiling: list[str]
) -> None:
    graph = line()
    accelerator.run(graph, input="a")
    compiling.clear()
    accelerator.add_engine("other", llm)
    accelerator.run(graph, input="a")
    assert "verify" in compiling
    compiling.clear()
    graph.add_reducer("answer", lambda left, right: left)
    accelerator.run(graph, input="a")
    assert "verify" in compiling


def test_a_compiled_graph_runs_as_the_graph_does(
    accelerator: Accelerator, compiling: list[str]
) -> None:
    compiled = accelerator.compile(line())
    assert isinstance(compiled, CompiledGraph)
    compiling.clear()
    assert compiled.run(input="a") == "SAY A"
    assert compiled.run(outputs=["answer"], input="a") == {"answer": "SAY A"}
    assert "".join(compiled.stream(input="a")) == "SAY A"
    assert compiled.submit(input="a").result(30) == "SAY A"
    assert compiling == []


async def test_a_compiled_graph_runs_on_a_loop(accelerator: Accelerator) -> None:
    compiled = accelerator.compile(line())
    assert await compiled.arun(input="a") == "SAY A"
    assert "".join([text async for text in compiled.astream(input="a")]) == "SAY A"


def test_compiling_says_what_is_wrong(accelerator: Accelerator) -> None:
    with pytest.raises(GraphError, match="not a valid ragraph"):
        accelerator.compile(RAGraph())
    with pytest.raises(GraphError, match="known-engines"):
        accelerator.compile(line().add_retrieval("search", engine="nobody"))


def test_what_is_kept_goes_with_the_graph_and_with_the_accelerator() -> None:
    graph = line()
    with Accelerator(llm=llm) as accelerator:
        accelerator.run(graph, input="a")
        frozen = graph.freeze()
        assert len(frozen.made) == 1
        assert len(pickle.loads(pickle.dumps(line().freeze())).made) == 0
        assert len(copy.deepcopy(frozen).made) == 0
    del accelerator
    gc.collect()
    assert len(frozen.made) == 0

    with Accelerator(llm=llm) as accelerator:
        gone = weakref.ref(compile_and_forget(accelerator))
        gc.collect()
        assert gone() is None


def compile_and_forget(accelerator: Accelerator) -> Any:
    """Run a graph whose code holds an object; return that object, and keep neither."""

    class Held:
        def __call__(self, values: Any) -> str:
            return "done"

    held = Held()
    graph = RAGraph().add_function("only", held).add_edge(START, "only").add_edge("only", END)
    assert accelerator.run(graph, input="a") == "done"
    return held


def test_a_loop_keeps_a_bounded_number_of_regions(
    accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "MAX_REGIONS", 2)
    graph = loop()
    for _ in range(2):
        assert accelerator.run(graph, input="a") == "a" * 8
    (plans,) = graph.freeze().made.values()
    (plan,) = plans.values()
    assert plan._num_regions == 2

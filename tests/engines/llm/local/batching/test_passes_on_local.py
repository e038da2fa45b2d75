"""What the passes make of a workflow on a local model writes the text of the plain graph."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest
from fake_runner import tokenizer
from tiny_chat import TOKENS, model

from rag_accel import END, START, Accelerator, RAGraph, workflows
from rag_accel.engine_api import (
    EngineOutput,
    EngineRequest,
    PrimitiveKind,
    PromptUse,
    StepBudget,
)
from rag_accel.engines.llm.local.batching.schedule import common_length
from rag_accel.engines.llm.local.engine import LocalLLMEngine
from rag_accel.engines.llm.local.model.loading import load
from rag_accel.engines.llm.local.text.prompting import Prompting
from rag_accel.testing import FakeEngine, compute

PATIENCE_S = 60.0

HEAD = "A lane holds keys and values of one sequence of tokens, said the guide. " * 4
ANSWER = HEAD + "{docs}\n\nQuestion: {input}"
TURNS = [("user", "How high is it?"), ("assistant", "The height is 3776 metres, said the guide.")]
WORKFLOWS: Mapping[str, Callable[[], RAGraph]] = {
    "one_shot": partial(workflows.one_shot, prompt=ANSWER, max_tokens=TOKENS),
    "with_history": partial(workflows.one_shot, history=True, max_tokens=TOKENS),
    "hyde": partial(workflows.hyde, prompt=ANSWER, max_tokens=6),
    "search_backed": partial(workflows.search_backed, prompt=ANSWER, max_tokens=6),
    "kept_draft": partial(
        workflows.search_backed,
        prompt=ANSWER,
        max_tokens=6,
        wants_search=lambda verdict: False,
    ),
    "expanded": partial(
        workflows.advanced_document_qa, max_tokens=TOKENS, top_k=2, synthesis="tree"
    ),
    "refined": partial(workflows.naive_document_qa, max_tokens=4, synthesis="refine"),
    "multistep": partial(workflows.multistep, max_questions=2, max_tokens=4),
}


class Watched(LocalLLMEngine):
    """A local engine that keeps what it was asked and what came of it."""

    def __init__(self) -> None:
        loaded = load(model(), tokenizer(), pool_bytes=1 << 25)
        super().__init__(loaded.runner, loaded.tokenizer, eos=loaded.ends)
        self.asked: list[EngineRequest] = []
        self.ended: dict[str, EngineOutput] = {}
        self.rows: list[int] = []
        run = loaded.runner.run
        loaded.runner.run = lambda parts: self._count(parts, run)

    def _count(self, parts: Any, run: Callable[..., Any]) -> Any:
        self.rows.append(sum(map(len, parts)))
        return run(parts)

    def submit(self, work: Any) -> None:
        self.asked += work
        super().submit(work)

    def step(self, budget: StepBudget) -> Any:
        outputs = super().step(budget)
        self.ended.update({one.id: one for one in outputs if one.kind != "partial"})
        return outputs

    def kinds(self) -> list[str]:
        return [one.kind.name for one in self.asked]


def searching() -> dict[str, Any]:
    return {"index": FakeEngine(), "embedder": FakeEngine(), "reranker": FakeEngine()}


def inputs_of(graph: RAGraph) -> dict[str, Any]:
    given = {"input": "Which of the documents says how high it is?", "history": TURNS}
    return {name: given[name] for name in graph.freeze().inputs}


def run(graph: RAGraph, engine: Watched, passes: Any) -> Any:
    with Accelerator(llm=engine, passes=passes, **searching()) as accelerator:
        return accelerator.run(graph, **inputs_of(graph))


@pytest.mark.cross_product(keep=3)
@pytest.mark.parametrize("name", [name for name in WORKFLOWS if name != "expanded"])  # see below
def test_the_text_is_that_of_the_graph_without_passes(name: str) -> None:
    plain, optimised, make = Watched(), Watched(), WORKFLOWS[name]
    assert run(make(), optimised, "all") == run(make(), plain, "none")
    assert optimised.held_bytes == 0


def told(engine: Watched, is_due: Callable[[Any], bool]) -> threading.Event:
    """Return what is set once a step of the engine has returned such outputs."""
    has_come, step = threading.Event(), engine.step

    def watched(budget: StepBudget) -> Any:
        outputs = step(budget)
        if is_due(outputs):
            has_come.set()
        return outputs

    engine.step = watched
    return has_come


def started_early(make: Callable[[], RAGraph], runs: int = 1) -> Watched:
    """Run a workflow, whose search ends only after a prompt's beginning was computed."""
    engine = Watched()
    is_computed = told(engine, lambda outputs: any(one.handle is not None for one in outputs))

    def search(payload: Any) -> Any:
        assert is_computed.wait(PATIENCE_S), "nothing of the prompt was computed meanwhile"
        return compute(payload)

    graph = make()
    others = {"index": FakeEngine(compute=search), "embedder": FakeEngine()}
    with Accelerator(llm=engine, **others) as accelerator:
        for _ in range(runs):
            is_computed.clear()
            accelerator.run(graph, **inputs_of(graph))
    return engine


@pytest.mark.parametrize("name", ["one_shot", "with_history"])
def test_what_was_computed_during_the_search_is_not_computed_again(name: str) -> None:
    engine = started_early(WORKFLOWS[name])
    assert engine.kinds() == ["PARTIAL_PREFILLING", "DECODING"]
    begun, whole = map(ids_of, engine.asked)
    value = engine.ended[engine.asked[1].id].value
    common = common_length(begun, whole)
    assert common > 50
    assert value.use == PromptUse(computed=len(whole))
    # The last token generated is not computed any more.
    rows = len(begun) + len(whole) - common + value.completion_tokens - 1
    assert sum(engine.rows) == rows
    assert engine.held_bytes == 0


def _joined(docs: Any) -> str:
    return " ".join(found.document.text for found in docs)


def behind_user_code() -> RAGraph:
    """Answer by documents that a store of the user's finds and a function of his puts together."""
    graph = RAGraph(["input", "history"])
    graph.add_retrieval("search", output="docs")
    graph.add_function("together", _joined, "docs", "text")
    graph.add_generation("answer", prompt="{history}\n{input}\n{text}", max_tokens=TOKENS)
    graph.add_edge(START, "search").add_edge("search", "together")
    return graph.add_edge("together", "answer").add_edge("answer", END)


def answered(
    engine: Watched, search: Callable[[str, int], list[str]], passes: str = "default"
) -> Any:
    """Ask by a history whose text differs from request to request."""
    graph = behind_user_code()
    with Accelerator(llm=engine, index=search, passes=passes) as accelerator:
        text = accelerator.run(graph, input="How high is it?", history=TURNS * 6)
        return text, accelerator.metrics.snapshot().get("early_hits")


def test_a_beginning_behind_user_code_is_prefilled_while_a_store_of_the_user_s_searches() -> None:
    engine = Watched()
    is_computed = told(engine, lambda outputs: any(one.handle is not None for one in outputs))

    def search(query: str, top_k: int) -> list[str]:
        assert is_computed.wait(PATIENCE_S), "nothing of the prompt was computed meanwhile"
        return ["3776 metres", "12389 feet"]

    text, hits = answered(engine, search)
    assert hits == {"answer": 1}
    assert engine.kinds() == ["PARTIAL_PREFILLING", "DECODING"]
    begun, whole = map(ids_of, engine.asked)
    value = engine.ended[engine.asked[1].id].value
    assert value.use.from_prefix == common_length(begun, whole) > 50
    assert engine.held_bytes == 0
    plain = Watched()
    found = ["3776 metres", "12389 feet"]
    assert (text, None) == answered(plain, lambda query, top_k: found, "join_prefill")
    assert plain.kinds() == ["DECODING"]


def test_a_beginning_that_is_cut_short_is_gone_on_with() -> None:
    engine = Watched()
    has_begun = told(engine, lambda outputs: True)

    def search(query: str, top_k: int) -> list[str]:
        assert has_begun.wait(PATIENCE_S), "nothing of the prompt was begun meanwhile"
        return ["3776 metres"]

    text, hits = answered(engine, search)
    assert hits == {"answer": 1}
    value = engine.ended[engine.asked[1].id].value
    assert value.use.from_prefix > 0
    assert sum(engine.rows) == len(ids_of(engine.asked[1])) + value.completion_tokens - 1
    assert (text, None) == answered(Watched(), lambda query, top_k: ["3776 metres"], "none")


def ids_of(request: EngineRequest) -> tuple[int, ...]:
    """Return the tokens of a request's prompt."""
    prompting = Prompting(tokenizer())
    is_part = request.kind is PrimitiveKind.PARTIAL_PREFILLING
    read = prompting.beginning if is_part else prompting.whole
    return read(request.payload.messages)


@pytest.mark.parametrize("name", ["one_shot", "with_history"])
def test_a_whole_prompt_and_its_answer_are_one_work(name: str) -> None:
    joined, apart = Watched(), Watched()
    graph = WORKFLOWS[name]()
    assert run(graph, joined, "join_prefill") == run(graph, apart, "none")
    assert (joined.kinds(), apart.kinds()) == (["DECODING"], ["PREFILLING", "DECODING"])
    assert sum(joined.rows) == sum(apart.rows) - 1


def test_a_list_is_read_while_the_model_writes_it() -> None:
    engine = Watched()
    graph = WORKFLOWS["expanded"]()
    with Accelerator(llm=engine, passes="all", **searching()) as accelerator:
        assert ": PARTIAL_DECODING(" in accelerator.explain(graph, "e-graph")
        found = accelerator.run(graph, **inputs_of(graph))
    assert [one.stream for one in engine.asked if "expand" in one.id] == [True]
    assert found == run(graph, Watched(), "none")
    assert engine.held_bytes == 0

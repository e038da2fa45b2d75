"""Graphs over four documents on an engine that reuses their state, and what was asked of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from fake_runner import FakeRunner, tokenizer

from rag_accel import Accelerator, RAGraph, workflows
from rag_accel.engine_api import (
    Document,
    EngineOutput,
    EngineRequest,
    GenerationInput,
    GenerationOutput,
    PrimitiveKind,
    PromptUse,
    StepBudget,
)
from rag_accel.engines.llm.local.engine import LocalLLMEngine
from rag_accel.engines.llm.local.options import LocalOptions

PATIENCE_S = 60.0
LEAST = 8

TEXTS = (
    "The height of Mount Fuji is 3776 metres, said the guide to us.",
    "A lane holds keys and values of one sequence of tokens and no more.",
    "Which of the documents says how high it is? The guide said this one.",
    "Of the two sequences of tokens one holds the values of the other one.",
)
DOCUMENTS = tuple(Document(f"text-{at}", text) for at, text in enumerate(TEXTS))
INPUTS: Mapping[str, Any] = {
    "input": "How high is the mountain?",
    "history": [("user", "Where is it?"), ("assistant", "Where the guide said, in a lane.")],
    "documents": list(DOCUMENTS),
}

_MODES = ("stuff", "tree", "refine")
#: every ready-made workflow, with a history and without
WORKFLOWS: Mapping[str, Callable[..., RAGraph]] = {
    "one_shot": workflows.one_shot,
    "one_shot, texts in the system's turn": partial(
        workflows.one_shot, system="Answer by these:\n\n{docs}", prompt="Question: {input}"
    ),
    "hyde": workflows.hyde,
    "recomp": workflows.recomp,
    "search_backed": partial(workflows.search_backed, wants_search=lambda verdict: True),
    "multistep": partial(workflows.multistep, max_questions=2),
    "irg": workflows.irg,
    **{
        f"naive_document_qa, {mode}": partial(workflows.naive_document_qa, synthesis=mode)
        for mode in _MODES
    },
    **{
        f"advanced_document_qa, {mode}": partial(
            workflows.advanced_document_qa, top_k=2, synthesis=mode
        )
        for mode in _MODES
    },
}


class WatchedEngine(LocalLLMEngine):
    """An engine over a fake model that keeps what it was asked and what came of it."""

    def __init__(self, runner: Any = None, **options: Any) -> None:
        chosen = {"kv_reuse": "full", "reuse_always": True, "least_chunk_tokens": LEAST, **options}
        self.runner = runner or FakeRunner()
        super().__init__(self.runner, tokenizer(), options=LocalOptions(**chosen))
        self.asked: list[EngineRequest] = []
        self.outputs: dict[str, EngineOutput] = {}

    def submit(self, work: Sequence[EngineRequest]) -> None:
        self.asked += work
        super().submit(work)

    def step(self, budget: StepBudget) -> Sequence[EngineOutput]:
        outputs = super().step(budget)
        self.outputs.update({one.id: one for one in outputs if one.kind == "final"})
        return outputs

    def answers(self, start: int = 0) -> list[tuple[GenerationInput, GenerationOutput]]:
        """Return the prompts that were answered, from the work of this number on, with these."""
        return [
            (one.payload, self.outputs[one.id].value)
            for one in self.asked[start:]
            if one.kind is PrimitiveKind.DECODING
        ]


def search(query: str, k: int) -> list[Document]:
    """Find the same documents whatever is asked."""
    return list(DOCUMENTS[:k])


def longest_first(query: str, texts: Sequence[str]) -> list[float]:
    return [float(len(text)) for text in texts]


def searching() -> dict[str, Any]:
    return {"index": search, "reranker": longest_first}


def inputs_of(graph: RAGraph) -> dict[str, Any]:
    return {name: INPUTS[name] for name in graph.freeze().inputs}


def passage_texts(asked: GenerationInput) -> list[str]:
    return [asked.messages[one.message].content[one.start : one.stop] for one in asked.chunk_spans]


def use_of(done: GenerationOutput) -> PromptUse:
    assert done.use is not None
    return done.use


def run_all(graph: RAGraph, engine: Any, **options: Any) -> Any:
    with Accelerator(llm=engine, **searching(), **options) as accelerator:
        return accelerator.run(graph, **inputs_of(graph))

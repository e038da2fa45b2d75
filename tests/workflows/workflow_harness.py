"""Run workflows on a scripted LLM, a scripted search engine and a scripted reranker."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args

from idle_accelerators import soon_idle

from rag_accel import Accelerator, RAGraph, workflows
from rag_accel.engine_api import Document, GenerationInput, GenerationOutput
from rag_accel.testing import FakeEngine, compute
from rag_accel.workflows.synthesis import SynthesisMode

PATIENCE_S = 20.0
"""How long a test waits for what has to happen; never how long something may take."""


class Script:
    """Be an LLM that knows its replies: of each prompt the reply that stands beside it.

    A prompt that is not in the script fails the request. ``prompts`` are those that came, in order.
    """

    def __init__(self, replies: Mapping[str, str]) -> None:
        self._replies = dict(replies)
        self._lock = threading.Lock()
        self.prompts: list[str] = []

    def __call__(self, prompt: str) -> str:
        with self._lock:
            self.prompts.append(prompt)
        return self._replies[prompt]

    def compute(self, payload: Any) -> Any:
        """Reply as an owned engine does."""
        if not isinstance(payload, GenerationInput):
            return compute(payload)
        return GenerationOutput(self("\n\n".join(one.content for one in payload.messages)))


class Library:
    """Be a search engine that knows what it finds for each query; nothing for any other."""

    def __init__(self, found: Mapping[str, Sequence[str]]) -> None:
        self._found = dict(found)
        self.queries: list[str] = []

    def __call__(self, query: str, k: int) -> list[str]:
        self.queries.append(query)
        return list(self._found.get(query, ()))[:k]


def borrowed(script: Script) -> Any:
    """Return a script as a callable of the user's."""
    return script


def owned(script: Script) -> Any:
    """Return a script as an engine that is stepped."""
    return FakeEngine(steps=2, compute=script.compute)


LLMS: dict[str, Callable[[Script], Any]] = {"borrowed": borrowed, "owned": owned}


def run(graph: RAGraph, inputs: Mapping[str, Any], **engines: Any) -> Any:
    """Run one request alone; nothing may live on."""
    with Accelerator(**engines) as accelerator:
        answer = accelerator.run(graph, **inputs)
        assert soon_idle(accelerator)
        return answer


def longest_first(query: str, texts: Sequence[str]) -> list[float]:
    """Be a reranker that likes long texts."""
    return [float(len(text)) for text in texts]


def ingest(chunks: Sequence[Document]) -> None:
    """Take chunks and forget them."""


WORKFLOWS: dict[str, Callable[[], RAGraph]] = {
    "one_shot": workflows.one_shot,
    "hyde": workflows.hyde,
    "recomp": workflows.recomp,
    "search_backed": workflows.search_backed,
    "multistep": workflows.multistep,
    "irg": workflows.irg,
    "naive_document_qa": lambda: workflows.naive_document_qa(ingest),
    "advanced_document_qa": lambda: workflows.advanced_document_qa(ingest),
}


def ready_made() -> dict[str, RAGraph]:
    """Return each workflow as it comes, and document QA in each mode with and without upload."""
    made = {name: make() for name, make in WORKFLOWS.items() if "document_qa" not in name}
    for make in (workflows.naive_document_qa, workflows.advanced_document_qa):
        for mode in get_args(SynthesisMode):
            for uploads in (False, True):
                made[f"{make.__name__}, {mode}, {uploads}"] = make(uploads, synthesis=mode)
    return made

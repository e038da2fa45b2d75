"""An embedding model is compiled while a language model on paged attention answers."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import tiny_chat
from fake_runner import tokenizer

from rag_accel import END, START, Accelerator, RAGraph
from rag_accel.accelerator import Work
from rag_accel.engine_api import PrimitiveKind, TextBatch
from rag_accel.engines import LocalLLM, SentenceTransformerEngine
from rag_accel.scheduler.messages import EngineName

pytest.importorskip("openvino")
pytestmark = pytest.mark.processes  # compiling needs a child

#: Left to the compilation after each round, in seconds: the rounds alone would take all cores.
LEFT_S = 0.5
TEXTS = ("The bridge is closed.", "Who may cross the river in winter?")
QUESTIONS = ["How high is it?", "What is a lane?"]
CLOSE = 1e-5


def vectors(accelerator: Accelerator) -> Any:
    work = Work(EngineName("embedder"), PrimitiveKind.EMBEDDING, TextBatch(TEXTS), len(TEXTS))
    return np.asarray(accelerator.leaves.compute(accelerator.anonymous(), work))


def test_answers_and_vectors_are_those_of_each_alone(small_model: Any) -> None:
    language, model = tiny_chat.model(), copy.deepcopy(small_model)
    expected = [tiny_chat.generated_by(language, question) for question in QUESTIONS]
    same = model.encode(list(TEXTS))
    graph = RAGraph().add_generation("answer", "{input}", max_tokens=tiny_chat.TOKENS)
    graph.add_edge(START, "answer").add_edge("answer", END)
    embedder = SentenceTransformerEngine(model, runtime="auto")
    runtime = embedder.runtime
    assert runtime is not None
    llm = LocalLLM(language, tokenizer(), runner="paged", pool_bytes=1 << 24, max_threads=2)

    def ask(accelerator: Accelerator) -> None:
        running = [accelerator.submit(graph, input=question) for question in QUESTIONS]
        assert float(np.abs(vectors(accelerator) - same).max()) <= CLOSE
        assert [request.result() for request in running] == expected

    with Accelerator(llm=llm, embedder=embedder, threads=2) as accelerator:
        ask(accelerator)
        while runtime.state == "building":
            ask(accelerator)
            runtime.wait(LEFT_S)
        assert runtime.state == "ready", runtime.reason
        ask(accelerator)  # both compiled, at the same time

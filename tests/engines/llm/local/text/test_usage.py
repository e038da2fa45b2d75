"""The tokens of generations, summed for each request."""

from __future__ import annotations

from typing import Any

from fake_runner import prompt_ids, tokenizer
from tiny_chat import TOKENS, model

from rag_accel import END, START, Accelerator, RAGraph
from rag_accel.engine_api import PromptUse, TokenUsage
from rag_accel.engines.llm.local.engine import LocalLLMEngine
from rag_accel.engines.llm.local.model.loading import load
from rag_accel.server import Server

PATIENCE_S = 60.0


def engine() -> LocalLLMEngine:
    loaded = load(model(), tokenizer(), pool_bytes=1 << 24)
    return LocalLLMEngine(loaded.runner, loaded.tokenizer, eos=loaded.ends)


def twice() -> RAGraph:
    graph = RAGraph()
    graph.add_generation("draft", "{input}", max_tokens=TOKENS)
    graph.add_generation("answer", "{input} {draft}", max_tokens=TOKENS)
    graph.add_edge(START, "draft").add_edge("draft", "answer").add_edge("answer", END)
    return graph


def test_a_request_sums_the_tokens_of_its_generations() -> None:
    with Accelerator(llm=engine()) as accelerator:
        handle = accelerator.submit(twice(), input="How high is it?")
        handle.result(PATIENCE_S)
        draft = accelerator.submit(twice(), outputs=["draft"], input="How high is it?")
        text = draft.result(PATIENCE_S)["draft"]
    used = handle.usage
    asked = [prompt_ids("How high is it?"), prompt_ids(f"How high is it? {text}")]
    assert used.prompt.computed + used.prompt.from_prefix == sum(map(len, asked))
    assert used.prompt.from_prefix > 0
    assert (used.completion_tokens, used.generations) == (2 * TOKENS, 2)


def test_a_served_result_tells_its_tokens() -> None:
    with Server(llm=engine()) as server:
        server.add_request("How high is it?", twice())
        (result,) = list(server)
    assert result.usage.completion_tokens == 2 * TOKENS
    assert result.usage.prompt != PromptUse()


def test_an_engine_that_does_not_generate_counts_no_tokens() -> None:
    graph = RAGraph().add_function("answer", str.upper, inputs="input")
    graph.add_edge(START, "answer").add_edge("answer", END)
    with Server(llm=engine()) as server:
        server.add_request("why", graph)
        (result,) = list(server)
        engines: Any = server.accelerator.metrics.snapshot().get("engines", {})
    assert result.usage == TokenUsage()
    assert not [name for one in engines.values() for name in one if "tokens" in name]

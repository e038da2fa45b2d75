"""Workflows and agents run as they do plainly, each run as one request."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from idle_accelerators import soon_idle
from li_more_workflows import FanIn
from li_programs import EchoLLM, Parts
from llama_index.core.agent.workflow import ReActAgent
from llama_index.core.base.llms.types import CompletionResponse
from llama_index.core.llms.callbacks import llm_completion_callback

from llama_index_rag_accel import accelerate, activate
from rag_accel import Accelerator


class ThinkingLLM(EchoLLM):
    """A model that ends an agent's work at once, and streams as agents ask for it."""

    @llm_completion_callback()
    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        self.calls += 1
        return CompletionResponse(text="Thought: I know.\nAnswer: in 1932")

    @llm_completion_callback()
    def stream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> Any:
        self.calls += 1

        def chunks() -> Any:
            text = ""
            for word in ("Thought: I know.\n", "Answer: ", "in ", "1932"):
                text += word
                yield CompletionResponse(text=text, delta=word)

        return chunks()


def calls(accelerator: Accelerator, name: str) -> int:
    """Return how many calls of a class's objects the scheduler has heard of."""
    engines = accelerator.metrics.snapshot()["engines"]
    return sum(engine["items"] for key, engine in engines.items() if key.endswith(name))


async def test_runs_at_once_do_not_mix(accelerator: Accelerator) -> None:
    fast = accelerate(FanIn(Parts()), accelerator=accelerator)
    found = await asyncio.gather(*(fast.run(question=str(number)) for number in range(6)))
    assert found == [await FanIn(Parts()).run(question=str(number)) for number in range(6)]


async def test_a_run_is_a_request_until_its_handler_is_done(accelerator: Accelerator) -> None:
    handler = accelerate(FanIn(Parts()), accelerator=accelerator).run(question="when")
    assert not accelerator.is_idle
    await handler
    await asyncio.sleep(0)
    assert soon_idle(accelerator)


async def test_an_activated_workflow_is_scheduled(accelerator: Accelerator) -> None:
    plain = await FanIn(Parts()).run(question="when")
    with activate(accelerator):
        assert await FanIn(Parts()).run(question="when") == plain
    assert calls(accelerator, "EchoLLM") == 2


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of upstream's own code
@pytest.mark.parametrize("streaming", [True, False])
async def test_an_agent_answers_as_the_plain_one(accelerator: Accelerator, streaming: bool) -> None:
    def agent(llm: ThinkingLLM) -> ReActAgent:
        return ReActAgent(llm=llm, tools=[], streaming=streaming)

    plain = str(await agent(ThinkingLLM()).run("when?"))
    llm = ThinkingLLM()
    fast = accelerate(agent(llm), accelerator=accelerator)
    assert str(await fast.run("when?")) == plain
    assert "1932" in plain
    assert calls(accelerator, "ThinkingLLM") == llm.calls

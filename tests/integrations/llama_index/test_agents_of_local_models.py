"""Agents of LlamaIndex over a model of the program's own, whose sampled calls share steps."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

pytest.importorskip("transformers")
pytest.importorskip("llama_index.llms.huggingface")

from hf_callers import Meeting
from li_programs import run_in_loop
from llama_index.core.agent.workflow import ReActAgent
from llama_index.core.tools import FunctionTool
from llama_index.llms.huggingface import HuggingFaceLLM
from scripted_weights import ANSWER, CALL, scripted_weights

from llama_index_rag_accel import accelerate
from rag_accel import Accelerator

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of upstream's own code
SCRIPT = {
    CALL: ("Thought: I look it up.\n", "Action: height\n", 'Action Input: {"of": "Fuji"}'),
    ANSWER: ("Thought: I can answer.\n", "Answer: It is ", "3776 metres."),
}
USERS = 2


def height(of: str) -> str:
    """Return the height of a mountain."""
    return f"{of}: 3776 metres"


def agent(streaming: bool) -> ReActAgent:
    model, words = scripted_weights(SCRIPT)
    llm = HuggingFaceLLM(
        model=model,
        tokenizer=words,
        context_window=2048,
        max_new_tokens=8,
        generate_kwargs={"do_sample": True, "temperature": 0.7, "top_p": 0.9, "pad_token_id": 0},
    )
    return ReActAgent(llm=llm, tools=[FunctionTool.from_defaults(height)], streaming=streaming)


def run(program: Any) -> list[Any]:
    """Return the events of a run, without names drawn at random."""

    async def answer() -> list[Any]:
        handler = program.run("How high is it?")
        events = [event async for event in handler.stream_events()]
        return [*map(_told, events), str(await handler)]

    return run_in_loop(answer())


def _told(event: Any) -> tuple[str, str]:
    told = str(event.model_dump(exclude={"raw"}))
    return type(event).__name__, re.sub(r"'tool_id': '[^']*'", "'tool_id': ''", told)


@pytest.mark.parametrize("streaming", [False, True])
def test_an_agent_has_the_events_and_the_result_of_the_plain_one(
    streaming: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = agent(streaming)
    plain = run(program)
    assert [name for name, _ in plain[:-1]].count("ToolCallResult") == 1
    assert plain[-1] == "It is 3776 metres."
    with Accelerator(strict=True, adopt_llm="batched") as accelerator:
        fast = accelerate(program, accelerator=accelerator)
        assert run(fast) == plain
        meeting = Meeting(monkeypatch, USERS)
        with ThreadPoolExecutor(USERS) as users:
            assert list(users.map(run, [fast] * USERS)) == [plain] * USERS
    assert max(meeting.sizes) == USERS

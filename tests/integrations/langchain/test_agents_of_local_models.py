"""A tool agent of LangGraph over a model of the program's own, whose sampled calls share steps."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

pytest.importorskip("transformers")
pytest.importorskip("langchain_huggingface")

from hf_callers import Meeting
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_huggingface import ChatHuggingFace, HuggingFacePipeline
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from scripted_weights import ANSWER, CALL, OBSERVATION, scripted_weights
from transformers import pipeline

from langchain_rag_accel import accelerate
from rag_accel import Accelerator

SCRIPT = {
    CALL: ("Let me see. ", '{"name": "height", ', '"args": {"of": "Fuji"}}'),
    ANSWER: ("It is ", "3776 metres."),
}
USERS = 2


@tool
def height(of: str) -> str:
    """Return the height of a mountain."""
    return f"{of}: 3776 metres"


def agent() -> Any:
    """Return a graph that reads calls of tools from a model's text."""
    model, words = scripted_weights(SCRIPT)
    sampled = {"do_sample": True, "temperature": 0.7, "top_p": 0.9, "return_full_text": False}
    made = pipeline("text-generation", model=model, tokenizer=words, max_new_tokens=8, **sampled)
    llm = HuggingFacePipeline(pipeline=made)
    chat = ChatHuggingFace(llm=llm, tokenizer=words, model_id="scripted")

    def ask(state: MessagesState) -> dict[str, Any]:
        text = str(chat.invoke([*map(_shown, state["messages"])]).content)
        said, brace, rest = text.partition("{")
        calls = [{**json.loads(brace + rest), "id": "1"}] if brace else []
        return {"messages": [AIMessage(said, tool_calls=calls, id="said")]}

    graph = StateGraph(MessagesState).add_node("ask", ask).add_node("tools", ToolNode([height]))
    graph.add_edge(START, "ask").add_conditional_edges("ask", tools_condition)
    return graph.add_edge("tools", "ask").compile()


def _shown(message: Any) -> Any:
    is_result = isinstance(message, ToolMessage)
    return HumanMessage(f"{OBSERVATION} {message.content}") if is_result else message


def run(program: Any) -> list[Any]:
    """Return what each node of a run adds, without names drawn at random."""
    steps = program.stream({"messages": [HumanMessage("How high is it?")]})
    return [
        (node, message.model_dump(exclude={"id"}))
        for step in steps
        for node, update in step.items()
        for message in update["messages"]
    ]


def test_an_agent_has_the_steps_and_the_result_of_the_plain_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program = agent()
    plain = run(program)
    assert [(node, told["content"]) for node, told in plain] == [
        ("ask", "Let me see. "),
        ("tools", "Fuji: 3776 metres"),
        ("ask", "It is 3776 metres."),
    ]
    with Accelerator(strict=True, adopt_llm="batched") as accelerator:
        fast = accelerate(program, accelerator=accelerator)
        assert run(fast) == plain
        meeting = Meeting(monkeypatch, USERS)
        with ThreadPoolExecutor(USERS) as users:
            assert list(users.map(run, [fast] * USERS)) == [plain] * USERS
    assert max(meeting.sizes) == USERS

"""``rag-accel batch`` over programs of LangChain and LangGraph, also where calls are refused."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from limited_server import LimitedServer, Rate

from rag_accel.cli import main

APP = """
import openai
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda
from langchain_openai import ChatOpenAI
from langgraph.graph import MessagesState, StateGraph
from typing_extensions import TypedDict

def hosted(url):
    how = dict(base_url=url, api_key="k", max_retries=2)
    clients = openai.OpenAI(**how), openai.AsyncOpenAI(**how)
    model = ChatOpenAI(
        model="m", root_client=clients[0], root_async_client=clients[1],
        client=clients[0].chat.completions, async_client=clients[1].chat.completions,
    )
    return ChatPromptTemplate.from_template("{question}") | model | StrOutputParser(), clients

class Counted(GenericFakeChatModel):
    def _generate(self, messages, *args, **kwargs):
        found = super()._generate(messages, *args, **kwargs)
        message = AIMessage(
            f"re: {messages[-1].content}", response_metadata={"model_name": "m"},
            usage_metadata={"input_tokens": 40, "output_tokens": 2, "total_tokens": 42},
        )
        found.generations[0].message = message
        return found

def endless():
    while True:
        yield AIMessage("")

model = Counted(messages=endless())
chain = ChatPromptTemplate.from_template("{question}") | model | StrOutputParser()
def function(row):
    return chain.invoke(row)
State = TypedDict("State", {"question": str, "answer": str})
ask = lambda state: {"answer": chain.invoke({"question": state["question"]})}
graph = (
    StateGraph(State).add_node("ask", ask).set_entry_point("ask").set_finish_point("ask").compile()
)
say = lambda state: {"messages": [model.invoke(state["messages"])]}
chat = (
    StateGraph(MessagesState).add_node("say", say)
    .set_entry_point("say").set_finish_point("say").compile()
)
last = chat | RunnableLambda(lambda state: state["messages"][-1].content)
"""
#: a row of each program, and what it gives
GIVEN: dict[str, tuple[Any, Any]] = {
    "chain": ({"question": "q"}, "re: q"),
    "function": ({"question": "q"}, "re: q"),
    "graph": ({"question": "q"}, {"question": "q", "answer": "re: q"}),
    "model": ("q", "re: q"),
    "last": ({"messages": [["user", "q"]]}, "re: q"),
}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., int]]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path("rows_app.py").write_text(APP)

    def batch(app: str, rows: list[Any], *options: str) -> int:
        Path("rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
        return main(["batch", f"rows_app:{app}", "rows.jsonl", "--out", "results", *options])

    yield batch
    sys.modules.pop("rows_app", None)


def outputs() -> list[Any]:
    lines = [json.loads(line) for line in Path("results").read_text().splitlines()]
    return [line["output"] for line in sorted(lines, key=lambda line: line["row"])]


@pytest.mark.parametrize("app", GIVEN)
def test_a_program_is_given_its_row_and_its_tokens_are_counted(
    run: Callable[..., int], capsys: pytest.CaptureFixture[str], app: str
) -> None:
    row, output = GIVEN[app]
    assert run(app, [row], "--price", "0.5,100") == 0
    assert outputs() == [output]
    told = capsys.readouterr().out
    assert "40 tokens in, 2 out" in told
    assert "0.0002 for them" in told


def test_a_chat_takes_a_text_or_messages(run: Callable[..., int]) -> None:
    rows = ["q", [{"role": "user", "content": "r"}], {"messages": [["user", "s"]]}]
    assert run("chat", rows) == 0
    assert [found["messages"][-1]["content"] for found in outputs()] == ["re: q", "re: r", "re: s"]


@pytest.mark.parametrize(
    ("app", "row", "words"),
    [
        ("graph", "q", "rows.jsonl, line 1; found no object; valid: an object with question"),
        ("chat", {"question": "q"}, "line 1; found dict; valid: an object with messages; a text"),
    ],
)
def test_a_row_that_a_program_cannot_take_is_told_by_its_line(
    run: Callable[..., int], capsys: pytest.CaptureFixture[str], app: str, row: Any, words: str
) -> None:
    assert run(app, [row]) == 2
    assert words in capsys.readouterr().err
    assert outputs() == []


def test_nothing_is_lost_at_an_endpoint_that_refuses_calls(run: Callable[..., int]) -> None:
    rows = [{"question": f"question {number}"} for number in range(90)]
    with LimitedServer(Rate(60.0, 5), answer_s=0.02) as server:
        with Path("rows_app.py").open("a") as file:
            file.write(f"limited, clients = hosted({server.base_url!r})\n")
        assert run("limited", rows) == 0
        sys.modules["rows_app"].clients[0].close()
    assert outputs() == [f"re: question {number}" for number in range(90)]
    assert server.num_refused > 0
    # What waits for its turn is not refused; plain, each call would be sent three times.
    assert server.num_calls <= 1.8 * len(rows)

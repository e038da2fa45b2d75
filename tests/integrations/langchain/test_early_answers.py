"""Calls that user code makes one after the other are answered with the first, once runs have shown.

A graph grades each document that it has found, as corrective RAG does, and answers.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypedDict

import pytest
import tiny_chat
from fake_runner import tokenizer
from hf_callers import own_model, own_pipeline
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.documents import Document
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_huggingface import ChatHuggingFace, HuggingFacePipeline
from langgraph.graph import END, START, StateGraph

from langchain_rag_accel import ChatRagAccel, accelerate, explain
from rag_accel import Accelerator
from rag_accel.engine_api import EngineRequest
from rag_accel.engines.llm.local.engine import LocalLLMEngine

GRADE = ChatPromptTemplate.from_messages(
    [("system", "Say yes or no."), ("user", "{document}\n\n{question}")]
)
ANSWER = ChatPromptTemplate.from_messages([("user", "Notes: {notes}. {question}")])
NUM_FOUND = 3


class Search(BaseRetriever):
    """A store of the program's; documents may be edited behind it."""

    edited: bool = False

    def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
        word = "edited " if self.edited else ""
        return [Document(f"{word}note {place} of {query}") for place in range(NUM_FOUND)]


class State(TypedDict, total=False):
    """The values of a request."""

    question: str
    documents: list[Document]
    grades: list[str]
    answer: str


class Grader:
    """A program, and what its user code does between search and grades.

    Args:
        chat: its model.
    """

    def __init__(self, chat: Any) -> None:
        self.search = Search()
        self.swap: dict[str, str] = {}
        self.most = NUM_FOUND
        self.blocks = False
        grade, answer = GRADE | chat | StrOutputParser(), ANSWER | chat | StrOutputParser()

        def retrieve(state: State) -> State:
            return {"documents": self.search.invoke(state["question"])}

        def grade_all(state: State) -> State:
            question = self.swap.get(state["question"], state["question"])
            told = [{"document": d.page_content, "question": question} for d in state["documents"]]
            told = told[: self.most]
            return {"grades": [grade.invoke(one) for one in told]}

        async def agrade_all(state: State) -> State:
            told = [
                {"document": d.page_content, "question": state["question"]}
                for d in state["documents"]
            ]
            first, *others = told
            found = [await grade.ainvoke(first)]
            if self.blocks:
                return {"grades": [*found, *(grade.invoke(one) for one in others)]}
            return {"grades": [*found, *[await grade.ainvoke(one) for one in others]]}

        def reply(state: State) -> State:
            notes = " ".join(state["grades"])
            return {"answer": answer.invoke({"notes": notes, "question": state["question"]})}

        def compiled(grading: Any) -> Any:
            graph: Any = StateGraph(State)
            graph.add_sequence([retrieve, ("grade", grading), reply])
            return graph.add_edge(START, "retrieve").add_edge("reply", END).compile()

        self.plain, self.plain_async = compiled(grade_all), compiled(agrade_all)


def own_chat() -> Any:
    return ChatRagAccel(model=tiny_chat.model(), tokenizer=tokenizer(), max_tokens=4)


def adopted_chat(**settings: Any) -> Any:
    pipeline = own_pipeline(own_model(), max_new_tokens=4, **settings)
    llm = HuggingFacePipeline(pipeline=pipeline)
    return ChatHuggingFace(llm=llm, tokenizer=tokenizer(), model_id="tiny")


def question(user: int) -> dict[str, str]:
    return {"question": f"Who asked question {user}?"}


def counts(accelerator: Accelerator) -> dict[str, int]:
    snapshot: Any = accelerator.metrics.snapshot()
    names = ("early_hits", "early_misses", "early_wasted_tokens")
    return {name: sum(snapshot[name].values()) for name in names if name in snapshot}


@pytest.mark.parametrize("chat", [own_chat, adopted_chat])
def test_they_share_steps_from_the_third_run_on(chat: Any, accelerator: Accelerator) -> None:
    made = Grader(chat())
    fast = accelerate(made.plain, accelerator=accelerator)
    expected = [made.plain.invoke(question(user)) for user in range(4)]
    found = [fast.invoke(question(user)) for user in range(2)]
    assert counts(accelerator) == {}
    found += [fast.invoke(question(user)) for user in range(2, 4)]
    assert found == expected
    assert counts(accelerator) == {"early_hits": 2 * (NUM_FOUND - 1)}


@pytest.mark.parametrize("blocks", [False, True])
def test_tasks_share_steps_as_well(blocks: bool, accelerator: Accelerator) -> None:
    made = Grader(own_chat())
    made.blocks = blocks  # the loop, while a call waits for what a task has begun
    fast = accelerate(made.plain_async, accelerator=accelerator)

    async def ask(graph: Any) -> list[Any]:
        return [await graph.ainvoke(question(user)) for user in range(3)]

    assert asyncio.run(ask(fast)) == asyncio.run(ask(made.plain_async))
    assert counts(accelerator) == {"early_hits": NUM_FOUND - 1}


class Told(BaseCallbackHandler):
    """What callbacks hear of chat models."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    def on_chat_model_start(self, serialized: Any, messages: Any, **kwargs: Any) -> None:
        self.events.append(("start", [one.content for one in messages[0]]))

    def on_llm_end(self, response: Any, **kwargs: Any) -> None:
        message = response.generations[0][0].message
        usage = {name: message.usage_metadata[name] for name in ("input_tokens", "output_tokens")}
        self.events.append(("end", message.content, usage))


def test_callbacks_hear_each_call_in_its_turn(accelerator: Accelerator) -> None:
    made = Grader(own_chat())
    fast = accelerate(made.plain, accelerator=accelerator)
    heard = {}
    for name, graph in (("plain", made.plain), ("fast", fast)):
        told = Told()
        for user in range(3):
            graph.invoke(question(user), {"callbacks": [told]})
        heard[name] = told.events
    assert heard["fast"] == heard["plain"]
    assert counts(accelerator)["early_hits"] == NUM_FOUND - 1


def test_a_question_that_code_swaps_gets_its_own_answers(accelerator: Accelerator) -> None:
    made = Grader(own_chat())
    fast = accelerate(made.plain, accelerator=accelerator)
    for user in range(2):
        fast.invoke(question(user))
    made.swap = {question(2)["question"]: question(0)["question"]}
    assert fast.invoke(question(2)) == made.plain.invoke(question(2))
    found = counts(accelerator)
    assert "early_hits" not in found
    assert found["early_misses"] == NUM_FOUND - 1
    assert found["early_wasted_tokens"] > 0


def test_documents_that_were_edited_are_read_as_they_are(accelerator: Accelerator) -> None:
    made = Grader(own_chat())
    fast = accelerate(made.plain, accelerator=accelerator)
    for user in range(2):
        fast.invoke(question(user))
    made.search.edited = True
    assert fast.invoke(question(0)) == made.plain.invoke(question(0))
    assert counts(accelerator) == {"early_hits": NUM_FOUND - 1}


def test_two_tenants_share_no_record() -> None:
    made = Grader(own_chat())
    with (
        Accelerator(namespace="a", strict=True) as first,
        Accelerator(namespace="b", strict=True) as second,
    ):
        mine, theirs = (accelerate(made.plain, accelerator=one) for one in (first, second))
        for user in range(3):
            mine.invoke(question(user))
        theirs.invoke(question(3))
        assert counts(first) == {"early_hits": NUM_FOUND - 1}
        assert counts(second) == {}


def test_callers_at_the_same_time_get_what_they_get_alone(accelerator: Accelerator) -> None:
    made = Grader(own_chat())
    fast = accelerate(made.plain, accelerator=accelerator)
    for user in range(2):
        fast.invoke(question(user))
    expected = [made.plain.invoke(question(user)) for user in range(12)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(fast.invoke, map(question, range(12))))
    assert found == expected


def test_sampled_calls_are_not_begun(accelerator: Accelerator) -> None:
    chat = ChatRagAccel(
        model=tiny_chat.model(), tokenizer=tokenizer(), max_tokens=4, temperature=0.8
    )
    made = Grader(chat)
    fast = accelerate(made.plain, accelerator=accelerator)
    for user in range(4):
        fast.invoke(question(user))
    assert counts(accelerator).get("early_hits", 0) == 0


def test_an_error_of_what_was_begun_reaches_no_call(
    monkeypatch: pytest.MonkeyPatch, accelerator: Accelerator
) -> None:
    made = Grader(own_chat())
    fast = accelerate(made.plain, accelerator=accelerator)
    expected = [made.plain.invoke(question(user)) for user in range(3)]
    found = [fast.invoke(question(user)) for user in range(2)]
    accept, broken = LocalLLMEngine._accept, [2]

    def accepted(engine: Any, request: EngineRequest) -> None:
        if request.stream and broken[0]:  # what is begun early is streamed
            broken[0] -= 1
            raise RuntimeError("broken")
        accept(engine, request)

    monkeypatch.setattr(LocalLLMEngine, "_accept", accepted)
    found.append(fast.invoke(question(2)))
    assert found == expected
    assert broken == [0]


def test_explain_draws_what_runs_have_shown(accelerator: Accelerator) -> None:
    made = Grader(own_chat())
    fast = accelerate(made.plain, accelerator=accelerator)
    assert "prompts begun early" not in explain(fast)
    for user in range(2):
        fast.invoke(question(user))
    told = explain(fast)
    title, first, *_ = told[told.index("prompts begun early") :].splitlines()
    assert title == "prompts begun early, as runs have shown them"
    assert first.strip() == (
        "prompt 1: system: 14 characters user: {document 0.0} 2 characters {question}"
    )
    assert "Who asked" not in told

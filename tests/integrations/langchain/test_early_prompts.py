"""A chain's next prompt is begun while it searches, from its third call on; nothing else notices.

The search ends only once the model's engine has computed a beginning, where one is expected.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import tiny_chat
from early_prompts_kit import WatchedEngines
from fake_runner import tokenizer
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import Runnable, RunnablePassthrough

from langchain_rag_accel import ChatRagAccel, accelerate
from rag_accel import Accelerator

SYSTEM = "Answer briefly, by the documents and by what was said before."
PROMPT = ChatPromptTemplate.from_messages(
    [
        ("system", SYSTEM),
        MessagesPlaceholder("history"),
        ("user", "{question}\n\n{context}"),
    ]
)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> WatchedEngines:
    return WatchedEngines(monkeypatch)


class Search(BaseRetriever):
    """A store of the program's, whose search waits where it is told to."""

    wait: Any = None
    change: Any = None

    def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
        if self.wait is not None:
            self.wait()
        if self.change is not None:
            self.change()
        return [Document(f"Of {query}: it opened in 1889.")]


def chain_of(search: Search) -> Runnable[Any, Any]:
    def text(found: list[Document]) -> str:
        return "\n".join(document.page_content for document in found)

    chat = ChatRagAccel(model=tiny_chat.model(), tokenizer=tokenizer(), max_tokens=4)
    context = (lambda given: given["question"]) | search | text
    return RunnablePassthrough.assign(context=context) | PROMPT | chat | StrOutputParser()


def history(user: int) -> list[BaseMessage]:
    return [
        HumanMessage(f"I am user {user}. " + "Tell me of the tower. " * 8),
        AIMessage(f"It is {user} metres high. " + "It has three floors. " * 8),
    ]


def asked(user: int) -> dict[str, Any]:
    return {"question": f"When did {user} open?", "history": history(user)}


def answer(chain: Runnable[Any, Any], search: Search, user: int, wait: Any = None) -> str:
    search.wait = wait
    return chain.invoke(asked(user))


def test_the_third_call_s_prompt_is_begun_while_it_searches(
    engine: WatchedEngines, accelerator: Accelerator
) -> None:
    search = Search()
    plain = chain_of(search)
    fast = accelerate(plain, accelerator=accelerator)
    expected = [answer(plain, search, user) for user in range(3)]
    found = [answer(fast, search, user) for user in range(2)]
    assert engine.early() == []
    found.append(answer(fast, search, 2, engine.wait))
    assert found == expected
    (early,) = engine.early()
    told = [str(message.content) for message in history(2)]
    assert early.startswith("|".join([SYSTEM, *told, "When did 2 open?\n\n"]))
    (hits,) = accelerator.metrics.snapshot()["early_hits"].values()  # type: ignore[union-attr]
    assert hits == 1


def test_no_text_of_another_run_is_in_a_beginning(
    engine: WatchedEngines, accelerator: Accelerator
) -> None:
    search = Search()
    fast = accelerate(chain_of(search), accelerator=accelerator)
    for user in range(2):
        answer(fast, search, user)
    answer(fast, search, 2, engine.wait)
    (early,) = engine.early()
    for user in range(2):
        assert f"user {user}" not in early
        assert f"When did {user}" not in early


def test_a_conversation_that_changes_meanwhile_is_a_miss(
    engine: WatchedEngines, accelerator: Accelerator
) -> None:
    search = Search()
    plain = chain_of(search)
    fast = accelerate(plain, accelerator=accelerator)
    for user in range(2):
        answer(fast, search, user)
    given = asked(2)

    def change() -> None:
        given["history"][0] = HumanMessage("I have changed my mind.")

    search.wait, search.change = engine.wait, change
    found = fast.invoke(given)
    search.wait = search.change = None
    assert found == plain.invoke(given)
    snapshot = accelerator.metrics.snapshot()
    assert "early_hits" not in snapshot
    assert sum(snapshot["early_misses"].values()) == 1  # type: ignore[union-attr,arg-type]


def test_a_task_s_prompt_is_begun_as_well(engine: WatchedEngines, accelerator: Accelerator) -> None:
    search = Search()
    plain = chain_of(search)
    fast = accelerate(plain, accelerator=accelerator)

    async def ask() -> list[str]:
        found = [await fast.ainvoke(asked(user)) for user in range(2)]
        search.wait = engine.wait
        return [*found, await fast.ainvoke(asked(2))]

    found = asyncio.run(ask())
    search.wait = None
    assert found == [answer(plain, search, user) for user in range(3)]
    assert len(engine.early()) == 1

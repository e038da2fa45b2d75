"""A query engine's next prompt is begun while it searches; its answers are the plain one's."""

from __future__ import annotations

from typing import Any

import pytest
from early_prompts_kit import WatchedEngines
from fake_runner import tokenizer
from llama_index.core import PromptTemplate
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.response_synthesizers import get_response_synthesizer
from llama_index.core.retrievers import BaseRetriever
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
from tiny_chat import model

from llama_index_rag_accel import RagAccelLLM, accelerate
from llama_index_rag_accel.entries import values_of
from rag_accel import Accelerator
from rag_accel.engine_api import Message

RULES = "Answer from the passages alone, and say so where they tell nothing of it. " * 4
TEMPLATE = PromptTemplate(RULES + "Question: {query_str}\nPassages: {context_str}")


class Search(BaseRetriever):
    """A store of the program's, whose search waits where it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.wait: Any = None

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        if self.wait is not None:
            self.wait()
        return [NodeWithScore(node=TextNode(text=f"Of it: {query_bundle.query_str}"), score=1.0)]


def program(search: Search, accelerator: Accelerator | None) -> Any:
    llm = RagAccelLLM(model(), tokenizer=tokenizer(), max_tokens=4, accelerator=accelerator)
    synthesizer = get_response_synthesizer(llm=llm, text_qa_template=TEMPLATE)
    return RetrieverQueryEngine(search, response_synthesizer=synthesizer)


def test_the_third_query_s_prompt_is_begun_while_it_searches(
    monkeypatch: pytest.MonkeyPatch, accelerator: Accelerator
) -> None:
    engines, search = WatchedEngines(monkeypatch), Search()
    plain = program(search, None)
    expected = [str(plain.query(f"When did {number} open?")) for number in range(3)]
    fast = accelerate(program(search, accelerator), accelerator=accelerator)
    found = [str(fast.query(f"When did {number} open?")) for number in range(2)]
    assert engines.early() == []
    search.wait = engines.wait
    found.append(str(fast.query("When did 2 open?")))
    assert found == expected
    (early,) = engines.early()
    assert "When did 2 open?" in early


def test_questions_and_conversations_are_read() -> None:
    said = [ChatMessage("I am here.", role="user"), ChatMessage("So am I.", role="assistant")]
    found = values_of([QueryBundle("Who?")], {"chat_history": said, "top_k": 3})
    turns = (Message("user", "I am here."), Message("assistant", "So am I."))
    assert found == {"0": "Who?", "chat_history": turns}


class Told(ChatMessage):
    """A message of the program's own class."""


@pytest.mark.parametrize("value", [[Told("x")], [ChatMessage("x", role="tool")], [1], object()])
def test_other_values_are_left_out(value: Any) -> None:
    assert values_of([], {"given": value}) == {}

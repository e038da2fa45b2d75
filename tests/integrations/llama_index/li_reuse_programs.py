"""Engines that put the nodes they have retrieved into prompts, each in its own manner."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llama_index.core import PromptTemplate, QueryBundle, get_response_synthesizer
from llama_index.core.chat_engine import CondensePlusContextChatEngine, ContextChatEngine
from llama_index.core.indices.prompt_helper import PromptHelper
from llama_index.core.memory import ChatMemoryBuffer
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.query_engine import (
    CitationQueryEngine,
    RetrieverQueryEngine,
    RouterQueryEngine,
)
from llama_index.core.response_synthesizers import ResponseMode
from llama_index.core.retrievers import BaseRetriever
from llama_index.core.schema import NodeWithScore, TextNode
from llama_index.core.selectors import LLMSingleSelector
from llama_index.core.tools import QueryEngineTool

TEXTS = {
    "a": "The height of Mount Fuji is 3776 metres.",
    "b": "A lane holds keys and values of one sequence.",
    "c": "The guide said which of the documents it is.",
}
Ask = Callable[[str], Any]


class Orders(BaseRetriever):
    """Returns the nodes that the first word of a query names, in its order."""

    def __init__(self, metadata: dict[str, str] | None = None) -> None:
        super().__init__()
        self._metadata = metadata or {}

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        named = [one for one in query_bundle.query_str.partition(" ")[0] if one in TEXTS]
        return [
            NodeWithScore(node=TextNode(id_=one, text=TEXTS[one], metadata=self._metadata), score=1)
            for one in named
        ]


class Reversed(BaseNodePostprocessor):
    """A reranker that turns the order round."""

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        return nodes[::-1]


def synthesized(mode: str, **options: Any) -> Callable[[Any], Any]:
    """Return what makes a query engine of a way of answering."""

    def build(llm: Any) -> Any:
        synthesizer = get_response_synthesizer(llm=llm, response_mode=ResponseMode(mode), **options)
        return RetrieverQueryEngine(Orders(), synthesizer)

    build.__name__ = mode
    return build


def with_metadata(llm: Any) -> Any:
    synthesizer = get_response_synthesizer(llm=llm, response_mode=ResponseMode.COMPACT)
    return RetrieverQueryEngine(Orders({"page": "3", "file": "guide.pdf"}), synthesizer)


def question_first(llm: Any) -> Any:
    template = PromptTemplate("Question: {query_str}?\nContext:\n{context_str}\nAnswer: ")
    synthesizer = get_response_synthesizer(
        llm=llm, response_mode=ResponseMode.COMPACT, text_qa_template=template
    )
    return RetrieverQueryEngine(Orders(), synthesizer)


def reranked(llm: Any) -> Any:
    synthesizer = get_response_synthesizer(llm=llm, response_mode=ResponseMode.COMPACT)
    return RetrieverQueryEngine(Orders(), synthesizer, node_postprocessors=[Reversed()])


def citing(llm: Any) -> Any:
    return CitationQueryEngine(Orders(), llm=llm)


def routed(llm: Any) -> Any:
    """Return an engine whose selector, which does not ask the model, takes the first tool."""

    class First(LLMSingleSelector):
        def _select(self, choices: Any, query: Any) -> Any:
            from llama_index.core.base.base_selector import SelectorResult, SingleSelection

            return SelectorResult(selections=[SingleSelection(index=0, reason="")])

    tool = QueryEngineTool.from_defaults(synthesized("compact")(llm), description="Documents.")
    return RouterQueryEngine(
        First.from_defaults(llm=llm),
        [tool],
        summarizer=get_response_synthesizer(llm=llm, response_mode=ResponseMode.TREE_SUMMARIZE),
        llm=llm,
    )


def chatting(llm: Any) -> Any:
    return ContextChatEngine.from_defaults(
        Orders(), llm=llm, system_prompt="Be brief.", memory=memory()
    )


def condensing(llm: Any) -> Any:
    """Return an engine that asks the model for the question of a chat that has gone on."""
    return CondensePlusContextChatEngine.from_defaults(
        Orders(), llm=llm, memory=memory(), skip_condense=True
    )


def memory() -> ChatMemoryBuffer:
    return ChatMemoryBuffer.from_defaults(token_limit=1000, tokenizer_fn=str.split)


def narrow(llm: Any) -> Any:
    """Return an engine whose prompts have room for a part of the nodes, so that they are cut."""
    synthesizer = get_response_synthesizer(
        llm=llm,
        response_mode=ResponseMode.COMPACT,
        prompt_helper=PromptHelper(
            context_window=2000,
            num_output=10,
            chunk_overlap_ratio=0.0,
            chunk_size_limit=60,
            tokenizer=str.split,
        ),
    )
    return RetrieverQueryEngine(Orders(), synthesizer)


#: each with all nodes in one prompt
WHOLE: list[Callable[[Any], Any]] = [
    synthesized("compact"),
    synthesized("simple_summarize"),
    synthesized("tree_summarize"),
    with_metadata,
    question_first,
    reranked,
    citing,
    routed,
    chatting,
    condensing,
]
#: each with a node in each prompt
APART: list[Callable[[Any], Any]] = [synthesized("refine"), synthesized("accumulate")]


def ask(engine: Any, query: str) -> str:
    """Ask a query engine or a fresh chat of a chat engine."""
    if hasattr(engine, "query"):
        return str(engine.query(query))
    engine.reset()
    return str(engine.chat(query))

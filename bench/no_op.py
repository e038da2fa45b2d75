"""Offer LangChain leaves that do nothing, or only wait, so that what is left is overhead."""

from __future__ import annotations

import asyncio
from typing import Any

from langchain_core.callbacks import CallbackManagerForLLMRun, CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import Runnable

_RESULT = ChatResult(generations=[ChatGeneration(message=AIMessage("nothing"))])
_DOCUMENTS = [Document("nothing")]


class NoOpChatModel(BaseChatModel):
    """A chat model that answers with a fixed word; a coroutine waits ``delay_s`` seconds first."""

    delay_s: float = 0.0

    @property
    def _llm_type(self) -> str:
        return "no-op"

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        return _RESULT.model_copy(deep=True)

    async def _agenerate(
        self, messages: list[BaseMessage], *args: Any, **kwargs: Any
    ) -> ChatResult:
        if self.delay_s:
            await asyncio.sleep(self.delay_s)
        return _RESULT.model_copy(deep=True)


class NoOpRetriever(BaseRetriever):
    """A retriever of one fixed document."""

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun
    ) -> list[Document]:
        return list(_DOCUMENTS)

    async def _aget_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
        return list(_DOCUMENTS)


def one_shot_chain() -> Runnable[Any, str]:
    """Return prompt | no-op model | parser: one call, nothing to share, nothing to overlap."""
    prompt = ChatPromptTemplate.from_messages([("human", "{question}")])
    return prompt | NoOpChatModel() | StrOutputParser()

"""A program as people have it: a chain over hosted embeddings and a rate-limited chat model.

It runs under Sentry, and prints, as JSON, what the servers were asked, the answers, and what
``explain`` and ``coverage`` say.
"""

# ruff: noqa: E402 - a tracer is switched on before the imports of what it traces
from __future__ import annotations

import asyncio
import json
from typing import Any

import sentry_sdk

sentry_sdk.init(dsn="http://k@127.0.0.1:9/1", traces_sample_rate=1.0, before_send=lambda *_: None)

from embeddings_server import EmbeddingsServer
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnablePassthrough
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from limited_server import LimitedServer, Rate

from langchain_rag_accel import accelerate, coverage, explain

QUESTIONS = [f"question {number}" for number in range(60)]


async def main() -> dict[str, Any]:
    key: Any = "k"
    with EmbeddingsServer() as embeddings_server, LimitedServer(Rate(60, 10)) as chat_server:
        embeddings = OpenAIEmbeddings(
            model="m",
            base_url=embeddings_server.base_url,
            api_key=key,
            default_headers={"X-Team": "a"},
            check_embedding_ctx_length=False,
        )
        store = await InMemoryVectorStore.afrom_texts(QUESTIONS, embeddings)
        model = ChatOpenAI(model="m", base_url=chat_server.base_url, api_key=key)
        prompt = ChatPromptTemplate.from_template("{context} {question}")
        chain = {
            "context": store.as_retriever(search_kwargs={"k": 1}),
            "question": RunnablePassthrough(),
        } | (prompt | model)
        embeddings_server.calls.clear()
        fast = accelerate(chain)
        with coverage(fast) as seen:
            found = await asyncio.gather(*map(fast.ainvoke, QUESTIONS), return_exceptions=True)
        return {
            "embedding_calls": len(embeddings_server.calls),
            "chat_calls": len(chat_server.texts),
            "answers": [type(answer).__name__ for answer in found],
            "explain": explain(fast),
            "coverage": str(seen),
        }


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main())))

"""Programs with a deadline over models on servers: they end at it, and answer as without it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import faiss
import numpy as np
import openai
import pytest
from idle_accelerators import soon_idle
from langchain_community.docstore.in_memory import InMemoryDocstore
from langchain_community.vectorstores import FAISS
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from limited_server import LimitedServer
from pydantic import SecretStr

from langchain_rag_accel import accelerate
from rag_accel import Accelerator, DeadlineError
from rag_accel.adoption import clients
from rag_accel.engines import RemoteLLM
from rag_accel.scheduler.learning import FEWEST_TIMES

SOON_S = 0.4
SILENCE_S = 3.0
Call = Callable[[Any, Any], Any]


@contextmanager
def due(deadline_s: float, **options: Any) -> Iterator[Accelerator]:
    """Open an accelerator whose requests have a deadline; in the end nothing lives in it."""
    with Accelerator(strict=True, deadline_s=deadline_s, **options) as made:
        yield made
        assert soon_idle(made)


def model(server: LimitedServer, **settings: Any) -> ChatOpenAI:
    return ChatOpenAI(base_url=server.base_url, api_key=SecretStr("k"), model="m", **settings)


def chain(server: LimitedServer, **settings: Any) -> Any:
    prompt = ChatPromptTemplate.from_template("{question}")
    return prompt | model(server, **settings) | StrOutputParser()


def invoke(program: Any, given: Any) -> Any:
    return program.invoke(given)


def ainvoke(program: Any, given: Any) -> Any:
    return asyncio.run(program.ainvoke(given))


def stream(program: Any, given: Any) -> Any:
    return "".join(program.stream(given))


anyhow = pytest.mark.parametrize("call", [invoke, ainvoke, stream])


@anyhow
def test_a_program_ends_at_its_deadline(call: Call) -> None:
    with LimitedServer(answer_s=SILENCE_S) as server, due(SOON_S) as accelerator:
        fast = accelerate(chain(server), accelerator=accelerator)
        began = time.monotonic()
        with pytest.raises(DeadlineError) as raised:
            call(fast, {"question": "a"})
        assert time.monotonic() - began < SILENCE_S
        assert isinstance(raised.value.__cause__, openai.APITimeoutError)
        assert server.num_calls == 1


@anyhow
def test_a_program_in_time_answers_as_without_a_deadline(call: Call) -> None:
    with LimitedServer() as server, due(60.0) as accelerator:
        fast = accelerate(chain(server), accelerator=accelerator)
        plain = (stream if call is stream else invoke)(chain(server), {"question": "a"})
        assert call(fast, {"question": "a"}) == plain


def test_a_nested_program_has_the_deadline_of_the_outer_one() -> None:
    with LimitedServer(answer_s=0.6) as server, due(1.0) as accelerator:
        inner = accelerate(chain(server), accelerator=accelerator)

        def ask_twice(question: str) -> str:
            inner.invoke({"question": question})  # takes 0.6 of the 1.0 seconds
            return inner.invoke({"question": question})

        outer = accelerate(RunnableLambda(ask_twice), accelerator=accelerator)
        assert inner.invoke({"question": "a"}) == "re: a"
        with pytest.raises(DeadlineError):
            outer.invoke("a")


@anyhow
def test_a_call_that_goes_to_any_of_several_servers_ends_at_the_deadline(call: Call) -> None:
    with LimitedServer(answer_s=SILENCE_S) as first, LimitedServer(answer_s=SILENCE_S) as second:
        llm = RemoteLLM([first.base_url, second.base_url], "m", api_key="k")
        with due(SOON_S, llm=llm) as accelerator:
            fast = accelerate(chain(first), accelerator=accelerator)
            began = time.monotonic()
            with pytest.raises(DeadlineError):
                call(fast, {"question": "a"})
            assert time.monotonic() - began < SILENCE_S
        assert first.num_calls + second.num_calls == 1


@pytest.mark.parametrize("count", [1, 200])
def test_embeddings_end_at_the_deadline(count: int) -> None:
    with LimitedServer(answer_s=SILENCE_S) as server, due(SOON_S) as accelerator:
        plain = OpenAIEmbeddings(
            base_url=server.base_url,
            api_key=SecretStr("k"),
            model="m",
            check_embedding_ctx_length=False,
        )
        fast = accelerate(plain, accelerator=accelerator)
        began = time.monotonic()
        with pytest.raises(DeadlineError):
            fast.embed_documents([f"text {number}" for number in range(count)])
        assert time.monotonic() - began < SILENCE_S


def test_a_program_that_cannot_end_in_time_is_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients._searches, "begin", lambda index: False)
    index = faiss.IndexFlatL2(64)
    index.add(np.ones((clients.MIN_NUMBERS // 64 + 1, 64), dtype=np.float32))
    store = FAISS(
        DeterministicFakeEmbedding(size=64),
        index,
        InMemoryDocstore({str(number): Document("text") for number in range(index.ntotal)}),
        {number: str(number) for number in range(index.ntotal)},
    )
    with LimitedServer(answer_s=0.5) as server, due(2.0) as accelerator:
        asked = {"question": store.as_retriever()} | chain(server)

        def ask_after(delay_s: float) -> Any:
            time.sleep(delay_s)
            return asked.invoke(f"{delay_s}")

        fast = accelerate(RunnableLambda(ask_after), accelerator=accelerator)
        with ThreadPoolExecutor(FEWEST_TIMES) as pool:
            list(pool.map(fast.invoke, [0.0] * FEWEST_TIMES))
            late = [pool.submit(fast.invoke, 1.6) for _ in range(2)]
            errors = [str(one.exception()) for one in late]
        # The last to come may be alone by then, and begins.
        assert any("the request could not end" in error for error in errors), errors
        assert server.num_calls <= FEWEST_TIMES + 1

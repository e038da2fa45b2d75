"""Components of frameworks over several servers of one model."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "engines" / "llm"))

from chat_server import ChatServer, Fault, answer_of

from langchain_rag_accel import ChatRagAccel
from llama_index_rag_accel import RagAccelLLM
from rag_accel import Accelerator
from rag_accel.engines import RemoteLLM

DOWN = Fault("status", status=503)


@pytest.fixture
def servers() -> Iterator[list[ChatServer]]:
    with ExitStack() as stack:
        yield [stack.enter_context(ChatServer()) for _ in range(2)]


@pytest.fixture
def llm(servers: list[ChatServer]) -> RemoteLLM:
    return RemoteLLM([server.base_url for server in servers], "m")


def test_a_chat_model_of_langchain_asks_the_server_that_answers(
    servers: list[ChatServer], llm: RemoteLLM
) -> None:
    servers[0].script(DOWN)
    with Accelerator() as accelerator:
        model = ChatRagAccel(model=llm, max_tokens=3, accelerator=accelerator)
        assert model.invoke("hi").content == answer_of(3)
        assert "".join(str(chunk.content) for chunk in model.stream("hi")) == answer_of(3)
        assert [message.content for message in model.batch(["a", "b"])] == [answer_of(3)] * 2
    assert servers[0].num_calls >= 1
    assert servers[1].num_calls >= 1


def test_a_language_model_of_llama_index_asks_the_server_that_answers(
    servers: list[ChatServer], llm: RemoteLLM
) -> None:
    servers[0].script(DOWN)
    with Accelerator() as accelerator:
        model = RagAccelLLM(model=llm, max_tokens=3, accelerator=accelerator)
        assert model.metadata.context_window == 8192
        assert model.complete("hi").text == answer_of(3)
        assert list(model.stream_complete("hi"))[-1].text == answer_of(3)


def test_stages_and_components_share_the_engine(llm: RemoteLLM) -> None:
    with Accelerator(llm=llm) as accelerator:
        model = ChatRagAccel(model=llm, max_tokens=3, accelerator=accelerator)
        model.invoke("hi")
        assert [part.name for part in accelerator.health().parts] == ["llm"]


def test_bounds_of_local_models_are_refused(llm: RemoteLLM) -> None:
    with pytest.raises(ValueError, match=r"no such bound.*pool_bytes"):
        ChatRagAccel(model=llm, pool_bytes=7)

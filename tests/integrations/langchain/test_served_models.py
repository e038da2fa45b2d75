"""Chains over models on servers: a server of vLLM's is told of retrieved texts, no other is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from idle_accelerators import soon_idle
from langchain_core.prompts import ChatPromptTemplate, PromptTemplate
from langchain_core.runnables import RunnablePassthrough
from langchain_openai import ChatOpenAI
from lc_reuse_programs import PROMPT, TEXTS, Orders, joined
from vllm_chat_server import VllmChatServer, chat_servers

from langchain_rag_accel import accelerate, explain
from rag_accel import Accelerator
from rag_accel.engines.llm.remote.servers import MOST_SILENT, SERVERS, ModelServer
from rag_accel.kv.reuse_request import read_reuse_request

pytest.importorskip("langchain_openai")


MakeServer = Callable[..., VllmChatServer]


@pytest.fixture
def make_server() -> Iterator[MakeServer]:
    """Yield a maker of servers, which end with the test."""
    with chat_servers() as make:
        yield make


@pytest.fixture
def reusing() -> Iterator[Accelerator]:
    with Accelerator(kv_reuse="full", strict=True, namespace="tenant") as made:
        yield made
        assert soon_idle(made)
        assert made.bypassed == {}


def chat(server: VllmChatServer, **options: Any) -> ChatOpenAI:
    return ChatOpenAI(model="tiny", base_url=server.base_url, api_key="none", **options)  # type: ignore[arg-type]


def chain(model: Any, prompt: Any = PROMPT) -> Any:
    return {"context": Orders() | joined, "input": RunnablePassthrough()} | prompt | model


def joined_pieces(pieces: list[Any]) -> Any:
    found = pieces[0]
    for piece in pieces[1:]:
        found = found + piece
    return found


def named(body: dict[str, Any]) -> Any:
    found = read_reuse_request(body.get("kv_transfer_params"))
    assert found is not None, body
    assert body.get("cache_salt") == found.salt()
    return found


def test_texts_go_along_in_the_order_of_the_prompt(
    make_server: MakeServer, reusing: Accelerator
) -> None:
    server = make_server()
    fast = accelerate(chain(chat(server)), accelerator=reusing)
    for order in ("ab", "ba"):
        answer = fast.invoke(f"{order} is high")
        wanted = named(server.bodies[-1])
        assert wanted.texts == tuple(TEXTS[name] for name in order)
        assert (wanted.reuse, wanted.before, wanted.namespace) == ("full", "", "tenant")
        assert answer.response_metadata["kv_reuse"] == {
            "mode": "full",
            "reused_tokens": 7,
            "encoded_tokens": 2,
            "recomputed_tokens": 1,
            "cached_tokens": 7,
            "exact": False,
        }
    assert server.paths.count("/v1/models") == 1


def test_async_and_streams_carry_texts_too(make_server: MakeServer, reusing: Accelerator) -> None:
    server = make_server()
    fast = accelerate(chain(chat(server, stream_usage=True)), accelerator=reusing)

    async def ask() -> list[Any]:
        whole = await fast.ainvoke("ab is high")
        pieces = [piece async for piece in fast.astream("ba is high")]
        return [whole, joined_pieces(pieces)]

    whole, streamed = asyncio.run(ask())
    pieces = list(fast.stream("ab is high"))
    assert [len(named(body).texts) for body in server.bodies] == [2, 2, 2]
    assert whole.response_metadata["kv_reuse"]["reused_tokens"] == 7
    for found in (streamed, joined_pieces(pieces)):
        assert found.content == "an answer"
        said = found.response_metadata["kv_reuse"]
        assert said == {"mode": "full", "texts": 2, "cached_tokens": 7}
    assert server.paths.count("/v1/models") == 1


@pytest.mark.parametrize("options", [{}, {"kv_reuse": "dependency"}])
def test_without_the_option_bodies_are_those_of_the_program(
    make_server: MakeServer, options: dict[str, Any]
) -> None:
    server = make_server()
    program = chain(chat(server))
    plain = program.invoke("ab is high")
    with Accelerator(strict=True, **options) as accelerator:
        fast = accelerate(program, accelerator=accelerator).invoke("ab is high")
    assert server.bodies[0] == server.bodies[1]
    assert "/v1/models" not in server.paths
    assert plain.response_metadata.keys() == fast.response_metadata.keys()


def test_other_servers_get_no_field_and_one_question(
    make_server: MakeServer, reusing: Accelerator
) -> None:
    server = make_server("somebody")
    fast = accelerate(chain(chat(server)), accelerator=reusing)
    for _ in range(3):
        fast.invoke("ab is high")
    assert server.paths.count("/v1/models") == 1
    assert not any({"cache_salt", "kv_transfer_params"} & body.keys() for body in server.bodies)


def test_refusals_and_redirects_end_the_question(
    make_server: MakeServer, reusing: Accelerator
) -> None:
    other = make_server()
    refusing, leading = make_server(), make_server()
    refusing.models_status = 403
    leading.redirect = f"{other.base_url}/models"
    for server in (refusing, leading):
        fast = accelerate(chain(chat(server)), accelerator=reusing)
        for _ in range(2):
            fast.invoke("ab is high")
        assert server.paths.count("/v1/models") == 1
        assert not any("kv_transfer_params" in body for body in server.bodies)
    assert other.paths == []


def test_fields_of_the_program_go_before(make_server: MakeServer, reusing: Accelerator) -> None:
    server = make_server()
    for own in ({"cache_salt": "mine"}, {"kv_transfer_params": {"other": 1}}):
        model = chat(server, extra_body=own)
        accelerate(chain(model), accelerator=reusing).invoke("ab is high")
        body = server.bodies[-1]
        sent = {name: body[name] for name in ("cache_salt", "kv_transfer_params") if name in body}
        assert sent == own
    model = chat(server, extra_body={"top_k": 3})
    accelerate(chain(model), accelerator=reusing).invoke("ab is high")
    assert server.bodies[-1]["top_k"] == 3
    assert named(server.bodies[-1]).texts
    assert model.extra_body == {"top_k": 3}


def test_server_without_connector_is_soon_told_nothing(
    make_server: MakeServer, reusing: Accelerator
) -> None:
    server = make_server(has_connector=False)
    fast = accelerate(chain(chat(server)), accelerator=reusing)
    fast.invoke("ab is high")  # texts as short as these are not mentioned by any
    for _ in range(MOST_SILENT + 2):
        answer = fast.invoke("ac is high")
        assert "kv_reuse" not in answer.response_metadata
    sent = ["kv_transfer_params" in body for body in server.bodies]
    assert sent == [True] * (1 + MOST_SILENT) + [False] * 2


def test_calls_stop_waiting_for_a_silent_server(
    make_server: MakeServer, reusing: Accelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ModelServer.wait, "__defaults__", (0.0,))
    server = make_server()
    server.hold_models()
    fast = accelerate(chain(chat(server)), accelerator=reusing)
    for _ in range(2):
        fast.invoke("ab is high")
    assert not any("kv_transfer_params" in body for body in server.bodies)
    server.release_models()
    known = SERVERS.get(server.base_url)
    assert known is not None
    known._known.wait(20)
    fast.invoke("ab is high")
    assert named(server.bodies[-1]).texts
    assert server.paths.count("/v1/models") == 1


def test_tenants_share_no_salt(make_server: MakeServer) -> None:
    server = make_server()
    for tenant in ("one", "other"):
        with Accelerator(kv_reuse="full", strict=True, namespace=tenant) as accelerator:
            accelerate(chain(chat(server)), accelerator=accelerator).invoke("ab is high")
    assert [named(body).namespace for body in server.bodies] == ["one", "other"]
    assert server.bodies[0]["cache_salt"] != server.bodies[1]["cache_salt"]


def test_prompts_without_retrieved_texts_ask_no_server(
    make_server: MakeServer, reusing: Accelerator
) -> None:
    server = make_server()
    accelerate(PROMPT | chat(server), accelerator=reusing).invoke({"context": "x", "input": "y"})
    assert server.paths == ["/v1/chat/completions"]


@pytest.mark.filterwarnings("ignore:The `dict` method:pydantic.warnings.PydanticDeprecatedSince20")
def test_completions_of_one_prompt_carry_texts(
    make_server: MakeServer, reusing: Accelerator
) -> None:
    llms = pytest.importorskip("langchain_community.llms")
    server = make_server()
    model = llms.VLLMOpenAI(
        model="tiny", openai_api_base=server.base_url, openai_api_key="none", max_tokens=2
    )
    prompt = PromptTemplate.from_template("Answer by these:\n\n{context}\n\nWhich says {input}?")
    fast = accelerate(chain(model, prompt), accelerator=reusing)
    assert fast.invoke("ab is high") == "an answer"
    assert "".join(fast.stream("ba is high")) == "an answer"
    assert [named(body).texts for body in server.bodies] == [
        (TEXTS["a"], TEXTS["b"]),
        (TEXTS["b"], TEXTS["a"]),
    ]
    assert named(server.bodies[0]).before == "Answer by these:\n\n"
    assert fast.batch(["ab is high", "ba is high"])[0] == "an answer"
    assert server.bodies[-1]["prompt"][1:]  # one request with both prompts
    assert "kv_transfer_params" not in server.bodies[-1]


def test_texts_in_parts_of_a_message_are_found(
    make_server: MakeServer, reusing: Accelerator
) -> None:
    server = make_server()
    parts = [{"type": "text", "text": "{context}"}, {"type": "text", "text": "Who says {input}?"}]
    prompt = ChatPromptTemplate.from_messages([("user", parts)])
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}
    pictured = ChatPromptTemplate.from_messages([("user", [*parts, image])])
    accelerate(chain(chat(server), prompt), accelerator=reusing).invoke("ab is high")
    accelerate(chain(chat(server), pictured), accelerator=reusing).invoke("ab is high")
    assert named(server.bodies[0]).texts == (TEXTS["a"], TEXTS["b"])
    assert "kv_transfer_params" not in server.bodies[1]


def test_answers_by_a_schema_carry_texts(make_server: MakeServer, reusing: Accelerator) -> None:
    server = make_server()
    server.answer = '{"document": "a"}'
    schema = {
        "title": "Found",
        "type": "object",
        "properties": {"document": {"type": "string"}},
        "required": ["document"],
        "additionalProperties": False,
    }
    program = chain(chat(server).with_structured_output(schema, method="json_schema"))
    fast = accelerate(program, accelerator=reusing)
    assert fast.invoke("ab is high") == {"document": "a"}
    assert asyncio.run(fast.ainvoke("ba is high")) == {"document": "a"}
    assert [len(named(body).texts) for body in server.bodies] == [2, 2]
    assert all(body["response_format"]["type"] == "json_schema" for body in server.bodies)


def test_explain_says_what_the_server_is_told(
    make_server: MakeServer, reusing: Accelerator
) -> None:
    fast = accelerate(chain(chat(make_server())), accelerator=reusing)
    text = str(explain(fast))
    assert "told of retrieved texts (kv_reuse is full, approximate)" in text

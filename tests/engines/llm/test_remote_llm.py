"""A model behind several servers: by load, near to its prompts, around servers that fail."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from llm_harness import PATIENCE_S
from named_servers import NamedServer, wait_for_prompts

from rag_accel import END, START, Accelerator, Input, RAGraph
from rag_accel.engine_api import (
    ChunkSpan,
    EngineRequest,
    GenerationInput,
    Message,
    PrimitiveKind,
    WorkId,
)
from rag_accel.engines import RemoteLLM, RemoteOptions, RemoteServer, VllmServerOptions
from rag_accel.engines.llm.remote.remote_llm import prompt_keys
from rag_accel.errors import ConfigError, RemoteEngineError


@pytest.fixture
def servers() -> Iterator[list[NamedServer]]:
    with ExitStack() as stack:
        yield [stack.enter_context(NamedServer(name)) for name in ("a", "b")]


def model(servers: list[NamedServer], **more: Any) -> RemoteLLM:
    return RemoteLLM([server.base_url for server in servers], "m", **more)


def asking() -> RAGraph:
    graph = RAGraph(inputs=["input", "most"])
    graph.add_generation("answer", "{input}", max_tokens=Input("most"))
    return graph.add_edge(START, "answer").add_edge("answer", END)


def ask(accelerator: Accelerator, *prompts: str) -> list[str]:
    """Return the answers of requests that live at the same time."""
    graph = asking()
    handles = [accelerator.submit(graph, input=prompt, most=3) for prompt in prompts]
    return [handle.result(PATIENCE_S) for handle in handles]


def test_servers_share_the_requests(servers: list[NamedServer]) -> None:
    for server in servers:
        server.may_end.clear()
    with Accelerator(llm=model(servers)) as accelerator:
        handles = [accelerator.submit(asking(), input=f"q{n}", most=3) for n in range(20)]
        wait_for_prompts(*servers)
        for server in servers:
            server.may_end.set()
        answers = [handle.result(PATIENCE_S) for handle in handles]
    assert len(answers) == 20
    assert set(answers) == {"a", "b"}


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_server_that_refuses_loses_no_request(servers: list[NamedServer], status: int) -> None:
    servers[0].status = status
    with Accelerator(llm=model(servers)) as accelerator:
        assert ask(accelerator, *"qrstuv") == ["b"] * 6
        (llm,) = accelerator.health().parts
        assert {part.state for part in llm.parts} == {"ready", "paused"}


def test_a_server_is_left_alone_as_long_as_it_asks(servers: list[NamedServer]) -> None:
    servers[0].status, servers[0].retry_after = 429, "77"
    llm = model(servers)
    with Accelerator(llm=llm) as accelerator:
        assert ask(accelerator, *"qrstuv") == ["b"] * 6
        whys = [part.why for part in accelerator.health().parts[0].parts]
    assert any("tried again in 7" in why for why in whys)


def test_a_server_whose_answers_have_no_text_loses_no_request(servers: list[NamedServer]) -> None:
    servers[0].name = None
    with Accelerator(llm=model(servers)) as accelerator:
        assert ask(accelerator, *"qrstuv") == ["b"] * 6


def test_where_no_answer_has_a_text_the_error_says_so(servers: list[NamedServer]) -> None:
    for server in servers:
        server.name = None
    with Accelerator(llm=model(servers)) as accelerator, pytest.raises(RemoteEngineError) as caught:
        ask(accelerator, "q")
    assert "the answer has neither a text nor tool calls" in str(caught.value)
    assert '"content": null' in str(caught.value)


def test_each_server_has_its_own_key(servers: list[NamedServer]) -> None:
    several = [
        RemoteServer(servers[0].base_url, api_key="first-key"),
        RemoteServer(servers[1].base_url),
    ]
    llm = RemoteLLM(several, "m", api_key="other-key")
    assert "key" not in repr(llm) + repr(several)
    with Accelerator(llm=llm) as accelerator:
        ask(accelerator, *"qrst")
    assert [set(server.keys) for server in servers] == [{"Bearer first-key"}, {"Bearer other-key"}]


def test_one_server_is_one_client(servers: list[NamedServer]) -> None:
    with Accelerator(llm=RemoteLLM(servers[0].base_url, "m")) as accelerator:
        assert ask(accelerator, "q") == ["a"]


def test_equal_models_share_an_engine(servers: list[NamedServer]) -> None:
    first, second = (model(servers).resolved({}) for _ in range(2))
    assert first is second
    assert model(servers, priority=True).resolved({}) is not first


def test_a_listed_model_is_one_of_a_pool(servers: list[NamedServer]) -> None:
    singles = [
        RemoteLLM(server.base_url, "m", options=RemoteOptions(max_retries=0)) for server in servers
    ]
    servers[0].status = 503
    with Accelerator(llm=singles) as accelerator:
        assert ask(accelerator, *"qrs") == ["b"] * 3


def test_servers_of_vllm_are_told_as_the_accelerator_says() -> None:
    llm = RemoteLLM("http://localhost:1/v1", "m")
    defaults = {"kv_reuse": "full", "kv_folder": "texts"}
    assert llm.resolved(defaults).bounds.vllm == VllmServerOptions(kv_reuse="full")
    assert llm.resolved({"kv_reuse": "dependency"}).bounds.kv_reuse == "exact"
    assert llm.with_named(kv_reuse="fused").resolved(defaults).bounds.kv_reuse == "fused"


def test_tenants_share_no_beginning() -> None:
    def keys(namespace: str, *texts: str) -> set[Any]:
        content = " ".join(texts)
        spans = (ChunkSpan(1, 0, len(texts[0])),)
        messages = (Message("system", "Be brief."), Message("user", content))
        payload = GenerationInput(messages, chunk_spans=spans)
        kind = PrimitiveKind.DECODING
        return set(prompt_keys(EngineRequest(WorkId("w"), "r", kind, payload, namespace)))

    assert keys("ada", "text", "q") == keys("ada", "text", "q")
    assert len(keys("ada", "text", "q") & keys("ada", "text", "p")) == 2
    assert not keys("ada", "text", "q") & keys("bob", "text", "q")


@pytest.mark.parametrize(
    ("given", "match"),
    [
        (((), "m"), "these cannot be the servers"),
        ((["http://h/v1", "http://h/v1/"], "m"), "each once"),
        (("http://h/v1",), "has no name"),
        (("h/v1", "m"), "bad base_url"),
        (("http://u:p@h/v1", "m"), "credentials"),
    ],
)
def test_what_names_no_servers_is_refused(given: Any, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        RemoteLLM(*given)


def test_bounds_of_other_models_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"no such bound.*pool_bytes"):
        RemoteLLM("http://h/v1", "m", pool_bytes=7)
    with pytest.raises(ConfigError, match="load their model by themselves"):
        RemoteLLM("http://h/v1", "m").with_named(dtype="float32")
    with pytest.raises(ConfigError, match="context"):
        RemoteLLM("http://h/v1", "m", context=0)
    with pytest.raises(ConfigError, match="bad api_key"):
        RemoteLLM("http://h/v1", "m", api_key="a key")

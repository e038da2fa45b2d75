"""``rag-accel cache fill --endpoint``: a server keeps texts behind the head of later prompts."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from vllm_chat_server import VllmChatServer, chat_servers

from rag_accel.cli import main
from rag_accel.engine_api import Message
from rag_accel.engines.llm.local.prefill.fill_prompt import PLACE, prompt_of
from rag_accel.engines.llm.remote.filling import ServerFillOptions, fill_server
from rag_accel.errors import ConfigError, RemoteEngineError
from rag_accel.kv.reuse_request import read_reuse_request

TEXTS = [f"text number {number} has about ten words of its own here" for number in range(7)]
PROMPT = prompt_of("Be brief.", "These are the documents:\n")


@pytest.fixture
def make_server() -> Iterator[Callable[..., VllmChatServer]]:
    """Yield a maker of servers, which end with the test."""
    with chat_servers() as make:
        yield make


@pytest.fixture
def server(make_server: Callable[..., VllmChatServer]) -> VllmChatServer:
    return make_server()


def test_each_text_is_sent_once_in_a_prompt_of_its_own(server: VllmChatServer) -> None:
    seen: list[tuple[int, int]] = []
    report = fill_server(
        server.base_url,
        [*TEXTS, TEXTS[0], ""],
        PROMPT,
        options=ServerFillOptions(namespace="tenant", concurrency=2),
        progress=lambda done, total: seen.append((done, total)),
    )
    assert report.model == "tiny"
    assert (report.texts, report.left_out, report.sent, report.found) == (9, 2, 7, 0)
    assert report.tokens == sum(len(text.split()) for text in TEXTS)
    assert seen == [(number, 8) for number in range(9)]
    assert len(server.bodies) == len(TEXTS)
    for body in server.bodies:
        wanted = read_reuse_request(body["kv_transfer_params"])
        assert wanted is not None
        assert (wanted.reuse, wanted.recipe, wanted.namespace) == ("full", "alone", "tenant")
        assert wanted.before == "These are the documents:\n"
        assert body["messages"][0] == {"role": "system", "content": "Be brief."}
        assert body["messages"][1]["content"].startswith(f"{wanted.before}{wanted.texts[0]}")
        assert (body["max_tokens"], body["cache_salt"]) == (1, wanted.salt())
        assert body["priority"] > 0


def test_a_prompt_of_texts_alone_gets_a_question(server: VllmChatServer) -> None:
    report = fill_server(server.base_url, TEXTS, [Message("user", PLACE)])
    assert report.sent == 7


def test_a_server_without_priorities_is_sent_none(server: VllmChatServer) -> None:
    server.priority_status = 400
    report = fill_server(server.base_url, TEXTS, PROMPT, options=ServerFillOptions(concurrency=1))
    assert report.sent == 7
    assert ["priority" in body for body in server.bodies] == [True] + [False] * 7


def test_a_server_without_connector_is_named_after_one_text(
    make_server: Callable[..., VllmChatServer],
) -> None:
    server = make_server(has_connector=False)
    with pytest.raises(ConfigError, match="keeps no states of texts"):
        fill_server(server.base_url, TEXTS, PROMPT)
    assert len(server.bodies) == 1


def test_a_server_that_keeps_none_is_named_after_some_texts(server: VllmChatServer) -> None:
    server.least_words = 1000
    with pytest.raises(ConfigError, match="none was kept"):
        fill_server(server.base_url, [f"{text} {at}" for at in range(9) for text in TEXTS], PROMPT)
    assert len(server.bodies) < 40


def test_a_refusal_is_the_servers(server: VllmChatServer) -> None:
    server.priority_status = 401
    with pytest.raises(RemoteEngineError, match="refused"):
        fill_server(server.base_url, TEXTS, PROMPT, api_key="sk-secret")
    assert len(server.bodies) == 1


def test_a_text_that_is_refused_is_named_by_its_number(server: VllmChatServer) -> None:
    server.most_words = 100
    with pytest.raises(ConfigError, match="text 2"):
        fill_server(server.base_url, [TEXTS[0], "word " * 5000], PROMPT)


def test_nobody_listens() -> None:
    with pytest.raises(ConfigError, match="not reached"):
        fill_server("http://127.0.0.1:9/v1", TEXTS, PROMPT)


@pytest.mark.parametrize(("name", "value"), [("concurrency", 0), ("timeout_s", float("nan"))])
def test_an_option_out_of_range_is_refused_by_name(name: str, value: Any) -> None:
    fields: dict[str, Any] = {name: value}
    with pytest.raises(ConfigError, match=f"ServerFillOptions.{name}"):
        ServerFillOptions(**fields)


def fill(server: VllmChatServer, texts: Path, *options: str) -> int:
    given = ["cache", "fill", "--endpoint", server.base_url, "--texts", str(texts)]
    return main([*given, *options])


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "texts.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    return path


def test_the_command_says_what_the_server_keeps(
    server: VllmChatServer, corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fill(server, corpus) == 0
    said = capsys.readouterr()
    assert "model tiny" in said.out
    assert "7 states computed, 0 there already" in said.out
    assert said.err.splitlines()[-1] == "7 of 7 states"
    assert fill(server, corpus, "--namespace", "", "--concurrency", "1") == 0
    assert "0 states computed, 7 there already" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "found"),
    [
        (("--neighbours", "2"), "--neighbours"),
        (("--dtype", "float32"), "--dtype"),
        (("--api-key-env", "RAG_ACCEL_NO_SUCH_KEY"), "RAG_ACCEL_NO_SUCH_KEY"),
    ],
)
def test_options_of_a_local_fill_are_refused(
    server: VllmChatServer,
    corpus: Path,
    capsys: pytest.CaptureFixture[str],
    options: tuple[str, ...],
    found: str,
) -> None:
    assert fill(server, corpus, *options) == 2
    assert found in capsys.readouterr().err
    assert server.paths == []


def test_a_fill_names_a_folder_or_an_endpoint(
    corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["cache", "fill", "--texts", str(corpus)]) == 2
    assert "FOLDER and --model, or --endpoint" in capsys.readouterr().err

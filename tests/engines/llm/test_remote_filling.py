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
from rag_accel.engines.llm.remote.filling import PLACE as SAME_PLACE
from rag_accel.engines.llm.remote.filling import ServerFillOptions, fill_server, head_probes
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


def test_each_text_is_sent_once_behind_the_head(server: VllmChatServer) -> None:
    told: list[tuple[int, int]] = []
    options = ServerFillOptions(namespace="tenant", concurrency=2)
    report = fill_server(
        server.base_url,
        [*TEXTS, TEXTS[0], "short"],
        PROMPT,
        options=options,
        progress=lambda done, total: told.append((done, total)),
    )
    head = len(["<system>", "Be", "brief.", "<user>"])
    assert (report.model, report.head_tokens) == ("tiny", head)
    assert (report.texts, report.left_out, report.sent, report.found) == (9, 2, 7, 0)
    assert report.tokens == sum(len(text.split()) for text in TEXTS)
    assert told == [(number, 8) for number in range(9)]
    assert len(server.bodies) == len(TEXTS)
    for body in server.bodies:
        wanted = read_reuse_request(body["kv_transfer_params"])
        assert wanted is not None
        assert (wanted.reuse, wanted.namespace, wanted.head) == ("exact", "tenant", head)
        assert wanted.spans == ((head, len(body["prompt"])),)
        assert body["max_tokens"] == 1
        assert body["priority"] > 0
        assert body["cache_salt"] == wanted.salt()
        assert body["prompt"][:head] == server.bodies[0]["prompt"][:head]


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


def test_a_server_without_tokenize_is_named(server: VllmChatServer) -> None:
    server.has_tokenize = False
    with pytest.raises(ConfigError, match="makes no tokens"):
        fill_server(server.base_url, TEXTS, PROMPT)
    assert server.bodies == []


def test_a_refusal_is_the_servers(server: VllmChatServer) -> None:
    server.priority_status = 500
    with pytest.raises(RemoteEngineError, match="refused"):
        fill_server(server.base_url, TEXTS, PROMPT, api_key="sk-secret")
    assert len(server.bodies) == 1


def test_a_redirect_is_not_followed(
    server: VllmChatServer, make_server: Callable[..., VllmChatServer]
) -> None:
    other = make_server()
    server.redirect = f"{other.base_url}/models"
    with pytest.raises(RemoteEngineError, match="302"):
        fill_server(server.base_url, TEXTS, PROMPT)
    assert other.paths == []


def test_a_text_without_room_is_named_by_its_number(server: VllmChatServer) -> None:
    with pytest.raises(ConfigError, match="text 2"):
        fill_server(server.base_url, [TEXTS[0], "word " * 5000], PROMPT)


def test_nobody_listens() -> None:
    with pytest.raises(RemoteEngineError, match="no answer of the server"):
        fill_server("http://127.0.0.1:9/v1", TEXTS, PROMPT)


@pytest.mark.parametrize(("name", "value"), [("concurrency", 0), ("timeout_s", float("nan"))])
def test_an_option_out_of_range_is_refused_by_name(name: str, value: Any) -> None:
    fields: dict[str, Any] = {name: value}
    with pytest.raises(ConfigError, match=f"ServerFillOptions.{name}"):
        ServerFillOptions(**fields)


def test_probes_differ_where_the_head_ends() -> None:
    assert SAME_PLACE == PLACE
    one, other = head_probes(PROMPT)
    assert one[0] == other[0] == {"role": "system", "content": "Be brief."}
    assert one[1]["content"].startswith("These")
    assert one[1]["content"][0] != other[1]["content"][0]
    (alone, asked), _ = head_probes([Message("system", f"9 texts: {PLACE}")])
    assert (alone["role"], asked["role"]) == ("system", "user")
    with pytest.raises(ConfigError, match="where its texts stand"):
        head_probes([Message("user", "no place")])


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
    assert "model tiny, behind a head of 1 tokens" in said.out
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

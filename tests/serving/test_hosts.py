"""Which names a server answers to: a browser that was sent here by another's name is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from serving_kit import ScriptedProgram, client_of, serving_app
from test_tenants_and_tokens import ANNA, token_file

from rag_accel.errors import ConfigError
from rag_accel.serving.serving_options import ServingOptions
from rag_accel.serving.tokens import TokenFile

JSON = {"Content-Type": "application/json"}


async def status_of(host: str, path: str = "/invoke", **arguments: Any) -> int:
    program = ScriptedProgram()
    headers = {**JSON, "Host": host, "Authorization": f"Bearer {ANNA}"}
    async with client_of(serving_app(program, **arguments)) as client:
        answer = await client.post(path, content=b'{"input": "a"}', headers=headers)
    assert program.num_begun == (answer.status_code == 200)
    if answer.status_code == 421:
        assert answer.json()["error"]["code"] == "RA520"
        assert "--allow-host" in answer.json()["error"]["message"]
    return answer.status_code


@pytest.mark.parametrize(
    "host", ["localhost", "LocalHost:8000", "127.0.0.1", "127.0.0.1:1", "[::1]", "[::1]:8000"]
)
async def test_names_of_this_machine_are_answered(host: str) -> None:
    assert await status_of(host) == 200


STRANGE = [
    "evil.example",
    "evil.example:8000",
    "localhost.evil.example",
    "localhost@evil.example",
    "127.0.0.1.nip.io",
    "localhost, evil.example",
    "localhost:8000:8000",
    "::1",
    "[",
    "",
]


@pytest.mark.parametrize("host", STRANGE)
async def test_another_name_is_refused_before_anything_runs(host: str) -> None:
    assert await status_of(host) == 421


@pytest.mark.parametrize("path", ["/healthz", "/metrics", "/v1/models", "/nowhere", "/invoke/"])
async def test_no_path_answers_to_another_name(path: str) -> None:
    async with client_of(serving_app(ScriptedProgram())) as client:
        answer = await client.get(path, headers={"Host": "evil.example"})
    assert answer.status_code == 421
    assert "state" not in answer.text


async def test_two_hosts_and_none_are_refused() -> None:
    for hosts in ([], [b"localhost", b"evil.example"]):
        sent: list[Any] = []

        async def send(message: Any, sent: list[Any] = sent) -> None:
            sent.append(message)

        async def receive() -> Any:
            return {"type": "http.request", "body": b"", "more_body": False}

        scope = {
            "type": "http",
            "method": "GET",
            "path": "/healthz",
            "headers": [(b"host", host) for host in hosts],
        }
        await serving_app(ScriptedProgram()).asgi()(scope, receive, send)
        assert sent[0]["status"] == 421


async def test_a_name_that_was_allowed_is_answered() -> None:
    allowed: dict[str, Any] = {"allow_hosts": ("Rag.Example.org", "[fe80::1]")}
    assert await status_of("rag.example.org:443", **allowed) == 200
    assert await status_of("[fe80::1]", **allowed) == 200
    assert await status_of("localhost", **allowed) == 200
    assert await status_of("other.example.org", **allowed) == 421


async def test_with_tokens_any_name_is_answered_unless_some_are_listed(tmp_path: Path) -> None:
    path = token_file(tmp_path, ANNA)
    assert await status_of("anything", tokens=TokenFile(path)) == 200
    assert await status_of("[", tokens=TokenFile(path)) == 200
    assert await status_of("[", "/invoke/", tokens=TokenFile(path)) == 404
    listed: dict[str, Any] = {"tokens": TokenFile(path), "allow_hosts": ("known",)}
    assert await status_of("known", **listed) == 200
    assert await status_of("anything", **listed) == 421


@pytest.mark.parametrize("name", ["", "a:80", "http://a", "a b", "*", "::1"])
def test_an_allowed_name_that_is_none_is_an_error(name: str) -> None:
    with pytest.raises(ConfigError, match="--allow-host"):
        ServingOptions(allow_hosts=(name,))

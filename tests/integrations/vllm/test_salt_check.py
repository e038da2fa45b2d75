"""The server's own answer to a request under a salt that is not its own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest
from fastapi import FastAPI

from rag_accel.kv.reuse_request import ReuseRequest
from vllm_rag_accel.serve import SaltCheck

FULL = ReuseRequest("full", ("one text",))
EXACT = ReuseRequest("exact", ("one text",))
TENANTS = ReuseRequest("exact", ("one text",), namespace="t")


def answer(parts: Sequence[bytes]) -> tuple[int, Any]:
    """Return status and body of a server's answer to a body that comes in parts."""
    app = FastAPI()

    async def echo(body: dict[str, Any]) -> dict[str, Any]:
        return body

    app.post("/v1/completions")(echo)
    left = [
        {"type": "http.request", "body": part, "more_body": at + 1 < len(parts)}
        for at, part in enumerate(parts)
    ]
    sent: list[Any] = []

    async def receive() -> Any:
        return left.pop(0) if left else {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/completions",
        "query_string": b"",
        "headers": [(b"content-type", b"application/json")],
    }
    asyncio.run(SaltCheck(app)(scope, receive, send))
    return sent[0]["status"], json.loads(b"".join(one.get("body", b"") for one in sent[1:]))


@pytest.mark.parametrize(
    "fields",
    [
        {"cache_salt": FULL.salt()},
        {**EXACT.fields(), "cache_salt": FULL.salt()},
        {**FULL.fields(), "cache_salt": ReuseRequest("fused", ("one text",)).salt()},
        {"kv_transfer_params": FULL.params()},
        {"kv_transfer_params": TENANTS.params()},
        {"kv_transfer_params": {"rag_accel": "unreadable"}, "cache_salt": FULL.salt()},
    ],
)
def test_a_request_under_the_salt_of_another_is_answered_400(fields: dict[str, Any]) -> None:
    body = json.dumps({"prompt": "one text", **fields}).encode()
    status, said = answer([body[:9], body[9:]])
    assert status == 400
    assert "cache_salt" in said["detail"]
    assert said["detail"].startswith("[RA520] ")


@pytest.mark.parametrize(
    "fields",
    [
        {},
        FULL.fields(),
        EXACT.fields(),
        TENANTS.fields(),
        {"cache_salt": TENANTS.salt()},
        {"cache_salt": "mine"},
        {**EXACT.fields(), "cache_salt": "mine"},
        {"kv_transfer_params": {"rag_accel": "unreadable"}},
        {"kv_transfer_params": {"do_remote_prefill": True}},
    ],
)
def test_other_requests_pass_as_they_are(fields: dict[str, Any]) -> None:
    body = {"prompt": "one text", **fields}
    assert answer([json.dumps(body).encode()]) == (200, body)


@pytest.mark.parametrize(
    "body", [b'{"cache_salt": ', b'["cache_salt"]', b"[" * 100_000 + b'"cache_salt"']
)
def test_what_is_no_request_is_left_to_the_server(body: bytes) -> None:
    status, _ = answer([body])
    assert status in (400, 422)


def test_another_protocol_passes() -> None:
    seen: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append((await receive())["type"])

    async def receive() -> Any:
        return {"type": "lifespan.startup"}

    asyncio.run(SaltCheck(app)({"type": "lifespan"}, receive, None))
    assert seen == ["lifespan.startup"]

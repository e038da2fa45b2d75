"""``/status`` shows a tenant what its accelerator does, as long as the server takes requests."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from headless_browser import CHROMIUM, dumped
from langchain_core.language_models import FakeListChatModel
from langchain_core.prompts import ChatPromptTemplate
from serving_kit import AsgiCall, ScriptedProgram, client_of, served, serving_app, until
from test_tenants_and_tokens import ANNA, bearing, tenant_app, token_file, whose

from rag_accel.serving import status_feed
from rag_accel.serving.app import ServingApp
from rag_accel.serving.tokens import TokenFile

MODEL = "langchain_core.language_models.fake_chat_models.FakeListChatModel"


def chain() -> Any:
    return ChatPromptTemplate.from_template("{input}") | FakeListChatModel(responses=["a"])


def watching(app: ServingApp, asgi: Any, token: str | None = None) -> AsgiCall:
    app._status_feed._interval_s = 0.01
    headers = [] if token is None else [(b"authorization", f"Bearer {token}".encode())]
    return AsgiCall(asgi, "/status/events", b"", headers, method="GET")


def states(call: AsgiCall) -> Iterator[dict[str, Any]]:
    for line in call.body.decode().split("\n\n")[:-1]:
        if line != "data: [DONE]":
            yield json.loads(line.removeprefix("data: "))


async def seconds_until(call: AsgiCall, count: int) -> None:
    for _ in range(500):
        if len([*states(call)]) >= count:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(call.body)


async def test_it_counts_as_metrics_do() -> None:
    app = serving_app(chain())
    asgi = app.asgi()
    async with client_of(asgi) as client:
        for _ in range(3):
            assert (await client.post("/invoke", json={"input": "hi"})).status_code == 200
        call = watching(app, asgi)
        await seconds_until(call, 1)
        metrics = (await client.get("/metrics")).text
    state = next(states(call))
    counted = {one["name"]: one["items"] for one in state["engines"]}
    in_metrics = dict(re.findall(r'engine_items_total{engine="([^"]+)".* (\d+)\.0', metrics))
    assert counted[f"{MODEL} (borrowed)"] == int(in_metrics[MODEL]) == 3
    assert [one["outcome"] for one in state["requests"]] == ["done"] * 3
    app.is_draining = True
    await call.task
    assert call.status == 200


async def test_it_ends_when_the_client_leaves() -> None:
    app = serving_app(ScriptedProgram())
    call = watching(app, app.asgi())
    await seconds_until(call, 2)
    assert app.http.in_flight[""] == 1
    call.leave()
    await call.task
    await until(lambda: not app.http.in_flight[""])


async def test_without_a_token_there_is_a_page_and_no_state(tmp_path: Path) -> None:
    app, tenants = tenant_app(whose(), TokenFile(token_file(tmp_path, ANNA)))
    async with client_of(app) as client:
        page = await client.get("/status")
        assert page.status_code == 200
        assert page.headers["content-security-policy"] == "frame-ancestors 'none'"
        assert (await client.get("/status/events")).status_code == 401
        assert (await client.post("/status/events", headers=bearing(ANNA))).status_code == 405
    tenants.close()


async def test_it_ends_for_a_tenant_whom_no_token_names_any_more(tmp_path: Path) -> None:
    path = token_file(tmp_path, f"{ANNA} anna\n{ANNA[::-1]} bert\n")
    app, tenants = tenant_app(whose(), TokenFile(path))
    call = watching(app, app.asgi(), ANNA)
    await seconds_until(call, 1)
    path.write_text(f"{ANNA[::-1]} bert\n")
    await app.reload_tokens()
    await call.task
    assert "anna" not in app._tenants.names
    tenants.close()


async def test_all_who_watch_see_one_state(monkeypatch: pytest.MonkeyPatch) -> None:
    made = list[int]()

    def status(*_: Any) -> dict[str, Any]:
        made.append(len(made))
        return {"number": len(made)}

    monkeypatch.setattr(status_feed, "status_data", status)
    app = serving_app(ScriptedProgram())
    asgi = app.asgi()
    calls = [watching(app, asgi) for _ in range(8)]
    for call in calls:
        await seconds_until(call, 3)
    app.is_draining = True
    await asyncio.gather(*(call.task for call in calls))
    assert len(made) < sum(len([*states(call)]) for call in calls) / 2


async def test_states_that_take_long_are_made_seldom_whoever_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = list[int]()

    def status(*_: Any) -> dict[str, Any]:
        until = time.thread_time() + 0.02
        while time.thread_time() < until:
            pass
        made.append(len(made))
        return {}

    monkeypatch.setattr(status_feed, "status_data", status)
    feed = status_feed.StatusFeed("title", interval_s=0.001)
    first, second = (feed.events("", lambda: None, str, lambda: True) for _ in range(2))
    assert await anext(first)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(anext(first), 1)
    assert await anext(second)
    assert made == [0]
    await first.aclose()
    await second.aclose()


@pytest.mark.skipif(CHROMIUM is None, reason="no browser here")
def test_a_browser_shows_what_metrics_count() -> None:
    row = rf"<td>{MODEL} \(borrowed\)</td>((?:<td[^>]*>[^<]*</td>)+)"
    with served(chain()) as (host, port, _):
        url = f"http://{host}:{port}"
        for _ in range(2):
            httpx.post(f"{url}/invoke", json={"input": "<b>hi</b>"}).raise_for_status()
        cells = re.search(row, dumped(f"{url}/status", row))
    assert cells is not None
    assert re.findall(r">([^<]*)</td>", cells[1])[:5] == ["", "0", "0", "2", "2"]

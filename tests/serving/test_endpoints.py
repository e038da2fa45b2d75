"""The endpoints over a scripted program: answers, streams, and what clients get wrong."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from typing import Any

import httpx
import openai
import pytest
from serving_kit import (
    HANG_S,
    AsgiCall,
    ScriptedEmbedder,
    ScriptedProgram,
    client_of,
    serving_app,
    until,
)

from rag_accel.engines.devices.remote import parse_embeddings
from rag_accel.errors import (
    BusyError,
    ClosedError,
    DeadlineError,
    RemoteEngineError,
    ServedRequestError,
)
from rag_accel.serving import app as app_module
from rag_accel.serving.plain_values import parse_object
from rag_accel.testing import ManualClock

JSON = {"Content-Type": "application/json"}


def events_of(response: httpx.Response) -> list[str]:
    return [block.removeprefix("data: ") for block in response.text.split("\n\n") if block]


async def test_invoke_answers_with_the_output() -> None:
    async with client_of(serving_app(ScriptedProgram())) as client:
        response = await client.post("/invoke", json={"input": "hello"})
    assert response.json() == {"output": {"said": "hello"}}


async def test_a_stream_has_pieces_and_steps_and_an_end() -> None:
    async with client_of(serving_app(ScriptedProgram())) as client:
        response = await client.post("/stream", json={"input": "two words"})
    assert response.headers["content-type"].startswith("text/event-stream")
    *events, done = events_of(response)
    assert [json.loads(event) for event in events] == [
        {"text": "two"},
        {"text": "words"},
        {"step": {"done": True}},
    ]
    assert done == "[DONE]"


@pytest.mark.parametrize("inputs", [("input",), ("messages",)])
async def test_openai_clients_chat(inputs: tuple[str, ...]) -> None:
    http = client_of(serving_app(ScriptedProgram(inputs)))
    bot = openai.AsyncOpenAI(
        base_url="http://localhost/v1", api_key="none", http_client=http, max_retries=0
    )
    messages: Any = [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": [{"type": "text", "text": "hello"}]},
    ]
    async with bot:
        whole = await bot.chat.completions.create(model="bot", messages=messages)
        text = whole.choices[0].message.content
        assert text is not None
        assert ("Be short." in text) == (inputs == ("messages",))
        assert whole.usage is not None
        assert whole.usage.total_tokens == 5
        stream = await bot.chat.completions.create(
            model="bot", messages=messages, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
        assert "hello" in "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
        assert chunks[-1].usage is not None
        assert chunks[-2].choices[0].finish_reason == "stop"


@pytest.mark.parametrize("coding", ["float", "base64"])
async def test_embeddings_are_what_a_remote_member_reads(coding: str) -> None:
    async with client_of(serving_app(ScriptedEmbedder())) as client:
        body = {"model": "bot", "input": ["a", "bcd"], "encoding_format": coding}
        response = await client.post("/v1/embeddings", json=body)
        query = {"model": "bot", "input": "a", "input_type": "query"}
        one = (await client.post("/v1/embeddings", json=query)).json()
    vectors, model = parse_embeddings(response.content, 2)
    assert vectors[:, 0].tolist() == [1.0, 3.0]
    assert vectors[0, 1] == len("document")
    assert one["data"][0]["embedding"][1] == len("query")
    assert model == "bot"


DEEP = b'{"input":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
BAD_BODIES = {
    "nonsense": (b"{nonsense", 400, "JSON"),
    "no UTF-8": (b'{"input": "\xff"}', 400, "JSON"),
    "half a character": (b'{"input": "\\ud800"}', 400, "JSON"),
    "NaN": (b'{"input": NaN}', 400, "NaN"),
    "a large number": (b'{"input": 1e999}', 400, "too large"),
    "a long number": (b'{"input": ' + b"9" * 5000 + b"}", 400, "JSON"),
    "deep": (b'{"input": ' + b"[" * 40 + b"]" * 40 + b"}", 400, "deeply"),
    "very deep": (DEEP, 400, "JSON"),
    "many lists": (b'{"input": [' + b"[]," * 10_000 + b"1]}", 400, "at most 10000"),
    "many objects": (b'{"input": [' + b"{}," * 10_000 + b"1]}", 400, "at most 10000"),
    "a text without end": (b'{"input": "' + b'\\"' * 400_000 + b"[" * 20_000, 400, "JSON"),
    "a list": (b"[]", 400, "no JSON object"),
    "nothing": (b"", 400, "JSON"),
    "no text": (b'{"input": {"lc": 1}}', 400, "type"),
    "another key": (b'{"input": "a", "config": {}}', 422, "valid: input"),
    "no key": (b"{}", 422, "no 'input'"),
    "a namespace": (b'{"input": "a", "namespace": "other"}', 422, "'namespace'"),
    "too large": (b'{"input": "' + b"a" * 1_100_000 + b'"}', 413, "too large"),
}


@pytest.mark.parametrize("name", BAD_BODIES)
@pytest.mark.parametrize("path", ["/invoke", "/stream"])
async def test_a_bad_body_is_refused_in_words(name: str, path: str) -> None:
    body, status, words = BAD_BODIES[name]
    program = ScriptedProgram()
    async with client_of(serving_app(program)) as client:
        response = await client.post(path, content=body, headers=JSON)
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (status, "RA520")
    assert words in error["message"]
    assert len(response.content) < 1000
    assert program.num_begun == 0


@pytest.mark.parametrize("text", ["[" * 20_000, '\\"[{' * 20_000, "\\" * 20_001 + "[" * 20_000])
async def test_brackets_in_a_text_are_no_lists(text: str) -> None:
    async with client_of(serving_app(ScriptedProgram())) as client:
        answer = await client.post("/invoke", json={"input": text})
    assert answer.json() == {"output": {"said": text}}


@pytest.mark.parametrize(("size", "is_on_loop"), [(60_000, True), (70_000, False)])
async def test_a_large_body_is_read_off_the_loop(
    size: int, is_on_loop: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[threading.Thread] = []

    def parse(body: bytes) -> dict[str, Any]:
        threads.append(threading.current_thread())
        return parse_object(body)

    monkeypatch.setattr(app_module, "parse_object", parse)
    async with client_of(serving_app(ScriptedProgram())) as client:
        answer = await client.post("/invoke", json={"input": "a" * size})
    assert answer.status_code == 200
    assert [thread is threading.current_thread() for thread in threads] == [is_on_loop]


async def test_a_body_in_chunks_without_a_length_is_bounded_too() -> None:
    async def chunks() -> Any:
        for _ in range(40):
            yield b"a" * 1000

    async with client_of(serving_app(ScriptedProgram(), max_body_bytes=10_000)) as client:
        response = await client.post("/invoke", content=chunks(), headers=JSON)
    assert response.status_code == 413


BAD_CHATS: dict[str, tuple[dict[str, Any], int]] = {
    "two answers": ({"n": 2}, 422),
    "a shorter answer": ({"max_tokens": 5}, 422),
    "an end": ({"stop": ["."]}, 422),
    "a seed": ({"seed": 0}, 422),
    "tools": ({"tools": [{"type": "function"}]}, 422),
    "another form": ({"response_format": {"type": "json_object"}}, 422),
    "an unknown key": ({"temprature": 0}, 422),
    "stream as a number": ({"stream": 0}, 400),
    "options of streams as a list": ({"stream_options": []}, 400),
    "another model": ({"model": "gpt"}, 404),
    "a model that is no text": ({"model": ["bot"]}, 404),
    "no messages": ({"messages": []}, 400),
    "the assistant last": ({"messages": [{"role": "assistant", "content": "a"}]}, 400),
    "a tool": ({"messages": [{"role": "tool", "content": "a"}]}, 400),
    "a role that is no text": ({"messages": [{"role": {}, "content": "a"}]}, 400),
    "an image": (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}]},
        400,
    ),
    "content that is no text": ({"messages": [{"role": "user", "content": 3}]}, 400),
    "another option of streams": ({"stream_options": {"x": 1}}, 422),
}


@pytest.mark.parametrize("name", BAD_CHATS)
async def test_a_bad_chat_is_refused(name: str) -> None:
    changed, status = BAD_CHATS[name]
    body = {"model": "bot", "messages": [{"role": "user", "content": "a"}], **changed}
    async with client_of(serving_app(ScriptedProgram())) as client:
        response = await client.post("/v1/chat/completions", json=body)
    assert response.status_code == status, response.text
    assert response.json()["error"]["code"] == "RA520"


@pytest.mark.parametrize("stream", [False, True])
async def test_keys_that_reach_no_program_are_ignored_and_named(stream: bool) -> None:
    asked = {"temperature": 0, "top_p": 0.5, "user": "me", "n": 1, "stop": [], "seed": None}
    body = {"model": "bot", "messages": [{"role": "user", "content": "a"}], "stream": stream}
    async with client_of(serving_app(ScriptedProgram())) as client:
        told = await client.post("/v1/chat/completions", json={**body, **asked})
        plain = await client.post("/v1/chat/completions", json=body)
    assert told.status_code == plain.status_code == 200
    assert told.headers["x-rag-accel-ignored"] == ", ".join(asked)
    assert "x-rag-accel-ignored" not in plain.headers


async def test_a_refused_option_of_the_model_says_where_it_is_set() -> None:
    body = {"model": "bot", "messages": [{"role": "user", "content": "a"}], "max_tokens": 5}
    async with client_of(serving_app(ScriptedProgram())) as client:
        told = (await client.post("/v1/chat/completions", json=body)).json()["error"]["message"]
    assert "'max_tokens'" in told
    assert "set where the object is made" in told


async def test_embeddings_of_another_dimension_are_refused_and_a_user_is_ignored() -> None:
    body = {"model": "bot", "input": "a"}
    async with client_of(serving_app(ScriptedEmbedder())) as client:
        refused = await client.post("/v1/embeddings", json={**body, "dimensions": 4})
        given = await client.post("/v1/embeddings", json={**body, "user": "me"})
    assert (refused.status_code, given.status_code) == (422, 200)
    assert given.headers["x-rag-accel-ignored"] == "user"


async def test_a_model_is_found_by_its_name() -> None:
    async with client_of(serving_app(ScriptedProgram(), name="mine/bot")) as client:
        found = await client.get("/v1/models/mine/bot")
        missing = await client.get("/v1/models/gpt")
        listed = (await client.get("/v1/models")).json()["data"]
    assert [found.json()] == listed
    assert missing.status_code == 404
    assert "valid: mine/bot" in missing.json()["error"]["message"]


async def test_a_long_answer_has_comments_until_its_text_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(app_module, "COMMENT_S", 0.001)
    program = ScriptedProgram(gate=asyncio.Event())
    body = {"model": "bot", "messages": [{"role": "user", "content": "a b"}], "stream": True}
    call = AsgiCall(serving_app(program).asgi(), "/v1/chat/completions", body)
    while call.body.count(b"\n\n: ") < 2:
        await asyncio.wait_for(call.sending.wait(), HANG_S)
        await asyncio.sleep(0.001)
    assert program.gate is not None
    program.gate.set()
    await call.task
    assert call.body.endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize("given", [[], [1], [[1, 2]], 3, None, {}, ["a"] * 2049, [None]])
async def test_texts_that_are_none_are_refused(given: Any) -> None:
    async with client_of(serving_app(ScriptedEmbedder())) as client:
        response = await client.post("/v1/embeddings", json={"model": "bot", "input": given})
    assert response.status_code == 400


async def test_unknown_paths_methods_and_types_are_refused_in_json() -> None:
    async with client_of(serving_app(ScriptedProgram())) as client:
        found = [
            await client.get("/nowhere"),
            await client.get("/invoke"),
            await client.delete("/healthz"),
            await client.post("/v1/embeddings", json={}),
            await client.post("/invoke", content=b"input=a"),
            await client.post("/invoke", content=b"{}", headers={"Content-Type": "text/plain"}),
        ]
    assert [response.status_code for response in found] == [404, 405, 405, 404, 415, 415]
    assert all(response.json()["error"]["code"] == "RA520" for response in found)


async def test_a_program_of_several_inputs_is_no_chat() -> None:
    async with client_of(serving_app(ScriptedProgram(("a", "b")))) as client:
        assert (await client.post("/v1/chat/completions", json={})).status_code == 404
        answer = await client.post("/invoke", json={"b": "2", "a": {"x": [1]}})
        assert answer.status_code == 200


async def test_errors_of_limits_have_statuses_of_their_own() -> None:
    busy = BusyError("an embedder is late", retry_after_s=2.2)
    for error, status in ((busy, 429), (DeadlineError("late"), 504)):
        async with client_of(serving_app(ScriptedProgram(error=error))) as client:
            for path in ("/invoke", "/stream"):
                response = await client.post(path, json={"input": "a"})
                assert response.status_code == status
                assert response.json()["error"]["code"] == error.code
                assert response.headers.get("retry-after") == ("3" if status == 429 else None)


class LimitError(BusyError):
    """A program's own."""

    def __str__(self) -> str:
        return "secret-key-1"


SECRET_ERRORS = [
    (LimitError("secret-key-1", retry_after_s=1e300), 429),
    (BusyError("secret-key-1", retry_after_s=float("inf")), 429),
    (BusyError("secret-key-1", retry_after_s=float("nan")), 429),
    (DeadlineError("late", found="secret-key-1"), 504),
    (ClosedError("closed", hint="secret-key-1"), 503),
    (ServedRequestError("secret-key-1", status=422), 422),
    (ServedRequestError("secret-key-1", status=200), 500),
]


@pytest.mark.parametrize("number", range(len(SECRET_ERRORS)))
@pytest.mark.parametrize("fails_after", [None, 1])
async def test_words_of_errors_from_inside_the_object_are_not_told(
    number: int, fails_after: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    error, status = SECRET_ERRORS[number]
    app = serving_app(ScriptedProgram(error=error, fails_after=fails_after))
    with caplog.at_level(logging.INFO):
        async with client_of(app) as client:
            answer = await client.post("/stream", json={"input": "two words"})
            metrics = (await client.get("/metrics")).text
    assert answer.status_code == (status if fails_after is None else 200)
    assert "secret" not in answer.text
    assert "secret-key-1" in caplog.text
    assert f'route="/stream",status="{status}"}} 1.0' in metrics  # also where it failed late
    assert 1 <= int(answer.headers.get("retry-after", 1)) <= 86_400


async def test_words_of_the_server_itself_are_told() -> None:
    program = ScriptedProgram(gate=asyncio.Event())
    async with client_of(serving_app(program, deadline_s=0.01)) as client:
        late = await client.post("/invoke", json={"input": "a"})
        program.inputs = ("other",)
        bad = await client.post("/invoke", json={"input": "a"})
    assert "0.01 s" in late.json()["error"]["message"]
    assert "'input'" in bad.json()["error"]["message"]


async def test_a_client_that_leaves_in_mid_stream_is_counted_as_gone() -> None:
    program = ScriptedProgram(gate=asyncio.Event())
    app = serving_app(program)
    asgi = app.asgi()
    call = AsgiCall(asgi, "/stream", {"input": "a b"})
    await call.sending.wait()
    call.leave()
    await call.task
    async with client_of(asgi) as client:
        metrics = (await client.get("/metrics")).text
    assert 'route="/stream",status="499"} 1.0' in metrics


@pytest.mark.parametrize(
    "error", [RuntimeError("secret-key-1"), RemoteEngineError("refused", found="secret-key-1")]
)
async def test_any_other_error_is_an_id_that_the_log_explains(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    async with client_of(serving_app(ScriptedProgram(error=error))) as client:
        response = await client.post("/invoke", json={"input": "a"})
    assert response.status_code == 500
    assert "secret" not in response.text
    assert "Traceback" not in response.text
    number = response.json()["error"]["message"].split()[-1]
    assert number in caplog.text
    assert "secret-key-1" in caplog.text


async def test_an_error_in_mid_stream_is_an_event() -> None:
    async with client_of(serving_app(ScriptedProgram(fails_after=1))) as client:
        told = (await client.post("/stream", json={"input": "two words"})).text
        chat = {"model": "bot", "stream": True, "messages": [{"role": "user", "content": "a b"}]}
        said = (await client.post("/v1/chat/completions", json=chat)).text
    for text in (told, said):
        assert "secret" not in text
        assert "server_error" in text
        assert text.endswith("data: [DONE]\n\n")
    assert "\nevent: error\ndata: " in told


async def test_a_deadline_cancels_and_the_shorter_one_counts() -> None:
    program = ScriptedProgram(gate=asyncio.Event())
    app = serving_app(program, deadline_s=0.05)
    async with client_of(app) as client:
        for headers in ({}, {"X-Deadline-S": "0.01"}, {"X-Deadline-S": "1e9"}):
            late = await client.post("/invoke", json={"input": "a"}, headers=headers)
            assert late.status_code == 504
        for bad in ("soon", "-1", "0", "nan", "inf"):
            headers = {"X-Deadline-S": bad}
            assert (
                await client.post("/invoke", json={"input": "a"}, headers=headers)
            ).status_code == 400
    assert program.num_cancelled == program.num_begun == 3
    assert all(seconds is not None and seconds <= 0.05 for seconds in program.deadlines)


async def test_a_deadline_in_mid_stream_ends_it_with_an_event() -> None:
    program = ScriptedProgram(gate=asyncio.Event())
    async with client_of(serving_app(program, deadline_s=0.05)) as client:
        told = (await client.post("/stream", json={"input": "a b"})).text
    assert '{"text": "a"}' in told
    assert "RA320" in told
    assert program.num_cancelled == 1


@pytest.mark.parametrize("path", ["/invoke", "/stream"])
async def test_a_client_that_leaves_has_its_request_cancelled(path: str) -> None:
    program = ScriptedProgram(gate=asyncio.Event())
    app = serving_app(program)
    call = AsgiCall(app.asgi(), path, {"input": "a b"})
    await program.begun.wait()
    if path == "/stream":
        await call.sending.wait()
    call.leave()
    await call.task
    assert (program.num_begun, program.num_cancelled) == (1, 1)
    assert call.status == (200 if path == "/stream" else None)
    assert app.turns.of("").places.running == 0


async def test_a_client_that_leaves_while_it_waits_frees_its_place_in_the_queue() -> None:
    gate = asyncio.Event()
    program = ScriptedProgram(gate=gate)
    app = serving_app(program, max_requests=1)
    asgi = app.asgi()
    first = AsgiCall(asgi, "/invoke", {"input": "a"})
    await program.begun.wait()
    second = AsgiCall(asgi, "/invoke", {"input": "b"})
    await until(lambda: app.turns.of("").waiting == 1)
    second.leave()
    await second.task
    assert app.turns.of("").waiting == 0
    third = AsgiCall(asgi, "/invoke", {"input": "c"})
    await until(lambda: app.turns.of("").waiting == 1)
    gate.set()
    await asyncio.gather(first.task, third.task)
    assert (first.status, third.status) == (200, 200)
    assert app.turns.of("").places.running == app.turns.of("").waiting == 0


async def test_over_capacity_requests_are_refused_with_a_time_to_return() -> None:
    gate = asyncio.Event()
    program = ScriptedProgram(gate=gate)
    app = serving_app(program, max_requests=2)
    asgi = app.asgi()
    calls = [AsgiCall(asgi, "/invoke", {"input": str(number)}) for number in range(8)]
    await until(lambda: sum(call.task.done() for call in calls) == 4)
    gate.set()
    await asyncio.gather(*(call.task for call in calls))
    refused = [call for call in calls if call.status == 429]
    assert len(refused) == 4  # two run, and two wait: a second's work at the first guess
    for call in refused:
        headers = dict(call.sent[0]["headers"])
        assert int(headers[b"retry-after"]) >= 1
        assert json.loads(call.body)["error"]["code"] == "RA310"
    assert program.num_begun == 4


async def test_who_comes_back_in_time_is_served_and_a_newcomer_is_refused() -> None:
    clock, gate = ManualClock(), asyncio.Event()
    app = serving_app(ScriptedProgram(gate=gate), clock=clock, max_requests=1)
    asgi = app.asgi()
    held = [AsgiCall(asgi, "/invoke", {"input": text}) for text in ("runs", "waits")]
    refused = AsgiCall(asgi, "/invoke", {"input": "back"})
    await refused.task
    assert refused.status == 429
    clock.advance(float(dict(refused.sent[0]["headers"])[b"retry-after"]))
    held.append(AsgiCall(asgi, "/invoke", {"input": "back"}))
    await until(lambda: app.turns.of("").waiting == 2)
    newcomer = AsgiCall(asgi, "/invoke", {"input": "new"})
    await newcomer.task
    assert newcomer.status == 429
    gate.set()
    await asyncio.gather(*(call.task for call in held))
    assert [call.status for call in held] == [200] * 3


async def test_a_server_that_drains_refuses_and_says_so() -> None:
    app = serving_app(ScriptedProgram())
    async with client_of(app) as client:
        assert (await client.get("/healthz")).status_code == 200
        app.is_draining = True
        for response in (
            await client.post("/invoke", json={"input": "a"}),
            await client.get("/healthz"),
        ):
            assert response.status_code == 503
            assert response.headers["connection"] == "close"

"""A stream yields the last generation's text as it is made, each piece once."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from typing import Any

import pytest
from accel_harness import (
    DECODER,
    become_idle,
    chain,
    function_graph,
    generation_graph,
    opened,
    reply,
)

from rag_accel import END, START, GraphError, RAGraph
from rag_accel.scheduler.driver import leaf
from rag_accel.testing import FakeEngine, Faults


def _stream(acc: Any, graph: RAGraph, **inputs: Any) -> list[str]:
    return list(acc.stream(graph, **inputs))


def _astream(acc: Any, graph: RAGraph, **inputs: Any) -> list[str]:
    async def main() -> list[str]:
        return [text async for text in acc.astream(graph, **inputs)]

    return asyncio.run(main())


both = pytest.mark.parametrize("stream", [_stream, _astream])
Stream = Callable[..., list[str]]


@both
def test_text_comes_in_pieces_and_each_piece_once(stream: Stream) -> None:
    with opened(llm=FakeEngine(steps=4)) as acc:
        for n in range(50):
            pieces = stream(acc, generation_graph("say {input} please"), input=str(n))
            assert "".join(pieces) == reply(f"say {n} please")


@both
def test_pieces_are_merged_when_the_caller_is_slow(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leaf, "STREAM_ITEMS", 2)
    with opened(llm=FakeEngine(steps=30)) as acc:
        text = reply("a rather long answer to a short question")
        pieces = stream(acc, generation_graph("{input}"), input=text[len("reply to: ") :])
        assert "".join(pieces) == text


@both
def test_only_the_last_generation_is_streamed(stream: Stream) -> None:
    graph = chain(
        lambda g, name: g.add_generation(name, prompt="first {input}"),
        lambda g, name: g.add_generation(name, prompt="then {s0}"),
    )
    with opened(llm=FakeEngine(steps=3)) as acc:
        assert "".join(stream(acc, graph, input="x")) == reply("then " + reply("first x"))


@both
def test_what_a_condition_may_still_send_back_is_not_streamed(stream: Stream) -> None:
    graph = RAGraph(inputs="text")
    graph.add_generation("ask", prompt="{text}", output="text")
    graph.add_edge(START, "ask")
    graph.add_edge("ask", lambda values: END if values["text"].count("reply") == 2 else "ask")
    with opened(llm=FakeEngine(steps=3)) as acc:
        assert "".join(stream(acc, graph, text="x")) == reply(reply("x"))


@both
def test_what_a_condition_has_settled_is_streamed(stream: Stream) -> None:
    graph = RAGraph()
    graph.add_generation("draft", prompt="draft {input}")
    graph.add_generation("better", prompt="better {draft}")
    graph.add_edge(START, "draft").add_edge("better", END)
    graph.add_edge("draft", lambda values: "better" if "hard" in values["input"] else END)
    with opened(llm=FakeEngine(steps=3)) as acc:
        assert stream(acc, graph, input="easy") == [reply("draft easy")]
        pieces = stream(acc, graph, input="hard")
        assert len(pieces) > 1
        assert "".join(pieces) == reply("better " + reply("draft hard"))


@both
def test_two_last_generations_are_not_mixed_up(stream: Stream) -> None:
    graph = RAGraph()
    for name in "ab":
        graph.add_generation(name, prompt=name)
        graph.add_edge(START, name).add_edge(name, END)
    with opened(llm=FakeEngine(steps=3)) as acc:
        assert stream(acc, graph, input="x") == [str({"a": reply("a"), "b": reply("b")})]


@both
def test_a_result_that_was_not_streamed_comes_whole(stream: Stream) -> None:
    with opened(llm=reply) as acc:
        assert stream(acc, generation_graph(), input="x") == [reply("x")]
        assert stream(acc, function_graph(lambda text: [text, text]), input="x") == ["x\nx"]


@both
def test_an_empty_text_is_one_empty_piece(stream: Stream) -> None:
    with opened(llm=lambda prompt: "") as acc:
        assert stream(acc, generation_graph(), input="x") == [""]


@both
def test_an_error_is_raised_after_the_pieces_that_came_before(stream: Stream) -> None:
    error = LookupError("gone")
    engine = FakeEngine(DECODER, steps=3, faults=Faults(lambda request: error))
    taken: list[str] = []

    def sync(acc: Any) -> None:
        for text in acc.stream(generation_graph(), input="x"):
            taken.append(text)

    async def asynchronous(acc: Any) -> None:
        async for text in acc.astream(generation_graph(), input="x"):
            taken.append(text)

    with opened(llm=engine) as acc:
        with pytest.raises(LookupError) as caught:
            sync(acc) if stream is _stream else asyncio.run(asynchronous(acc))
        assert caught.value is error
        assert reply("x").startswith("".join(taken))
        assert taken


@both
def test_nothing_starts_before_the_first_piece_is_asked_for(stream: Stream) -> None:
    engine = FakeEngine()
    with opened(llm=engine) as acc:
        if stream is _stream:
            acc.stream(generation_graph(), wrong="x")
        else:
            acc.astream(generation_graph(), wrong="x")
        with pytest.raises(GraphError):
            stream(acc, generation_graph(), wrong="x")
        assert not engine.served


@pytest.mark.parametrize("close", [True, False], ids=["closed", "dropped"])
def test_an_abandoned_stream_cancels_its_request(close: bool) -> None:
    engine = FakeEngine(DECODER, steps=10_000)
    with opened(llm=engine) as acc:
        pieces = acc.stream(generation_graph("{input}" * 100), input="many words " * 100)
        next(pieces)
        if close:
            pieces.close()  # type: ignore[attr-defined]
        del pieces
        gc.collect()
        become_idle(acc)
        assert not engine._held  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize("how", ["closed", "broken off", "cancelled"])
def test_an_abandoned_async_stream_cancels_its_request(how: str) -> None:
    engine = FakeEngine(DECODER, steps=10_000)
    graph = generation_graph("{input}" * 100)

    async def main() -> None:
        pieces = acc.astream(graph, input="many words " * 100)
        if how == "closed":
            await anext(pieces)
            await pieces.aclose()  # type: ignore[attr-defined]
        elif how == "broken off":
            async for _ in pieces:
                break
            del pieces
            gc.collect()
        else:
            got = asyncio.Event()

            async def consume() -> None:
                async for _ in pieces:
                    got.set()

            task = asyncio.ensure_future(consume())
            await got.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        await asyncio.to_thread(become_idle, acc)
        assert not engine._held  # pyright: ignore[reportPrivateUsage]

    with opened(llm=engine) as acc:
        asyncio.run(main())


def test_a_stream_abandoned_while_a_call_waits_for_its_thread_leaves_nothing() -> None:
    """The consumer's thread would run the next function, but it never comes back."""
    graph = RAGraph()
    graph.add_generation("text", prompt="{input}")
    graph.add_function("side", lambda text: text, inputs="input")
    graph.add_function("after", lambda text: text, inputs="side")
    graph.add_edge(START, ["text", "side"])
    graph.add_edge("text", END).add_edge("side", "after").add_edge("after", END)
    with opened(llm=FakeEngine(steps=50)) as acc:
        for _ in range(50):
            pieces = acc.stream(graph, input="some words")
            next(pieces)
            pieces.close()  # type: ignore[attr-defined]

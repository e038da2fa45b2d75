"""A stream of an adopted Hugging Face model that fails ends with its error, or says what it is."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

pytest.importorskip("transformers")
pytest.importorskip("langchain_huggingface")

from fake_runner import tokenizer
from hf_callers import (
    QUESTIONS,
    continued,
    end_streams,
    fail_forwards,
    own_model,
    own_pipeline,
    record_plain,
)
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.runnables import RunnablePassthrough
from langchain_huggingface import ChatHuggingFace, HuggingFacePipeline
from lc_reuse_programs import PROMPT, Orders, joined
from transformers import TextIteratorStreamer, TextStreamer

from langchain_rag_accel import accelerate
from rag_accel import Accelerator
from rag_accel.engines.llm.local.model.runner import PackedRunner
from rag_accel.errors import DeadlineError

WAIT_S = 20.0
LONG: dict[str, Any] = {"max_new_tokens": 200, "eos_token_id": [10_000]}


@pytest.fixture(scope="module")
def llm() -> HuggingFacePipeline:
    """Give a model that tests leave as it is."""
    return HuggingFacePipeline(pipeline=own_pipeline(own_model()))


def chat_of(llm: HuggingFacePipeline, **settings: Any) -> ChatHuggingFace:
    return ChatHuggingFace(llm=llm, tokenizer=tokenizer(), model_id="tiny", **settings)


async def _astreamed(made: Any) -> list[Any]:
    return [piece async for piece in made.astream(QUESTIONS[1])]


ENTRIES: dict[str, Callable[[HuggingFacePipeline, Accelerator], Any]] = {
    "stream": lambda llm, accelerator: list(
        accelerate(llm, accelerator=accelerator).stream(QUESTIONS[1])
    ),
    "astream": lambda llm, accelerator: asyncio.run(
        _astreamed(accelerate(llm, accelerator=accelerator))
    ),
    "chain": lambda llm, accelerator: list(
        accelerate(RunnablePassthrough() | llm, accelerator=accelerator).stream(QUESTIONS[1])
    ),
    "chat": lambda llm, accelerator: list(
        accelerate(chat_of(llm), accelerator=accelerator).stream(QUESTIONS[1])
    ),
    "chat that streams by itself": lambda llm, accelerator: accelerate(
        chat_of(llm, streaming=True), accelerator=accelerator
    ).invoke(QUESTIONS[1]),
}


@pytest.mark.parametrize("after", [0, 2], ids=["before the first token", "behind some"])
@pytest.mark.parametrize("entry", ENTRIES)
def test_an_error_of_the_callers_ends_a_stream_in_its_reader(
    entry: str, after: int, llm: HuggingFacePipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = record_plain(monkeypatch)
    end_streams(monkeypatch, DeadlineError, after)
    with Accelerator() as accelerator, pytest.raises(DeadlineError, match="no more"):
        ENTRIES[entry](llm, accelerator)
    assert plain == []


def test_what_was_given_before_an_error_is_the_beginning_of_the_answer(
    llm: HuggingFacePipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = "".join(llm.stream(QUESTIONS[1]))
    end_streams(monkeypatch, DeadlineError, after=3)
    pieces: list[str] = []
    with Accelerator() as accelerator, pytest.raises(DeadlineError):
        pieces.extend(accelerate(llm, accelerator=accelerator).stream(QUESTIONS[1]))
    assert pieces
    assert whole.startswith("".join(pieces))


def test_the_deadline_of_a_stream_is_kept(
    llm: HuggingFacePipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, ended = record_plain(monkeypatch), threading.Event()
    with Accelerator(deadline_s=0.3) as accelerator:
        fast = accelerate(llm, accelerator=accelerator)
        _hold_forwards(monkeypatch, ended, after=30)
        with pytest.raises(DeadlineError):
            list(fast.stream(QUESTIONS[1], pipeline_kwargs=LONG))
        ended.set()
    assert plain == []


def _hold_forwards(patch: pytest.MonkeyPatch, until: threading.Event, after: int) -> None:
    run, forwards = PackedRunner.run, iter(range(10_000))

    def holding(runner: Any, rows: Any) -> Any:
        if next(forwards) >= after:
            until.wait(WAIT_S)
        return run(runner, rows)

    patch.setattr(PackedRunner, "run", holding)


def test_a_reader_who_leaves_starts_no_plain_call(
    llm: HuggingFacePipeline, accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = record_plain(monkeypatch)
    left = threading.Event()
    fast = accelerate(llm, accelerator=accelerator)
    fast.invoke(QUESTIONS[1])  # its engine and their threads are there
    before = set(threading.enumerate())
    _hold_forwards(monkeypatch, left, after=4)
    pieces: Any = fast.stream(QUESTIONS[1])
    next(pieces)
    started = set(threading.enumerate()) - before
    pieces.close()
    left.set()
    for thread in started:
        thread.join(WAIT_S)
    assert started
    assert plain == []


def test_a_strict_accelerator_raises_what_its_engine_raised(
    llm: HuggingFacePipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    end_streams(monkeypatch, RuntimeError)
    with Accelerator(strict=True) as accelerator, pytest.raises(RuntimeError, match="no more"):
        ENTRIES["stream"](llm, accelerator)


# A streamer of the program's own


def invoke_with(llm: HuggingFacePipeline, streamer: Any) -> str:
    with Accelerator() as accelerator:
        fast = accelerate(llm, accelerator=accelerator)
        return fast.invoke(QUESTIONS[1], pipeline_kwargs={"streamer": streamer})


def test_a_call_that_has_a_streamer_raises_where_it_was_made(
    llm: HuggingFacePipeline,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    end_streams(monkeypatch, DeadlineError)
    with pytest.raises(DeadlineError):
        invoke_with(llm, TextStreamer(tokenizer()))
    assert QUESTIONS[1] in capsys.readouterr().out


def test_a_call_and_the_reader_of_its_streamer_both_raise(
    llm: HuggingFacePipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    end_streams(monkeypatch, DeadlineError)
    streamer = TextIteratorStreamer(tokenizer(), timeout=WAIT_S)
    with ThreadPoolExecutor(1) as threads:
        call = threads.submit(invoke_with, llm, streamer)
        with pytest.raises(DeadlineError):
            list(streamer)
        with pytest.raises(DeadlineError):
            call.result(WAIT_S)


def test_prompts_of_a_call_take_turns_at_its_streamer(
    llm: HuggingFacePipeline, accelerator: Accelerator, capsys: pytest.CaptureFixture[str]
) -> None:
    options: dict[str, Any] = {"pipeline_kwargs": {"streamer": TextStreamer(tokenizer())}}
    llm.batch(QUESTIONS[:3], **options)
    plain = capsys.readouterr().out
    accelerate(llm, accelerator=accelerator).batch(QUESTIONS[:3], **options)
    assert capsys.readouterr().out == plain


# Engines that fail


@pytest.fixture
def reusing() -> Iterator[Accelerator]:
    with Accelerator(kv_reuse="full") as made:
        yield made


def chain(llm: Any) -> Any:
    return {"context": Orders() | joined, "input": RunnablePassthrough()} | PROMPT | llm


def test_a_stream_of_approximate_tokens_goes_on_behind_them(
    llm: HuggingFacePipeline, reusing: Accelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = record_plain(monkeypatch)
    fast = accelerate(chain(llm), accelerator=reusing)
    fast.invoke("abc")
    fail_forwards(monkeypatch)
    pieces = list(fast.stream("cab"))
    assert "".join(pieces) == continued(llm.pipeline.model, *plain)


def test_a_stream_that_ends_behind_approximate_tokens_says_so(
    llm: HuggingFacePipeline, reusing: Accelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast = accelerate(chain(llm), accelerator=reusing)
    end_streams(monkeypatch, DeadlineError)
    failed = Failed()
    with pytest.raises(DeadlineError):
        list(fast.stream("abc", config={"callbacks": [failed]}))
    ((generation,),) = failed.response.generations
    assert generation.text
    assert generation.generation_info == {"kv_reuse": {"mode": "full", "exact": False}}


class Failed(BaseCallbackHandler):
    """A callback that keeps what a model had given when it failed."""

    response: Any = None

    def on_llm_error(self, error: BaseException, **kwargs: Any) -> None:
        self.response = kwargs["response"]


def test_nothing_is_added_to_an_answer_whose_engine_fails_behind_its_last_token(
    llm: HuggingFacePipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, whole = record_plain(monkeypatch), "".join(llm.stream(QUESTIONS[1]))
    end_streams(monkeypatch, RuntimeError, after=None)
    with Accelerator() as accelerator:
        fast = accelerate(llm, accelerator=accelerator)
        assert "".join(fast.stream(QUESTIONS[1])) == whole
    assert plain == []

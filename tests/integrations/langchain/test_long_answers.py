"""Answers several times as long as ``step_timeout_s``, and a hanging forward, on a given clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

pytest.importorskip("transformers")

from fake_runner import tokenizer
from idle_accelerators import soon_idle
from tiny_chat import model

from langchain_rag_accel import ChatRagAccel
from rag_accel import Accelerator, EngineLostError
from rag_accel.engines.llm.local import engine as local_engine
from rag_accel.engines.llm.local.model.runner import PackedRunner
from rag_accel.scheduler.driver import loop
from rag_accel.scheduler.messages import Tick
from rag_accel.testing import ManualClock

STEP_TIMEOUT_S = 12.0
FORWARD_S = 1.0
TOKENS = 4 * int(STEP_TIMEOUT_S / FORWARD_S)
QUESTIONS = [f"Which of the documents says {number}?" for number in range(8)]


@dataclass
class Slow:
    """The accelerator, and the time that each forward takes on its clock.

    Args:
        accelerator: whose local models are slow.
        clock: of its driver and engines.
        forwards: times of the first ones, where they are not ``FORWARD_S``.
    """

    accelerator: Accelerator
    clock: ManualClock
    forwards: list[float] = field(default_factory=list[float])

    def chat(self, max_tokens: int = TOKENS) -> ChatRagAccel:
        return ChatRagAccel(
            model=model(),
            tokenizer=tokenizer(),
            max_tokens=max_tokens,
            accelerator=self.accelerator,
        )

    def pass_time(self) -> None:
        """Let one forward take its time, and the driver look at the clock."""
        self.clock.advance(self.forwards.pop(0) if self.forwards else FORWARD_S)
        driver: Any = self.accelerator._driver
        driver.post(Tick())
        driver.ask(lambda: None)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[Slow]:
    clock = ManualClock()
    for module in (loop, local_engine):
        monkeypatch.setattr(module, "MonotonicClock", lambda: clock)
    with Accelerator(strict=True, step_timeout_s=STEP_TIMEOUT_S) as accelerator:
        made = Slow(accelerator, clock)
        run = PackedRunner.run

        def run_slowly(runner: PackedRunner, rows: Any) -> Any:
            logits = run(runner, rows)
            made.pass_time()
            return logits

        monkeypatch.setattr(PackedRunner, "run", run_slowly)
        yield made
        assert soon_idle(accelerator)


def _stream(chat: ChatRagAccel, question: str) -> str:
    return "".join(str(chunk.content) for chunk in chat.stream(question))


def _invoke(chat: ChatRagAccel, question: str) -> str:
    return str(chat.invoke(question).content)


def _batch(chat: ChatRagAccel, question: str) -> str:
    return str(chat.batch([question])[0].content)


def text_of(question: str) -> str:
    """Return what the model says with all the time there is."""
    with Accelerator(strict=True) as accelerator:
        chat = ChatRagAccel(
            model=model(), tokenizer=tokenizer(), max_tokens=TOKENS, accelerator=accelerator
        )
        return str(chat.invoke(question).content)


@pytest.mark.parametrize("ask", [_invoke, _stream, _batch])
def test_an_answer_may_take_four_times_as_long_as_a_hang(
    ask: Callable[[ChatRagAccel, str], str], slow: Slow
) -> None:
    expected = text_of(QUESTIONS[0])
    began = slow.clock.now()
    assert ask(slow.chat(), QUESTIONS[0]) == expected
    assert slow.clock.now() - began > 4 * STEP_TIMEOUT_S


def test_a_forward_that_stands_still_is_noticed(slow: Slow) -> None:
    chat = slow.chat(max_tokens=8)
    chat.invoke(QUESTIONS[1])  # the model's checks take forwards of their own
    slow.forwards = [FORWARD_S, FORWARD_S, STEP_TIMEOUT_S]
    with pytest.raises(EngineLostError):
        chat.invoke(QUESTIONS[0])
    assert soon_idle(slow.accelerator)  # the step has come back, and the engine with it
    assert chat.invoke(QUESTIONS[0]).content

"""Callers of a chain over a scripted endpoint that limits its rate: how many get an answer, when.

``python -m bench.limited_chats URL NAME CALLERS`` is a process of accelerated callers. It asks
once, prints a line, waits for a line on standard input, lets all callers ask at once, and prints
what they got as JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from langchain_core.messages import BaseMessage
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnableLambda

from bench.arms import bench_accelerator
from bench.embedding.hosted_server import scripted_text
from bench.serving.processes import HostedServer, LineProcess
from langchain_rag_accel import accelerate

#: of an answer of the scripted endpoint
TOKENS = 4
MAX_RETRIES = 2

Chain = Runnable[Any, tuple[str, float]]


@dataclass(frozen=True, slots=True)
class Round:
    """What callers got who began together.

    Args:
        questions: one of each caller.
        answers: in the same order; None for a caller whose call was refused to the end.
        ended_at: when each caller had its answer or its error, in seconds of ``time.monotonic``,
            which all processes share.
        began_at: when they began.
    """

    questions: Sequence[str]
    answers: Sequence[str | None]
    ended_at: Sequence[float]
    began_at: float

    @property
    def num_answered(self) -> int:
        """Return how many callers got an answer."""
        return sum(answer is not None for answer in self.answers)

    @property
    def num_different(self) -> int:
        """Return how many answers are not the endpoint's to that question."""
        return sum(
            answer is not None and answer != scripted_text(question, TOKENS)
            for question, answer in zip(self.questions, self.answers, strict=True)
        )

    @property
    def wall_s(self) -> float:
        """Return the seconds until the last caller had its answer or its error."""
        return max(self.ended_at) - self.began_at

    @property
    def latencies_s(self) -> list[float]:
        """Return the seconds of each caller."""
        return [ended_at - self.began_at for ended_at in self.ended_at]


def limited_server(answer_s: float, **rate: float) -> HostedServer:
    """Return a server of chats that answers after so many seconds.

    Args:
        answer_s: seconds of each answer.
        rate: ``rate`` in calls a second and ``burst``; without them no call is refused.
    """
    return HostedServer(step_s=answer_s / TOKENS, tokens=TOKENS, **rate)


@contextmanager
def chat_chain(base_url: str) -> Iterator[Runnable[Any, BaseMessage]]:
    """Give a prompt before a ``ChatOpenAI`` as a program has it, whose client asks three times."""
    from langchain_openai import ChatOpenAI
    from pydantic import SecretStr

    key = SecretStr("none")
    model = ChatOpenAI(model="scripted", base_url=base_url, api_key=key, max_retries=MAX_RETRIES)
    try:
        yield ChatPromptTemplate.from_template("{question}") | model
    finally:
        model.root_client.close()


def timed_chain(chain: Runnable[Any, BaseMessage]) -> Chain:
    """Return the chain with answers that have their time, also in a batch."""
    return chain | RunnableLambda(_answered)


def _answered(message: BaseMessage) -> tuple[str, float]:
    return str(message.content), time.monotonic()


async def ask_all(chain: Chain, questions: Sequence[str]) -> Round:
    """Let a task for each question ask it, all at once."""
    began_at = time.monotonic()
    ended = await asyncio.gather(*(_ask(chain, question) for question in questions))
    return Round(questions, [text for text, _ in ended], [at for _, at in ended], began_at)


async def ask_batch(chain: Chain, questions: Sequence[str]) -> Round:
    """Ask all questions in one batch; a lost call counts as ended with the batch."""
    began_at = time.monotonic()
    found = await chain.abatch(list(questions), return_exceptions=True)
    ended = [_lost(each) if isinstance(each, Exception) else each for each in found]
    return Round(questions, [text for text, _ in ended], [at for _, at in ended], began_at)


async def _ask(chain: Chain, question: str) -> tuple[str | None, float]:
    try:
        return await chain.ainvoke(question)
    except Exception as error:
        return _lost(error)


def _lost(error: Exception) -> tuple[None, float]:
    """Return what a caller gets whose call was refused to the end; raise any other error."""
    from openai import RateLimitError

    if not isinstance(error, RateLimitError):
        raise error
    return None, time.monotonic()


class CallerProcess(LineProcess):
    """A process of accelerated callers, which has asked once and waits."""

    def __init__(self, base_url: str, name: str, callers: int) -> None:
        super().__init__("bench.limited_chats", base_url, name, str(callers))

    def play(self) -> Round:
        """Let its callers ask."""
        return Round(**json.loads(self.asked("ask")))


def main(argv: Sequence[str]) -> None:
    """Be a process of callers."""
    base_url, name, callers = argv
    questions = [f"question {number} of {name}" for number in range(int(callers))]

    async def play() -> Round:
        with chat_chain(base_url) as chain, bench_accelerator() as accelerator:
            fast = accelerate(timed_chain(chain), accelerator=accelerator)
            await fast.ainvoke(f"the first of {name}")
            print("ready", flush=True)
            sys.stdin.readline()
            return await ask_all(fast, questions)

    print(json.dumps(asdict(asyncio.run(play()))), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])

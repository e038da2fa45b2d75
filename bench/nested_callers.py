"""Time callers whose sync retriever runs another one on a loop of its own, in a child process.

``Outer`` has only a sync method, so that an async caller runs it in a thread; that thread runs a
loop of its own, on which ``Inner``, which has only a sync method as well, needs a thread again. A
pool of threads that both have to share can stand still for ever. A process that does is ended from
outside: ``time_nested`` runs ``python -m bench.nested_callers`` and gives it a limited time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever

from bench.arms import bench_accelerator
from bench.measure import Pairs, alternate_async, timed_async
from langchain_rag_accel import accelerate
from rag_accel.errors import EngineError, RagAccelError

INNER_S = 0.05
MODULE = "bench.nested_callers"
_ROOT = Path(__file__).resolve().parent.parent


class Inner(BaseRetriever):
    """A retriever of one document after 50 ms."""

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun
    ) -> list[Document]:
        time.sleep(INNER_S)
        return [Document(f"about {query}")]


class Outer(BaseRetriever):
    """A retriever of what ``inner`` finds, awaited on a loop made for the call."""

    inner: BaseRetriever

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun
    ) -> list[Document]:
        return asyncio.run(self.inner.ainvoke(query))


@dataclass(frozen=True, slots=True)
class Nested:
    """The seconds that all callers take together, and how many answers were wrong."""

    total_s: Pairs[float]
    num_answers: int
    num_different: int


def time_nested(callers: int, pairs: int, limit_s: float) -> Nested:
    """Time all callers together, plain and accelerated.

    Raises:
        EngineError: if the process fails, or has not ended after ``limit_s`` seconds.
    """
    line = [sys.executable, "-m", MODULE, str(callers), str(pairs)]
    where = f"{callers} nested callers"
    try:
        ended = subprocess.run(
            line, cwd=_ROOT, timeout=limit_s, check=False, capture_output=True, text=True
        )
    except subprocess.TimeoutExpired as error:
        raise EngineError(
            "nested callers did not end",
            where=where,
            found=f"nothing after {limit_s:g} s",
            hint="a pool that callers and what they call share has stood still",
        ) from error
    if ended.returncode != 0:
        raise EngineError("nested callers failed", where=where, found=ended.stderr.strip())
    found = json.loads(ended.stdout)
    total_s = Pairs(tuple(found["plain"]), tuple(found["accelerated"]))
    return Nested(total_s, found["num_answers"], found["num_different"])


def main(argv: Sequence[str] | None = None) -> int:
    """Measure in this process and print the seconds as JSON."""
    parser = argparse.ArgumentParser(prog=f"python -m {MODULE}", description=__doc__)
    parser.add_argument("callers", type=int)
    parser.add_argument("pairs", type=int)
    arguments = parser.parse_args(argv)
    try:
        found = asyncio.run(_measure(arguments.callers, arguments.pairs))
    except RagAccelError as error:
        print(error, file=sys.stderr)
        return 2
    total_s = {"plain": found.total_s.plain, "accelerated": found.total_s.other}
    counts = {"num_answers": found.num_answers, "num_different": found.num_different}
    print(json.dumps({**total_s, **counts}))
    return 0


async def _measure(callers: int, pairs: int) -> Nested:
    asked = [f"question {number}" for number in range(callers)]
    wanted = [[Document(f"about {query}")] for query in asked]
    plain = Outer(inner=Inner())
    answers = different = 0

    async def ask_all(retriever: BaseRetriever) -> None:
        nonlocal answers, different
        found = await asyncio.gather(*map(retriever.ainvoke, asked))
        answers += len(found)
        different += sum(one != other for one, other in zip(found, wanted, strict=True))

    with bench_accelerator() as accelerator:
        fast = accelerate(plain, accelerator=accelerator)
        total_s = await alternate_async(
            timed_async(lambda _: ask_all(plain)),
            timed_async(lambda _: ask_all(fast)),
            pairs,
            warm_up=1,
        )
    return Nested(total_s, answers, different)


if __name__ == "__main__":
    sys.exit(main())

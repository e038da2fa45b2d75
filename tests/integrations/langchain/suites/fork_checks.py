"""Fork in a process of its own and say what the child and the parent saw, as JSON.

Not collected: ``test_fork.py`` runs it.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.append(str(Path(__file__).parents[3]))

from forked_child import in_child
from langchain_core.runnables import RunnableLambda
from lc_fakes import AsyncChat, SyncRetriever
from lc_programs import QUESTION, model_chain

from langchain_rag_accel import accelerate, activate
from langchain_rag_accel.coverage import coverage
from rag_accel import Accelerator
from rag_accel.accelerator import default_accelerator

INPUT = {"input": "question one"}


def scheduled(call: Callable[[], Any]) -> list[Any]:
    """Return a result and how many leaves were scheduled for it."""
    with coverage() as meter:
        result = call()
    return [result, sum(row.scheduled for row in meter.rows())]


def main() -> None:
    """Run all checks."""
    chain = accelerate(model_chain())
    expected = chain.invoke(INPUT)
    explicit = Accelerator()
    bound = accelerate(model_chain(), accelerator=explicit)
    bound.invoke(INPUT)
    retriever = accelerate(SyncRetriever(), accelerator=explicit)
    asyncio.run(retriever.ainvoke("x"))
    first = default_accelerator()

    def fork_inside(given: Any) -> Any:
        return in_child(lambda: scheduled(lambda: AsyncChat().invoke(given["input"]).content))

    inside = accelerate(RunnableLambda(fork_inside) | (lambda found: found))
    kept = accelerate(QUESTION | AsyncChat())
    with activate(), activate(explicit):
        in_block = in_child(lambda: scheduled(lambda: AsyncChat().invoke("x").content))
    found = {
        "expected": expected,
        "default": in_child(lambda: scheduled(lambda: chain.invoke(INPUT))),
        "default async": in_child(lambda: asyncio.run(chain.ainvoke(INPUT))),
        "fresh default": in_child(lambda: default_accelerator() is not first),
        "explicit": in_child(lambda: bound.invoke(INPUT)),
        "explicit stream": in_child(lambda: list(bound.stream(INPUT))),
        "explicit sync leaf from a loop": in_child(lambda: asyncio.run(retriever.ainvoke("x"))),
        "explicit close": in_child(explicit.close),
        "inside a run": inside.invoke(INPUT),
        "in a block of an explicit one": in_block,
        "parent afterwards": scheduled(lambda: chain.invoke(INPUT)),
        "explicit parent afterwards": scheduled(lambda: bound.invoke(INPUT)),
    }
    assert kept is not None
    print(json.dumps(found))


if __name__ == "__main__":
    main()

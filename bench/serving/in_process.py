"""Call an object where it is, on one event loop: ``python -m bench.serving.in_process NAME``.

Each line of standard input is one run, each line of standard output what came of it, as JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Sequence
from typing import Any

from bench.serving import objects
from rag_accel.serving.plain_values import as_json


async def load(fast: Any, name: str, questions: Sequence[str], connections: int) -> dict[str, Any]:
    """Return answers, latencies and the wall time, in seconds; so many callers ask in turn."""
    answers, latencies = list[Any]([None] * len(questions)), [0.0] * len(questions)
    waiting = iter(range(len(questions)))

    async def ask() -> None:
        for at in waiting:
            value = objects.value_of(name, questions[at])
            started = time.perf_counter()
            answers[at] = await fast.ainvoke(value)
            latencies[at] = time.perf_counter() - started

    started = time.perf_counter()
    await asyncio.gather(*(ask() for _ in range(connections)))
    wall = time.perf_counter() - started
    told = [json.dumps(as_json(answer), sort_keys=True) for answer in answers]
    return {"answers": told, "latencies_s": latencies, "wall_s": wall}


def main() -> None:
    """Run what the lines say."""
    name = sys.argv[1]
    fast = getattr(objects, name)()
    with asyncio.Runner() as runner:
        for line in sys.stdin:
            print(json.dumps(runner.run(load(fast, name, **json.loads(line)))), flush=True)


if __name__ == "__main__":
    main()

"""Ask a server over HTTP, from a process of its own: ``python -m bench.serving.client``.

Each line of standard input is one run, each line of standard output what came of it, as JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Sequence
from typing import Any

import aiohttp

LIMIT_S = 120.0


async def load(url: str, questions: Sequence[str], connections: int) -> dict[str, Any]:
    """Return answers, latencies and the wall time, in seconds; each connection asks in turn."""
    answers, latencies = [""] * len(questions), [0.0] * len(questions)
    waiting = iter(range(len(questions)))

    async def ask(session: aiohttp.ClientSession) -> None:
        for at in waiting:
            started = time.perf_counter()
            async with session.get(url, params={"question": questions[at]}) as response:
                response.raise_for_status()
                answers[at] = await response.text()
            latencies[at] = time.perf_counter() - started

    connector = aiohttp.TCPConnector(limit=connections)
    timeout = aiohttp.ClientTimeout(total=LIMIT_S)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        started = time.perf_counter()
        await asyncio.gather(*(ask(session) for _ in range(connections)))
        wall = time.perf_counter() - started
    return {"answers": answers, "latencies_s": latencies, "wall_s": wall}


def main() -> None:
    """Run what the lines say."""
    for line in sys.stdin:
        print(json.dumps(asyncio.run(load(**json.loads(line)))), flush=True)


if __name__ == "__main__":
    main()

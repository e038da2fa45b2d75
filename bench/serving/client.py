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
_JSON = {"Content-Type": "application/json"}


async def load(
    url: str, questions: Sequence[str], connections: int, input_name: str | None = None
) -> dict[str, Any]:
    """Return answers, latencies and the wall time, in seconds; each connection asks in turn.

    With ``input_name`` a question is that key of a JSON object, and an answer the ``output`` of
    another one, as JSON with sorted keys; answers are read outside of the time.
    """
    answers, latencies = [""] * len(questions), [0.0] * len(questions)
    waiting = iter(range(len(questions)))

    async def ask(session: aiohttp.ClientSession) -> None:
        for at in waiting:
            started = time.perf_counter()
            async with request(session, questions[at]) as response:
                response.raise_for_status()
                answers[at] = await response.text()
            latencies[at] = time.perf_counter() - started

    def request(session: aiohttp.ClientSession, question: str) -> Any:
        if input_name is None:
            return session.get(url, params={"question": question})
        return session.post(url, data=json.dumps({input_name: question}), headers=_JSON)

    connector = aiohttp.TCPConnector(limit=connections)
    timeout = aiohttp.ClientTimeout(total=LIMIT_S)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        started = time.perf_counter()
        await asyncio.gather(*(ask(session) for _ in range(connections)))
        wall = time.perf_counter() - started
    if input_name is not None:
        answers = [json.dumps(json.loads(text)["output"], sort_keys=True) for text in answers]
    return {"answers": answers, "latencies_s": latencies, "wall_s": wall}


def main() -> None:
    """Run what the lines say."""
    for line in sys.stdin:
        print(json.dumps(asyncio.run(load(**json.loads(line)))), flush=True)


if __name__ == "__main__":
    main()

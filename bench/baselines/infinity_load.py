"""Put infinity-emb under the load of concurrent callers, in an environment of its own.

Run by that environment's interpreter, with the path of a model and the texts of a batch as
arguments; nothing of ours is imported. Each line read is a load to run, each line written what came
of it: vectors, the seconds of each call and of all.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
import time
from typing import Any

Load = dict[str, Any]


def main() -> None:
    """Serve loads until the input ends."""
    from infinity_emb import AsyncEmbeddingEngine, EngineArgs, SyncEngineArray

    # What a library prints must not come between the lines that are read.
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    path, batch = sys.argv[1], int(sys.argv[2])
    args = EngineArgs(
        model_name_or_path=path,
        engine="torch",
        device="cpu",
        batch_size=batch,
        model_warmup=False,
    )
    sync = SyncEngineArray.from_args([args])
    name = args.served_model_name
    print(json.dumps({"ready": True}), file=out, flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        if asked["shape"] == "threads":
            found = _from_threads(sync, name, asked["texts"], asked["users"])
        else:
            engine = AsyncEmbeddingEngine.from_args(args)
            found = asyncio.run(_from_tasks(engine, asked["texts"], asked["users"]))
        print(json.dumps(found), file=out, flush=True)
    sync.stop()


def _from_threads(engines: Any, name: str, texts: list[str], users: int) -> Load:
    answers: list[Any] = [None] * len(texts)
    latencies = [0.0] * len(texts)
    waiting = iter(range(len(texts)))
    lock = threading.Lock()

    def user() -> None:
        while True:
            with lock:
                index = next(waiting, None)
            if index is None:
                return
            started = time.perf_counter()
            vectors, _ = engines.embed(model=name, sentences=[texts[index]]).result()
            answers[index] = vectors[0].tolist()
            latencies[index] = time.perf_counter() - started

    threads = [threading.Thread(target=user) for _ in range(users)]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return _load(answers, latencies, time.perf_counter() - started)


async def _from_tasks(engine: Any, texts: list[str], users: int) -> Load:
    answers: list[Any] = [None] * len(texts)
    latencies = [0.0] * len(texts)
    waiting = iter(range(len(texts)))

    async def user() -> None:
        for index in waiting:
            started = time.perf_counter()
            vectors, _ = await engine.embed(sentences=[texts[index]])
            answers[index] = vectors[0].tolist()
            latencies[index] = time.perf_counter() - started

    async with engine:
        started = time.perf_counter()
        await asyncio.gather(*(user() for _ in range(users)))
        return _load(answers, latencies, time.perf_counter() - started)


def _load(answers: list[Any], latencies: list[float], wall_s: float) -> Load:
    return {"answers": answers, "latencies_s": latencies, "wall_s": wall_s}


if __name__ == "__main__":
    main()

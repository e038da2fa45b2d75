"""Answer prompts by llama.cpp's server, which batches continuously, in an environment of its own.

Run by that environment's interpreter, with a GGUF file and the threads as arguments; nothing of
ours is imported. Lines are those of ``genai_load.py``. The server is called in its process.
"""

from __future__ import annotations

import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

SLOTS, TOKENS_A_SLOT = 8, 1024


def main() -> None:
    """Answer until the input ends."""
    import xllamacpp

    # What a library prints must not come between the lines that are read.
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    parameters: Any = xllamacpp.CommonParams()
    parameters.model.path, threads = sys.argv[1], int(sys.argv[2])
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = threads
    parameters.n_parallel, parameters.n_ctx = SLOTS, SLOTS * TOKENS_A_SLOT
    server = xllamacpp.Server(parameters)
    print(json.dumps({"ready": True}), file=out, flush=True)
    with ThreadPoolExecutor(SLOTS) as pool:
        for line in sys.stdin:
            asked, started = json.loads(line), time.perf_counter()

            def answer(ids: list[int], asked: Any = asked, started: float = started) -> Any:
                question = {
                    **{"prompt": ids, "n_predict": asked["tokens"], "temperature": 0.0},
                    **{"cache_prompt": False, "return_tokens": True, "verbose": True},
                }
                found: Any = server.handle_completions(question)
                return found["__verbose"]["tokens"], time.perf_counter() - started

            found = list(pool.map(answer, asked["prompts"]))
            told = {
                "answers": [ids for ids, _ in found],
                "latencies_s": [taken for _, taken in found],
                "wall_s": time.perf_counter() - started,
            }
            print(json.dumps(told), file=out, flush=True)


if __name__ == "__main__":
    main()

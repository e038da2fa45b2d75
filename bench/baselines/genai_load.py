"""Answer prompts by openvino-genai's continuous batching, in an environment of its own.

Run by that environment's interpreter, with the folder of an exported model, the precision of what
is computed and the threads as arguments; nothing of ours is imported. Each line read has ids of
prompts that are answered at once, each line written the ids of the answers and the seconds of each
and of all.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

CACHE_GB = 2


def main() -> None:
    """Answer until the input ends."""
    import numpy as np
    import openvino as ov
    import openvino_genai as genai

    # What a library prints must not come between the lines that are read.
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    folder, precision, threads = sys.argv[1], sys.argv[2], int(sys.argv[3])
    scheduler = genai.SchedulerConfig()
    scheduler.cache_size = CACHE_GB
    scheduler.enable_prefix_caching = False
    properties: dict[str, Any] = {"INFERENCE_NUM_THREADS": threads}
    if precision != "default":
        # By default keys and values have 8 bits, which is not the same precision.
        properties |= {"INFERENCE_PRECISION_HINT": precision, "KV_CACHE_PRECISION": precision}
    pipeline = genai.ContinuousBatchingPipeline(folder, scheduler, "CPU", properties)
    ready = {"ready": True, "version": genai.__version__}
    print(json.dumps(ready), file=out, flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        config = genai.GenerationConfig()
        config.max_new_tokens = asked["tokens"]
        config.do_sample = False
        config.eos_token_id = asked["eos"]
        config.stop_token_ids = {asked["eos"]}
        prompts = [ov.Tensor(np.array([ids], dtype=np.int64)) for ids in asked["prompts"]]
        started = time.perf_counter()
        handles = [pipeline.add_request(at, ids, config) for at, ids in enumerate(prompts)]
        taken = [0.0] * len(handles)
        while pipeline.has_non_finished_requests():
            pipeline.step()
            now = time.perf_counter() - started
            for at, handle in enumerate(handles):
                if not taken[at] and handle.get_status() == genai.GenerationStatus.FINISHED:
                    taken[at] = now
        wall_s = time.perf_counter() - started
        answers = [list(map(int, handle.read_all()[0].generated_ids)) for handle in handles]
        told = {"answers": answers, "latencies_s": taken, "wall_s": wall_s}
        print(json.dumps(told), file=out, flush=True)


if __name__ == "__main__":
    main()

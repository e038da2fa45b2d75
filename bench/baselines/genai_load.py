"""Answer prompts by openvino-genai's continuous batching, in an environment of its own.

Run by that environment's interpreter, with the folder of an exported model, the precision of what
is computed and the threads as arguments; nothing of ours is imported. Each line read has ids of
prompts that are answered at once, each line written the ids of the answers and the seconds.
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
    properties: dict[str, Any] = {
        "INFERENCE_PRECISION_HINT": precision,
        # By default keys and values have 8 bits, which is not the same precision.
        "KV_CACHE_PRECISION": precision,
        "INFERENCE_NUM_THREADS": threads,
    }
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
        found = pipeline.generate(prompts, [config] * len(prompts))
        wall_s = time.perf_counter() - started
        answers = [list(map(int, one.m_generation_ids[0])) for one in found]
        print(json.dumps({"answers": answers, "wall_s": wall_s}), file=out, flush=True)


if __name__ == "__main__":
    main()

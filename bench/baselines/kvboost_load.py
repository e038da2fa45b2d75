"""Answer prompts with one token by kvboost, in an environment of its own.

Run by that environment's interpreter, with a model's folder and torch threads as arguments; nothing
of ours is imported. Each line read is a prompt's ids, the ranges of them that are pieces to keep,
and which engine is asked; each line written the seconds to its first token, and what it reused.

Of the two engines, ``grid`` cuts prompts itself, every 128 tokens, as by default; ``spans`` is told
the ranges of the texts, without which it finds none of them in another order.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

CACHE_BYTES, MAX_CHUNKS = 4 << 30, 1 << 14


def main() -> None:
    """Answer until the input ends."""
    import kvboost
    import torch
    import transformers

    # What a library prints must not come between the lines that are read.
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    folder = sys.argv[1]
    torch.set_num_threads(int(sys.argv[2]))
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    # Its own loader takes float16, whatever the checkpoint has.
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype="auto").eval()
    engines = {
        name: kvboost.KVBoost(
            model, tokenizer, max_cache_bytes=CACHE_BYTES, max_chunks=MAX_CHUNKS, device="cpu"
        )
        for name in ("grid", "spans")
    }
    ready = {"ready": True, "version": kvboost.__version__}
    print(json.dumps(ready), file=out, flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        engine = engines[asked["engine"]]
        if asked["engine"] == "spans":
            _cut_at(engine, asked["spans"])
        print(json.dumps(_first(engine, asked["ids"])), file=out, flush=True)


def _first(engine: Any, ids: list[int]) -> dict[str, Any]:
    """Return the seconds from the call to the first token.

    Its own ``ttft_ms`` begins only once pieces are put together and computed again.
    """
    engine._encode = lambda text: ids  # the tokens that all arms have
    firsts: list[float] = []
    started = time.perf_counter()
    found = engine.generate(
        "", max_new_tokens=1, on_token=lambda token: firsts.append(time.perf_counter())
    )
    return {
        "seconds": firsts[0] - started,
        "token": found.output_text,
        "reused": found.kv_reuse_ratio,
    }


def _cut_at(engine: Any, spans: list[list[int]]) -> None:
    engine.chunk_registry.split = lambda ids, text="", boundary_tokens=None: [
        (start, end, ids[start:end]) for start, end in spans
    ]


if __name__ == "__main__":
    main()

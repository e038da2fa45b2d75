"""Kept int8 weights of models, listed and purged."""

from __future__ import annotations

import json
import time


def list_int8_weights(*, as_json: bool) -> int:
    """Print the models whose int8 weights are kept, the least recently used first."""
    # It needs torch, which other commands do without.
    from rag_accel.engines.llm.local.paged.int8_files import list_weights

    found = list_weights()
    for kept in found:
        unused_s = round(max(0.0, time.time() - kept.used))
        if as_json:
            said = {"name": kept.path.stem, "model": kept.model}
            print(json.dumps({**said, "bytes": kept.size, "unused_s": unused_s}))
            continue
        model = "unreadable" if kept.model is None else kept.model
        size = f"{kept.size / 2**20:.1f} MiB"
        print(f"{kept.path.stem[:12]}  {size}, int8, model {model}, unused for {unused_s} s")
    if not as_json:
        print(f"{len(found)} models, {sum(kept.size for kept in found) / 2**20:.1f} MiB")
    return 0


def purge_int8_weights(model: str | None) -> int:
    """Remove the int8 weights of a model by its name, or all."""
    from rag_accel.engines.llm.local.paged.int8_files import purge_weights

    print(f"{purge_weights(model)} files removed")
    return 0

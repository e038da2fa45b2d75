"""What a RAGraph reused of its documents is told by handles, metrics and the trace."""

from __future__ import annotations

from typing import Any

import pytest
from graph_texts import PATIENCE_S, WORKFLOWS, WatchedEngine, inputs_of, searching, use_of

from rag_accel import Accelerator, workflows
from rag_accel.engine_api import PromptUse, TokenUsage
from rag_accel.telemetry.events import NodeFinished, TokensUsed

NAMES = ("computed", "from_prefix", "from_chunks", "recomputed", "approximate")


@pytest.mark.parametrize("kv_reuse", ["full", "fused"])
def test_the_handle_the_metrics_and_the_trace_agree(kv_reuse: str) -> None:
    engine, graph = WatchedEngine(kv_reuse=kv_reuse), workflows.multistep(max_tokens=6)
    with Accelerator(llm=engine, **searching()) as accelerator:
        handles = [accelerator.submit(graph, **inputs_of(graph)) for _ in range(3)]
        for handle in handles:
            handle.result(PATIENCE_S)
        engines: Any = accelerator.metrics.snapshot()["engines"]
        told = [one for one in accelerator.tracer.events() if isinstance(one, TokensUsed)]
    used = sum((handle.usage for handle in handles), TokenUsage())
    assert used.prompt == sum((use_of(done) for _, done in engine.answers()), PromptUse())
    assert used.prompt.from_chunks > 0
    assert (used.prompt.recomputed > 0) == (kv_reuse == "fused")
    for name in NAMES:
        count = getattr(used.prompt, name)
        assert engines["llm"][f"prompt_tokens_{name}"] == count
        assert sum(getattr(one, name) for one in told) == count
    assert sum(one.completion_tokens for one in told) == used.completion_tokens


def test_a_traced_generation_tells_its_tokens_before_it_ends() -> None:
    engine, graph = WatchedEngine(), WORKFLOWS["one_shot"](max_tokens=6)
    with Accelerator(llm=engine, **searching()) as accelerator:
        accelerator.run(graph, **inputs_of(graph))
        events = accelerator.tracer.events()
    ends = [one for one in events if isinstance(one, NodeFinished) and one.engine == "llm"]
    (told,) = [one for one in events if isinstance(one, TokensUsed)]
    assert (told.request_id, told.node) == (ends[-1].request_id, ends[-1].node)
    assert events.index(told) < events.index(ends[-1])

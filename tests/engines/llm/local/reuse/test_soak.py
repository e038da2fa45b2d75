"""A local engine under requests that end, are cancelled or are left: nothing of them stays."""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from fake_runner import tokenizer
from tiny_chat import TOKENS, model

from rag_accel import END, START, Accelerator, RAGraph, RequestCancelledError
from rag_accel.engines.llm.local.engine import LocalLLMEngine
from rag_accel.engines.llm.local.model.loading import load
from rag_accel.engines.llm.local.options import LocalOptions

HEAD = "A lane holds keys and values of one sequence of tokens, said the guide."
PATIENCE_S = 60.0
TOGETHER = 20
MIB = 1 << 20


@pytest.fixture
def graph() -> RAGraph:
    graph = RAGraph().add_generation("answer", "{input}", max_tokens=TOKENS)
    return graph.add_edge(START, "answer").add_edge("answer", END)


def round_of(accelerator: Accelerator, graph: RAGraph, random: Random) -> None:
    """Run requests of which some are cancelled and one stream is left."""
    texts = [f"{random.random()} {HEAD[: random.randint(1, 60)]}" for _ in range(TOGETHER)]
    handles = [accelerator.submit(graph, input=text) for text in texts]
    pieces = accelerator.stream(graph, input=texts[0])
    next(pieces, None)
    pieces.close()
    for handle in handles:
        if random.random() < 0.8:
            handle.cancel()
    for handle in handles:
        with contextlib.suppress(RequestCancelledError):
            handle.result(PATIENCE_S)


def rss_bytes() -> int:
    """Return the memory of this process that is resident."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def seconds(count: float) -> Iterator[None]:
    """Yield for so long."""
    until = time.monotonic() + count
    while time.monotonic() < until:
        yield


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
def test_memory_stays_where_it_was_for_half_a_minute(graph: RAGraph) -> None:
    loaded = load(model(), tokenizer(), pool_bytes=1 << 24)
    options = LocalOptions(prefix_lanes=16)
    engine = LocalLLMEngine(loaded.runner, loaded.tokenizer, eos=loaded.ends, options=options)
    random = Random(0)
    with Accelerator(llm=engine) as accelerator:
        for _ in seconds(8):
            round_of(accelerator, graph, random)
        before, rounds = rss_bytes(), 0
        for _ in seconds(30):
            round_of(accelerator, graph, random)
            rounds += 1
        grown = rss_bytes() - before
    assert rounds > 5
    assert grown < 16 * MIB, f"{grown / MIB:.1f} MiB more after {rounds} rounds"

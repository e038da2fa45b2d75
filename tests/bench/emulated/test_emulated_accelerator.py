"""An accelerator over the emulated engine overlaps and prefills, and its answers stay the same."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from device_harness import VirtualTime
from list_harness import Awaited, engines, fan_out

from bench.emulated.device import EmulatedDevice
from bench.emulated.engine import EmulatedEngine
from bench.emulated.table import H100_LIKE_1B
from rag_accel import END, START, RAGraph
from rag_accel.testing import FakeEngine

RULES = "Answer briefly, and only from the passages. " * 8


class Paused(VirtualTime):
    """Let virtual time pass at once, but stop before one step of the device."""

    def __init__(self, before: int, pause: Callable[[], None]) -> None:
        super().__init__()
        self._left = before
        self._pause = pause

    def wait_until(self, wake: threading.Condition, deadline_s: float | None) -> None:
        if deadline_s is not None:
            self._left -= 1
            if self._left == 0:
                self._pause()
        super().wait_until(wake, deadline_s)


def test_on_the_emulated_engine_a_search_ends_while_the_device_decodes() -> None:
    search = Awaited()
    text = "first query\n" + "word " * 50 + "\nlast query"
    # 3 steps: the prompt, and the two words of the first line; a later word ends that line.
    time = Paused(20, search.wait)
    device = EmulatedDevice(
        H100_LIKE_1B,
        respond=lambda messages: text,
        clock=time,
        wait=time.wait_until,
        default_max_tokens=99,
    )
    llm = EmulatedEngine(device, owns_device=True)
    with engines(llm, index=FakeEngine(compute=search)) as acc:
        queries = acc.run(fan_out(3), input="why")[0]
    assert queries == ("first query", ("word " * 50).strip(), "last query")


def refining() -> RAGraph:
    """Return a graph of two generations, of which the second refines the answer of the first."""
    graph = RAGraph().add_retrieval("search", output="docs")
    graph.add_generation("first", prompt="{input}\n{docs}", system=RULES)
    graph.add_generation("refine", prompt=RULES + "{input} {docs} {first}")
    graph.add_edge(START, "search").add_edge("search", "first").add_edge("first", "refine")
    return graph.add_edge("refine", END)


def test_the_emulated_engine_writes_the_same_and_reads_no_token_twice() -> None:
    found: dict[str, Any] = {}
    for passes in ("none", "all"):
        time = VirtualTime()
        with EmulatedDevice(H100_LIKE_1B, clock=time, wait=time.wait_until) as device:
            engine = EmulatedEngine(device)
            with engines(engine, passes, shutdown_s=20.0) as acc:
                text = acc.run(refining(), outputs=["first", "refine"], input="why?")
                plan = acc.explain(refining(), "e-graph")
            assert plan.count("partial_prefilling: PARTIAL") == (2 if passes == "all" else 0)
            assert not engine._prefilled  # pyright: ignore[reportPrivateUsage]
            found[passes] = (text, device.batch.counters.prefill_tokens)
    assert found["all"] == found["none"]
    assert found["all"][1] > 2 * len(RULES.split())

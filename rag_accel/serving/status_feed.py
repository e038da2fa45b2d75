"""The state of a tenant's accelerator, as the page of a run shows it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from rag_accel.accelerator import Accelerator
from rag_accel.profile.assembly import assemble
from rag_accel.profile.run_page import page_data
from rag_accel.serving.event_stream import event

INTERVAL_S = 1.0
"""Seconds between two states that a page is sent."""

MOST_EVENTS = 500
"""The newest events of the trace that a state is made of."""

MOST_OF_A_CORE = 0.01
"""The share of one core, and so of the interpreter's lock, that a tenant's states may take."""


class StatusFeed:
    """The states of tenants, each made once an interval however many watch. Used on one loop.

    Args:
        title: of the page.
        interval_s: seconds between two states, more where making one takes long.
    """

    def __init__(self, title: str, interval_s: float = INTERVAL_S) -> None:
        self._title, self._interval_s = title, interval_s
        self._latest: dict[str, tuple[float, asyncio.Task[tuple[bytes, float]]]] = {}

    async def events(
        self,
        namespace: str,
        find: Callable[[], Accelerator | None],
        describe: Callable[[], str],
        may_go_on: Callable[[], bool],
    ) -> AsyncIterator[bytes]:
        """Yield server-sent events, one an interval, as long as they may go on.

        Args:
            namespace: the tenant.
            find: returns its accelerator; None if there is none.
            describe: returns the line below the title.
            may_go_on: asked before each event.
        """
        while may_go_on():
            now = asyncio.get_running_loop().time()
            began, latest = self._latest.get(namespace, (now, None))
            if latest is None or now - began >= self._pause_s(latest):
                made = asyncio.to_thread(self._state, find(), describe())
                latest = asyncio.ensure_future(made)
                self._latest[namespace] = now, latest
            state, _ = await asyncio.shield(latest)  # others may wait for it
            yield state
            await asyncio.sleep(self._pause_s(latest))
        self._latest.pop(namespace, None)

    def _pause_s(self, latest: asyncio.Task[tuple[bytes, float]]) -> float:
        """Return the seconds after which another state may be made, whoever asks for it."""
        is_made = latest.done() and not latest.cancelled() and latest.exception() is None
        took_s = latest.result()[1] if is_made else 0.0
        return max(self._interval_s, took_s / MOST_OF_A_CORE)

    def _state(self, accelerator: Accelerator | None, text: str) -> tuple[bytes, float]:
        """Return the event of a state, and the seconds of processor that it took."""
        began_s = time.thread_time()
        state = event(status_data(accelerator, self._title, text))
        return state, time.thread_time() - began_s


def status_data(accelerator: Accelerator | None, title: str, text: str) -> dict[str, Any]:
    """Return the state of an accelerator as ``page_data`` has it."""
    if accelerator is None or accelerator.closed:
        return page_data(assemble(()), title, text)
    queues = accelerator.queues()  # first, so that the trace has what has happened until then
    health = {one.name: one for one in accelerator.health().parts}
    newest = accelerator.tracer.events(MOST_EVENTS)
    counts: Any = accelerator.metrics.snapshot().get("engines", {})
    left_out = max(0, accelerator.tracer.recorded - MOST_EVENTS)
    return page_data(assemble(newest, left_out), title, text, counts, health, queues)

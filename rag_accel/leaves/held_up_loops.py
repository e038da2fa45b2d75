"""Waits of threads for leaves whose turn cannot come while an event loop stands still.

An async node that calls a sync composite holds its loop up until the composite's threads have their
answers. Their leaves may wait for requests that only this loop could end.
"""

from __future__ import annotations

import threading
from asyncio import AbstractEventLoop
from collections.abc import Callable
from weakref import WeakSet

#: Longest time without a sign of life of a loop, in seconds. asyncio calls a callback slow that
#: takes 0.1 s; beside a hang, one that is held up for longer is let go on soon enough.
LOOK_S = 0.25
#: The same for a loop that has been held up before: its program is of the kind that does so, and
#: each of its requests would wait as long.
AGAIN_S = 0.02

_held_up: WeakSet[AbstractEventLoop] = WeakSet()


def wait_beside(
    loop: AbstractEventLoop | None,
    wait: Callable[[float], bool],
    let_in: Callable[[], None],
) -> None:
    """Wait in a thread that runs no loop; have the leaf let in where a loop stands still.

    Args:
        loop: the loop of the leaf's request, if any.
        wait: waits for so many seconds, or for ever if that is negative; tells whether the leaf
            was let in or has ended.
        let_in: has the leaf let in whatever the bounds.
    """
    if loop is None:
        wait(-1)
        return
    answered: threading.Event | None = None
    while not wait(AGAIN_S if loop in _held_up else LOOK_S):
        if answered is not None and not answered.is_set():
            _held_up.add(loop)
            let_in()
            break
        answered = threading.Event()
        try:
            loop.call_soon_threadsafe(answered.set)
        except RuntimeError:  # closed: it holds nothing up
            break
    else:
        return
    wait(-1)

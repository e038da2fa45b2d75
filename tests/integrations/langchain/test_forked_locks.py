"""A child forked while other threads accelerate something can accelerate and call."""

from __future__ import annotations

import os
import signal
import threading

import pytest
from lc_fakes import SyncChat
from lc_programs import model_chain

from langchain_rag_accel import accelerate, activate
from rag_accel.interception import identity, patches, twins

PATIENCE_S = 20


def use_everything() -> None:
    assert accelerate(model_chain()).invoke({"input": "x"})
    assert accelerate(SyncChat()).invoke("x").content
    with activate():
        assert SyncChat().invoke("x").content


@pytest.mark.parametrize("place", ["patches", "twins", "blocks"])
def test_a_lock_held_by_another_thread_is_free_in_the_child(place: str) -> None:
    locks = {
        "patches": lambda: patches.patches._lock,
        "twins": lambda: twins._lock.lock,
        "blocks": lambda: identity._lock.lock,
    }
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with locks[place]():
            held.set()
            done.wait(PATIENCE_S)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(PATIENCE_S)
    child = os.fork()
    if child == 0:
        signal.alarm(PATIENCE_S)  # ends a child that hangs
        try:
            use_everything()
        except BaseException:
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    done.set()
    thread.join(PATIENCE_S)
    assert os.waitstatus_to_exitcode(status) == 0

"""After ``fork()`` the parent goes on, and the child is refused by name instead of hanging."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable

import pytest
from driver_harness import Gate, Rig, held_back

from rag_accel.errors import ForkedError
from rag_accel.scheduler.messages import NodeCancelled
from rag_accel.testing import FakeEngine

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork()"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning"),
]


def in_child(check: Callable[[], None]) -> None:
    """Run a check in a forked child and fail here if it fails there."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            check()
            status = 0
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_child_is_refused_by_name() -> None:
    with Rig() as rig:
        rig.leaf().value()

        def check() -> None:
            for use in (
                rig.leaf,
                lambda: rig.graph(),
                lambda: rig.driver.add_engine("new", FakeEngine()),
                lambda: rig.driver.ask(lambda: None),
            ):
                with pytest.raises(ForkedError):
                    use()

        in_child(check)
        rig.leaf("the parent goes on").value()


def test_what_a_child_reports_or_closes_has_no_effect() -> None:
    gate = Gate()
    with Rig(FakeEngine(compute=gate)) as rig, held_back(gate):
        call = rig.leaf()
        gate.wait_until_entered()

        def check() -> None:
            rig.driver.post(NodeCancelled(call.key))
            rig.end_call(call)
            assert rig.driver.close(10)

        in_child(check)
        gate.open()
        call.value()

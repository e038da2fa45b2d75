"""An interrupt at any line of ours leaves nothing behind in the context of the call."""

from __future__ import annotations

import sys
from contextvars import copy_context
from types import FrameType
from typing import Any

import pytest
from idle_accelerators import soon_idle
from lc_fakes import SyncChat, SyncRetriever

from langchain_rag_accel import activate
from rag_accel import Accelerator
from rag_accel.accelerator import current_request
from rag_accel.interception.leaf_call import is_inside_leaf

OURS = ("rag_accel/interception/leaf_call.py", "rag_accel/interception/wrappers.py")


class Interrupting:
    """Raise KeyboardInterrupt at the n-th line of ours that a call comes to."""

    def __init__(self, line: int) -> None:
        self.left = line

    def __call__(self, frame: FrameType, event: str, arg: Any) -> Any:
        if not frame.f_code.co_filename.endswith(OURS):
            return None
        if event == "line" and frame.f_code.co_name != "leave":
            self.left -= 1
            if self.left == 0:
                sys.settrace(None)
                raise KeyboardInterrupt
        return self


@pytest.mark.parametrize("leaf", [SyncChat(), SyncRetriever()], ids=["chat", "retriever"])
def test_an_interrupt_leaves_no_leaf_and_no_run_behind(leaf: Any, accelerator: Accelerator) -> None:
    def interrupted(line: int) -> bool:
        trace = Interrupting(line)
        sys.settrace(trace)
        try:
            leaf.invoke("x")
        except KeyboardInterrupt:
            assert not is_inside_leaf()
            assert current_request.get() is None
            return True
        finally:
            sys.settrace(None)
        return False

    before = sys.gettrace()
    with activate(accelerator):
        line = 1
        while copy_context().run(interrupted, line):
            line += 1
    sys.settrace(before)
    assert line > 10
    assert soon_idle(accelerator)

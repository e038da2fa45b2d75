"""Acceleration of LangChain and LangGraph for the rest of this process."""

from __future__ import annotations

import threading
from contextlib import ExitStack

from langchain_rag_accel import upstream

# Not from the package itself: a program may be importing it, which is what imports LangChain, whose
# import may be what switches on.
if upstream.missing_name() is None:
    from rag_accel.interception import activate
else:
    from langchain_rag_accel.plain import activate

_lock = threading.Lock()
_block: ExitStack | None = None


def switch_on() -> None:
    """Open a block of ``activate()`` that is never closed; once is enough."""
    global _block
    with _lock:
        if _block is None:
            block = ExitStack()
            block.enter_context(activate())
            _block = block


def switch_off() -> None:
    """Close it again."""
    global _block
    with _lock:
        block, _block = _block, None
    if block is not None:
        block.close()

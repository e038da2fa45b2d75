"""Chains without an async form, whose blocking call is made in the accelerator's threads.

The executor of a loop has few threads, six on two cores, and lets no more requests meet.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from rag_accel.interception.fallback import start_in_pool
from rag_accel.interception.identity import find_identity
from rag_accel_adapters.langchain.blocking_chains import blocking_call

Method = Callable[..., Any]


def in_call_threads(method: Method) -> Method:
    """Return a chain's ``_acall`` as it is to run here: in a thread of the run's accelerator."""
    identity = find_identity()
    return method if identity is None else partial(_run, method, identity.accelerator)


async def _run(method: Method, accelerator: Any, chain: Any, *args: Any, **kwargs: Any) -> Any:
    call = blocking_call(chain, *args, **kwargs)
    running = start_in_pool(accelerator, call, type(chain).__qualname__)
    return await (method(chain, *args, **kwargs) if running is None else running)

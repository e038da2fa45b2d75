"""The chains of ``langchain-classic`` that have no async form of their own.

What such a chain does for an async caller is its blocking form, in the executor of the loop.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from rag_accel.system.classes import NamedClasses
from rag_accel.system.methods import digest_of

Method = Callable[..., Any]

_DIGESTS = frozenset({"b70812a2c24e20e8"})


class ClassicChain(metaclass=NamedClasses, names=("langchain_classic.chains.base.Chain",)):
    """A chain of prompts, models and whatever else its class calls."""


def runs_in_executor(method: Method | None) -> bool:
    """Tell whether this is the ``_acall`` that runs ``_call`` in the executor of the loop."""
    # A wrapper of another's has the name and the source of what it wraps.
    return (
        getattr(method, "__qualname__", "") == "Chain._acall"
        and not hasattr(method, "__wrapped__")
        and digest_of(method) in _DIGESTS
    )


def blocking_call(chain: Any, inputs: Any, run_manager: Any = None) -> Callable[[], Any]:
    """Return the call that such an ``_acall`` with these arguments makes in a thread."""
    return partial(chain._call, inputs, run_manager.get_sync() if run_manager else None)

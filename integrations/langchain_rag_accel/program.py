"""An accelerated LangChain program, whose shape is looked up if it is a compiled LangGraph."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeVar

from langchain_core.runnables import Runnable

from rag_accel.accelerator import Accelerator
from rag_accel.interception.program import AcceleratedProgram
from rag_accel_adapters.langchain.langgraph_skeleton import called_without_context, skeleton

T = TypeVar("T")

_logger = logging.getLogger(__name__)


class Program(AcceleratedProgram):
    """A runnable as a program.

    Args:
        runnable: the program.
        own: the accelerator it was given, if any.
    """

    def __init__(self, runnable: Runnable[Any, Any], own: Accelerator | None) -> None:
        lent_ids = _of_graph(called_without_context, runnable) or frozenset[int]()
        plan = _of_graph(skeleton, runnable)
        super().__init__(runnable.get_name(), own, plan and plan.here, lent_ids)


def _of_graph(look: Callable[[Any], T], runnable: Runnable[Any, Any]) -> T | None:
    """Return what is seen in a program; None where looking, which runs the owner's code, fails."""
    try:
        return look(runnable)
    except Exception as error:
        # Text only: a kept record would keep the error, its frames and so the program alive.
        _logger.warning("the plan of %s is unknown: %s", runnable.get_name(), repr(error))
        return None

"""A plugin of pytest that makes ``StateGraph.compile()`` return an accelerated graph."""

from __future__ import annotations

import functools
from typing import Any

import pytest
from langgraph.graph import StateGraph
from scheduled_leaves import LeafCounter, runs_tests

from langchain_rag_accel import accelerate
from rag_accel.accelerator import default_accelerator


def pytest_configure(config: pytest.Config) -> None:
    """Replace the method for as long as the process lives, where it runs tests."""
    if not runs_tests(config):
        return
    plain = StateGraph.compile

    @functools.wraps(plain)
    def compile_accelerated(*args: Any, **kwargs: Any) -> Any:
        return accelerate(plain(*args, **kwargs))

    StateGraph.compile = compile_accelerated
    config.pluginmanager.register(AcceleratedGraphs(config))


class AcceleratedGraphs:
    """Count what the accelerated graphs call."""

    def __init__(self, config: pytest.Config) -> None:
        self._counter = LeafCounter(default_accelerator())
        config.pluginmanager.register(self._counter)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        """Write the count of the whole session."""
        self._counter.finish()

"""A plugin of pytest that holds ``activate()`` from the start of the session to its end."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
from scheduled_leaves import LeafCounter, runs_tests

from langchain_rag_accel import activate


def pytest_configure(config: pytest.Config) -> None:
    """Accelerate each process that runs tests."""
    if runs_tests(config):
        config.pluginmanager.register(HeldActivation(config))


class HeldActivation:
    """Hold one block open."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._block = ExitStack()

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self) -> None:
        """Enter before anything is collected."""
        counter = LeafCounter(self._block.enter_context(activate()))
        self._config.pluginmanager.register(counter)
        self._block.callback(counter.finish)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        """Leave after the last test."""
        self._block.close()

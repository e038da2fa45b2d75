"""Write how many leaf calls an accelerator lets run, and how many bypassed it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from rag_accel import Accelerator
from rag_accel.telemetry import TraceEvent
from rag_accel.telemetry.events import NodeDispatched


def runs_tests(config: pytest.Config) -> bool:
    """Tell whether this process runs tests itself: it is a worker, or there are none."""
    return hasattr(config, "workerinput") or not config.getoption("numprocesses", default=None)


class LeafCounter:
    """Count as a sink of one accelerator's tracer, and as a plugin write the count to a file."""

    def __init__(self, accelerator: Accelerator) -> None:
        worker = os.environ.get("PYTEST_XDIST_WORKER", "main")
        self._path = Path(os.environ["CONFORMANCE_FOUND"]) / f"leaves-{worker}.json"
        self._accelerator = accelerator
        self._calls = 0
        accelerator.tracer.add_sink(self, [NodeDispatched])

    def write(self, event: TraceEvent) -> None:
        """Count one call; only the scheduler's thread does this."""
        self._calls += 1

    def close(self) -> None:
        """Keep the count."""

    def pytest_runtest_logfinish(self) -> None:
        """Write the count after each test: the next may take this process down."""
        self.save()

    def save(self) -> None:
        """Write the count."""
        bypassed = {": ".join(place): times for place, times in self._accelerator.bypassed.items()}
        fresh = self._path.with_suffix(".new")
        fresh.write_text(json.dumps({"leaf_calls": self._calls, "bypassed": bypassed}))
        fresh.replace(self._path)

    def finish(self) -> None:
        """Write the count of everything that has begun."""
        _ = self._accelerator.metrics  # returns once the scheduler has handled what came before
        self.save()

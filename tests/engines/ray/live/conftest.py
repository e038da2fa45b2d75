"""One Ray cluster on this machine for all live tests."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

HELPERS = str(Path(__file__).parents[1])
sys.path.append(HELPERS)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Any]:
    """Start the cluster, whose workers import the helpers; stop it at the end."""
    ray = pytest.importorskip("ray")
    paths = [HELPERS, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray.init(
        num_cpus=8,
        include_dashboard=False,
        object_store_memory=200 * 2**20,
        log_to_driver=False,
        configure_logging=False,
        runtime_env={"env_vars": {"PYTHONPATH": os.pathsep.join(paths)}},
    )
    yield ray
    ray.shutdown()

"""One Ray cluster on this machine for all live tests, which may add nodes and lose them."""

# Ray has an environment of its own.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[1]))


@pytest.fixture(scope="session")
def nodes() -> Iterator[Any]:
    """Start the cluster with a first node, and stop all its nodes at the end."""
    pytest.importorskip("ray")
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    from ray.cluster_utils import Cluster

    head = {
        "num_cpus": 8,
        "object_store_memory": 200 * 2**20,
        "include_dashboard": False,
        "resources": {"seat": 1},
    }
    made = Cluster(initialize_head=True, head_node_args=head)
    yield made
    made.shutdown()


@pytest.fixture(scope="session")
def cluster(nodes: Any) -> Iterator[Any]:
    """Join the cluster, whose workers import the helpers."""
    import ray
    from worker_paths import worker_path

    ray.init(
        address=nodes.address,
        log_to_driver=False,
        configure_logging=False,
        runtime_env={"env_vars": {"PYTHONPATH": worker_path()}},
    )
    yield ray
    ray.shutdown()

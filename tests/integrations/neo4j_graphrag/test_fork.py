"""A child forked after activation searches with a driver of its own, on a fresh accelerator."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from neo4j_server import BoltServer
from ng_kit import fill

CHECKS = Path(__file__).with_name("ng_fork_checks.py")

pytestmark = [
    pytest.mark.neo4j,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork"),
]


def test_a_child_searches_as_its_parent(neo4j_server: BoltServer, neo4j_driver: Any) -> None:
    fill(neo4j_driver)
    login = (neo4j_server.uri, neo4j_server.user, neo4j_server.password)
    done = subprocess.run(
        [sys.executable, str(CHECKS), *login], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    expected = found["expected"]
    assert "bridge" in expected
    assert found == {
        "expected": expected,
        "activated": [expected, 1],
        "accelerated": [expected, 1],
        "explicit": "ForkedError",
        "parent": expected,
    }

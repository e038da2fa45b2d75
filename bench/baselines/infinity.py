"""Drive infinity-emb in a process and an environment of its own: its versions are not ours."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bench.baselines.peer_process import PeerProcess, interpreter
from rag_accel_demo.load import Load, Shape

ENVIRONMENT = interpreter("infinity")
_SCRIPT = Path(__file__).with_name("infinity_load.py")


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
        env = {"INFINITY_ANONYMOUS_USAGE_STATS": "0", "OMP_NUM_THREADS": str(threads)}
        self._process = PeerProcess(ENVIRONMENT, _SCRIPT, path, str(batch), env=env)

    def run(self, texts: Sequence[str], users: int, shape: Shape) -> Load:
        """Let ``users`` callers embed the texts, one a call; the clock is the callers'."""
        found = self._process.ask({"texts": list(texts), "users": users, "shape": shape})
        return Load(tuple(found["answers"]), tuple(found["latencies_s"]), found["wall_s"])

    def close(self) -> None:
        """End the process."""
        self._process.close()

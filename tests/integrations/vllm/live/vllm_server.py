"""A server of vLLM's in a process of its own, stopped by handle."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

ROOT = Path(__file__).parents[4]
#: Most seconds until it answers.
START_S = 180


class VllmServer:
    """A server on a free port of loopback.

    Args:
        model: its folder.
        kv_folder: keeps the states of texts.
        log: the file of its output.
        options: of the command line, besides.
        environment: variables, besides.
    """

    def __init__(
        self,
        model: Path,
        kv_folder: Path,
        log: Path,
        options: Sequence[str] = (),
        environment: dict[str, str] | None = None,
    ) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.base_url = f"http://127.0.0.1:{self.port}/v1"
        self._log = log
        self._command = [
            *(sys.executable, "-m", "vllm_rag_accel.serve", str(model)),
            *("--kv-folder", str(kv_folder), "--served-model-name", "tiny"),
            *("--host", "127.0.0.1", "--port", str(self.port), "--dtype", "float32"),
            *("--enforce-eager", "--block-size", "32", "--max-model-len", "4096"),
            *("--scheduling-policy", "priority", *options),
        ]
        paths = os.pathsep.join(map(str, (ROOT, ROOT / "integrations", ROOT / "adapters")))
        self._environment = {
            **os.environ,
            "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
            "VLLM_LOGGING_LEVEL": "INFO",
            "PYTHONPATH": paths,
            **(environment or {}),
        }

    def __enter__(self) -> VllmServer:
        with self._log.open("wb") as out:
            self.process = subprocess.Popen(
                self._command,
                env=self._environment,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        deadline = time.monotonic() + START_S
        while not self._answers():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise AssertionError(self._log.read_text(errors="replace")[-4000:])
            time.sleep(0.1)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def metric(self, name: str) -> float:
        """Return the sum of a counter over its labels."""
        url = f"http://127.0.0.1:{self.port}/metrics"
        with urllib.request.urlopen(url, timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        return sum(
            float(line.rpartition(" ")[2])
            for line in lines
            if line.startswith((f"{name}{{", f"{name} "))
        )

    def stop(self) -> None:
        """End the server and all its processes."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(20)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(20)

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5):
                return True
        except OSError:
            return False

"""Start the processes of the suite, speak with them line by line, and end them by handle."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from langchain_rag_accel.demo.load import Load
from rag_accel.errors import EngineError

END_S = 20.0


class LineProcess:
    """A module of ours that runs in a process until the block ends."""

    def __init__(self, module: str, *arguments: str) -> None:
        self._module = module
        command = [sys.executable, "-m", module, *arguments]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._process.communicate(timeout=END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()

    def said(self) -> str:
        """Return its next line.

        Raises:
            EngineError: if it ended instead.
        """
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise EngineError(
                "a process of the benchmark ended",
                where=self._module,
                found=f"exit status {self._process.wait()}",
                hint="what it wrote to standard error says why",
            )
        return line

    def asked(self, line: str) -> str:
        """Return its answer to a line."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        return self.said()


class Server(LineProcess):
    """A server of the chain, plain or accelerated."""

    def __init__(self, *arguments: str) -> None:
        super().__init__("bench.serving.server", *arguments)
        self._port = ""

    def url(self, path: str) -> str:
        """Return where a path is served; waits until it is."""
        self._port = self._port or self.said().strip()
        return f"http://127.0.0.1:{self._port}{path}"


class Client(LineProcess):
    """A client that puts a server under load."""

    def __init__(self) -> None:
        super().__init__("bench.serving.client")

    def load(self, url: str, questions: Sequence[str], connections: int) -> Load:
        """Ask the questions over so many connections."""
        spec = {"url": url, "questions": list(questions), "connections": connections}
        found = json.loads(self.asked(json.dumps(spec)))
        return Load(tuple(found["answers"]), tuple(found["latencies_s"]), found["wall_s"])

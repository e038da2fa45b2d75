"""Start the processes of the suite, speak with them line by line, and end them by handle."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from rag_accel.errors import EngineError
from rag_accel_demo.load import Load

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


class ServerProcess(LineProcess):
    """A server whose first line ends with its port."""

    def __init__(self, module: str, *arguments: str) -> None:
        super().__init__(module, *arguments)
        self._port = ""

    def url(self, path: str) -> str:
        """Return where a path is served; waits until it is."""
        self._port = self._port or self.said().strip().rpartition(":")[2]
        return f"http://127.0.0.1:{self._port}{path}"


class HostedServer(ServerProcess):
    """A scripted server of OpenAI's endpoints.

    Args:
        script: the options of ``bench.embedding.hosted_server``.
    """

    def __init__(self, **script: float) -> None:
        arguments = (f"--{name.replace('_', '-')}={value}" for name, value in script.items())
        super().__init__("bench.embedding.hosted_server", *arguments)

    def state(self) -> dict[str, Any]:
        """Return the calls since the last time, and the tokens of its rate."""
        return json.loads(self.asked("state"))


class Server(ServerProcess):
    """A server of the chain, plain or accelerated."""

    def __init__(self, *arguments: str) -> None:
        super().__init__("bench.serving.server", *arguments)


class Client(LineProcess):
    """A client that puts a server under load."""

    def __init__(self) -> None:
        super().__init__("bench.serving.client")

    def load(
        self, url: str, questions: Sequence[str], connections: int, input_name: str | None = None
    ) -> Load:
        """Ask the questions over so many connections; with ``input_name`` as JSON."""
        spec: dict[str, Any] = {
            "url": url,
            "questions": list(questions),
            "connections": connections,
            "input_name": input_name,
        }
        return _load_of(self.asked(json.dumps(spec)))


class InProcess(LineProcess):
    """A process that has an object of ``bench.serving.objects`` and calls it."""

    def __init__(self, name: str) -> None:
        super().__init__("bench.serving.in_process", name)

    def load(self, questions: Sequence[str], connections: int) -> Load:
        """Have so many callers ask the questions."""
        spec = {"questions": list(questions), "connections": connections}
        return _load_of(self.asked(json.dumps(spec)))


class FastAPIEndpoint(ServerProcess):
    """An endpoint of FastAPI in front of such an object."""

    def __init__(self, name: str) -> None:
        super().__init__("bench.serving.fastapi_endpoint", name)


class ServeCommand(ServerProcess):
    """``rag-accel serve`` in front of such an object."""

    def __init__(self, name: str, *arguments: str) -> None:
        spec = f"bench.serving.objects:{name}"
        super().__init__("rag_accel.cli", "serve", spec, *arguments, "--port", "0")

    def __exit__(self, *raised: Any) -> None:
        """Have it drain, and wait for its end."""
        self._process.terminate()
        super().__exit__(*raised)


def _load_of(line: str) -> Load:
    found = json.loads(line)
    return Load(tuple(found["answers"]), tuple(found["latencies_s"]), found["wall_s"])

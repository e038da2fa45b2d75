"""A process of an opponent's own environment, which answers one JSON line by another."""

from __future__ import annotations

import json
import os
import subprocess
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from threading import Thread
from types import TracebackType
from typing import Any, Self

from rag_accel.errors import EngineError

#: Where ``make peers`` puts environments, from the checkout's root.
ENVIRONMENTS = Path(".peers")
_OFFLINE = {"DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
#: Lines of its error output that an error tells.
_TOLD = 3


def interpreter(name: str) -> Path:
    """Return the python of an opponent's environment, which need not be there."""
    return ENVIRONMENTS / name / "bin" / "python"


class PeerProcess:
    """A script in another environment, ready for questions.

    Args:
        python: of the environment.
        script: reads a JSON object a line and writes one for each; its first line says it is ready.
        arguments: of the script.
        env: variables, besides those of this process.

    Raises:
        FileNotFoundError: the environment was not made.
        EngineError: the script ended before it was ready.
    """

    def __init__(
        self, python: Path, script: Path, *arguments: str, env: Mapping[str, str] | None = None
    ) -> None:
        if not python.exists():
            raise FileNotFoundError(f"no environment {python}: make peers")
        self._where = str(python)
        self._told: deque[str] = deque(maxlen=_TOLD)
        # A path of this process would put its packages before those of the environment.
        inherited = {name: each for name, each in os.environ.items() if name != "PYTHONPATH"}
        self._process = subprocess.Popen(
            [str(python), str(script), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**inherited, **_OFFLINE, **(env or {})},
        )
        self._listener = Thread(target=self._listen, daemon=True)
        self._listener.start()
        try:
            self.ready: Any = self._answer()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        """Return it; the block's end ends the process."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the process."""
        self.close()

    def ask(self, question: Mapping[str, Any]) -> Any:
        """Return its answer.

        Raises:
            EngineError: it ended instead.
        """
        stdin = self._process.stdin
        assert stdin is not None
        try:
            stdin.write(json.dumps(question) + "\n")
            stdin.flush()
        except BrokenPipeError:
            raise self._ended() from None
        return self._answer()

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        self._listener.join()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                with suppress(BrokenPipeError):  # a question that the process no longer reads
                    pipe.close()

    def _answer(self) -> Any:
        stdout = self._process.stdout
        line = "" if stdout is None else stdout.readline()
        if not line:
            raise self._ended()
        return json.loads(line)

    def _ended(self) -> EngineError:
        self._process.wait()
        self._listener.join()
        return EngineError(
            "an opponent's process ended without an answer",
            where=self._where,
            found=" | ".join(self._told) or f"exit code {self._process.returncode}",
            hint="remove .peers and run make peers",
        )

    def _listen(self) -> None:
        stderr = self._process.stderr
        for line in stderr or ():
            if text := line.strip():
                self._told.append(text)

"""A handle of a member's child process: its start, its pipes and its end."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import tempfile
import weakref
from contextlib import suppress
from multiprocessing.connection import wait
from typing import Any, BinaryIO

from rag_accel.engines.devices.child import ChildAnswer
from rag_accel.errors import EngineError, EngineLostError

_PROGRAM = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from rag_accel.engines.devices.child import main; main()"
)
_GRACE_S = 1.0
_KILLED_S = 5.0
_MOST_SAID = 1 << 16  # bytes of what the child writes to stderr
_SHOWN = 400


class ChildHandle:
    """One child and the pipes to it.

    ``send`` and ``receive`` belong to one thread at a time; ``kill`` may be called from any.

    Args:
        name: of its member, for errors.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._said: Any = tempfile.TemporaryFile("a+b")  # noqa: SIM115 - closed with the child
        # Not forked: Python starts another program at once, and runs nothing in between.
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, json.dumps(sys.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            start_new_session=True,  # Ctrl-C in the terminal is not meant for it
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._requests: Any = self._process.stdin
        self._answers: Any = self._process.stdout
        self._end = weakref.finalize(
            self, _end, os.getpid(), self._process, self._requests, self._answers, self._said
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, message: Any) -> None:
        """Send something that can be pickled. Raises EngineLostError if the child has ended."""
        sent = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)  # all of it, or nothing
        try:
            self._requests.write(sent)
            self._requests.flush()
        except (OSError, ValueError) as error:
            raise self._lost() from error

    def receive(self, timeout_s: float) -> ChildAnswer:
        """Return the next answer.

        Raises:
            EngineLostError: the child has ended; one that takes too long is killed first.
        """
        try:
            if not wait([self._answers], timeout_s):
                self.kill()
                raise EngineLostError(
                    "the process of a member took too long and was ended",
                    where=self._name,
                    found=f"no answer in {timeout_s:g} s",
                    hint="raise start_timeout_s or step_timeout_s of the member",
                )
            answer = pickle.load(self._answers)
        except (EOFError, OSError, ValueError, pickle.UnpicklingError) as error:
            raise self._lost() from error
        if os.fstat(self._said.fileno()).st_size > _MOST_SAID:
            self._said.truncate(0)
        return answer

    def kill(self) -> None:
        """End the child by force."""
        self._process.kill()

    def close(self) -> None:
        """Close the pipe, which ends the child, and wait for it; idempotent."""
        with suppress(OSError):
            self._requests.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_GRACE_S)
        self._end()

    def _lost(self) -> EngineLostError:
        # Its pipe is closed, so it ends: wait for the status, which tells why.
        status: int | None = None
        with suppress(subprocess.TimeoutExpired):
            status = self._process.wait(_GRACE_S)
        how = "it closed its pipe" if status is None else f"status {status}"
        if status is not None and status < 0:
            how = f"signal {-status}"
        return EngineLostError(
            "the process of a member has ended",
            where=self._name,
            found=f"{how}{_last_words(self._said)}",
            hint="make another accelerator to have it back",
        )


def answer_of(answer: ChildAnswer, name: str) -> Any:
    """Return the result of a child, or raise its error."""
    if answer.error is None:
        return answer.value
    try:
        error: Any = pickle.loads(answer.error)
    except Exception:  # its class is not known here
        error = None
    if isinstance(error, Exception):
        raise error
    raise EngineError("the process of a member raised", where=name, found=answer.text)


def _end(owner: int, process: subprocess.Popen[bytes], *files: BinaryIO) -> None:
    """Kill a child and close its files; also when its handle is collected or this process ends."""
    if os.getpid() != owner:  # a forked process has no child of its own in it
        return
    process.kill()
    with suppress(subprocess.TimeoutExpired):
        process.wait(_KILLED_S)
    for file in files:
        with suppress(OSError):
            file.close()


def _last_words(said: Any) -> str:
    with suppress(OSError, ValueError):
        said.seek(max(0, said.seek(0, os.SEEK_END) - _SHOWN))
        line = said.read().decode("utf-8", "replace").strip().splitlines()[-1:]
        return f"; its last line: {line[0]}" if line else ""
    return ""

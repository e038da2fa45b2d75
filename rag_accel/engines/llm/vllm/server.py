"""A server of vLLM's in a child process, which ends with this one however that ends."""

from __future__ import annotations

import http.client
import os
import secrets
import signal
import socket
import subprocess
import tempfile
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from rag_accel.errors import ClosedError, ConfigError, EngineLostError
from rag_accel.system.locks import RenewedLock

COMMAND = ("-m", "vllm_rag_accel.serve")
_HOST = "127.0.0.1"
#: Seconds that vLLM's processes are given to end by themselves.
_END_S = 20.0
_LOOK_S = 0.1
_PROBE_S = 5.0
#: Bytes of the server's output that an error shows.
_SHOWN = 2000
_RESTARTS = 1
#: Columns of the table of sockets in the system, and the state of listening sockets.
_PLACE, _STATE, _UID, _LISTENS = 1, 3, 7, "0A"


class VllmServer:
    """A server on a port of loopback, while somebody has it open. Thread-safe.

    The port stays bound by this process from the first ``open`` on, so that no other one is given
    it, and no other server answers there; the key is the server's alone.

    Args:
        model: its name, in errors.
        python: the interpreter.
        arguments: of ``vllm_rag_accel.serve``.
        environment: variables besides those of this process.
        start_timeout_s: seconds until it has to answer.
    """

    def __init__(
        self,
        model: str,
        python: str,
        arguments: tuple[str, ...],
        environment: Mapping[str, str],
        start_timeout_s: float,
    ) -> None:
        self.api_key = secrets.token_urlsafe(32)
        self._where = f"vLLM's server of {model}"
        self._command = (python, *COMMAND, *arguments)
        self._environment = {**environment, "VLLM_API_KEY": self.api_key}
        self._start_timeout_s = start_timeout_s
        self._users = 0
        self._restarts = _RESTARTS
        self._address: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._end: Callable[[], object] = lambda: None
        self._said: Any = None
        #: the first guards the number of users, at once; the second the process, also for minutes
        self._count, self._turn = RenewedLock(), RenewedLock()

    @property
    def base_url(self) -> str:
        """Return its URL; while it is open."""
        assert self._address is not None
        return f"http://{_HOST}:{self._address.getsockname()[1]}/v1"

    @property
    def fault(self) -> str:
        """Return how it has ended without being asked to; "" while it runs."""
        process = self._process
        status = None if process is None else process.poll()
        if status is None:
            return ""
        how = f"signal {-status}" if status < 0 else f"status {status}"
        return f"{how}; its last words: {self._last_words()}"

    def open(self) -> None:
        """Start the server unless it runs, and wait until it answers; ``leave`` must follow.

        Raises:
            ConfigError: it does not start; says what it has said.
        """
        with self._count.lock:
            self._users += 1
        try:
            with self._turn.lock:
                if self._process is None:
                    self._restarts = _RESTARTS
                    try:
                        self._start()
                    except BaseException:
                        self._process = None
                        raise
        except BaseException:
            self.leave()
            self.end_unused()
            raise

    def revive(self) -> None:
        """Start a server that has ended again, once; return if another caller has done it.

        Raises:
            EngineLostError: it was started again before, or does not start.
        """
        with self._turn.lock:
            if not self.fault:
                return
            if not self._restarts:
                raise self.lost()
            self._restarts -= 1
            self._end()
            try:
                self._start()
            except ConfigError as error:
                raise self.lost(str(error.found)) from error

    def leave(self) -> None:
        """Count one user less; a start that nobody waits for any more is given up."""
        with self._count.lock:
            self._users -= 1

    def end_unused(self) -> None:
        """End the server unless it has users, and wait for it."""
        with self._turn.lock:
            if self._users == 0:
                self._end()
                self._process = None
                if self._address is not None:
                    self._address.close()
                    self._address = None

    def lost(self, found: str = "") -> EngineLostError:
        """Return the error of work that the server has not ended."""
        return EngineLostError(
            "vLLM's server has ended",
            where=self._where,
            found=found or self.fault,
            valid="a running server",
            hint="it is started again once; then close the accelerator and make another",
        )

    def _start(self) -> None:
        if self._address is None:
            self._address = socket.socket()
            # Two sockets with this option share an address while neither or one of them listens.
            self._address.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._address.bind((_HOST, 0))
        port = self._address.getsockname()[1]
        told = ("--host", _HOST, "--port", str(port), "--parent", str(os.getpid()))
        self._said = tempfile.TemporaryFile("a+b")  # noqa: SIM115 - closed with the process
        try:
            process = subprocess.Popen(
                [*self._command, *told],
                env={**os.environ, **self._environment},
                stdin=subprocess.DEVNULL,
                stdout=self._said,
                stderr=self._said,
                start_new_session=True,  # Ctrl-C in the terminal is not meant for it
            )
        except OSError as error:
            self._said.close()
            raise self._no_start(f"{type(error).__name__}: {error}") from error
        self._process = process
        self._end = weakref.finalize(self, _end, process, self._said, os.getpid())
        try:
            for _ in self._pauses():
                if process.poll() is not None:
                    raise self._no_start(self.fault)
                if _answers(port):
                    return
                time.sleep(_LOOK_S)
            found = f"no answer in {self._start_timeout_s:g} s; {self._last_words()}"
            raise self._no_start(found)
        except BaseException:
            self._end()
            raise

    def _pauses(self) -> Iterator[None]:
        late_at = time.monotonic() + self._start_timeout_s
        while time.monotonic() < late_at:
            if not self._users:
                raise ClosedError("the engine was closed while it started", where=self._where)
            yield

    def _no_start(self, found: str) -> ConfigError:
        return ConfigError(
            "vLLM's server does not start",
            where=f"{self._where}, {' '.join(self._command[:3])}",
            found=found,
            valid="a model and options that vLLM runs; a Python with vLLM (>= 0.32) and rag-accel",
            hint="vLLM has an environment of its own: name its interpreter, VllmLLM(..., python=)",
        )

    def _last_words(self) -> str:
        with suppress(OSError, ValueError):
            self._said.seek(max(0, self._said.seek(0, os.SEEK_END) - _SHOWN))
            return self._said.read().decode("utf-8", "replace").strip()
        return ""


def _end(process: subprocess.Popen[bytes], said: Any, owner: int) -> None:
    """End a server with all its processes; also when nobody holds it, or this process ends."""
    if os.getpid() != owner:  # a forked process has started none
        return
    if process.poll() is None:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_END_S)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    said.close()


def _answers(port: int) -> bool:
    """Tell whether the server is healthy. No proxy of the environment is asked."""
    connection = http.client.HTTPConnection(_HOST, port, timeout=_PROBE_S)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == http.client.OK and _is_ours(port)
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _is_ours(port: int) -> bool:
    """Tell whether nobody else of this machine listens on a port, as before the server does.

    Another user's program there would be sent the key and the prompts.
    """
    try:
        rows = Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]
    except OSError:  # a system that does not tell
        return True
    sockets = [row.split() for row in rows]
    owners = {
        int(fields[_UID])
        for fields in sockets
        if fields[_PLACE].endswith(f":{port:04X}") and fields[_STATE] == _LISTENS
    }
    return owners <= {os.geteuid()}

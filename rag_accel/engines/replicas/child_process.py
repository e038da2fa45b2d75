"""Child processes of this machine, their start, pipes and end; and any owned engine in some."""

from __future__ import annotations

import itertools
import json
import os
import pickle
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import Any

from rag_accel.clock import Clock
from rag_accel.engine_api import Engine
from rag_accel.engines.option_checks import check_whole
from rag_accel.engines.replicas.child_program import ChildAnswer, ChildRequest, ChildSettings
from rag_accel.engines.replicas.engine import HostedEngine
from rag_accel.engines.replicas.host import EngineHost, EngineSpec
from rag_accel.engines.replicas.processes import HostGoneError, ReplicaOptions
from rag_accel.errors import ConfigError, EngineError
from rag_accel.system.processor import usable_cores

_PROGRAM = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from rag_accel.engines.replicas.child_program import main; main()"
)
_GRACE_S = 1.0
_KILLED_S = 5.0
_MOST_SAID = 1 << 16  # bytes of what the child writes to stderr
_SHOWN = 400


class ChildProcess:
    """An object in a child process, whose methods are called from here; a ``HostProcess``.

    The child is a new interpreter, started with the first call: nothing of this process is forked,
    and a script needs no ``if __name__ == "__main__"`` for it. It ends with ``end``, or with this
    process however that ends. After it has died the next call starts another one.

    Args:
        name: in errors.
        make: returns the object; sent pickled, and called in the child.
        cpus: the cores the child may run on; by default all that this process may use.
        restarts: how often a child that has died is followed by another.

    Raises:
        ConfigError: no interpreter to start, or cores that this process may not use.
    """

    def __init__(
        self,
        name: str,
        make: Callable[[], Any],
        *,
        cpus: frozenset[int] | None = None,
        restarts: int = 0,
    ) -> None:
        _require_interpreter(name)
        if cpus is not None:
            _require_cores(cpus, name)
        self._name = name
        self._settings = ChildSettings(os.getpid(), cpus, pickle.dumps(make))
        self._restarts = restarts
        self._child: _Child | None = None
        self._end: Callable[[], object] = lambda: None
        self._is_over = False
        #: guards which child there is
        self._lock = threading.Lock()

    @property
    def pid(self) -> int | None:
        """Return the id of the child, None before the first call."""
        return None if self._child is None else self._child.process.pid

    def call(self, method: str, *arguments: Any) -> ChildCall:
        """Begin a call, in a new child if the last one has died.

        Raises:
            HostGoneError: no other child follows the last one.
        """
        body = pickle.dumps(arguments, protocol=pickle.HIGHEST_PROTOCOL)
        with self._lock:
            while (call := self._running().call(method, body)) is None:
                pass  # it has died meanwhile
        return ChildCall(call, self._name, lambda: self._is_over or not self._restarts)

    def end(self, *, restart: bool) -> None:
        """End the child: at once if another may follow, else by force after a second."""
        if restart:
            self._kill()
            return
        self._is_over = True
        with self._lock:
            child = self._child
        if child is not None and os.getpid() == self._settings.parent:
            child.close()
            self._end()

    def abort(self) -> None:
        """End the child by force, and start none any more; from any thread, at once."""
        self._is_over = True
        self._kill()

    def _kill(self) -> None:
        child = self._child
        if child is not None:
            child.process.kill()

    def _running(self) -> _Child:
        if os.getpid() != self._settings.parent:
            raise HostGoneError("it belongs to the process that was forked", is_final=True)
        last = self._child
        if last is not None and last.how is None:
            return last
        if self._is_over or (last is not None and last.was_ended):
            raise HostGoneError("it was ended", is_final=True)
        if last is not None:
            if not self._restarts:
                raise HostGoneError(last.how or "", is_final=True)
            self._restarts -= 1
            self._end()
        self._child = child = _Child(self._settings)
        self._end = weakref.finalize(self, child.end, os.getpid())
        if self._is_over:  # meanwhile, by another thread that saw no child yet
            child.process.kill()
        return child


class ChildCall:
    """A call under way in a child, or ended; a ``HostCall``."""

    def __init__(
        self, answer: Future[ChildAnswer], name: str, is_final: Callable[[], bool]
    ) -> None:
        self._answer = answer
        self._name = name
        self._is_final = is_final

    def result(self, timeout_s: float) -> Any:
        if not wait([self._answer], timeout_s).done:
            raise TimeoutError(f"no answer in {timeout_s:g} s")
        error = self._answer.exception()
        if error is not None:
            raise HostGoneError(str(error), is_final=self._is_final())
        answer = self._answer.result()
        if answer.value is not None:
            return pickle.loads(answer.value)
        try:
            raised = None if answer.error is None else pickle.loads(answer.error)
        except Exception:  # its class is not known here
            raised = None
        if isinstance(raised, Exception):
            raise raised
        raise EngineError("another process raised", where=self._name, found=answer.text)

    def is_done(self) -> bool:
        return self._answer.done()


class _Child:
    """One child, with a thread that sends requests and one that takes answers.

    Whoever calls never waits for a child that reads nothing.
    """

    def __init__(self, settings: ChildSettings) -> None:
        self._said: Any = tempfile.TemporaryFile("a+b")  # noqa: SIM115 - closed with the child
        # Not forked: Python starts another program at once, and runs nothing in between.
        self.process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, json.dumps(sys.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            start_new_session=True,  # Ctrl-C in the terminal is not meant for it
        )
        #: how it ended; None while it runs
        self.how: str | None = None
        #: by this process, which may be about to exit: no other follows then
        self.was_ended = False
        self._requests: SimpleQueue[ChildSettings | ChildRequest | None] = SimpleQueue()
        self._numbers = itertools.count(1)
        self._open: dict[int, Future[ChildAnswer]] = {}
        #: guards the open calls against the end
        self._lock = threading.Lock()
        self._requests.put(settings)
        self._threads = [
            threading.Thread(target=run, name=f"rag-accel-child-{what}", daemon=True)
            for run, what in ((self._send, "requests"), (self._take, "answers"))
        ]
        for thread in self._threads:
            thread.start()

    def call(self, method: str, arguments: bytes) -> Future[ChildAnswer] | None:
        """Begin a call; None if the child has ended."""
        answer: Future[ChildAnswer] = Future()
        with self._lock:
            if self.how is not None:
                return None
            number = next(self._numbers)
            self._open[number] = answer
        self._requests.put(ChildRequest(number, method, arguments))
        return answer

    def close(self) -> None:
        """Close the pipe, which ends the child, and wait a moment for it."""
        self._requests.put(None)
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(_GRACE_S)

    def end(self, owner: int) -> None:
        """Kill the child and free its files; also when nobody holds it, or this process ends."""
        if os.getpid() != owner:  # a forked process has no child of its own in it
            return
        self.was_ended = True
        self.process.kill()
        self._requests.put(None)
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(_KILLED_S)
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(_KILLED_S)
        self._said.close()

    def _send(self) -> None:
        pipe: Any = self.process.stdin
        with suppress(OSError), pipe:  # a child that has ended is noticed by its answers
            while (request := self._requests.get()) is not None:
                pickle.dump(request, pipe, protocol=pickle.HIGHEST_PROTOCOL)
                pipe.flush()
                # The next request may be long in coming: no text may stay alive until then.
                del request

    def _take(self) -> None:
        pipe: Any = self.process.stdout
        with pipe, suppress(Exception):  # whatever it is, there are no more answers
            while True:
                answer: ChildAnswer = pickle.load(pipe)
                with self._lock:
                    call = self._open.pop(answer.number)
                call.set_result(answer)
                if os.fstat(self._said.fileno()).st_size > _MOST_SAID:
                    self._said.truncate(0)
                del answer, call
        how = self._how()
        with self._lock:
            self.how = how
            calls = list(self._open.values())
            self._open.clear()
        for call in calls:
            call.set_exception(ChildProcessError(how))

    def _how(self) -> str:
        """Return how the child has ended. Its pipe is closed, so it does: the status tells why."""
        status: int | None = None
        with suppress(subprocess.TimeoutExpired):
            status = self.process.wait(_GRACE_S)
        how = "it closed its pipe" if status is None else f"status {status}"
        if status is not None and status < 0:
            how = f"signal {-status}"
        return how + self._last_words()

    def _last_words(self) -> str:
        with suppress(OSError, ValueError):
            self._said.seek(max(0, self._said.seek(0, os.SEEK_END) - _SHOWN))
            line = self._said.read().decode("utf-8", "replace").strip().splitlines()[-1:]
            return f"; its last line: {line[0]}" if line else ""
        return ""


def _require_interpreter(name: str) -> None:
    from rag_accel.engines.compiled.compile_process import has_interpreter

    if not has_interpreter():
        raise ConfigError(
            "a process of its own needs a Python interpreter",
            where=name,
            found=sys.executable or "none",
            valid="a program that is run by python",
        )


def _require_cores(cpus: frozenset[int], name: str) -> None:
    allowed: set[int] = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    if not cpus or not cpus <= allowed:
        raise ConfigError(
            "these are no cores for a process",
            where=f"{name}, cpus",
            found=str(sorted(cpus)),
            valid=f"some of {sorted(allowed)}" if allowed else "None: this system has no such mask",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessOptions(ReplicaOptions):
    """The cores, number and bounds of the child processes that host an engine.

    Args:
        threads: on which each process computes; by default all cores, shared by the most replicas.
        cpus: the cores that they may run on; by default all that this process may use.
        others: as of ``ReplicaOptions``.

    Raises:
        ConfigError: an option out of range.
    """

    threads: int | None = None
    cpus: Collection[int] | None = None

    def __post_init__(self) -> None:
        ReplicaOptions.__post_init__(self)
        check_whole("ProcessOptions.threads", self.threads, 1)
        if self.cpus is not None and not isinstance(self.cpus, Collection):
            raise ConfigError(
                "cores are given by their numbers",
                where="ProcessOptions.cpus",
                found=repr(self.cpus),
                valid="a list such as [0, 1]",
            )

    @property
    def granted_threads(self) -> int:
        """Return the threads on which each process computes."""
        cores = usable_cores() if self.cpus is None else len(self.cpus)
        return self.threads or max(1, cores // self.most_replicas)


class ProcessEngine(HostedEngine):
    """An engine that runs in one or more child processes of this machine; see ``HostedEngine``.

    Each is a new interpreter, which ends with this process however that ends. What a child prints
    or leaks, and a crash of a library in it, stay there.

    Args:
        factory: of the engine: a name of the entry points ``rag_accel.engines`` such as
            ``"local"``, a ``"module:attribute"``, or a function or class of a module.
        arguments: of the factory, by name. They travel pickled; name models and files rather than
            pass them.
        options: the cores, number and bounds of the processes.
        clock: is that of ``EngineRequest.deadline``.

    Raises:
        ConfigError: an unknown factory, arguments that cannot be pickled, cores that this process
            may not use, or no interpreter to start.
        EngineError: a process has not made its engine in time.
        Exception: whatever the factory raises.
    """

    def __init__(
        self,
        factory: str | Callable[..., Engine],
        arguments: Mapping[str, Any] | None = None,
        options: ProcessOptions | None = None,
        *,
        clock: Clock | None = None,
    ) -> None:
        options = options or ProcessOptions()
        spec = EngineSpec.of(factory, arguments, "ProcessEngine")
        name = f"ProcessEngine({spec.factory!r})"
        host = partial(
            ChildProcess,
            name,
            partial(EngineHost, spec, options.granted_threads),
            cpus=None if options.cpus is None else frozenset(options.cpus),
            restarts=options.max_restarts,
        )
        super().__init__(name, host, options, clock)

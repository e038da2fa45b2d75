"""The far side: an engine on a thread of its own, what it is made of, and the messages to it.

Several methods of ``EngineHost`` run at a time: while ``poll`` waits for outputs and the engine
computes, ``submit`` brings more. Payloads and results travel pickled one by one, so that one which
cannot be pickled, or not read on the other side, ends as an error of its own. Times travel as
durations: the clocks of two machines have nothing in common.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import pickle
import platform
import threading
import uuid
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rag_accel.clock import Clock, MonotonicClock
from rag_accel.engine_api import (
    Engine,
    EngineOutput,
    EngineProfile,
    EngineRequest,
    ForgettingEngine,
    Handle,
    WorkId,
)
from rag_accel.engines.replicas.engine_thread import EngineSteps, EngineThread, StepReport
from rag_accel.errors import ConfigError, EngineError, EngineLostError, EngineOutputError
from rag_accel.registry import engine_registry

_VALID = 'a name of rag_accel.engines, "module:attribute", or a function or class of a module'


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """A factory of engines that other processes find, and its arguments.

    Args:
        factory: a name of the entry points ``rag_accel.engines``, or ``module:attribute``.
        arguments: the pickled arguments, by name.
    """

    factory: str
    arguments: bytes

    @classmethod
    def of(
        cls,
        factory: str | Callable[..., Engine],
        arguments: Mapping[str, Any] | None,
        where: str,
    ) -> EngineSpec:
        """Return the specification of an engine, without importing its factory.

        Args:
            factory: of the engine.
            arguments: of the factory, by name.
            where: names the class that was given them.

        Raises:
            ConfigError: an unknown factory, or arguments that cannot be pickled.
        """
        name = factory if isinstance(factory, str) else _path(factory, where)
        if ":" not in name:
            engine_registry().origin(name)
        return cls(name, _pickled(f"{where}({name!r})", arguments or {}))

    def make(self) -> Engine:
        """Make the engine here.

        Raises:
            ConfigError: there is no such factory here, or it makes something else.
            ImportError: a package is missing here.
        """
        engine = self._factory()(**pickle.loads(self.arguments))
        if not isinstance(engine, Engine):
            raise ConfigError(
                "the factory makes no engine",
                where=self.factory,
                found=type(engine).__name__,
                valid="an object with the methods of rag_accel.engine_api.Engine",
            )
        return engine

    def _factory(self) -> Callable[..., Any]:
        module, colon, attribute = self.factory.partition(":")
        if not colon:
            return engine_registry().get(self.factory)
        found: Any = importlib.import_module(module)
        try:
            for part in attribute.split("."):
                found = getattr(found, part)
        except AttributeError as error:
            raise _unknown(self.factory, str(error)) from error
        if not callable(found):
            raise _unknown(self.factory, f"an object of type {type(found).__name__}")
        return found


def _path(factory: Callable[..., Engine], where: str) -> str:
    """Return the path under which other processes import a factory.

    Raises:
        ConfigError: there is none.
    """
    module, name = getattr(factory, "__module__", None), getattr(factory, "__qualname__", None)
    if not module or not name:
        raise _unknown(where, repr(factory))
    if module == "__main__" or "<" in name:
        raise ConfigError(
            "the factory cannot be imported by other processes",
            where=where,
            found=f"{module}:{name}",
            valid=_VALID,
            hint="move it into a module that they have",
        )
    return f"{module}:{name}"


def _pickled(where: str, arguments: Mapping[str, Any]) -> bytes:
    if not isinstance(arguments, Mapping):
        raise ConfigError(
            "arguments of an engine are given by name",
            where=where,
            found=type(arguments).__name__,
            valid='a mapping, such as {"model": "/models/minilm"}',
        )
    for key, value in arguments.items():
        try:
            pickle.dumps(value)
        except Exception as error:
            raise ConfigError(
                "an argument cannot be sent to another process",
                where=f"{where}, argument {key!r}",
                found=f"{type(value).__name__}: {error}",
                valid="what pickle takes, such as a path, a name or a number",
                hint="name the model or file, and let the process load it",
            ) from error
    return pickle.dumps(dict(arguments))


def _unknown(factory: str, found: str) -> ConfigError:
    return ConfigError("unknown engine factory", where=factory, found=found, valid=_VALID)


WHERE = "engine in another process"


@dataclass(frozen=True, slots=True)
class HostedWork:
    """A request on its way to a process.

    Args:
        number: of this attempt; no other one of the same engine has it.
        size: of the request, in items.
        body: the pickled request, its id the number, its handle the one of that process.
        age_s: seconds since it arrived.
        left_s: seconds until its deadline, if it has one.
    """

    number: int
    size: int
    body: bytes
    age_s: float
    left_s: float | None

    @classmethod
    def of(
        cls, number: int, request: EngineRequest, handle: Handle | None, now: float
    ) -> HostedWork:
        """Return a request as it travels.

        Raises:
            EngineError: its payload cannot be pickled.
        """
        sent = replace(request, id=work_id(number), handle=handle, arrived_at=0.0, deadline=None)
        try:
            body = pickle.dumps(sent, protocol=5)
        except Exception as error:
            raise EngineError(
                "work that cannot be sent to another process",
                where=WHERE,
                found=f"{type(request.payload).__name__}: {error}",
                valid="a payload that pickle takes",
            ) from error
        left_s = None if request.deadline is None else request.deadline - now
        return cls(number, request.size, body, now - request.arrived_at, left_s)

    def request(self, now: float) -> EngineRequest:
        """Return the request on the clock of this machine.

        Raises:
            EngineError: it cannot be read here.
        """
        request: EngineRequest = _read(self.body, "work")
        deadline = None if self.left_s is None else now + self.left_s
        return replace(request, arrived_at=now - self.age_s, deadline=deadline)


@dataclass(frozen=True, slots=True)
class HostInfo:
    """The facts about a process whose engine is made.

    Args:
        profile: of the engine.
        incarnation: names this process; one that is started in its place has another name.
        node: the machine's name.
        pid: of the process.
        versions: of what must be equal on both sides, by name.
    """

    profile: EngineProfile
    incarnation: str
    node: str
    pid: int
    versions: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class HostReports:
    """The outputs of a process since those that were acknowledged.

    Args:
        incarnation: of the process that reports.
        first: number of the first report here.
        reports: each a pickled list of outputs.
        step_s: seconds that the present step has lasted; 0 between steps.
        counts: of the engine, if it counts.
    """

    incarnation: str
    first: int
    reports: tuple[bytes, ...]
    step_s: float = 0.0
    counts: Mapping[str, int] = field(default_factory=dict[str, int])

    @property
    def end(self) -> int:
        """Return the number behind the last report here."""
        return self.first + len(self.reports)


def work_id(number: int) -> WorkId:
    """Return the id under which a process's engine knows an attempt."""
    return WorkId(str(number))


def pack_outputs(outputs: Sequence[EngineOutput]) -> bytes:
    """Pickle outputs; one that cannot be pickled becomes an error of its own."""
    if all(output.error is None for output in outputs):
        try:
            return pickle.dumps(list(outputs), protocol=5)
        except Exception:  # which one it is shows below
            pass
    return pickle.dumps([_sendable(output) for output in outputs], protocol=5)


def unpack_outputs(body: bytes) -> list[EngineOutput]:
    """Return the outputs of a report.

    Raises:
        EngineError: this process cannot read it.
    """
    return list(_read(body, "an answer"))


def _read(body: bytes, what: str) -> Any:
    try:
        return pickle.loads(body)
    except Exception as error:
        raise EngineError(
            f"{what} that this process cannot read",
            where=WHERE,
            found=f"{type(error).__name__}: {error}",
            valid="classes that both processes import under the same name",
        ) from error


def _sendable(output: EngineOutput) -> EngineOutput:
    try:
        # Many exceptions can be pickled and not be read: their arguments are not those of __init__.
        pickle.loads(pickle.dumps(output, protocol=5))
    except Exception as error:
        if output.error is not None:
            told = EngineError(
                "the engine failed",
                where=WHERE,
                found=f"{type(output.error).__name__}: {output.error}",
            )
        else:
            told = EngineOutputError(
                "a result that cannot be sent to another process",
                where=WHERE,
                found=f"{type(output.value).__name__}: {error}",
                valid="what pickle takes",
            )
        return EngineOutput(output.id, "error", error=told)
    return output


_EARLY = 10_000


class EngineHost:
    """One owned engine in a process of its own.

    Args:
        spec: of the engine.
        threads: granted to each of its steps.
        clock: measures deadlines and steps.
    """

    def __init__(self, spec: EngineSpec, threads: int, clock: Clock | None = None) -> None:
        self._clock = clock or MonotonicClock()
        self._incarnation = uuid.uuid4().hex
        self._told = threading.Condition()
        self._reports: deque[bytes] = deque()
        self._first = 0
        self._is_over = False
        #: cancelled before they came: calls of a process may overtake each other
        self._gone_early: dict[WorkId, None] = {}
        self._thread = EngineThread(
            "rag-accel-hosted", spec.make, self._report, self._clock, threads
        )

    def start(self) -> HostInfo:
        """Make the engine, once, and return the facts about this process.

        Raises:
            Exception: whatever the factory raises.
        """
        self._thread.start()
        profile = self._thread.made.result().profile
        return HostInfo(profile, self._incarnation, platform.node(), os.getpid(), versions_here())

    def submit(self, work: Sequence[HostedWork]) -> None:
        """Take work; a process that was not started yet is not the one that it was sent to."""
        if self._thread.is_started:
            self._thread.order(lambda steps: self._take(steps, work))

    def exchange(self, work: Sequence[HostedWork], acknowledged: int, wait_s: float) -> HostReports:
        """Take work, then ``poll``: one call for both.

        Raises:
            EngineLostError: the engine's thread has ended.
        """
        self.submit(work)
        return self.poll(acknowledged, wait_s)

    def cancel(self, numbers: Sequence[int]) -> None:
        """Forget work by its numbers, also such as has not come yet."""
        self._thread.order(lambda steps: self._cancel(steps, list(map(work_id, numbers))))

    def release(self, handles: Sequence[Handle]) -> None:
        """Free state of the engine."""
        self._thread.order(lambda steps: steps.engine.release(handles))

    def forget(self, documents: Sequence[str], namespace: str) -> None:
        """Remove what is kept of texts of a namespace, where the engine keeps any."""
        engine = self._thread.made.result()
        if isinstance(engine, ForgettingEngine):
            engine.forget(documents, namespace)

    def hint(self, documents: Sequence[str], namespace: str) -> None:
        """Tell the engine of texts that are likely to come."""
        self._thread.made.result().hint(documents, namespace)

    def poll(self, acknowledged: int, wait_s: float) -> HostReports:
        """Return the reports from number ``acknowledged`` on, waiting for a first one.

        Those before it are forgotten; one that is not acknowledged is returned again.

        Raises:
            EngineLostError: the engine's thread has ended.
        """
        thread = self._thread
        with self._told:
            if not thread.is_started:  # a new process, which whoever polls does not expect
                return HostReports(self._incarnation, 0, ())
            while self._reports and self._first < acknowledged:
                self._reports.popleft()
                self._first += 1
            self._told.wait_for(lambda: self._reports or self._is_over, wait_s)
            if self._is_over and not self._reports:
                raise EngineLostError("the thread of the engine has ended", where=WHERE)
            return HostReports(
                self._incarnation,
                self._first,
                tuple(self._reports),
                thread.step_s or 0.0,
                thread.counts,
            )

    def close(self) -> None:
        """Drop all work and free the engine; returns when it is freed."""
        self._thread.close()
        self._thread.join()

    def _take(self, steps: EngineSteps, work: Sequence[HostedWork]) -> None:
        """Queue work; what cannot be read here ends in an error."""
        for item in work:
            id = work_id(item.number)
            if id in self._gone_early:
                del self._gone_early[id]
                continue
            try:
                steps.take([item.request(self._clock.now())])
            except Exception as error:
                steps.refuse(id, error)

    def _cancel(self, steps: EngineSteps, ids: Sequence[WorkId]) -> None:
        self._gone_early.update(dict.fromkeys(steps.cancel(ids)))
        while len(self._gone_early) > _EARLY:
            del self._gone_early[next(iter(self._gone_early))]

    def _report(self, report: StepReport) -> None:
        body = [pack_outputs(report.outputs)] if report.outputs else []
        with self._told:
            self._reports.extend(body)
            self._is_over = report.is_over
            self._told.notify_all()


def versions_here() -> dict[str, str]:
    """Return the versions of this process that must equal those of the others."""
    major, minor, _ = platform.python_version_tuple()
    return {
        "Python": f"{major}.{minor}",
        "rag-accel": importlib.metadata.version("rag-accel"),
        "ray": _version("ray"),
    }


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "absent"

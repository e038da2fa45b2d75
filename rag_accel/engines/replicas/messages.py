"""Messages between an engine and the processes that host it.

Payloads and results travel pickled one by one, so that one which cannot be pickled, or not read on
the other side, ends as an error of its own. Times travel as durations: the clocks of two machines
have nothing in common.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from rag_accel.engine_api import (
    EngineOutput,
    EngineProfile,
    EngineRequest,
    Handle,
    WorkId,
)
from rag_accel.errors import EngineError, EngineOutputError

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
        try:
            request: EngineRequest = pickle.loads(self.body)
        except Exception as error:
            raise EngineError(
                "work that this process cannot read",
                where=WHERE,
                found=f"{type(error).__name__}: {error}",
                valid="classes that both processes import under the same name",
            ) from error
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
    try:
        return list(pickle.loads(body))
    except Exception as error:
        raise EngineError(
            "an answer that this process cannot read",
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
                "the engine failed", where=WHERE, found=f"{_name(output.error)}: {output.error}"
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


def _name(error: BaseException) -> str:
    return type(error).__name__

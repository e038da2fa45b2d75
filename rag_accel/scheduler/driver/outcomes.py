"""Outcomes of primitives and steps, as results and exceptions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rag_accel.engine_api import Handle
from rag_accel.errors import (
    BusyError,
    ClosedError,
    DeadlineError,
    EngineError,
    EngineLostError,
    RequestCancelledError,
)
from rag_accel.scheduler.commands import TooLate
from rag_accel.scheduler.messages import NodeKey, NodeReport, Outcome


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of one primitive: a value, or the exception it raised.

    ``late`` says why it was not begun.
    """

    value: Any = None
    error: BaseException | None = None
    handle: Handle | None = None
    late: TooLate | None = None


def late_result(retry_after_s: float, where: str) -> Result:
    """Return the result of a request refused because an engine would be late."""
    error = BusyError(
        "an embedder would answer later than it should",
        where=where,
        found=f"room in {retry_after_s:.3f} s",
        valid="texts that end within embedding_slo_s",
        hint="try again after retry_after_s, raise embedding_slo_s, or use on_full='wait'",
        retry_after_s=retry_after_s,
    )
    return Result(error=error)


def error_for(outcome: Outcome, result: Result | None, where: str) -> BaseException | None:
    """Return the exception that ``outcome`` means to the caller, or ``None`` for ``done``.

    A failure is the original exception object; everything else is an error of this package.
    """
    if outcome == "done":
        return None
    if result is not None and result.error is not None:
        return result.error
    if outcome == "cancelled":
        return RequestCancelledError("the request was cancelled", where=where)
    if outcome == "deadline" and result is not None and result.late is not None:
        return DeadlineError(
            "the stage was not begun, because the request could not end before its deadline",
            where=where,
            found=f"{result.late.left_s:.3f} s left",
            valid=f"{result.late.takes_s:.3f} s or more: the least that it and what follows it "
            "have taken lately",
            hint="raise deadline_s, or look at rag-accel doctor for a slow engine",
        )
    if outcome == "deadline":
        return DeadlineError(
            "the request ran past its deadline",
            where=where,
            hint="raise deadline_s, or look at rag-accel doctor for a slow engine",
        )
    if outcome == "lost":
        return EngineLostError(
            "the engine did not come back from a step",
            where=where,
            hint="raise step_timeout_s if steps take that long; it is used again once it returns",
        )
    if outcome == "rejected":
        return BusyError(
            "the bound on live requests is reached",
            where=where,
            hint="try again later, raise max_requests, or use on_full='wait'",
        )
    if outcome == "closed":
        return ClosedError(
            "the accelerator is closed", where=where, hint="make a new one with Accelerator()"
        )
    return EngineError("the engine failed without saying why", where=where)


@dataclass(slots=True)
class StepOutcome:
    """Outputs of one step."""

    reports: list[NodeReport] = field(default_factory=list[NodeReport])
    results: dict[NodeKey, Result] = field(default_factory=dict[NodeKey, Result])
    #: engine-owned state that no client was told of
    unclaimed: list[Handle] = field(default_factory=list[Handle])

    def fail(self, node: NodeKey, error: BaseException) -> None:
        """Note that a member ended with an error."""
        self.results[node] = Result(error=error)
        self.reports.append(NodeReport(node, "error"))

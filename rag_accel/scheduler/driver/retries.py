"""Reports of failed work, with what its request says about another attempt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from rag_accel.scheduler.driver.delivery import Clients
from rag_accel.scheduler.driver.outcomes import Result
from rag_accel.scheduler.messages import NodeKey, NodeReport, StepEnded, StepFailed


def with_retries(
    clients: Clients, event: StepEnded | StepFailed, results: Mapping[NodeKey, Result]
) -> StepEnded | StepFailed:
    """Return the event with how long each failed member must wait before another attempt.

    Called on the engine's thread: the user's code may judge an error. Intercepted calls have no
    further attempts; their programs decide about errors.
    """
    least_s: dict[NodeKey, float] = {}
    for node, result in results.items():
        client = None if result.error is None else clients.find_graph(node)
        if client is not None and result.error is not None:
            after_s = client.retry_after_s(node, result.error)
            if after_s is not None:
                least_s[node] = after_s
    if not least_s:
        return event
    if isinstance(event, StepFailed):
        errors = (NodeReport(node, "error", None, after_s) for node, after_s in least_s.items())
        return replace(event, errors=tuple(errors))
    reports = (
        replace(report, retry_after_s=least_s.get(report.node))
        if report.kind == "error"
        else report
        for report in event.reports
    )
    return replace(event, reports=tuple(reports))

"""Share the machine's cores among the engines that compute on them (the core ledger)."""

from __future__ import annotations

from rag_accel.scheduler.state import EngineState, SchedulerState


def grant_threads(state: SchedulerState, engine: EngineState) -> int:
    """Return how many threads the engine's next step may use; at least one.

    An engine that is alone gets all it can use. While other engines that compute here have work,
    each gets an equal share, and never a thread that somebody already holds, except that a
    runnable step is never held back for want of a core: it then runs on one.
    """
    if engine.max_threads <= 0:
        return 1
    others = [
        other for other in state.owned.values() if other is not engine and other.max_threads > 0
    ]
    held = sum(other.threads for other in others if other.step is not None)
    claimants = sum(1 for other in others if other.step is not None or len(other.queue))
    fair = max(1, state.options.cores // (claimants + 1))
    free = state.options.cores - held
    return max(1, min(engine.max_threads, fair if claimants else free, max(free, 1)))

"""The engine contract catches engines that cannot cancel, release, be interrupted or be closed.

Each rule has at least one engine here that breaks it; a rule nobody can break tests nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from rag_accel.engine_api import Engine, Handle, WorkId
from rag_accel.testing import FAKE_PROFILE, EngineContract, FakeEngine, Faults

RunRule = Callable[[str, Callable[[], Engine]], None]
LIFE_CYCLE = ("cancel", "close", "handles", "interrupt")
"""Words in the names of the rules about more than doing work."""


class RaisesForUnknownIds(FakeEngine):
    def cancel(self, ids: Sequence[WorkId]) -> None:
        for id in ids:
            del self._held[id]


class RaisesForUnknownHandles(FakeEngine):
    def release(self, handles: Sequence[Handle]) -> None:
        for handle in handles:
            del self._resumable[handle]


class ReleasesEachHandleOnce(FakeEngine):
    """Ignores handles it never saw, but not those it has freed."""

    def __init__(self) -> None:
        super().__init__(steps=2)
        self.freed: set[Handle] = set()

    def release(self, handles: Sequence[Handle]) -> None:
        if self.freed.intersection(handles):
            raise KeyError("double free")
        self.freed.update(handles)


class CannotCancel(FakeEngine):
    def cancel(self, ids: Sequence[WorkId]) -> None:
        """Forget nothing."""


class CannotCancelWhatRuns(FakeEngine):
    def __init__(self) -> None:
        super().__init__(steps=3)

    def cancel(self, ids: Sequence[WorkId]) -> None:
        if not self.batches:
            super().cancel(ids)


class CancelsTheWholeBatch(FakeEngine):
    def cancel(self, ids: Sequence[WorkId]) -> None:
        super().cancel(list(self._held))


class IgnoresInterrupts(FakeEngine):
    def __init__(self) -> None:
        profile = replace(FAKE_PROFILE, interruptible=True)
        super().__init__(profile, faults=Faults(hang=threading.Event()))

    def interrupt(self) -> None:
        """Do nothing."""


class CannotBeClosedTwice(FakeEngine):
    def close(self) -> None:
        if self.is_closed:
            raise RuntimeError("closed twice")
        super().close()


class CannotBeClosedWithWork(FakeEngine):
    def close(self) -> None:
        if self._held:
            raise RuntimeError("work is unfinished")
        super().close()


class LeavesAThread(FakeEngine):
    def __init__(self) -> None:
        super().__init__()
        self.thread = threading.Thread(
            target=threading.Event().wait, name="left-behind", daemon=True
        )
        self.thread.start()


BROKEN: dict[str, dict[Callable[[], Engine], str]] = {
    "test_unknown_ids_and_handles_are_ignored": {
        RaisesForUnknownIds: "never submitted",
        RaisesForUnknownHandles: "never given out",
    },
    "test_a_cancelled_id_never_reports": {
        CannotCancel: "cancelled and still reported",
        CancelsTheWholeBatch: "no final or error output",
    },
    "test_work_cancelled_between_steps_never_reports_again": {
        CannotCancelWhatRuns: "cancelled and still reported"
    },
    "test_handles_can_be_released_twice": {ReleasesEachHandleOnce: "double free"},
    "test_interrupt_makes_a_waiting_step_return": {IgnoresInterrupts: "waited on"},
    "test_close_drops_unfinished_work_and_may_be_called_again": {
        CannotBeClosedTwice: "closed twice",
        CannotBeClosedWithWork: "unfinished",
    },
    "test_close_leaves_no_thread": {LeavesAThread: "left-behind"},
}

RULES = sorted(
    name
    for name in dir(EngineContract)
    if name.startswith("test_") and any(word in name for word in LIFE_CYCLE)
)


def test_every_rule_about_the_life_cycle_has_an_engine_that_breaks_it() -> None:
    assert sorted(BROKEN) == RULES


@pytest.mark.parametrize(
    ("rule", "make", "message"),
    [(rule, make, text) for rule, engines in BROKEN.items() for make, text in engines.items()],
)
def test_a_broken_engine_fails_its_rule(
    run_rule: RunRule, rule: str, make: Callable[[], Engine], message: str
) -> None:
    with pytest.raises(Exception, match=message):
        run_rule(rule, make)

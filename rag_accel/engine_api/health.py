"""The health of engines and of their members, for readiness probes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias, runtime_checkable

HealthState: TypeAlias = Literal["ready", "preparing", "paused", "lost"]
"""``ready`` takes work; ``preparing`` does, but slowly: it still loads or compiles models.
``paused`` takes none now and will again; ``lost`` never takes any more."""

_WORST_FIRST: tuple[HealthState, ...] = ("lost", "paused", "preparing", "ready")


@dataclass(frozen=True, slots=True)
class Health:
    """The state of one thing that takes work, for a readiness probe.

    Args:
        name: of the accelerator, the engine or the member.
        state: whether it takes work.
        why: the reason if it is not ready, or was not when it was last tried; holds no text of any
            request and no key.
        parts: what it is made of.
    """

    name: str
    state: HealthState = "ready"
    why: str = ""
    parts: tuple[Health, ...] = ()

    @property
    def is_ready(self) -> bool:
        """Tell whether it takes work now; a part may still be paused or lost."""
        return self.state == "ready"


def worst_state(parts: Iterable[Health]) -> HealthState:
    """Return the worst state among parts that are all needed; ``ready`` without parts."""
    return _first_state(_WORST_FIRST, parts, "ready")


def best_state(parts: Iterable[Health]) -> HealthState:
    """Return the best state among parts of which any does the work; ``lost`` without parts."""
    return _first_state(_WORST_FIRST[::-1], parts, "lost")


def _first_state(
    order: Iterable[HealthState], parts: Iterable[Health], default: HealthState
) -> HealthState:
    states = {part.state for part in parts}
    for state in order:
        if state in states:
            return state
    return default


@runtime_checkable
class ReportingEngine(Protocol):
    """An engine that knows more of its health than whether it still ends its steps."""

    def health(self) -> Health:
        """Return its health, with that of its members; from any thread, at once."""
        ...

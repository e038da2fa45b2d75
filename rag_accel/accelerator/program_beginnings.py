"""Records of the prompts of an accelerator's programs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from rag_accel.engine_api import EngineProfile, PrimitiveKind
from rag_accel.leaves.early_beginnings import Count, RunBeginnings
from rag_accel.leaves.identity import RequestIdentity
from rag_accel.leaves.recorded_prompts import RecordedPrompts
from rag_accel.scheduler.driver import Driver
from rag_accel.scheduler.messages import EngineName

MOST_PROGRAMS: Final = 1024
"""Programs whose prompts are recorded; the oldest make room."""


@dataclass(slots=True, eq=False)
class ProgramBeginnings:
    """The records of programs, by name.

    Args:
        driver, namespace: of the accelerator, so that no two tenants share a record.
        is_on: whether beginnings are prefilled at all.
        profiles: returns those of the engines here.
        count: told what became of beginnings.
    """

    driver: Driver
    namespace: str
    is_on: bool
    profiles: Callable[[], Mapping[EngineName, EngineProfile]]
    count: Count
    programs: dict[str, RecordedPrompts] = field(default_factory=dict[str, RecordedPrompts])

    def are_begun_by(self, engine: EngineName) -> bool:
        """Tell whether prompts of an engine can be begun before they are known as a whole."""
        if not self.is_on:
            return False
        profile = self.profiles().get(engine)
        return profile is not None and PrimitiveKind.PARTIAL_PREFILLING in profile.kinds

    def attach(self, identity: RequestIdentity) -> RunBeginnings:
        """Return the prompts of a run, which keeps them."""
        recorded = self.programs.get(identity.program)
        if recorded is None:
            while len(self.programs) >= MOST_PROGRAMS:
                self.programs.pop(next(iter(list(self.programs))), None)
            recorded = self.programs.setdefault(identity.program, RecordedPrompts())
        run = RunBeginnings(
            *(self.driver, self.namespace, identity.request, identity.program),
            *(recorded, identity.given, identity.retrieved, self.count),
        )
        identity.beginnings = identity.beginnings or run
        return identity.beginnings

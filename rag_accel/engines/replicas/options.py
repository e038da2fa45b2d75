"""The number and bounds of the processes that host an engine."""

from __future__ import annotations

from dataclasses import dataclass, fields

from rag_accel.engines.option_checks import check_least, check_whole
from rag_accel.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaOptions:
    """The number and bounds of the processes that host an engine.

    Args:
        replicas: processes at the start, and the least there are.
        max_replicas: most processes; None for ``replicas``, so that their number stays.
        scale_at: items in flight for each replica from which another one is started; None for what
            the engine puts into two steps.
        idle_s: seconds without work after which a replica beyond ``replicas`` is ended.
        max_restarts: how often a process that died is started again; forgotten after it has served
            for an hour.
        resends: how often work that was alone in a process is sent again after that was lost; what
            was not alone is sent again in smaller parts until it is; 0 never.
        start_timeout_s: most seconds in which a process must have made its engine.
        work_timeout_s: most seconds of a piece of work; then it ends in an error, or is sent again
            if it was not alone in a step that hangs.
        lost_after_s: a process that is silent for so many seconds is ended, and started again.
        close_timeout_s: most seconds in which a process frees its engine at the end.

    Raises:
        ConfigError: an option out of range.
    """

    replicas: int = 1
    max_replicas: int | None = None
    scale_at: int | None = None
    idle_s: float = 60.0
    max_restarts: int = 10
    resends: int = 1
    start_timeout_s: float = 120.0
    work_timeout_s: float = 600.0
    lost_after_s: float = 10.0
    close_timeout_s: float = 10.0

    def __post_init__(self) -> None:
        name = type(self).__name__
        for option in fields(self):
            if isinstance(option.default, int | float) and getattr(self, option.name) is None:
                raise ConfigError(
                    "option out of range",
                    where=f"{name}.{option.name}",
                    found=None,
                    valid="a number",
                )
        for option in ("replicas", "max_replicas", "scale_at"):
            check_whole(f"{name}.{option}", getattr(self, option), 1)
        for option in ("max_restarts", "resends"):
            check_whole(f"{name}.{option}", getattr(self, option), 0)
        for option in ("start_timeout_s", "work_timeout_s", "lost_after_s", "close_timeout_s"):
            check_least(f"{name}.{option}", getattr(self, option), 0.001)
        check_least(f"{name}.idle_s", self.idle_s, 0)
        if self.most_replicas < self.replicas:
            raise ConfigError(
                "fewer replicas at most than at least",
                where=f"{name}.max_replicas",
                found=self.max_replicas,
                valid=f"from replicas={self.replicas}",
            )

    @property
    def most_replicas(self) -> int:
        """Return the most processes there are at a time."""
        return self.replicas if self.max_replicas is None else self.max_replicas

    @property
    def needs(self) -> str:
        """Return what a process waits for before it starts, in words; empty for nothing."""
        return ""

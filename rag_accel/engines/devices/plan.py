"""Plans of the members' next batches, with their predicted ends."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

from rag_accel.engines.devices.latency_fit import MemberLines
from rag_accel.engines.devices.pieces import Turn, WorkPiece


@dataclass(frozen=True, slots=True)
class MemberSpec:
    """A member's limits and first latency estimate, for placement.

    Args:
        name: unique in its group.
        alpha: first guess of its seconds a token.
        beta: first guess of the seconds its steps cost by themselves.
        max_texts: most texts of one step.
        max_tokens: about the most tokens of one step; one longer text runs alone.
        max_threads: most threads it computes with on this machine's cores; 0 if it computes
            elsewhere.
        in_flight: most steps at once.
    """

    name: str
    alpha: float = 1e-4
    beta: float = 4e-3
    max_texts: int = 64
    max_tokens: int = 4096
    max_threads: int = 1
    in_flight: int = 1

    @property
    def on_cores(self) -> bool:
        """Tell whether it computes on this machine's cores."""
        return self.max_threads > 0


@dataclass(slots=True, eq=False)
class MemberBatch:
    """The pieces of one step of a member. Compared by identity.

    Args:
        member: the member's name.
        pieces: the computed pieces.
        cost: estimated tokens.
        began: when it was bound.
        predicted_s: how long it was expected to take.
        contended: whether another member computed on the same cores when it began.
        threads: how many threads it may compute with; 0 off the cores.
    """

    member: str
    pieces: tuple[WorkPiece, ...]
    cost: int
    began: float
    predicted_s: float
    contended: bool
    threads: int

    def ends_at(self, now: float) -> float:
        """Return when it is expected to end: one that is late is expected to be twice as late."""
        expected = self.began + self.predicted_s
        return expected if now <= expected else now + (now - expected)


@dataclass(slots=True, eq=False)
class MemberState:
    """A member as placement sees it."""

    spec: MemberSpec
    lines: MemberLines
    running: list[MemberBatch] = field(default_factory=list[MemberBatch])
    #: predicted seconds of its latest step
    step_s: float = 0.0
    #: steps in a row that failed
    failures: int = 0
    #: takes nothing before this time
    paused_until: float = 0.0

    def is_free(self, now: float) -> bool:
        """Tell whether it can take a batch."""
        return len(self.running) < self.spec.in_flight and self.paused_until <= now

    def free_at(self, now: float) -> float:
        """Return when it is expected to be free."""
        at = now
        if len(self.running) >= self.spec.in_flight:
            at = min(batch.ends_at(now) for batch in self.running)
        return max(at, self.paused_until)


@dataclass(slots=True, eq=False)
class MemberPlan:
    """The next steps of one member: those that are full, and the one that pieces still join.

    It is of use only until the member's lines learn something.
    """

    member: MemberState
    contended: bool
    #: when the step that pieces join would begin
    starts_at: float
    #: predicted seconds to which further pieces of begun works may extend a step
    goes_on_s: float
    texts: int = 0
    cost: int = 0
    earliest: float = inf
    is_closed: bool = False
    #: of the first step only
    pieces: list[Turn] = field(default_factory=list[Turn])
    is_first: bool = True
    #: seconds a token, seconds of a step by itself, and by how much a step may exceed both: looked
    #: up once, since planning asks for the end of very many steps
    _alpha: float = field(init=False)
    _beta: float = field(init=False)
    _exceeds: float = field(init=False)

    def __post_init__(self) -> None:
        lines = self.member.lines
        line = lines.line(self.contended)
        self._alpha, self._beta, self._exceeds = line.alpha, line.beta, 1.0 + lines.margin

    def end_with(self, turn: Turn) -> float:
        """Return when the step that this piece would be in ends."""
        if self._must_follow(turn):
            start = self.starts_at + self._seconds(self.cost)
            return start + self._seconds(turn.piece.cost)
        return self.starts_at + self._seconds(self.cost + turn.piece.cost)

    def add(self, turn: Turn) -> None:
        """Put a piece into the step it fits in.

        One that will be late there whatever else is in the step hurries nobody, nor does a further
        piece of a begun work.
        """
        if self._must_follow(turn):
            self.starts_at += self._seconds(self.cost)
            self.texts = self.cost = 0
            self.earliest = inf
            self.is_first = self.is_closed = False
        self.cost += turn.piece.cost
        self.texts += len(turn.piece.positions)
        latest = None if turn.goes_on else turn.work.latest_end
        if latest is not None and self.starts_at + self._seconds(self.cost) <= latest:
            self.earliest = min(self.earliest, latest)
        self.is_closed = turn.piece.alone
        if self.is_first:
            self.pieces.append(turn)

    def _must_follow(self, turn: Turn) -> bool:
        """Tell whether a piece belongs into the step after this one.

        That is where this one is full, or would end too late for what is in it.
        """
        if not self.texts:
            return False
        if self.is_closed or turn.piece.alone:
            return True
        spec, cost = self.member.spec, self.cost + turn.piece.cost
        if self.texts + len(turn.piece.positions) > spec.max_texts or cost > spec.max_tokens:
            return True
        seconds = self._seconds(cost)
        return self.starts_at + seconds > self.earliest or (
            turn.goes_on and seconds > self.goes_on_s
        )

    def _seconds(self, tokens: int) -> float:
        """Return the seconds that a step will take at most, as far as can be told."""
        return (self._alpha * tokens + self._beta) * self._exceeds if tokens else 0.0

"""Plans of the members' next batches, with their predicted ends."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from math import inf, isfinite

from rag_accel.engine_api.line_fit import LineFit
from rag_accel.engines.devices.pieces import Turn, WorkPiece
from rag_accel.errors import ConfigError

FORGETTING = 15 / 16
"""The weight of all earlier steps after each new one; five steps then suffice to settle."""

MOST_REQUESTS = 1024
"""Requests whose last embedding is remembered; older ones teach nothing."""

_NUM_OVERRUNS = 40
_MOST_MARGIN = 1.0

_LEAST_VARIATION = 1e-6  # of sizes, relative to their mean and squared, for a slope to show


class LatencyFit:
    """Seconds of a step as ``alpha * tokens + beta``, both from 0.

    Args:
        alpha: first guess of the seconds a token.
        beta: first guess of the seconds a step costs by itself.
    """

    __slots__ = ("_points", "alpha", "beta", "num_steps")

    def __init__(self, alpha: float, beta: float) -> None:
        self.alpha = alpha
        self.beta = beta
        self.num_steps = 0
        self._points = LineFit(FORGETTING)

    def predict_s(self, tokens: float) -> float:
        """Return the predicted seconds of a step over ``tokens``."""
        return self.alpha * tokens + self.beta

    def add(self, tokens: float, seconds: float) -> None:
        """Learn from one step."""
        self._points.add(tokens, seconds)
        self.num_steps += 1
        line = self._points.line(_LEAST_VARIATION)
        if line is None:
            self._scale(self._points.mean_size, self._points.mean_s)
        else:
            self.alpha, self.beta = line.per_item_s, line.base_s

    def _scale(self, mean_x: float, mean_y: float) -> None:
        """Keep the shape of the line: steps of one size tell its height only."""
        expected = self.predict_s(mean_x)
        if expected > 0.0:
            self.alpha *= mean_y / expected
            self.beta *= mean_y / expected
        elif mean_x > 0.0:
            self.alpha = mean_y / mean_x


class MemberLines:
    """The line of a member's steps, and another of those with a neighbour on the same cores.

    Until the second has a step it is the first.
    """

    __slots__ = ("_overruns", "alone", "contended", "margin")

    def __init__(self, alpha: float, beta: float) -> None:
        self.alone = LatencyFit(alpha, beta)
        self.contended = LatencyFit(alpha, beta)
        #: by how much steps exceed what was predicted, relative to it: of 95 % of them, no more
        self.margin = 0.0
        self._overruns: deque[float] = deque(maxlen=_NUM_OVERRUNS)

    def predict_s(self, tokens: float, contended: bool) -> float:
        """Return the predicted seconds of a step over ``tokens``."""
        return self.line(contended).predict_s(tokens)

    def line(self, contended: bool) -> LatencyFit:
        return self.contended if contended and self.contended.num_steps else self.alone

    def add(self, tokens: float, seconds: float, contended: bool) -> None:
        """Learn from one step."""
        self._note(seconds, self.predict_s(tokens, contended))
        if contended and not self.contended.num_steps:
            self.contended.alpha, self.contended.beta = self.alone.alpha, self.alone.beta
        (self.contended if contended else self.alone).add(tokens, seconds)

    def _note(self, seconds: float, predicted_s: float) -> None:
        if predicted_s > 0.0:
            self._overruns.append(min(_MOST_MARGIN, max(0.0, seconds / predicted_s - 1.0)))
            self.margin = sorted(self._overruns)[int(0.95 * (len(self._overruns) - 1))]


class RemainingTime:
    """The learned seconds of a request from one level of depth to the next.

    Learned where a request embeds twice, from the end of the deeper work to the arrival of the
    shallower one.
    """

    __slots__ = ("_ended", "level_s")

    def __init__(self) -> None:
        #: seconds a level, 0 until a request has shown it
        self.level_s = 0.0
        self._ended: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def after(self, depth: int) -> float:
        """Return the seconds a request is expected to need after work of this depth."""
        return max(0, depth - 1) * self.level_s

    def arrived(self, request: str, depth: int, now: float) -> None:
        """Learn from the next work of a request."""
        last = self._ended.pop(request, None)
        if last is None or last[0] <= depth:
            return
        seen = max(0.0, now - last[1]) / (last[0] - depth)
        new = 1.0 - FORGETTING
        self.level_s = seen if self.level_s == 0.0 else self.level_s + new * (seen - self.level_s)

    def ended(self, request: str, depth: int, now: float) -> None:
        """Remember when a work of a request ended."""
        if depth <= 1:
            return
        self._ended[request] = (depth, now)
        self._ended.move_to_end(request)
        if len(self._ended) > MOST_REQUESTS:
            self._ended.popitem(last=False)


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


SILENT_TIMES = 4.0
"""A call is no silence before so many times its predicted seconds."""


@dataclass(frozen=True, slots=True)
class MemberLimits:
    """Limits of the members of a device group; all but ``compare_every_texts`` in seconds.

    Args:
        first_pause_s: until a member elsewhere that failed is probed; each further wait doubles.
        longest_pause_s: the longest such wait.
        probe_s: the longest that a probe takes, where the member's call can be interrupted.
        second_try_s: a step that exceeds its predicted time by as much again, and at least by this,
            is given to a free member too.
        silent_s: a call of a member elsewhere without an answer is given up so long after
            ``slo_s``, and four times its predicted time.
        silent_without_slo_s: the same without ``slo_s``.
        absent_s: how long work waits for a member while none answers, before it ends with an error.
        compare_every_s: after so much time a member elsewhere embeds a probe again, before its next
            step.
        compare_every_texts: after so many texts a call to a server holds a probe too, whose vector
            is compared before any of the others is used.

    Raises:
        ConfigError: a limit that is negative or not finite.
    """

    first_pause_s: float = 0.25
    longest_pause_s: float = 4.0
    probe_s: float = 10.0
    second_try_s: float = 0.5
    silent_s: float = 2.0
    silent_without_slo_s: float = 20.0
    absent_s: float = 2.0
    compare_every_s: float = 60.0
    compare_every_texts: float = 64

    def __post_init__(self) -> None:
        for limit in fields(self):
            value = getattr(self, limit.name)
            if not (isfinite(value) and value >= 0.0):
                raise ConfigError(
                    "a limit of members is no number from 0",
                    where=f"MemberLimits({limit.name}=)",
                    found=repr(value),
                    valid="a finite number, from 0",
                )

    def pause_s(self, probes: int) -> float:
        """Return how long a member waits for its next probe, after so many failed ones."""
        return min(self.longest_pause_s, self.first_pause_s * 2.0 ** min(probes, 64))

    def late_at(self, batch: MemberBatch) -> float:
        """Return from when on a step is late enough for a second member to try it."""
        return batch.began + batch.predicted_s + max(batch.predicted_s, self.second_try_s)

    def silent_at(self, batch: MemberBatch, slo_s: float | None, step_timeout_s: float) -> float:
        """Return when a call of a member elsewhere is given up."""
        after_s = self.silent_without_slo_s if slo_s is None else slo_s + self.silent_s
        return batch.began + min(step_timeout_s, SILENT_TIMES * batch.predicted_s + after_s)


AT_EASE = 0.5
"""The share of its time that a piece may use on the preferred member.

Beyond it, the member that ends it first takes it, so that later arrivals meet their deadline.
While a begun work has pieces left, all members compute anyway, and no piece waits for the preferred
one.
"""

POSTPONED = (1, 2, 4, 8, 16, 32)
"""Numbers of the most urgent pieces that are put off on trial, where some are late in any case."""

_MOST_WEIGHED = 256  # queued pieces, where some are late
_LEAST_ALPHA = 1e-9  # seconds a token: a line may be flat


def first_in_time(
    turn: Turn, plans: Sequence[MemberPlan], ease: float = AT_EASE
) -> MemberPlan | None:
    """Return the plan a piece belongs to if it can end in time.

    Plans come in order of preference. The first one wins on which the whole step still ends before
    the earliest latest-end in it, and the piece within ``ease`` of its time; where there is
    none, that on which it ends soonest. None if it is late there too, or has no latest end.
    """
    latest = turn.work.latest_end
    if latest is None:
        return None
    at_ease = latest - (1.0 - ease) * max(0.0, latest - turn.work.came_at)
    sooner, soonest_end = None, inf
    for plan in plans:
        end = plan.end_with(turn)
        if end <= at_ease:
            return plan
        if end < soonest_end:
            sooner, soonest_end = plan, end
    return sooner if soonest_end <= latest else None


def soonest(turn: Turn, plans: Sequence[MemberPlan]) -> MemberPlan:
    """Return the plan in which a piece ends soonest without making others late."""
    return min(plans, key=lambda plan: plan.end_with(turn))


def place(turns: Sequence[Turn], plans: Sequence[MemberPlan]) -> int:
    """Put pieces into plans, in their order; return how many end too late.

    Those come after all others, into what these leave. One whose work is overdue does not: it has
    waited too long. Nor do further pieces of begun works, which come last in any case: for them
    nobody is put off.
    """
    late = _place_in_time(turns, plans)
    _place_late(late, plans)
    return len(late)


def least_late(
    turns: Sequence[Turn], plans: list[MemberPlan], make: Callable[[], list[MemberPlan]]
) -> list[MemberPlan]:
    """Return the plans in which fewest pieces are late, even if the most urgent are put off.

    A step that must end soon for one piece has room for few others, each of which waits for the
    fixed cost of one more step.

    Args:
        turns: the queued pieces, most urgent first.
        plans: empty ones.
        make: returns the like; called only where pieces are late.
    """
    num_late = place(turns, plans)
    if num_late and len(turns) > _MOST_WEIGHED:
        turns, plans = turns[:_MOST_WEIGHED], make()
        num_late = place(turns, plans)
    for count in POSTPONED:
        if not num_late or count >= len(turns):
            break
        other = make()
        late = _place_in_time([*turns[count:], *turns[:count]], other, num_late)
        if len(late) < num_late:
            _place_late(late, other)
            plans, num_late = other, len(late)
    return plans


def drained_at(tokens: int, plans: Sequence[MemberPlan]) -> float:
    """Return when members could have computed so many tokens, each in one step of its own.

    Args:
        tokens: of any number of pieces.
        plans: empty ones, at least one.
    """
    begins: list[tuple[float, float]] = []
    for plan in plans:
        line = plan.member.lines.line(plan.contended)
        begins.append((plan.starts_at + line.beta, max(line.alpha, _LEAST_ALPHA)))
    begins.sort()
    rate = weighted = 0.0
    end = inf
    for begin, alpha in begins:
        if end <= begin:
            break  # all is computed before this member has begun
        rate += 1.0 / alpha
        weighted += begin / alpha
        end = (tokens + weighted) / rate
    return end


def _place_in_time(
    turns: Sequence[Turn], plans: Sequence[MemberPlan], most: float = inf
) -> list[Turn]:
    """Put pieces that are not late into plans; return the others, at most so many of them."""
    late: list[Turn] = []
    ease = 0.0 if any(turn.goes_on for turn in turns) else AT_EASE
    for turn in turns:
        allowed = _untried(turn, plans)
        plan = None if turn.goes_on else first_in_time(turn, allowed, ease)
        if plan is None and turn.has_limit:
            late.append(turn)
            if len(late) >= most:
                break
        else:
            (plan or soonest(turn, allowed)).add(turn)
    return late


def _place_late(late: Sequence[Turn], plans: Sequence[MemberPlan]) -> None:
    for turn in late:
        soonest(turn, _untried(turn, plans)).add(turn)


def _untried(turn: Turn, plans: Sequence[MemberPlan]) -> Sequence[MemberPlan]:
    """Return the plans of members on which a piece has not failed; all if it has on each.

    Members that may not be given its texts are never among them.
    """
    if turn.work.admitted is not None:
        plans = [plan for plan in plans if turn.work.admits(plan.member.spec.name)]
    if not turn.piece.tried:
        return plans
    return [plan for plan in plans if plan.member.spec.name not in turn.piece.tried] or plans

"""The limit of an endpoint as its refusals teach it: events with their times in, starts out.

Until an endpoint refuses a call, every call starts at once. From the first refusal on two controls
hold calls back, since a server may limit either quantity:

    calls in flight    half of those in flight at a refusal, but as many as are known to have been
                       taken; after each good round one more, after several in a row twice as many
                       more each time; where answers take long, one more without a good round
    starts             spaced by an interval once refusals go on; longer after a refusal, as the
                       starts since the last one have measured it, shorter after good rounds

A call counts as taken with its answer, or when its refusal would have come long before. While
refusals go on the endpoint is in doubt until it takes a call. Calls with most attempts left
try it then, because a caller whose last attempt is refused gets the error.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from dataclasses import dataclass, field
from enum import IntEnum
from math import inf, isfinite
from operator import attrgetter

#: the longest pause, in seconds, that a server may ask for; a longer one is disregarded
LONGEST_PAUSE_S = 120.0
#: seconds without a refusal after which a limit that holds nothing back is forgotten
FORGET_S = 60.0
#: seconds of refusals alone after which calls fail as their clients would, and wait for no turn
DOWN_S = 5.0
#: the shortest pause, in seconds, in which an endpoint that asks for it does not count as down
_LEAST_PAUSE_S = 1.0
#: one start of so many goes to the oldest call of all, so that batch calls never starve
_FAIR_EVERY = 8
#: starts since the last refusal from which they are a measurement of the endpoint's rate
_MEASURED = 4
#: an interval is a guess while starts have been so many times slower, as the bound held them back
_SLOWER = 2.0
#: successes after which the interval between starts gets shorter, while it is a guess and once it
#: is measured; fewer if they take longer than the seconds
_GUESSED_ROUND, _ROUND, _ROUND_S = 4, 8, 1.0
#: the share by which it does: at first, after a measurement, and at most; doubled a round
_FIRST_STEP, _LEAST_STEP, _MOST_STEP = 0.5, 0.02, 0.5
#: the least interval, as a share of that between the latest successes
_LEAST_SHARE = 0.5
#: a measured interval is lengthened by this factor, a guessed one doubled
_SLACK = 1.03
#: the least interval in seconds, below which there is none, and the longest that is a guess
_LEAST_INTERVAL_S, _MOST_GUESS_S = 0.0005, 2.0
#: after how many seconds without a refusal one call more than the bound may try, at first and at
#: most; doubled whenever it is refused
_FIRST_MORE_S, _MOST_MORE_S = 0.1, 16.0
#: bounds, in seconds, of the wait for the refusal of a call before the next one tries
_LEAST_LATENCY_S, _MOST_LATENCY_S = 0.001, 1.0


class Urgency(IntEnum):
    """The order of calls that wait: the lowest number first."""

    INTERACTIVE = 0
    ORDINARY = 1
    BATCH = 2


@dataclass(slots=True, eq=False)
class EndpointCall:
    """A call to an endpoint, with all its attempts.

    Args:
        urgency: its place in the order.
        attempts: the attempts that it has left.

    Attributes:
        is_waiting: whether it waits for its start.
        number: its place among all calls of the endpoint by age; 0 before it first waits.
        patient_until: when its own client would have sent the attempt that it waits for.
        sent: the number of its latest start; 0 before the first.
        sent_at: the time of its latest start.
        is_taken: whether the endpoint is known to have taken its latest attempt.
    """

    urgency: Urgency = Urgency.ORDINARY
    attempts: int = 1
    is_waiting: bool = field(default=False, init=False)
    number: int = field(default=0, init=False)
    patient_until: float = field(default=0.0, init=False)
    sent: int = field(default=0, init=False)
    sent_at: float = field(default=0.0, init=False)
    is_taken: bool = field(default=False, init=False)

    @property
    def risks_all(self) -> bool:
        """Whether its next refusal, which is not its first, is its caller's error."""
        return self.attempts <= 1 and self.sent > 0


class EndpointLimit:
    """The state of one endpoint; all times are seconds of one monotonic clock.

    An event is passed once; ``leave`` may come at any time and again.
    """

    def __init__(self) -> None:
        self._waiting: dict[Urgency, list[EndpointCall]] = {urgency: [] for urgency in Urgency}
        self._in_flight: set[EndpointCall] = set()
        self._held: deque[tuple[float, EndpointCall]] = deque()
        self._num_calls = self._num_starts = 0
        self._forget()

    @property
    def bound(self) -> int | None:
        """The calls that may be in flight; None without a limit."""
        return self._bound

    @property
    def interval_s(self) -> float:
        """The seconds between two starts; 0.0 without a limit."""
        return self._interval_s

    @property
    def num_in_flight(self) -> int:
        return len(self._in_flight)

    @property
    def num_waiting(self) -> int:
        return sum(map(len, self._waiting.values()))

    def join(self, call: EndpointCall, patient_until: float = 0.0) -> None:
        """Let a call wait for its start; an attempt that follows another keeps the call's age.

        Args:
            call: not in flight; if it waits already, nothing changes.
            patient_until: when its own client would send this attempt.
        """
        if call.is_waiting:
            return
        call.is_waiting = True
        if not call.number:
            self._num_calls += 1
            call.number = self._num_calls
        call.patient_until = patient_until
        insort(self._waiting[call.urgency], call, key=_age)

    def leave(self, call: EndpointCall) -> None:
        """Note that a call has ended or waits no longer, whatever became of it."""
        self._in_flight.discard(call)
        if call is self._probe:
            self._probe = None
        if call.is_waiting:
            call.is_waiting = False
            queue = self._waiting[call.urgency]
            if call in queue:  # not one that waited before the process was forked
                queue.remove(call)

    def hold(self, call: EndpointCall, until: float) -> None:
        """Let a call that was answered keep its place until it leaves, at most until a time."""
        self._held.append((until, call))

    def start(self, now: float) -> list[EndpointCall]:
        """Return the calls that start now; each of them must ``leave``."""
        self._end_holds(now)
        self._note_taken(now)
        started = list[EndpointCall]()
        while (call := self._next(now)) is not None:
            call.is_waiting = False
            self._waiting[call.urgency].remove(call)
            self.start_at_once(call, now)
            started.append(call)
        return started

    def start_at_once(self, call: EndpointCall, now: float) -> None:
        """Start a call that must not wait, whatever is in flight."""
        self._in_flight.add(call)
        self._num_starts += 1
        call.attempts -= 1
        call.sent_at = self._started_at = now
        call.sent = self._num_starts
        call.is_taken = False
        if self._bound is not None:
            self._doubtful.append((call.sent, call))
        self._most_in_flight = max(self._most_in_flight, len(self._in_flight))
        if self._in_doubt and self._probe is None:
            self._probe = call

    def next_start(self, now: float) -> float | None:
        """Return when a call may start though nothing happens before; None without such a time.

        Call it after ``start``, with the same time.
        """
        if not self.num_waiting:
            return None
        times = [self._held[0][0]] if self._held else []
        if self._in_doubt and self._probe is not None:
            times.append(self._accepted_at(self._probe))
        if isfinite(self._down_at):
            patient = min(call.patient_until for call in self._calls())
            times.append(max(patient, self._down_at, self._not_before))
        if self._doubtful:
            times.append(self._accepted_at(self._doubtful[0][1]))
        elif self._bound is not None and len(self._in_flight) >= self._bound:
            times.append(self._more_at)
        if self._bound is None or len(self._in_flight) < self._bound:
            call = self._candidate()
            if call is not None:
                times.append(max(self._due(call), self._not_before))
        later = [time for time in times if time > now]
        return min(later, default=None)

    def succeed(self, call: EndpointCall, now: float, pause_s: float = 0.0) -> None:
        """Note that the endpoint took a call.

        Args:
            call: in flight.
            now: the time.
            pause_s: seconds until it takes another one, as it says itself; 0.0 if it says nothing.
        """
        if self._heeds_pauses and _is_pause(pause_s):
            # An endpoint that asks for a pause with each answer is believed once a refusal.
            self._heeds_pauses = False
            self._not_before = max(self._not_before, now + pause_s)
        self._down_at = inf
        if self._bound is None:
            self._taken_at.append(now)
            return
        self._take(call, now)
        self._forget_if_idle(now)

    def refuse(self, call: EndpointCall, now: float, asked_s: float = 0.0) -> None:
        """Note that the endpoint refused a call, which is still in flight.

        Args:
            call: in flight.
            now: the time.
            asked_s: seconds for which it asks to send nothing; 0.0 if it says nothing.
        """
        if _is_pause(asked_s):
            self._not_before = max(self._not_before, now + asked_s)
        if not isfinite(self._down_at):
            self._down_at = now + DOWN_S
        if asked_s >= _LEAST_PAUSE_S:
            self._down_at = max(self._down_at, self._not_before + DOWN_S)
        self._heeds_pauses = True
        self._num_refused += 1
        latency_s = max(now - call.sent_at, _LEAST_LATENCY_S)
        known_s = self._latency_s or latency_s
        self._latency_s = known_s + (latency_s - known_s) / 4
        if self._bound is None or call.sent > self._mark:
            self._decrease(call, now)
        elif not self._interval_s:
            self._interval_s = self._guess(now)
        self._refused_at = now
        if call is self._probe:
            self._probe = None
        if self._interval_s and not self._in_doubt:
            self._in_doubt = True

    def _decrease(self, call: EndpointCall, now: float) -> None:
        num_in_flight = len(self._in_flight)
        # It has taken so many at once, so that no smaller bound is asked for; not those that count
        # as taken because refusals came faster before.
        num_taken = sum(
            other is not call and now >= self._accepted_at(other) for other in self._in_flight
        )
        fewer = max(1, num_taken, num_in_flight // 2)
        if self._bound is None:
            others = sorted((other.sent, other) for other in self._in_flight if other is not call)
            self._doubtful.extend(others)
        self._bound = fewer if self._bound is None else min(fewer, self._bound)
        self._borne = self._bound
        self._more_s = min(2 * self._more_s, _MOST_MORE_S)
        self._more_at = now + self._more_s
        if self._interval_s:
            num_started = call.sent - self._mark - 1
            self._round = _ROUND if num_started >= _MEASURED else _GUESSED_ROUND
            if num_started:
                measured_s = (call.sent_at - self._refused_at) / num_started
                longer_s = max(self._interval_s, measured_s) * _SLACK
                self._interval_s = min(longer_s, 2 * self._interval_s)
            else:
                self._interval_s = max(self._interval_s, min(2 * self._interval_s, _MOST_GUESS_S))
            self._step = _LEAST_STEP if num_started >= _MEASURED else _FIRST_STEP
        elif self._bound == 1 or self._num_refused > 1:
            self._interval_s = self._guess(now)
        self._mark = self._num_starts
        self._most_in_flight = num_in_flight
        self._good = self._good_paced = 0
        self._growth = 1
        self._taken_at.clear()

    def _guess(self, now: float) -> float:
        """Return a first interval: that of the latest successes, or the time of a refusal."""
        return min(max(self._observed_s(now), self._latency_s, _LEAST_INTERVAL_S), _MOST_LATENCY_S)

    def _observed_s(self, now: float) -> float:
        times = self._taken_at
        return (now - times[0]) / len(times) if len(times) > 1 else 0.0

    def _shorten(self, now: float) -> None:
        if not self._was_spaced:
            return
        self._was_spaced = False
        shorter_s = max(self._interval_s * (1 - self._step), _LEAST_SHARE * self._observed_s(now))
        self._interval_s = min(self._interval_s, shorter_s)
        self._step = min(_MOST_STEP, 2 * self._step)
        if self._interval_s < _LEAST_INTERVAL_S:
            self._interval_s = 0.0

    def _note_taken(self, now: float) -> None:
        """Note which calls the endpoint has taken, as their refusals would have come."""
        while self._doubtful:
            number, call = self._doubtful[0]
            if call in self._in_flight and call.sent == number and not call.is_taken:
                if now < self._accepted_at(call):
                    return
                self._take(call, now)
            self._doubtful.popleft()

    def _take(self, call: EndpointCall, now: float) -> None:
        """Note once that the endpoint has taken a call."""
        if call.is_taken or self._bound is None:
            return
        call.is_taken = True
        self._taken_at.append(now)
        if len(self._in_flight) > self._borne:
            self._borne = max(self._borne, sum(other.is_taken for other in self._in_flight))
            self._bound = max(self._bound, self._borne)
        if call.sent <= self._mark:
            return
        self._end_doubt()
        self._good += 1
        self._good_paced += 1
        if self._good >= self._bound:
            self._more_s = max(_FIRST_MORE_S, self._more_s / 2)
            self._grow(now)
        if self._interval_s and self._good_paced >= min(self._round, _ROUND_S / self._interval_s):
            self._good_paced = 0
            self._shorten(now)

    def _grow(self, now: float) -> None:
        """Let more calls be in flight."""
        assert self._bound is not None, "there is a limit"
        self._good = 0
        self._bound += self._growth
        self._growth = min(self._bound, 2 * self._growth)
        self._more_at = now + self._more_s

    def _end_doubt(self) -> None:
        """Note that the endpoint has taken a call since its last refusal."""
        self._in_doubt = False
        self._probe = None
        self._num_refused = 0

    def _next(self, now: float) -> EndpointCall | None:
        if not self.num_waiting:
            return None
        if now < self._not_before:
            self._held_back_at = now
            return None
        probe = self._probe
        if probe is not None and now >= self._accepted_at(probe):
            self._end_doubt()
        if now >= self._down_at and not self._answers(now):
            patient = min(self._calls(), key=attrgetter("patient_until"))
            if now >= patient.patient_until:
                return patient
        is_full = self._bound is not None and len(self._in_flight) >= self._bound
        if is_full and (self._doubtful or now < self._more_at):
            self._held_back_at = now
            return None
        call = self._candidate()
        if call is None or (call.risks_all and self._may_refuse_one_more):
            self._held_back_at = now
            return None
        if now < self._due(call):
            self._held_back_at, self._was_spaced = now, True
            return None
        if is_full:
            self._grow(now)
        return call

    def _answers(self, now: float) -> bool:
        """Tell whether the endpoint has taken a call that is in flight."""
        return any(now >= self._accepted_at(call) for call in self._in_flight)

    def _calls(self) -> list[EndpointCall]:
        return [call for queue in self._waiting.values() for call in queue]

    def _candidate(self) -> EndpointCall | None:
        """Return the waiting call whose turn it is."""
        heads = [queue for queue in self._waiting.values() if queue]
        if not heads:
            return None
        if (self._num_starts + 1) % _FAIR_EVERY == 0:
            heads.sort(key=lambda queue: queue[0].number)
        if self._in_doubt:
            return min(heads[0], key=lambda call: (call.risks_all, -call.attempts, call.number))
        if self._is_guessed or self._may_refuse_one_more:
            return min(heads[0], key=lambda call: (call.risks_all, call.number))
        return heads[0][0]

    def _due(self, call: EndpointCall) -> float:
        """Return when a call may start as far as the interval goes."""
        gap_s = self._interval_s
        if self._in_doubt:
            # Not before the refusal of the last start can have come.
            gap_s = max(gap_s, 1.5 * min(self._latency_s, _MOST_LATENCY_S))
            due = max(self._started_at, self._refused_at) + gap_s
            return max(due, call.patient_until) if call.risks_all else due
        if call.risks_all:  # for which a limit of tokens shall have one more
            gap_s *= 4 if self._is_guessed else 2
        return self._started_at + gap_s

    @property
    def _may_refuse_one_more(self) -> bool:
        """Whether it is not known to take one call more than are in flight."""
        return self._bound is not None and len(self._in_flight) >= self._borne

    @property
    def _is_guessed(self) -> bool:
        """Whether starts are spaced by an interval that no refusal has measured."""
        if not self._interval_s:
            return False
        num_started = self._num_starts - self._mark
        took_s = self._started_at - self._refused_at
        return (
            self._round == _GUESSED_ROUND
            or num_started < _MEASURED
            or took_s > _SLOWER * num_started * self._interval_s
        )

    def _accepted_at(self, call: EndpointCall) -> float:
        """Return when a call in flight counts as taken: a refusal would have come long before."""
        return call.sent_at + 4 * self._latency_s

    def _end_holds(self, now: float) -> None:
        while self._held and self._held[0][0] <= now:
            self.leave(self._held.popleft()[1])

    def _forget_if_idle(self, now: float) -> None:
        quiet_since = max(self._refused_at, self._held_back_at, self._not_before)
        has_grown = self._bound is not None and self._bound >= 2 * self._most_in_flight
        if has_grown and now - quiet_since >= FORGET_S:
            self._forget()

    def _forget(self) -> None:
        """Make the state that of an endpoint that never refused a call."""
        self._bound: int | None = None
        self._interval_s = self._latency_s = 0.0
        self._step, self._round = _FIRST_STEP, _GUESSED_ROUND
        self._not_before = self._started_at = -inf
        self._refused_at = self._held_back_at = -inf
        #: when it counts as down, if it takes no call before
        self._down_at = inf
        self._in_doubt, self._heeds_pauses = False, True
        self._probe: EndpointCall | None = None
        #: the number of the last start before the last decrease
        self._mark = 0
        self._num_refused = self._good = self._good_paced = self._most_in_flight = 0
        self._growth, self._was_spaced = 1, False
        #: the most calls in flight that are known to have been taken since the last decrease
        self._borne = 0
        #: when one call more than the bound may try, and how long that waits after a refusal
        self._more_at, self._more_s = -inf, _FIRST_MORE_S / 2
        #: the latest times at which calls were taken
        self._taken_at = deque[float](maxlen=32)
        #: calls in flight whose refusals may come, by their starts
        self._doubtful = deque[tuple[int, EndpointCall]]()


_age = attrgetter("number")


def _is_pause(seconds: float) -> bool:
    return isfinite(seconds) and 0 < seconds <= LONGEST_PAUSE_S

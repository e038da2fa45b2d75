"""The limit of an endpoint: tables of a time, an event and the calls that start."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_accel.engines.http.endpoint_limit import (
    DOWN_S,
    FORGET_S,
    LONGEST_PAUSE_S,
    EndpointCall,
    EndpointLimit,
    Urgency,
)

_URGENCIES = {"int": Urgency.INTERACTIVE, "bat": Urgency.BATCH}
Row = tuple[float, str, str]


class Table:
    """A limit, and calls by name.

    An event is a verb and names of calls: ``join``, ``ok`` (answered, leaves), ``no`` (refused,
    leaves), ``gone`` (leaves), ``hold`` (answered, keeps its place for 30 s), ``tick`` (nothing).
    ``no`` and ``ok`` take the seconds that the server asks for after ``=``. A name that begins with
    ``int`` or ``bat`` is an interactive or a batch call; its attempts are 3, or behind an ``@``.
    """

    def __init__(self) -> None:
        self.limit = EndpointLimit()
        self.calls: dict[str, EndpointCall] = {}

    def call(self, name: str) -> EndpointCall:
        if name not in self.calls:
            attempts = int(name.partition("@")[2] or 3)
            urgency = _URGENCIES.get(name[:3], Urgency.ORDINARY)
            self.calls[name] = EndpointCall(urgency, attempts)
        return self.calls[name]

    def play(self, now: float, event: str) -> str:
        """Let an event take place; return the names of the calls that start."""
        verb, *names = event.split()
        asked_s = float(names.pop().removeprefix("=")) if names and names[-1][0] == "=" else 0.0
        for name in names:
            call = self.call(name)
            if verb == "join":
                self.limit.join(call, now)
            elif verb == "ok":
                self.limit.succeed(call, now, asked_s)
            elif verb == "no":
                self.limit.refuse(call, now, asked_s)
            elif verb == "hold":
                self.limit.succeed(call, now)
                self.limit.hold(call, now + 30.0)
            if verb in {"ok", "no", "gone"}:
                self.limit.leave(call)
        started = self.limit.start(now)
        return " ".join(name for name, call in self.calls.items() if call in started)

    def check(self, *rows: Row) -> None:
        for now, event, starts in rows:
            assert self.play(now, event) == starts, (now, event)


def names(prefix: str, number: int) -> str:
    return " ".join(f"{prefix}{index}" for index in range(number))


def limited(bound: int, now: float = 0.0) -> Table:
    """Return a table after one refusal at a time, with this bound and nothing in flight."""
    table = Table()
    group = names("n", 2 * bound)
    table.check((now - 0.1, f"join {group}", group), (now, "no n0", ""))
    table.check((now, f"ok {group.removeprefix('n0 ')}", ""))
    assert table.limit.bound == bound
    return table


def test_without_a_refusal_every_call_starts_at_once() -> None:
    table = Table()
    group = names("a", 500)
    table.check((0.0, f"join {group}", group), (0.0, "join b", "b"), (9.0, f"ok {group}", ""))
    assert table.limit.bound is None
    assert table.limit.num_in_flight == 1


@pytest.mark.parametrize(("in_flight", "bound"), [(1, 1), (2, 1), (3, 1), (60, 30), (61, 30)])
def test_a_refusal_halves_the_calls_in_flight(in_flight: int, bound: int) -> None:
    table = Table()
    group = names("a", in_flight)
    table.check((0.0, f"join {group}", group), (0.1, "no a0", ""))
    assert table.limit.bound == bound


def test_refusals_of_calls_sent_before_the_last_decrease_do_not_halve_again() -> None:
    table = Table()
    group = names("a", 16)
    table.check((0.0, f"join {group}", group), (0.1, f"no {group}", ""))
    assert table.limit.bound == 8


def test_a_refusal_of_a_call_sent_after_the_decrease_halves_again() -> None:
    table = limited(8)
    group = names("a", 8)
    table.check((1.0, f"join {group}", group), (1.1, "no a7", ""))
    assert table.limit.bound == 4


def test_calls_that_were_taken_are_no_reason_for_a_smaller_bound() -> None:
    table = limited(8)
    table.check((5.0, "join " + names("a", 7), names("a", 7)))
    # A refusal took 0.1 s at the time; calls in flight for longer than four times that were taken.
    table.check((10.0, "join z", "z"), (10.1, "no z", ""))
    assert table.limit.bound == 7


def test_calls_that_time_out_were_not_taken_though_refusals_came_faster_before() -> None:
    table = limited(4)
    group = names("a", 8)
    table.play(1.0, f"join {group}")
    for now in (2.0, 3.0, 4.0):
        table.play(now, "tick")
    assert table.limit.num_in_flight == 8
    table.play(40.0, "no a0")
    assert table.limit.bound == 4


def test_calls_beyond_the_bound_wait_for_a_place() -> None:
    table = limited(2)
    table.check(
        (1.0, "join a b c d", "a b"),
        (2.0, "gone a", "c"),
        (3.0, "ok b", "d"),
    )


def test_a_good_round_lets_one_more_go() -> None:
    table = limited(2)
    table.check((1.0, "join a b", "a b"), (2.0, "ok a b", ""))
    assert table.limit.bound == 3


def test_a_refusal_in_the_round_makes_it_no_good_one() -> None:
    table = limited(4)
    group = names("a", 4)
    table.check((1.0, f"join {group}", group), (2.0, "ok a0 a1 a2", ""), (2.0, "no a3", ""))
    assert table.limit.bound == 1


def test_at_a_bound_of_one_starts_are_spaced() -> None:
    table = Table()
    table.check((0.0, "join a", "a"), (0.1, "no a", ""))
    assert (table.limit.bound, table.limit.interval_s) == (1, 0.1)
    table.check((0.1, "join a b", ""))
    # In doubt the next one waits until a refusal of the last has surely come.
    assert table.limit.next_start(0.1) == pytest.approx(0.25)
    table.check((0.24, "tick", ""), (0.26, "tick", "b"))


def test_a_single_refusal_among_many_calls_spaces_nothing() -> None:
    table = limited(50)
    assert table.limit.interval_s == 0.0


def test_where_refusals_go_on_starts_are_spaced() -> None:
    table = Table()
    group = names("a", 60)
    table.check((0.0, f"join {group}", group), (0.1, "no a0 a1", ""))
    assert table.limit.interval_s == 0.1


def test_the_interval_is_that_of_the_successes_before() -> None:
    table = Table()
    group = names("a", 20)
    table.check((0.0, f"join {group}", group))
    for index in range(10):
        table.check((1 + index / 4, f"ok a{index}", ""))
    table.check((3.25, "join b c", "b c"), (3.3, "no b c", ""))
    assert table.limit.interval_s == pytest.approx(0.05)  # a new refusal measures from itself on


def test_a_refusal_lengthens_the_interval_to_what_the_starts_since_the_last_show() -> None:
    table = Table()
    table.check((0.0, "join a", "a"), (0.1, "no a", ""), (0.1, "join b c d e f g", ""))
    table.check((0.3, "tick", "b"), (0.31, "ok b", ""))
    for now, before, name in ((0.8, "c", "c"), (1.3, "d", "d"), (1.8, "e", "e"), (2.3, "f", "f")):
        table.check((now, "tick", name), (now + 0.01, f"ok {before}", ""))
    assert table.limit.interval_s == 0.1
    table.check((2.8, "tick", "g"), (2.81, "no g", ""))
    # Five starts in 2.7 s; no more than twice as long at once.
    assert table.limit.interval_s == pytest.approx(0.2)


def test_good_rounds_shorten_an_interval_that_held_calls_back() -> None:
    table = Table()
    table.check((0.0, "join a", "a"), (0.1, "no a", ""), (0.1, "join " + names("b", 40), ""))
    lengths = [table.limit.interval_s]
    now, begun = 0.3, list[str]()
    while now < 3.0:
        begun = table.play(now, "tick").split()
        if begun:
            table.play(now, "ok " + " ".join(begun))
            lengths.append(table.limit.interval_s)
        now += 0.01
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[-1] < lengths[0] / 4


def test_an_interval_that_holds_nothing_back_stays() -> None:
    table = Table()
    table.check((0.0, "join a", "a"), (0.1, "no a", ""))
    for index in range(30):
        table.check((1.0 + index, f"join c{index}", f"c{index}"))
        table.check((1.5 + index, f"ok c{index}", ""))
    assert table.limit.interval_s == 0.1


def test_in_doubt_the_call_with_most_attempts_left_tries() -> None:
    table = Table()
    table.check((0.0, "join old@2", "old@2"), (0.1, "no old@2", ""))
    table.check((0.1, "join old@2", ""), (0.2, "join new", ""), (1.0, "tick", "new"))


def test_in_doubt_a_last_attempt_waits_as_long_as_its_client_would() -> None:
    table = Table()
    table.check((0.0, "join old@2", "old@2"), (0.1, "no old@2", ""))
    table.limit.join(table.call("old@2"), 0.6)
    table.check((0.5, "tick", ""))
    assert table.limit.next_start(0.5) == pytest.approx(0.6)
    table.check((0.6, "tick", "old@2"))


def test_a_last_attempt_keeps_a_wider_distance() -> None:
    table = Table()
    table.check((0.0, "join old@2", "old@2"), (0.1, "no old@2", ""), (0.1, "join a", ""))
    table.check((0.3, "tick", "a"), (0.3, "ok a", ""), (0.3, "join old@2", ""))
    assert table.limit.interval_s == 0.1
    table.check((0.65, "tick", ""), (0.71, "tick", "old@2"))  # four times a guess


def test_a_last_attempt_lets_others_pass_while_the_interval_is_a_guess() -> None:
    table = Table()
    table.check((0.0, "join old@2", "old@2"), (0.1, "no old@2", ""), (0.1, "join a", ""))
    table.check((0.3, "tick", "a"), (0.3, "ok a", ""), (0.3, "join old@2 b", ""))
    table.check((0.41, "tick", "b"), (0.5, "ok b", ""), (0.82, "tick", "old@2"))


def test_a_call_that_is_not_refused_ends_the_doubt_before_its_answer() -> None:
    table = Table()
    table.check((0.0, "join " + names("a", 8), names("a", 8)), (0.1, "no " + names("a", 8), ""))
    table.check((0.2, "join b c d", ""), (0.25, "tick", "b"))
    # 0.15 s apart while a refusal of b may come, as early as that is impossible 0.1 s.
    table.check((0.39, "tick", ""), (0.41, "tick", "c"), (0.66, "tick", "d"))


@pytest.mark.parametrize("asked_s", [0.5, 7.0, LONGEST_PAUSE_S])
def test_nobody_starts_before_the_time_that_a_refusal_names(asked_s: float) -> None:
    table = limited(4)
    table.check((1.0, "join a", "a"), (1.01, f"no a ={asked_s}", ""))
    table.check((1.01, "join a", ""), (1.0 + asked_s, "tick", ""))
    assert table.limit.next_start(1.0 + asked_s) == pytest.approx(1.01 + asked_s)
    table.check((1.02 + asked_s, "tick", "a"))


@pytest.mark.parametrize("asked_s", [86400.0, -5.0, float("nan"), float("inf"), 0.0])
def test_a_time_that_cannot_be_meant_stops_nobody(asked_s: float) -> None:
    table = limited(4)
    table.check((1.0, "join a", "a"), (1.01, f"no a ={asked_s}", ""), (1.01, "join b", ""))
    table.check((1.2, "tick", "b"))


def test_a_success_without_requests_left_stops_the_next_call() -> None:
    table = Table()
    table.check((0.0, "join a", "a"), (0.1, "ok a =6", ""), (0.2, "join b", ""))
    assert table.limit.next_start(0.2) == pytest.approx(6.1)
    table.check((6.2, "tick", "b"))


def test_a_pause_that_the_next_calls_contradict_is_made_once() -> None:
    table = Table()
    table.check((0.0, "join a", "a"), (0.1, "ok a =60", ""), (60.2, "join b", "b"))
    table.check((60.3, "ok b =60", ""), (60.4, "join c", "c"), (60.5, "ok c =60", ""))
    table.check((60.6, "join d", "d"))


def test_after_a_refusal_pauses_are_believed_again() -> None:
    table = Table()
    table.check((0.0, "join a", "a"), (0.1, "ok a =6", ""), (6.2, "join b", "b"))
    table.check((6.3, "no b", ""), (7.0, "join c", "c"), (7.1, "ok c =6", ""))
    table.check((7.9, "join d", ""), (13.2, "tick", "d"))


def started_order(table: Table) -> list[str]:
    """Run everything that waits, one call after the other; return the names as they start."""
    order, now = list[str](), 0.3
    while table.limit.num_waiting:
        now += 0.3
        started = table.play(now, "tick").split()
        order += started
        table.play(now, "gone " + " ".join(started))
    return order


def test_interactive_before_ordinary_before_batch() -> None:
    table = Table()
    table.check((0.0, "join x", "x"), (0.1, "no x", ""))
    table.check((0.1, "join bat1 ord1 int1 bat2 ord2 int2", ""))
    assert started_order(table) == ["int1", "int2", "ord1", "ord2", "bat1", "bat2"]


def test_one_start_of_eight_goes_to_the_oldest_of_all() -> None:
    table = Table()
    table.check((0.0, "join x", "x"), (0.1, "no x", ""), (0.1, "join bat1 bat2 bat3", ""))
    table.check((0.1, "join " + names("int", 20), ""))
    order = started_order(table)
    assert [order.index(name) for name in ("bat1", "bat2")] == [6, 14]


def test_an_attempt_of_an_older_call_comes_first() -> None:
    table = Table()
    table.check((0.0, "join a@4", "a@4"), (0.1, "join x", "x"), (0.2, "no x", ""))
    table.check((0.2, "join c d", ""), (0.3, "gone a@4", ""), (0.3, "join a@4", ""))
    assert started_order(table) == ["a@4", "c", "d"]


def test_a_call_that_waits_no_longer_leaves_nothing() -> None:
    table = limited(1)
    table.check((1.0, "join a b c", "a"), (1.1, "gone b", ""), (1.2, "gone a", "c"))
    table.check((10.0, "gone c b a", ""))
    assert (table.limit.num_waiting, table.limit.num_in_flight) == (0, 0)
    assert table.limit.next_start(10.0) is None


def test_a_stream_keeps_its_place_for_its_time_at_most() -> None:
    table = limited(1)
    table.check((1.0, "join a", "a"), (2.0, "hold a", ""), (31.9, "tick", ""))
    assert table.limit.num_in_flight == 1
    table.check((32.0, "tick", ""))
    assert table.limit.num_in_flight == 0


def test_calls_of_an_endpoint_that_is_down_fail_as_their_clients_would() -> None:
    table = Table()
    group = names("a", 30)
    table.check(
        (0.0, f"join {group}", group), (0.01, f"no {group}", ""), (0.02, f"join {group}", "")
    )
    now, tries = 0.02, 0
    while table.limit.num_waiting and now < 60:
        now += 0.02
        for call in table.limit.start(now):
            tries += 1
            table.limit.refuse(call, now + 0.01)
            table.limit.leave(call)
            if call.attempts:
                table.limit.join(call, now + 0.5)
    assert now < DOWN_S + 1.5
    assert tries == 60


def test_an_endpoint_whose_answers_take_long_is_not_down() -> None:
    table = Table()
    group = names("a", 30)
    refused = " ".join(group.split()[10:])
    table.check((0.0, f"join {group}", group), (0.01, f"no {refused}", ""))
    table.check((0.02, f"join {refused}", ""))
    started = 0
    for step in range(1500):
        now = 0.03 + step / 100
        if begun := table.play(now, "tick"):
            started += len(begun.split())
            table.play(now + 0.001, f"no {begun}")
    assert started <= 20


def test_a_limit_that_holds_nothing_back_is_forgotten() -> None:
    table = limited(2)
    now = 1.0
    while now < FORGET_S + 5 and table.limit.bound is not None:
        table.play(now, "join a")
        table.play(now, "ok a")
        now += 1.0
    assert table.limit.bound is None
    assert now >= FORGET_S
    group = names("c", 100)
    table.check((now, f"join {group}", group))


def test_a_limit_that_holds_calls_back_is_remembered() -> None:
    table = limited(1)
    for now in range(1, 200):
        for name in ("a", "b"):
            table.play(now, f"join {name}{now}")
        table.play(now + 0.4, f"no a{now}")
        table.play(now + 0.8, f"gone a{now} b{now}")
    assert table.limit.bound == 1


def test_a_call_that_joins_twice_starts_once() -> None:
    table = limited(4)
    table.check((1.0, "join a a", "a"), (2.0, "tick", ""), (3.0, "gone a", ""))
    assert table.limit.num_in_flight == 0


class TokenBucket:
    """A server's limit of calls a second."""

    def __init__(self, per_s: float, burst: int) -> None:
        self._per_s, self._burst = per_s, burst
        self._tokens, self._at = float(burst), 0.0

    def takes(self, now: float, in_flight: int) -> bool:
        self._tokens = min(self._burst, self._tokens + (now - self._at) * self._per_s)
        self._at = now
        taken = self._tokens >= 1
        self._tokens -= taken
        return taken


class Places:
    """A server's limit of calls at once."""

    def __init__(self, number: int) -> None:
        self._number = number

    def takes(self, now: float, in_flight: int) -> bool:
        return in_flight < self._number


class Simulation:
    """Callers at a server, in simulated time.

    Args:
        server: takes calls or not.
        answer_s: seconds of an answer, within a fifth.
        most_way_s: the most seconds that a call is on its way to the server, and back.
        seed: of all that varies.
    """

    def __init__(
        self, server: TokenBucket | Places, answer_s: float, most_way_s: float, seed: int
    ) -> None:
        self._server, self._answer_s, self._most_way_s = server, answer_s, most_way_s
        self._random = random.Random(seed)
        self.limit = EndpointLimit()
        self.now = 0.0
        self.num_calls = self.num_answered = self.num_lost = self._at_server = 0

    def run(self, callers: int, attempts: int = 3) -> float:
        """Let callers come at once; return the seconds until all have their answer or error."""
        begin, order = self.now, count()
        events: list[tuple[float, int, str, EndpointCall | None]] = []

        def put(after_s: float, kind: str, call: EndpointCall | None = None) -> None:
            heapq.heappush(events, (self.now + after_s, next(order), kind, call))

        left = callers
        for _ in range(callers):
            self.limit.join(EndpointCall(attempts=attempts), self.now)
        put(0.0, "tick")
        while left:
            self.now, _, kind, call = heapq.heappop(events)
            self._at_server -= kind == "free"
            if call is not None and kind == "sent":
                taken = self._server.takes(self.now, self._at_server)
                answer_s = self._answer_s * self._random.uniform(0.8, 1.2) if taken else 0.0
                if taken:
                    self._at_server += 1
                    put(answer_s, "free")
                put(answer_s + self._way_s(), "ok" if taken else "no", call)
            elif call is not None:
                left -= self._end(call, kind)
            for started in self.limit.start(self.now):
                self.num_calls += 1
                put(self._way_s(), "sent", started)
            at = self.limit.next_start(self.now)
            if at is not None:
                put(at - self.now, "tick")
        return self.now - begin

    def _way_s(self) -> float:
        return self._random.uniform(0.002, self._most_way_s)

    def _end(self, call: EndpointCall, kind: str) -> bool:
        if kind == "ok":
            self.limit.succeed(call, self.now)
            self.num_answered += 1
        else:
            self.limit.refuse(call, self.now)
        self.limit.leave(call)
        if kind == "no" and call.attempts:
            self.limit.join(call, self.now + 0.4)
            return False
        self.num_lost += kind == "no"
        return True


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("server", "answer_s", "most_way_s", "least_s"),
    [
        (lambda: TokenBucket(15, 10), 0.05, 0.004, 4.05),
        (lambda: TokenBucket(60, 10), 0.3, 0.004, 1.3),
        (lambda: TokenBucket(5, 3), 3.0, 0.004, 15.0),
        (lambda: TokenBucket(15, 10), 10.0, 0.08, 14.0),
        (lambda: Places(8), 1.0, 0.004, 8.5),
        (lambda: Places(20), 3.0, 0.004, 12.0),
        (lambda: Places(8), 1.0, 0.08, 8.5),
    ],
)
def test_a_limit_is_learned_from_few_refusals(
    server: Callable[[], TokenBucket | Places],
    answer_s: float,
    most_way_s: float,
    least_s: float,
    seed: int,
) -> None:
    simulation = Simulation(server(), answer_s, most_way_s, seed)
    simulation.run(60)
    assert (simulation.num_answered, simulation.num_lost) == (60, 0)
    assert simulation.num_calls <= 2.2 * 60
    before = simulation.num_calls
    seconds = simulation.run(60)
    assert simulation.num_lost == 0
    assert simulation.num_calls - before <= 1.1 * 60
    assert seconds <= 1.5 * least_s


@given(
    st.lists(st.tuples(st.sampled_from("jong"), st.integers(0, 7), st.floats(0, 5)), max_size=80)
)
def test_whatever_happens_no_call_is_lost(steps: list[tuple[str, int, float]]) -> None:
    limit, now = EndpointLimit(), 0.0
    calls = [EndpointCall(Urgency(index % 3), 99) for index in range(8)]
    flying = set[EndpointCall]()
    waiting = set[EndpointCall]()
    for verb, index, wait_s in steps:
        call = calls[index]
        now += wait_s
        if verb == "j" and call not in flying | waiting:
            limit.join(call, now)
            waiting.add(call)
        elif verb in "on" and call in flying:
            (limit.succeed if verb == "o" else limit.refuse)(call, now, wait_s)
            limit.leave(call)
            flying.discard(call)
        elif verb == "g":
            limit.leave(call)
            flying.discard(call)
            waiting.discard(call)
        started = set(limit.start(now))
        assert started <= waiting
        waiting -= started
        flying |= started
        assert (limit.num_in_flight, limit.num_waiting) == (len(flying), len(waiting))
    for _ in range(200):
        if not waiting:
            break
        later = limit.next_start(now)
        assert later is not None or flying, "calls wait for nothing"
        now = later if later is not None else now
        for call in flying:
            limit.leave(call)
        flying = set(limit.start(now))
        waiting -= flying
    assert not waiting


@pytest.mark.parametrize("asked_s", [0.0, 0.01])
def test_an_endpoint_that_takes_nothing_makes_nobody_wait_for_a_turn(asked_s: float) -> None:
    limit, now = EndpointLimit(), 0.0
    calls = [EndpointCall(attempts=3) for _ in range(32)]
    for call in calls:
        limit.join(call)
    while any(call.attempts or call.is_waiting for call in calls) and now < 60.0:
        for call in limit.start(now):
            limit.refuse(call, now + 0.005, asked_s)
            limit.leave(call)
            if call.attempts:
                limit.join(call, now + 0.5)
        now += 0.01
    assert now < DOWN_S + 2.0

"""Work with a deadline goes by the time left for its plan; a stage too late is not begun."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from core_harness import Core, key, spec
from core_player import Player, play

from rag_accel.engine_api import PATIENCE_S, PrimitiveKind
from rag_accel.scheduler.commands import (
    Command,
    EndNode,
    EndRequest,
    StartCall,
    StartFallback,
    StartStep,
    TooLate,
)
from rag_accel.scheduler.deadlines import MOST_PLACES
from rag_accel.scheduler.learning import FEWEST_TIMES, LATELY_S, LeastTime
from rag_accel.scheduler.messages import EngineName, Fallback, LeafArrived, NodeSpec, RequestId
from rag_accel.scheduler.runs import LeafPlace


def started(commands: list[Command]) -> list[tuple[int, str]]:
    """Return the nodes that steps of engine "e" take up."""
    return started_on("e", commands)


def started_on(engine: str, commands: list[Command]) -> list[tuple[int, str]]:
    """Return the nodes that steps of an engine take up."""
    steps = [command for command in commands if isinstance(command, StartStep)]
    admitted = [node for step in steps if step.engine == engine for node in step.admitted]
    return [(node.request, node.node) for node in admitted]


def busy(max_batch: int = 1, **engine: object) -> Core:
    """Return a core whose engine "e" is in a step, so that work waits for it."""
    core = Core().own(max_batch=max_batch, **engine)
    core.leaf(99, "first")
    return core


def order(core: Core, number: int, at: float = 1.0) -> list[int]:
    """Return the requests in the order in which "e" takes them, a step each."""
    found: list[int] = []
    for _ in range(number):
        found += [request for request, _ in started(core.end_step(at=at))]
    return found


def stage(*parts: Any, **named: Any) -> NodeSpec:
    """Describe a node whose result no cache has."""
    return spec(*parts, kind=PrimitiveKind.DECODING, **named)


def leaf(core: Core, request: int, *parts: Any, **named: Any) -> list[Command]:
    """Let such a call arrive."""
    return core.leaf(request, *parts, kind=PrimitiveKind.DECODING, **named)


def practised(took_s: float, times: int = FEWEST_TIMES, size: int = 1) -> Core:
    """Return an idle core whose engine "e" has taken so long for each of its latest works."""
    core = Core().own(max_batch=8)
    for number in range(times):
        leaf(core, 100 + number, "a", size=size)
        core.end_step(at=took_s, took=took_s)
    return core


# Order ------------------------------------------------------------------------------------------


def test_a_later_request_with_less_time_left_goes_first() -> None:
    core = busy()
    core.leaf(1, "a", at=0.1, deadline=50)
    core.leaf(2, "a", at=0.2, deadline=20)
    assert order(core, 2) == [2, 1]


def test_requests_without_a_deadline_go_by_arrival() -> None:
    core = busy()
    for request, at in ((1, 0.1), (2, 0.2), (3, 0.3)):
        core.leaf(request, "a", at=at)
    assert order(core, 3) == [1, 2, 3]


def test_the_longer_rest_of_a_graph_goes_first_at_equal_deadlines() -> None:
    core = busy()
    core.own("slow", base_s=5.0)
    core.own("quick", base_s=0.1)
    core.graph(1, spec("a"), spec("b", "quick", "a"), at=0.1, deadline=30)
    core.graph(2, spec("a"), spec("b", "slow", "a"), at=0.2, deadline=30)
    assert order(core, 2) == [2, 1]


def test_of_parallel_paths_the_longest_counts() -> None:
    core = busy()
    core.own("slow", base_s=4.0)
    two_slow = (spec("b", "slow", "a"), spec("c", "slow", "b"))
    three_beside = tuple(spec(f"b{number}", "slow", "a") for number in range(3))
    core.graph(1, spec("a"), *three_beside, at=0.1, deadline=30)
    core.graph(2, spec("a"), *two_slow, at=0.2, deadline=30)
    assert order(core, 2) == [2, 1]


def test_the_rest_of_a_program_is_learned_from_its_runs() -> None:
    core = Core().own(max_batch=1)
    for run, program, rest_s in ((50, "short", 1.0), (51, "long", 9.0)):
        core.open(run, program)
        core.leaf(run, "a")
        core.end_step(at=0.5)
        core.close_program(run, at=rest_s)
    core.leaf(99, "first", at=10)
    core.open(1, "short", at=10.1, deadline=40)
    core.leaf(1, "a", at=10.1)
    core.open(2, "long", at=10.2, deadline=40)
    core.leaf(2, "a", at=10.2)
    assert order(core, 2, at=11) == [2, 1]
    assert core.state.programs["long"].places[LeafPlace(EngineName("e"), 0)].rest_s == 9.0


def test_each_leaf_of_a_program_has_a_rest_of_its_own() -> None:
    core = Core().own()
    core.open(1)
    for number, at in enumerate((0.0, 2.0)):
        core.leaf(1, f"a{number}", at=at)
        core.end_step(at=at + 1)
    core.close_program(1, at=6)
    places = core.state.programs["p"].places
    assert {place.ordinal: times.rest_s for place, times in places.items()} == {0: 6.0, 1: 4.0}


def test_only_so_many_leaves_of_a_program_are_told_apart() -> None:
    core = Core().own()
    for run in range(2):
        core.open(run)
        for number in range(MOST_PLACES + 5):
            core.leaf(run, f"a{number}")
            core.end_step(at=1)
        core.close_program(run, at=2)
    assert len(core.state.programs["p"].places) == MOST_PLACES


def test_a_request_keeps_the_turn_of_its_most_urgent_node() -> None:
    core = busy()
    core.own("slow", base_s=9.0)
    core.leaf(1, "a", at=0.1, deadline=12)
    core.graph(2, spec("a"), at=0.2, deadline=14)
    core.graph(3, spec("a"), spec("b"), spec("c", "slow", "b"), at=0.3, deadline=14)
    assert order(core, 3)[0] == 3


def test_a_request_without_a_deadline_is_passed_for_a_minute_at_most() -> None:
    core = Core(ageing_s=1e6)  # so that nothing else helps it
    core.own(max_batch=1)
    core.leaf(99, "first")
    core.leaf(0, "patient", at=0.0)
    at, passed = 0.0, 0
    for request in range(1, 200):
        at += 1.0
        core.leaf(request, "a", at=at, deadline=at + 20)
        if started(core.end_step(at=at)) == [(0, "patient")]:
            break
        passed += 1
    assert 0 < at + 20 - PATIENCE_S <= 2
    assert passed > 30


def test_a_distant_deadline_is_no_disadvantage() -> None:
    core = busy()
    core.leaf(1, "a", at=0.1, deadline=1e6)
    core.leaf(2, "a", at=0.2)
    assert order(core, 2) == [1, 2]


def test_calls_of_a_bounded_borrowed_engine_go_by_the_time_left() -> None:
    core = Core().borrow(limit=1)
    core.leaf(99, "held", "b")
    core.leaf(1, "a", "b", at=0.1, deadline=50)
    core.leaf(2, "a", "b", at=0.2, deadline=20)
    assert core.end_call(99, "held", at=1)[1:] == [StartCall(key(2, "a"), "b")]


def test_what_would_probably_be_late_goes_behind_what_would_not() -> None:
    core = practised(took_s=2.0)
    core.own("f", max_batch=1)
    core.leaf(99, "first", "f", at=2.0)
    for request, deadline in ((1, 6.0), (2, 9.0), (3, 60.0)):
        core.graph(request, stage("s", "f"), stage("a", "e", "s"), at=2.0, deadline=deadline)
    # The rest of each is expected to take the 2 s of engine "e", and 2.5 s are left at 3.5.
    assert [request for request, _ in started_on("f", core.end_step("f", at=3.6))] == [2]
    assert [request for request, _ in started_on("f", core.end_step("f", at=3.7))] == [3]
    assert [request for request, _ in started_on("f", core.end_step("f", at=3.8))] == [1]


def searching(*, deadline: float | None, took_s: float = 0.05) -> tuple[Core, list[int]]:
    """Return a core that has got ten searches of one engine, and those that have begun."""
    core = Core().own(max_batch=64, max_threads=2, stepped=True, ends_in_time=True)
    for number, at in enumerate((0.0, 1.0)):
        core.leaf(90 + number, "a", at=at, kind=PrimitiveKind.SEARCHING)
        core.leaf(80 + number, "a", at=at, kind=PrimitiveKind.SEARCHING)
        while core.engine().running:
            at += took_s
            core.end_step(at=at, took=took_s)
    found = list[int]()
    for request in range(10):
        due = None if deadline is None else 2.0 + deadline + request
        commands = core.leaf(request, "a", at=2.0, deadline=due, kind=PrimitiveKind.SEARCHING)
        found += [each for each, _ in started(commands)]
    found += [each for each, _ in started(core.end_step(at=2.0 + took_s, final=[]))]
    return core, found


def test_searches_with_a_deadline_wait_in_the_queue_beyond_what_a_step_ends() -> None:
    core, found = searching(deadline=30.0)
    assert found == [0, 1]
    core.leaf(50, "a", at=2.1, deadline=20.0, kind=PrimitiveKind.SEARCHING)
    assert started(core.end_step(at=2.1, final=[key(0, "a")])) == [(50, "a")]


def test_searches_without_one_all_join_the_engine() -> None:
    assert searching(deadline=None)[1] == list(range(10))


# Stages that cannot end in time ------------------------------------------------------------------


def test_a_leaf_that_cannot_end_in_time_is_not_begun() -> None:
    core = practised(took_s=2.0)
    late = TooLate(2.0, 1.5)
    ended = leaf(core, 1, "a", at=2.0, deadline=3.5)
    assert ended == [EndNode(key(1, "a"), "deadline", late=late)]
    assert core.state.is_empty()


def test_a_graph_ends_with_its_stage_and_names_it() -> None:
    core = practised(took_s=2.0)
    core.own("f")
    core.graph(1, stage("b", "f"), stage("a", "e", "b"), at=2.0, deadline=4.5)
    assert core.end_step("f", at=3.0) == [
        EndNode.match(node=key(1, "b"), outcome="done"),
        EndNode(key(1, "a"), "deadline", late=TooLate(2.0, 1.5)),
        EndRequest.match(request=1, outcome="deadline", node=key(1, "a")),
    ]


def test_queued_work_ends_when_it_becomes_too_late() -> None:
    core = practised(took_s=2.0)
    leaf(core, 99, "first", at=2.0, size=8)
    assert leaf(core, 1, "a", at=2.0, deadline=9.0) == []
    assert core.tick(6.9) == []
    assert core.wakes[-1] == 7.0
    assert core.tick(7.0) == [EndNode(key(1, "a"), "deadline", late=TooLate(2.0, 2.0))]


@pytest.mark.parametrize("deadline", [None, 4.1])
def test_what_can_just_end_in_time_begins(deadline: float | None) -> None:
    core = practised(took_s=2.0)
    assert started(leaf(core, 1, "a", at=2.0, deadline=deadline)) == [(1, "a")]


def test_a_few_observations_condemn_nothing() -> None:
    core = practised(took_s=2.0, times=FEWEST_TIMES - 1)
    assert started(leaf(core, 1, "a", at=2.0, deadline=2.5)) == [(1, "a")]


def test_a_work_smaller_than_any_seen_begins() -> None:
    core = practised(took_s=2.0, size=4)
    assert started(leaf(core, 1, "a", at=2.0, deadline=2.5, size=3)) == [(1, "a")]
    assert leaf(core, 2, "a", at=2.0, deadline=2.5, size=4) == [
        EndNode.match(node=key(2, "a"), outcome="deadline")
    ]


def test_the_least_time_counts_rather_than_the_mean() -> None:
    core = practised(took_s=2.0)
    leaf(core, 1, "quick", at=3.0)
    core.end_step(at=3.1, took=0.1)
    assert started(leaf(core, 2, "a", at=4.0, deadline=4.5)) == [(2, "a")]


def test_old_times_condemn_nothing() -> None:
    core = practised(took_s=2.0)
    at = 2.0 + LATELY_S + 0.1
    assert started(leaf(core, 1, "a", at=at, deadline=at + 1)) == [(1, "a")]


def test_other_kinds_of_work_are_not_judged() -> None:
    core = practised(took_s=2.0)
    other = spec("a", kind=PrimitiveKind.RERANKING)
    core.send(LeafArrived(RequestId(1), other, 2.0, 2.5), 2.0)
    assert key(1, "a") in core.engine().running


def test_a_graph_whose_later_stages_cannot_end_in_time_begins_none() -> None:
    core = practised(took_s=2.0)
    core.own("f")
    vectors = spec("v", "f", kind=PrimitiveKind.EMBEDDING)
    graph = (vectors, stage("s", "f", "v"), stage("a", "e", "s"), stage("z", "e", "v"))
    assert core.graph(1, *graph, at=2.0, deadline=3.5) == [
        EndNode(key(1, "v"), "deadline", late=TooLate(2.0, 1.5)),
        EndRequest.match(request=1, outcome="deadline", node=key(1, "v")),
    ]


def test_what_a_graph_can_do_instead_is_no_time_that_it_takes() -> None:
    core = practised(took_s=2.0)
    core.own("f")
    instead = Fallback("a", (), (stage("quick", "f"),))
    core.graph(1, stage("s", "f"), stage("a", "e", "s", fallback=instead), at=2.0, deadline=3.0)
    assert key(1, "s") in core.engine("f").running


def program_runs(core: Core, *calls: tuple[str, PrimitiveKind, float], runs: int) -> float:
    """Run a program whose calls take so many seconds each, and return the time after it."""
    at = 0.0
    for run in range(runs):
        core.open(run, at=at)
        for engine, kind, took_s in calls:
            core.leaf(run, "a", engine, at=at, kind=kind)
            at += took_s
            if core.engine(engine).owned:
                core.end_step(engine, at=at)
            else:
                core.end_call(run, "a", at=at)
        core.close_program(run, at=at)
    return at


SEARCHED = (("e", PrimitiveKind.EMBEDDING, 0.1), ("b", PrimitiveKind.DECODING, 0.9))


def searched(runs: int = FEWEST_TIMES) -> tuple[Core, float]:
    """Return a core whose program embeds for 0.1 s and then calls a model for 0.9 s."""
    core = Core().own().borrow(limit=8)
    return core, program_runs(core, *SEARCHED, runs=runs)


@pytest.mark.parametrize(("company", "deadline_s"), [(False, 0.5), (True, 1.1)])
def test_a_program_begins_alone_or_where_it_can_end_in_time(
    company: bool, deadline_s: float
) -> None:
    core, at = searched()
    if company:
        leaf(core, 99, "held", "b", at=at)
    core.open(50, at=at, deadline=at + deadline_s)
    core.leaf(50, "a", at=at, kind=PrimitiveKind.EMBEDDING)
    assert key(50, "a") in core.engine().running


def test_a_program_in_company_begins_nothing_of_a_run_that_cannot_end_in_time() -> None:
    core, at = searched()
    leaf(core, 99, "held", "b", at=at)
    core.open(50, at=at, deadline=at + 0.95)
    (ended,) = core.leaf(50, "a", at=at, kind=PrimitiveKind.EMBEDDING)
    assert isinstance(ended, EndNode)
    assert ended.late == (pytest.approx(1.0), pytest.approx(0.95))
    assert core.state.requests[RequestId(50)].open, "the program decides what follows"


def test_a_run_whose_answer_was_cached_lets_others_begin() -> None:
    core, at = searched()
    at += program_runs(core, ("e", PrimitiveKind.EMBEDDING, 0.01), runs=1)
    leaf(core, 99, "held", "b", at=at)
    core.open(50, at=at, deadline=at + 0.5)
    core.leaf(50, "a", at=at, kind=PrimitiveKind.EMBEDDING)
    assert key(50, "a") in core.engine().running


def test_a_run_that_has_failed_shows_no_time() -> None:
    core, at = searched()
    for run in range(60, 80):
        core.open(run, at=at, deadline=at + 0.01)
        core.leaf(run, "a", at=at, kind=PrimitiveKind.EMBEDDING)
        core.tick(at + 0.01)
        core.close_program(run, at=at + 0.01)
    (times, _) = core.state.programs["p"].places.values()
    assert times.least.least[0] == pytest.approx(1.0)
    assert times.rest_s == pytest.approx(1.0)


def test_a_stage_with_a_fallback_begins_that_instead() -> None:
    core = practised(took_s=2.0)
    core.own("f")
    instead = Fallback("a", (), (stage("quick", "f"),))
    commands = core.graph(1, stage("a", fallback=instead), at=2.0, deadline=3.0)
    assert commands[0] == StartFallback(key(1, "a"), instead)
    assert StartStep.match(engine="f", admitted=(key(1, "quick"),)) in commands
    assert core.end_step("f", at=2.5)[-1] == EndRequest.match(request=1, outcome="done")


def test_equal_work_of_others_goes_on_without_a_leader_that_is_too_late() -> None:
    core = practised(took_s=2.0)
    leaf(core, 99, "first", at=2.0, size=8)
    leaf(core, 1, "a", at=2.0, deadline=6.0, share="s")
    leaf(core, 2, "a", at=2.0, share="s")
    assert core.tick(4.0) == [EndNode.match(node=key(1, "a"), outcome="deadline")]
    assert list(core.engine().queue.nodes) == [key(2, "a")]


def test_a_least_time_forgets_after_two_generations() -> None:
    least = LeastTime()
    least.add(0.1, 1, 0.0)
    for _ in range(31 + 32):
        least.add(2.0, 1, 1.0)
    assert least.of(1, 1.0) == 0.1
    least.add(2.0, 1, 1.0)
    assert least.of(1, 1.0) == 2.0


def test_random_play_leaves_late_stages_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LeastTime, "of", lambda self, items, now: (None, 0.04, 0.5)[items % 3])
    player = Player(validate_every=5, max_requests=12)
    play(player, Random(7), 3000)
    assert player.counts.get("late", 0) > 0

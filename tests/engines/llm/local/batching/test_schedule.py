"""What the next forward computes, as tables: ``a 0-8`` are rows 0 to 7 of sequence a."""

from __future__ import annotations

import random

import pytest

from rag_accel.engines.llm.local.batching.schedule import (
    JUST_BEGUN,
    LEAST_CHUNK,
    WORTH_WAITING,
    Planned,
    Schedule,
)
from rag_accel.engines.llm.local.batching.sequence import Lane, TokenSequence


class Table:
    """A schedule whose sequences have letters as names, and lanes with room for so many tokens."""

    def __init__(self, room: int = 1000) -> None:
        self.room = room
        self.schedule = Schedule(self._admit)
        self.names: dict[TokenSequence, str] = {}

    def add(self, name: str, size: int = 8, **options: object) -> TokenSequence:
        prompt = options.pop("prompt", tuple(ord(name) * 1000 + at for at in range(size)))
        options = {"max_new": 4, "request": name, **options}
        sequence = TokenSequence(prompt, **options)  # type: ignore[arg-type]
        self.names[sequence] = name
        self.schedule.add(sequence)
        return sequence

    def forward(self, budget: int = 8) -> str:
        """Plan a forward, run it, and return what was planned."""
        plan = self.schedule.next(budget)
        for planned in plan:
            self._ran(planned)
        return ", ".join(f"{self.names[one.sequence]} {shown(one)}" for one in plan)

    def _ran(self, planned: Planned) -> None:
        sequence = planned.sequence
        sequence.computed += len(planned.rows)
        if planned.rows.asked:
            sequence.generated.append(7)
        if len(sequence.generated) == sequence.max_new and not sequence.pending - bool(
            sequence.max_new
        ):
            self.schedule.drop(sequence)
            self.room += sequence.capacity

    def _admit(self, sequence: TokenSequence) -> bool:
        if sequence.capacity > self.room:
            return False
        self.room -= sequence.capacity
        sequence.begin(Lane(len(self.names), sequence.namespace), 0)
        return True


def shown(planned: Planned) -> str:
    slots = planned.rows.slots
    return f"{slots[0]}-{slots[-1] + 1}" + ("?" if planned.rows.asked else "")


@pytest.fixture
def table() -> Table:
    return Table()


def test_a_prompt_is_computed_in_pieces_of_the_budget(table: Table) -> None:
    table.add("a", 20)
    assert [table.forward(8) for _ in range(4)] == ["a 0-8", "a 8-16", "a 16-20?", "a 20-21?"]


def test_only_the_last_token_known_is_asked_for(table: Table) -> None:
    sequence = table.add("a", 6)
    (planned,) = table.schedule.next(8)
    assert planned.rows.asked == (5,)
    assert planned.rows.ids == sequence.prompt


def test_a_sequence_without_completion_is_never_asked(table: Table) -> None:
    table.add("a", 6, max_new=0)
    assert table.forward() == "a 0-6"


def test_decoded_tokens_ride_along_with_pieces_of_prompts(table: Table) -> None:
    table.add("a", 4)
    table.add("b", 40)
    assert table.forward(20) == "a 0-4?, b 0-16"
    assert table.forward(20) == "a 4-5?, b 16-36"
    assert table.forward(20) == "a 5-6?, b 36-40?"


def test_all_that_decode_advance_although_they_exceed_the_budget(table: Table) -> None:
    for name in "abc":
        table.add(name, 1)
    table.forward(8)
    assert table.forward(2) == "a 1-2?, b 1-2?, c 1-2?"


def test_a_prompt_advances_although_decoding_fills_the_budget(table: Table) -> None:
    for at in range(LEAST_CHUNK):
        table.add(chr(ord("a") + at), 1)
    table.forward(LEAST_CHUNK)
    table.add("z", 2 * LEAST_CHUNK, prompt=tuple(range(-2 * LEAST_CHUNK, 0)))
    assert table.forward(LEAST_CHUNK).endswith(f"z 0-{LEAST_CHUNK}")


def test_a_completion_that_has_only_just_begun_cuts_no_prompt(table: Table) -> None:
    sequence = table.add("a", 4, max_new=100)
    for _ in range(JUST_BEGUN):
        table.forward()
        assert not table.schedule.decodes
    table.forward()
    assert table.schedule.decodes
    table.schedule.drop(sequence)
    assert not table.schedule.decodes


def test_earlier_requests_come_first(table: Table) -> None:
    table.add("a", 6, arrived_at=2.0)
    table.add("b", 6, arrived_at=1.0)
    assert table.forward(8) == "b 0-6?, a 0-2"


def test_a_prompt_under_way_waits_for_one_of_an_earlier_request(table: Table) -> None:
    table.add("a", 20, arrived_at=2.0)
    table.forward(8)
    table.add("b", 6, arrived_at=1.0)
    assert table.forward(8) == "b 0-6?, a 8-10"


def test_within_a_request_the_deepest_come_first(table: Table) -> None:
    table.add("a", 4, request="r", depth=1)
    table.add("b", 4, request="r", depth=3)
    table.add("c", 4, request="r", depth=2)
    assert table.forward(8) == "b 0-4?, c 0-4?"


def test_depth_does_not_count_between_requests(table: Table) -> None:
    table.add("a", 4, request="r", depth=1)
    table.add("b", 4, request="s", depth=9)
    assert table.forward(4) == "a 0-4?"


def test_of_requests_that_arrived_together_the_first_submitted_comes_first(table: Table) -> None:
    table.add("a", 4, request="r2", depth=1)
    table.add("b", 4, request="r1", depth=5)
    table.add("c", 4, request="r2", depth=5)
    assert table.forward(12) == "c 0-4?, a 0-4?, b 0-4?"


def test_what_has_no_room_is_not_overtaken() -> None:
    table = Table(room=20)
    table.add("a", 10)
    table.add("b", 10)
    table.add("c", 1)
    assert table.forward(32) == "a 0-10?"


def test_room_given_back_goes_to_the_next() -> None:
    table = Table(room=20)
    table.add("a", 10, max_new=1)
    table.add("b", 10)
    table.forward(32)
    assert table.forward(32) == "b 0-10?"


def test_prompts_under_way_advance_while_another_waits_for_room() -> None:
    table = Table(room=20)
    table.add("a", 16, arrived_at=2.0)
    table.forward(8)
    table.add("b", 16, arrived_at=1.0)
    assert table.forward(8) == "a 8-16?"


def test_a_forward_is_empty_where_nothing_gets_a_lane() -> None:
    table = Table(room=5)
    table.add("a", 10)
    assert table.forward() == ""


def test_a_prompt_waits_for_what_another_computes_of_it_just_now(table: Table) -> None:
    head = tuple(range(WORTH_WAITING))
    table.add("a", prompt=(*head, 1))
    table.add("b", prompt=(*head, 2))
    table.add("c", 4)
    assert table.forward(100) == "a 0-17?, c 0-4?"
    assert "b 0-17?" in table.forward(100)


def test_a_prompt_does_not_wait_for_what_is_computed_already(table: Table) -> None:
    head = tuple(range(40))
    table.add("a", prompt=(*head, *range(100, 120)))
    table.forward(40)
    table.add("b", prompt=(*head, 1))
    assert table.forward(80) == "a 40-60?, b 0-41?"


@pytest.mark.parametrize(
    ("shared", "namespace"), [(WORTH_WAITING - 1, ""), (WORTH_WAITING, "other")]
)
def test_a_prompt_does_not_wait_for_little_or_for_another_tenant(
    table: Table, shared: int, namespace: str
) -> None:
    head = tuple(range(shared))
    table.add("a", prompt=(*head, 101))
    table.add("b", prompt=(*head, 102), namespace=namespace)
    assert "b 0-" in table.forward(100)


def test_a_dropped_sequence_is_planned_no_more(table: Table) -> None:
    gone = table.add("a", 4)
    table.add("b", 4)
    table.schedule.drop(gone)
    table.schedule.drop(gone)
    assert table.forward(16) == "b 0-4?"


@pytest.mark.parametrize("seed", range(5))
def test_each_token_is_computed_once_whatever_comes_when(seed: int) -> None:
    rng = random.Random(seed)
    table = Table(room=120)
    computed: dict[TokenSequence, list[int]] = {}
    for at in range(12):
        sequence = table.add(
            chr(ord("a") + at), rng.randint(1, 40), arrived_at=rng.random(), max_new=at % 4
        )
        computed[sequence] = []
    ended = 0
    while len(table.schedule):
        plan = table.schedule.next(16)
        decoding = sum(one.sequence.is_decoding for one in plan)
        assert sum(len(one.rows) for one in plan) <= max(16, decoding + LEAST_CHUNK)
        for planned in plan:
            computed[planned.sequence] += planned.rows.slots
            table._ran(planned)
        ended += 1
        assert ended < 1000
    for sequence, slots in computed.items():
        assert slots == list(range(len(sequence.prompt) + max(0, sequence.max_new - 1)))

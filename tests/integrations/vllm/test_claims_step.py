"""The bound on the rows of one step, which all its requests share."""

from __future__ import annotations

from dataclasses import replace

from test_claims import HEAD, ONE, OPTIONS, PROMPT, TWO
from vllm_fakes import FakeRequest, asking, fake_step, letters

from rag_accel.kv.reuse_request import ReuseRequest
from vllm_rag_accel.claims import Claims

#: Rows of a prompt none of whose texts is kept.
ROWS = len(HEAD) + len(ONE) + len("\n\n") + len(TWO)
CLAIMED = PROMPT.index("\n\nWhere?")


def claims(step_rows: int) -> Claims:
    return Claims(letters(), lambda key: False, replace(OPTIONS, step_rows=step_rows))


def request(name: str) -> FakeRequest:
    return asking(name, PROMPT, ReuseRequest("full", (ONE, TWO), before=""))


def allocate(held: Claims, asked: FakeRequest) -> None:
    held.allocated(asked, CLAIMED)


def step(held: Claims, *names: str) -> list[str]:
    """Let requests begin; return those with a load."""
    new = {name: (list(range(9)), CLAIMED) for name in names}
    rest = len(PROMPT) - CLAIMED
    plan = held.step(fake_step(new, scheduled=dict.fromkeys(names, rest)))
    return [load.request for load in plan.loads]


def test_a_request_without_room_in_the_step_waits_for_the_next() -> None:
    held = claims(2 * ROWS - 1)
    one, other = request("a"), request("b")
    assert held.matched(one, 0) == CLAIMED
    allocate(held, one)
    assert held.matched(other, 0) is None
    assert step(held, "a") == ["a"]
    assert held.matched(other, 0) == CLAIMED
    allocate(held, other)
    assert step(held, "b") == ["b"]


def test_requests_share_a_step_with_room_for_all() -> None:
    held = claims(2 * ROWS)
    for name in ("a", "b"):
        assert held.matched(request(name), 0) == CLAIMED
        allocate(held, request(name))
    assert step(held, "a", "b") == ["a", "b"]


def test_a_claim_without_blocks_takes_no_room() -> None:
    """The server asked, and then had no blocks for the request."""
    held = claims(2 * ROWS - 1)
    assert held.matched(request("a"), 0) == CLAIMED
    assert held.matched(request("b"), 0) == CLAIMED


def test_a_request_with_more_rows_than_a_step_is_cut_not_held_back() -> None:
    held = claims(ROWS - 1)
    assert held.matched(request("a"), 0) == len(HEAD) + len(ONE)
    held.allocated(request("a"), len(HEAD) + len(ONE))
    assert held.matched(request("b"), 0) is None
    step(held, "a")
    assert held.matched(request("b"), 0) == len(HEAD) + len(ONE)


def test_requests_without_rows_do_not_wait() -> None:
    """What is kept, or exact, or in the server's own cache costs no rows."""
    held = claims(ROWS)
    assert held.matched(request("a"), 0) == CLAIMED
    allocate(held, request("a"))
    plain = asking("b", PROMPT, ReuseRequest("exact", (ONE, TWO)))
    assert held.matched(plain, 0) == 0
    assert held.matched(request("c"), CLAIMED) == 0

"""A prompt falls into a head, retrieved texts and what stands around them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_accel.kv.segments import SegmentedPrompt, TextSpan, split_prompt


def characters(text: str) -> list[int]:
    """Return a token for each character."""
    return [ord(one) for one in text]


def shown(prompt: SegmentedPrompt | None) -> str:
    """Return segments as ``kind(text)``."""
    if prompt is None:
        return "none"
    return " ".join(
        f"{one.kind}({''.join(map(chr, one.ids))})@{one.start}" for one in prompt.segments
    )


@pytest.mark.parametrize(
    ("text", "head", "spans", "expected"),
    [
        ("HHaabbQ", 2, [(2, 4), (4, 6)], "head(HH)@0 chunk(aa)@2 chunk(bb)@4 glue(Q)@6"),
        ("HHaa-bbQ", 2, [(5, 7), (2, 4)], "head(HH)@0 chunk(aa)@2 glue(-)@4 chunk(bb)@5 glue(Q)@7"),
        ("HHq-aaQ", 2, [(4, 6)], "head(HH)@0 glue(q-)@2 chunk(aa)@4 glue(Q)@6"),
        ("aabbQ", 0, [(0, 2)], "chunk(aa)@0 glue(bbQ)@2"),
        ("HHaabbQ", 2, [(2, 4), (2, 6)], "head(HH)@0 chunk(aabb)@2 glue(Q)@6"),  # one in another
        ("HHaabbQ", 2, [(2, 5), (4, 6)], "head(HH)@0 chunk(aab)@2 glue(bQ)@5"),  # overlapping
        ("HHaaQ", 2, [(1, 3)], "none"),  # begins in the head
        ("HHaa", 2, [(2, 4)], "none"),  # nothing is left to compute the answer of
        ("HHQ", 2, [], "none"),
        ("HHaQ", 2, [(2, 9)], "none"),
        ("HHabbQ", 2, [(2, 3), (3, 5)], "head(HH)@0 glue(a)@2 chunk(bb)@3 glue(Q)@5"),  # short
    ],
)
def test_segments(text: str, head: int, spans: list[tuple[int, int]], expected: str) -> None:
    found = split_prompt(text, head, [TextSpan(*one) for one in spans], characters, 2)
    assert shown(found) == expected


@given(
    st.text("abc", min_size=1, max_size=30),
    st.integers(0, 10),
    st.lists(st.tuples(st.integers(-2, 30), st.integers(-2, 30)), max_size=6),
)
def test_segments_cover_the_prompt(text: str, head: int, spans: list[tuple[int, int]]) -> None:
    prompt = split_prompt(text, head, [TextSpan(*one) for one in spans], characters)
    if prompt is None:
        return
    assert prompt.ids == tuple(characters(text))
    at = 0
    for segment in prompt.segments:
        assert segment.start == at
        at = segment.end
    assert prompt.segments[-1].kind == "glue"

"""Words that are related share a stem."""

from __future__ import annotations

import pytest

from rag_accel_demo.extractive.reader import stem


@pytest.mark.parametrize(
    "family",
    [
        ["serialize", "serializes", "serialized", "serializing", "serialization"],
        ["remove", "removes", "removed", "removing", "removal"],
        ["directory", "directories"],
        ["copy", "copies", "copied"],
        ["stop", "stops", "stopped", "stopping"],
        ["file", "files"],
        ["key", "keys"],
    ],
)
def test_relatives_share_a_stem(family: list[str]) -> None:
    assert len({stem(word) for word in family}) == 1


@pytest.mark.parametrize(("one", "other"), [("string", "strip"), ("os", "o"), ("class", "clas")])
def test_different_words_keep_different_stems(one: str, other: str) -> None:
    assert stem(one) != stem(other)

"""A changed setting is seen, however it was changed; one that was not is never taken for one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from rag_accel.engines.embedding.model_watch import Settings


class Owner:
    """Hold settings of every sort."""

    def __init__(self) -> None:
        self.length = 256
        self.prompts = {"query": "q: ", "nested": {"a": [1]}}
        self.keys: Any = ["input_ids"]
        self.names = {"one"}
        self.table = {str(number): number for number in range(1000)}
        self.module = object()
        self.training = True
        self._hidden = 1

    def forward(self) -> None:
        """Do nothing."""


def longer(owner: Owner) -> None:
    owner.length = 128


def nested_in_place(owner: Owner) -> None:
    owner.prompts["nested"]["a"].append(2)  # type: ignore[index, union-attr]


def list_in_place(owner: Owner) -> None:
    owner.keys.append("token_type_ids")


def set_in_place(owner: Owner) -> None:
    owner.names.clear()


def other_table(owner: Owner) -> None:
    owner.table = dict(owner.table)


def other_module(owner: Owner) -> None:
    owner.module = object()


def deleted(owner: Owner) -> None:
    del owner.length


def without_equality(owner: Owner) -> None:
    owner.keys = [np.zeros(3)]


CHANGES = [
    longer,
    nested_in_place,
    list_in_place,
    set_in_place,
    other_table,
    other_module,
    deleted,
    without_equality,
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_change_is_seen(change: Callable[[Owner], None]) -> None:
    owner = Owner()
    settings = Settings(owner)
    assert settings.are_same()
    change(owner)
    assert not settings.are_same()


def test_what_says_nothing_of_results_may_change() -> None:
    owner = Owner()
    settings = Settings(owner)
    owner.training = False
    owner.made_later = "a cache"  # type: ignore[attr-defined]
    owner._hidden = 2
    assert settings.are_same()


def test_arrays_in_a_list_that_were_replaced_by_equal_ones_count_as_changed() -> None:
    owner = Owner()
    owner.keys = [np.zeros(3)]
    settings = Settings(owner)
    assert settings.are_same()
    owner.keys = [np.zeros(3)]
    assert not settings.are_same()

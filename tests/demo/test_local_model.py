"""The demo's comparison with a language model of this machine, on a tiny one."""

from __future__ import annotations

import copy
from dataclasses import replace
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
from rag_accel_demo.extent import FULL, QUICK, LocalExtent
from rag_accel_demo.local_model import (
    LOCAL_HEAD,
    Answers,
    LocalLevel,
    local_as_json,
    local_rows,
    measure_local_model,
)
from rag_accel_demo.progress import PhaseBar
from rag_accel_demo.report import table

TURNS = FULL.local.turns

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
    with Accelerator() as accelerator, PhaseBar(shown=False) as progress:
        return measure_local_model(
            folder, build, QUESTIONS, FULL.local, accelerator, progress, told.append
        )


def test_both_arms_answer_alike(levels: list[LocalLevel]) -> None:
    assert [level.users for level in levels] == [1, 8]
    assert all(all(level.plain.texts) for level in levels)
    assert not any(level.different for level in levels)


def test_each_answer_of_one_user_is_told(levels: list[LocalLevel], told: list[str]) -> None:
    assert len(told) == len(levels[0].questions) == 3 * TURNS
    assert levels[0].accelerated.texts[0] in told[0]


def test_what_was_found_is_written(levels: list[LocalLevel]) -> None:
    assert len(table(LOCAL_HEAD, local_rows(levels)).splitlines()) == 2 + 3 * len(levels)
    assert [one["different"] for one in local_as_json(levels)] == [[], []]


def test_no_question_is_asked_in_two_turns(levels: list[LocalLevel]) -> None:
    asked = [question for level in levels for question in level.questions]
    assert len(asked) == len(set(asked)) == TURNS * (3 + 8)


def test_steps_of_the_accelerated_arm_are_recorded(levels: list[LocalLevel]) -> None:
    for level in levels:
        generated = [step for step in level.steps if step.engine.startswith("llm")]
        assert len(generated) >= 2
        assert all(step.start_s < step.end_s for step in generated)
        assert max(step.requests for step in generated) <= level.users
    assert max(step.requests for step in levels[-1].steps) > 1


Asked = list[tuple[str, tuple[str, ...]]]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """Return the questions of each run, which a made-up run answers."""
    asked: Asked = []

    def ask(chain: str, questions: tuple[str, ...], *_: Any) -> Answers:
        asked.append((chain, tuple(questions)))
        threads = _[2]
        # Of plain's two runs that choose its threads, the one on one thread is faster.
        seconds = 4.0 * threads if chain == "plain" else 2.0
        return Answers(("a",) * len(questions), (seconds,) * len(questions), 8, seconds, threads)

    monkeypatch.setattr(local_model, "_ask", ask)
    for module in ("local_model", "extent"):
        monkeypatch.setattr(f"rag_accel_demo.{module}.usable_cores", lambda: 2)
    return asked


def level_of_two(extent: LocalExtent) -> tuple[LocalLevel, int]:
    """Return the level of two users, and the units of progress."""
    with Accelerator() as accelerator, PhaseBar(shown=False) as progress:
        counted: list[int] = []
        progress.add = lambda units: counted.append(units)
        arms = local_model._Arms("plain", "fast", len, extent, accelerator, progress)
        return arms.level(2, iter(QUESTIONS), None), sum(counted)


def test_arms_take_turns_over_the_same_questions(asked: Asked) -> None:
    level, _ = level_of_two(FULL.local)
    first, *turns = [tuple(QUESTIONS[start:end]) for start, end in ((0, 2), (2, 5), (5, 8))]
    assert asked == [
        *(("plain", first), ("plain", first), ("fast", first)),
        *(("plain", turns[0]), ("fast", turns[0])),
        *(("fast", turns[1]), ("plain", turns[1])),
    ]
    assert level.plain.threads == 1
    assert (level.plain.wall_s, level.accelerated.wall_s) == (8.0, 4.0)
    assert (level.sooner, level.gain) == (2.0, 2.0)
    assert local_rows([level])[-1] == ("2", "ratio", "2.00 x", "2.00 x")


def test_a_quick_run_asks_both_arms_the_same_questions_once(asked: Asked) -> None:
    level, _ = level_of_two(QUICK.local)
    first, rest = tuple(QUESTIONS[:1]), tuple(QUESTIONS[1:4])
    assert asked == [("plain", first), ("fast", first), ("plain", rest), ("fast", rest)]
    assert level.plain.threads == 2


@pytest.mark.parametrize("extent", [QUICK.local, FULL.local], ids=["quick", "full"])
def test_every_answer_is_part_of_the_expected_progress(asked: Asked, extent: LocalExtent) -> None:
    _, units = level_of_two(replace(extent, users=(2,)))
    answers = sum(len(questions) for _, questions in asked)
    assert answers == replace(extent, users=(2,)).answers()
    assert units == local_model.LOCAL_ANSWER * answers

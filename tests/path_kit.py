"""What holds wherever relation paths in prompts are computed as trees, and never twice."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from reuse_kit import num_new_tokens

from rag_accel import Accelerator
from rag_accel.engine_api import EngineOutput, StepBudget
from rag_accel.engines.llm.local.engine import LocalLLMEngine

#: of one program over the same paths, four at a time
QUESTIONS = [f"Who wrote {number} letters to Ada Lovelace?" for number in (2, 7, 30, 4)]
RUNNERS = ("torch", "paged")
AT_ONCE = 16
PATIENCE_S = 60.0
#: what the template of the tests' tokenizer puts behind the user's message
TURN = "</s>\n<|turn|>assistant\n"


def prompt_tokens(accelerator: Accelerator) -> dict[str, int]:
    """Return how many tokens of prompts were computed, and taken over from prefixes and nodes."""
    engines: Any = accelerator.metrics.snapshot()["engines"]
    parts = ("computed", "from_prefix", "from_chunks", "approximate")
    return {
        part: sum(engine.get(f"prompt_tokens_{part}", 0) for engine in engines.values())
        for part in parts
    }


def reused(accelerator: Accelerator) -> int:
    """Return how many tokens of paths were not computed again."""
    return prompt_tokens(accelerator)["from_chunks"]


#: answers of engines that had computed nothing before, by program, question and options
_AFRESH: dict[tuple[type[RelationPaths], str, tuple[tuple[str, Any], ...]], str] = {}


class RelationPaths:
    """Tests of a program that finds the same paths for each question."""

    def program(self, accelerator: Accelerator, **options: Any) -> Any:
        """Return an accelerated program whose model has these bounds."""
        raise NotImplementedError

    def behind(self, question: str) -> str:
        """Return the text of a prompt behind the line of its last path."""
        raise NotImplementedError

    def ask(self, program: Any, question: str) -> str:
        """Return the answer."""
        raise NotImplementedError

    async def aask(self, program: Any, question: str) -> str:
        """Return the answer, on the caller's loop."""
        raise NotImplementedError

    def stream(self, program: Any, question: str) -> str:
        """Return the answer, joined from its pieces."""
        raise NotImplementedError

    async def astream(self, program: Any, question: str) -> str:
        """Return the answer, joined from its pieces, on the caller's loop."""
        raise NotImplementedError

    def afresh(self, questions: Iterable[str], **options: Any) -> list[str]:
        """Return answers of engines that have computed nothing before, each worked out once."""
        return [self._afresh(question, tuple(options.items())) for question in questions]

    def _afresh(self, question: str, options: tuple[tuple[str, Any], ...]) -> str:
        key = (type(self), question, options)
        if key not in _AFRESH:
            with Accelerator(strict=True) as accelerator:
                program = self.program(accelerator, **dict(options))
                _AFRESH[key] = self.ask(program, question)
                assert reused(accelerator) == 0
        return _AFRESH[key]

    @pytest.mark.parametrize("runner", RUNNERS)
    def test_a_second_question_is_all_that_is_computed(
        self, accelerator: Accelerator, runner: str
    ) -> None:
        program = self.program(accelerator, runner=runner)
        answers = [self.ask(program, QUESTIONS[0])]
        first = prompt_tokens(accelerator)
        assert first["from_chunks"] == 0
        answers.append(self.ask(program, QUESTIONS[1]))
        both = prompt_tokens(accelerator)
        second = {part: both[part] - first[part] for part in both}
        assert second["from_chunks"] == second["approximate"] == first["approximate"] > 0
        behind, seen = (self.behind(question) + TURN for question in (QUESTIONS[1], QUESTIONS[0]))
        assert second["computed"] == num_new_tokens(behind, seen)
        assert second["from_prefix"] > 0  # what stands before the paths
        assert answers == self.afresh(QUESTIONS[:2], runner=runner)

    def test_ways_to_ask_give_the_answers_of_fresh_engines(self, accelerator: Accelerator) -> None:
        program = self.program(accelerator, runner="torch")

        async def on_a_loop() -> list[str]:
            return [
                await self.aask(program, QUESTIONS[2]),
                await self.astream(program, QUESTIONS[3]),
            ]

        found = [self.ask(program, QUESTIONS[0]), self.stream(program, QUESTIONS[1])]
        found += asyncio.run(on_a_loop())
        assert found == self.afresh(QUESTIONS, runner="torch")
        assert reused(accelerator) > 0

    def test_sixteen_tasks_answer_as_each_alone(self, accelerator: Accelerator) -> None:
        program = self.program(accelerator, runner="torch")

        async def all_at_once() -> list[str]:
            return await asyncio.gather(
                *(self.aask(program, QUESTIONS[at % 4]) for at in range(AT_ONCE))
            )

        assert asyncio.run(all_at_once()) == self.afresh(QUESTIONS, runner="torch") * 4
        assert reused(accelerator) > 0

    def test_cancelled_tasks_leave_the_others_their_answers(
        self, accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        program = self.program(accelerator, runner="torch")
        begun, step = threading.Event(), LocalLLMEngine.step

        def noted(engine: LocalLLMEngine, budget: StepBudget) -> Sequence[EngineOutput]:
            begun.set()
            return step(engine, budget)

        monkeypatch.setattr(LocalLLMEngine, "step", noted)

        async def half_of_them() -> list[Any]:
            tasks = [
                asyncio.create_task(self.aask(program, QUESTIONS[at % 4])) for at in range(AT_ONCE)
            ]
            assert await asyncio.to_thread(begun.wait, PATIENCE_S)
            for task in tasks[::2]:
                task.cancel()
            found = await asyncio.gather(*tasks, return_exceptions=True)
            return [*found[1::2], await self.aask(program, QUESTIONS[0])]

        found = asyncio.run(half_of_them())
        alone = self.afresh(QUESTIONS, runner="torch")
        assert found == [*alone[1::2] * 4, alone[0]]

    def test_a_program_that_names_nothing_has_the_option_of_its_accelerator(self) -> None:
        with Accelerator(kv_reuse="dependency", strict=True) as accelerator:
            program = self.program(accelerator, kv_reuse=None)
            found = [self.ask(program, question) for question in QUESTIONS[:2]]
            assert reused(accelerator) > 0
        assert found == self.afresh(QUESTIONS[:2])

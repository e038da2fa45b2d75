"""What holds wherever retrieved texts are not computed again in later prompts."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from fake_runner import tokenizer

from rag_accel import Accelerator
from rag_accel.adoption import local_calls
from rag_accel.engine_api import GenerationInput


@pytest.fixture
def located(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Return the texts of passages, of each prompt that is asked from here on."""
    found: list[list[str]] = []
    real = local_calls.locate_chunks

    def recording(*args: Any, **options: Any) -> GenerationInput:
        asked = real(*args, **options)
        found.append(
            [asked.messages[one.message].content[one.start : one.stop] for one in asked.chunk_spans]
        )
        return asked

    monkeypatch.setattr(local_calls, "locate_chunks", recording)
    return found


def reused(accelerator: Accelerator) -> int:
    """Return how many tokens of texts were not computed again."""
    engines: Any = accelerator.metrics.snapshot()["engines"]
    return sum(engine.get("prompt_tokens_from_chunks", 0) for engine in engines.values())


def num_tokens(*texts: str) -> int:
    """Return how many tokens texts have."""
    return sum(len(tokenizer()(text, add_special_tokens=False)["input_ids"]) for text in texts)


def num_new_tokens(text: str, seen: str) -> int:
    """Return how many tokens a text has behind those that another one begins with, too."""
    ids, others = (tokenizer()(one, add_special_tokens=False)["input_ids"] for one in (text, seen))
    pairs = zip(ids, others, strict=False)
    return len(ids) - next(at for at, (mine, its) in enumerate(pairs) if mine != its)


class ReusedTexts:
    """Tests of a program that finds a text for each of the letters a, b and c of a question.

    Its module has the fixture ``located`` of this one.
    """

    texts: Mapping[str, str]
    #: a word of the text c, and another
    edit: tuple[str, str]
    #: behind the letters of a question
    ending = ""

    def program(self, accelerator: Accelerator) -> Any:
        """Return an accelerated program that puts all texts into one prompt."""
        raise NotImplementedError

    def ask(self, program: Any, question: str) -> Any:
        """Return the answer."""
        raise NotImplementedError

    async def aask(self, program: Any, question: str) -> Any:
        """Return the answer, on the caller's loop."""
        raise NotImplementedError

    def tokens(self, names: str) -> int:
        """Return how many tokens the texts of some letters have."""
        return num_tokens(*(self.texts[name] for name in names))

    def test_an_edited_text_is_computed(
        self, accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        program = self.program(accelerator)
        self.ask(program, f"abc{self.ending}")
        monkeypatch.setitem(self.texts, "c", self.texts["c"].replace(*self.edit))
        self.ask(program, f"cab{self.ending}")
        assert reused(accelerator) == self.tokens("ab")

    def test_a_text_that_is_the_question_is_computed(
        self, accelerator: Accelerator, located: list[list[str]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        question = "ab is said by which of the documents, and where?"
        monkeypatch.setitem(self.texts, "b", question)
        self.ask(self.program(accelerator), question)
        assert located == [[self.texts["a"]]]

    def test_tenants_share_no_texts(self) -> None:
        counts: list[int] = []
        for tenant in ("one", "two"):
            with Accelerator(namespace=tenant) as accelerator:
                self.ask(self.program(accelerator), f"abc{self.ending}")
                counts.append(reused(accelerator))
        assert counts == [0, 0]

    def test_threads_reuse_what_others_computed(
        self, accelerator: Accelerator, located: list[list[str]]
    ) -> None:
        program, pairs = self.program(accelerator), ["ab", "bc", "ca", "cb"]
        self.ask(program, f"abc{self.ending}")
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda pair: self.ask(program, f"{pair}{self.ending}"), pairs))
        assert {frozenset(found) for found in located[1:]} == {
            frozenset(self.texts[name] for name in pair) for pair in pairs
        }
        # Behind a alone, b is of no use to prompts without it, and is encoded once more.
        assert reused(accelerator) == self.tokens("abbccacb") - self.tokens("b")

    async def test_tasks_reuse_what_others_computed(self, accelerator: Accelerator) -> None:
        program = self.program(accelerator)
        await self.aask(program, f"abc{self.ending}")
        asking = (self.aask(program, f"{pair}{self.ending}") for pair in ("ab", "bc", "ca"))
        await asyncio.gather(*asking)
        assert reused(accelerator) == self.tokens("abbcca") - self.tokens("b")

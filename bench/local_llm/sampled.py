"""Sampled answers of a local model as programs of both frameworks have it, shared or not."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from langchain_core.runnables import RunnableLambda

from bench.local_llm import answers
from bench.local_llm.answers import OURS, PLAIN
from bench.local_llm.chains import PROMPT, PlainModel, streamed
from bench.local_llm.prompts import Asked, Prompts
from bench.measure import Pairs, alternate, median, ratios
from bench.paired import in_ms
from bench.results import Row, row_of
from rag_accel.accelerator import Accelerator

SAMPLING = {"do_sample": True, "temperature": 0.7, "top_p": 0.9}


def _langchain(pipeline: Any, tokens: int) -> Any:
    from langchain_huggingface import HuggingFacePipeline
    from transformers.pipelines import pipeline as make

    made: Any = make(
        *("text-generation", pipeline.model),
        tokenizer=pipeline.tokenizer,
        max_new_tokens=tokens,
        return_full_text=False,
        **SAMPLING,
    )
    return HuggingFacePipeline(pipeline=made)


def _llama_index(pipeline: Any, tokens: int) -> Any:
    from llama_index.llms.huggingface import HuggingFaceLLM

    return HuggingFaceLLM(
        model=pipeline.model,
        tokenizer=pipeline.tokenizer,
        max_new_tokens=tokens,
        generate_kwargs=SAMPLING,
    )


@dataclass(frozen=True, slots=True)
class Framework:
    """How a framework's model is made, accelerated and called.

    Args:
        package: whose ``accelerate`` is the framework's.
        make: from a pipeline of transformers, whose model it has, and the most tokens.
        answer: to a text.
        pieces: the same, streamed.
    """

    package: str
    make: Callable[[Any, int], Any]
    answer: Callable[[Any, str], str]
    pieces: Callable[[Any, str], Iterator[str]]


FRAMEWORKS = {
    "langchain": Framework(
        "langchain_rag_accel",
        _langchain,
        lambda llm, text: llm.invoke(text),
        lambda llm, text: llm.stream(text),
    ),
    "llama_index": Framework(
        "llama_index_rag_accel",
        _llama_index,
        lambda llm, text: llm.complete(text).text,
        lambda llm, text: (one.delta for one in llm.stream_complete(text)),
    ),
}


@dataclass(frozen=True, slots=True)
class Sampled:
    """Users who ask one model, plain at its best callers and torch threads, and accelerated.

    Args:
        model: whose pipeline's model all arms have.
        prompts: of which each turn has others.
        lengths: of prompts, one a user.
        turns: of each measurement.
        tuning_tokens: of answers that look for plain's best setting.
        accelerator: shares steps of sampled calls.
    """

    model: PlainModel
    prompts: Prompts
    lengths: Sequence[int]
    turns: int
    tuning_tokens: int
    accelerator: Accelerator

    def rates(self, name: str, tokens: int) -> tuple[list[Row], float]:
        """Compare tokens a second of whole answers, at most so many tokens each."""
        users = len(self.lengths)
        plain, fast = (self._chain(name, tokens, fast) for fast in (False, True))
        short = self._chain(name, self.tuning_tokens, fast=False)
        setting = answers.best_setting(short, self._asked(), sorted({1, users}))
        arms = {PLAIN: answers.called(plain, setting), OURS: answers.ours(fast, users)}
        arms[OURS](self._asked())
        workload = f"{users} users, sampled, {name}"
        compared = answers.compare(workload, arms, self.prompts, self.lengths, self.turns)
        # Drawn texts are never those of another arm.
        rows = [row for row in compared.rows() if row.metric != "answers_equal_to_plain"]
        return [*answers.setting_rows(workload, setting), *rows], compared.gain(PLAIN)

    def first_texts(self, name: str, tokens: int) -> tuple[list[Row], float]:
        """Compare the times to the first text of streams that all users begin at once."""
        users = len(self.lengths)
        plain, fast = (self._chain(name, tokens, fast, streams=True) for fast in (False, True))
        setting = answers.best_setting(plain, self._asked(), [users])
        theirs, ours = answers.called(plain, setting), answers.ours(fast, users)
        asked = [self._asked() for _ in range(self.turns + 1)]
        pairs = alternate(
            lambda turn: theirs(asked[turn]), lambda turn: ours(asked[turn]), self.turns + 1
        )
        times = pairs.map(lambda load: [in_ms(one.first_s) for one in load.answers])
        times = Pairs(times.plain[1:], times.other[1:])  # the first ones make what is kept
        workload = f"{users} users, sampled streams, {name}"
        rows = [
            row_of(arm, workload, "first_text_ms", [one for turn in found for one in turn])
            for arm, found in ((PLAIN, times.plain), (OURS, times.other))
        ]
        return [*answers.setting_rows(workload, setting), *rows], median(ratios(times.map(median)))

    def _asked(self) -> list[Asked]:
        return self.prompts.asked(self.lengths)

    def _chain(self, name: str, tokens: int, fast: bool, streams: bool = False) -> Any:
        """Return the chain whose answers are texts, or streams that were read to their end."""
        framework = FRAMEWORKS[name]
        llm = framework.make(self.model.pipeline.pipeline, tokens)
        if fast:
            accelerate = importlib.import_module(framework.package).accelerate
            llm = accelerate(llm, accelerator=self.accelerator)

        def answer(text: str) -> Any:
            return streamed(framework.pieces(llm, text)) if streams else framework.answer(llm, text)

        return PROMPT | RunnableLambda(self.model.rendered) | RunnableLambda(answer)

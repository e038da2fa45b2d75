"""Language models as a program's own objects hold them, and how their calls meet in steps."""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import closing
from itertools import count, islice
from typing import Any, cast

import pytest
import torch
from fake_runner import tokenizer
from tiny_chat import model
from transformers import pipeline

from rag_accel.adoption import local_llms
from rag_accel.engines.llm.local.model.runner import PackedRunner
from rag_accel.leaves.leaves import Leaves
from rag_accel_adapters.libraries import hf_generation

CALLERS = 8
TOKENS = 12
QUESTIONS = [f"Which of {number * 'the '}documents says {number}?" for number in range(CALLERS)]
GREEDY: dict[str, Any] = {"do_sample": False, "pad_token_id": 0}


def own_model(dtype: torch.dtype = torch.float32) -> Any:
    """Return a model to change, some of whose completions end early."""
    made = copy.deepcopy(model()).to(dtype)
    ids = torch.tensor([tokenizer()(QUESTIONS[0])["input_ids"]])
    found = made.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=6, **GREEDY)
    made.generation_config.eos_token_id = [1, int(found[0, -1])]
    return made


def own_pipeline(made: Any, **settings: Any) -> Any:
    """Return a pipeline of a model with a tokenizer of its own."""
    mine = copy.deepcopy(tokenizer())
    mine.pad_token = "<s>"
    mine.padding_side = "left"
    options = {"max_new_tokens": TOKENS, **GREEDY, **settings}
    return pipeline("text-generation", model=made, tokenizer=mine, **options)


class Meeting:
    """A record of the sequences of each forward; callers wait until all are there."""

    def __init__(self, patch: pytest.MonkeyPatch, callers: int = CALLERS) -> None:
        self.sizes: list[int] = []
        barrier = threading.Barrier(callers)
        generate, run = local_llms.generate, PackedRunner.run

        def met(*args: Any) -> Any:
            barrier.wait(10)
            return generate(*args)

        def counted(runner: Any, rows: Any) -> Any:
            self.sizes.append(len(rows))
            time.sleep(0.02 if len(self.sizes) < 4 else 0)  # the others are on their way
            return run(runner, rows)

        patch.setattr(local_llms, "generate", met)
        patch.setattr(PackedRunner, "run", counted)


def count_owned(patch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that is given the sequences of each forward of an engine."""
    sizes: list[int] = []
    run = PackedRunner.run

    def counted(runner: Any, rows: Any) -> Any:
        sizes.append(len(rows))
        return run(runner, rows)

    patch.setattr(PackedRunner, "run", counted)
    return sizes


def end_streams(patch: pytest.MonkeyPatch, kind: type[Exception], after: int | None = 2) -> None:
    """Have each stream of an engine end with an error behind so many pieces, None for all."""
    stream = Leaves.stream

    def ending(*args: Any) -> Iterator[Any]:
        with closing(cast("Generator[Any]", stream(*args))) as pieces:
            yield from islice((piece for piece in pieces if isinstance(piece, str)), after)
            raise kind("no more")

    patch.setattr(Leaves, "stream", ending)


def fail_forwards(patch: pytest.MonkeyPatch, after: int = 4) -> None:
    """Have an engine fail at each forward behind so many."""
    run, forwards = PackedRunner.run, count()

    def failing(runner: Any, rows: Any) -> Any:
        if next(forwards) >= after:
            raise RuntimeError("no more")
        return run(runner, rows)

    patch.setattr(PackedRunner, "run", failing)


def record_plain(patch: pytest.MonkeyPatch) -> list[tuple[Any, list[int]]]:
    """Return a list that is given the prompt of each plain call, and the tokens behind it."""
    calls: list[tuple[Any, list[int]]] = []
    plain = hf_generation._plain

    def recorded(made: Any, kwargs: Any, most: int, tokens: Any) -> Any:
        calls.append((kwargs["input_ids"], list(tokens)))
        return plain(made, kwargs, most, tokens)

    patch.setattr(hf_generation, "_plain", recorded)
    return calls


def continued(made: Any, call: tuple[Any, list[int]]) -> str:
    """Return what a stream gives whose engine failed behind some tokens of its answer."""
    prompt, tokens = call
    assert 0 < len(tokens) < TOKENS
    ids = torch.cat([prompt, torch.tensor([tokens])], dim=1)
    most = TOKENS - len(tokens)
    found = made.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=most, **GREEDY)
    return tokenizer().decode(found[0, prompt.shape[1] :], skip_special_tokens=True)

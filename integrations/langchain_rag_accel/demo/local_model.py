"""A language model of this machine behind the demo's chain, as transformers runs it and batched."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from langchain_rag_accel.accelerate import accelerate
from langchain_rag_accel.components.local_chat import ChatRagAccel
from langchain_rag_accel.demo.load import torch_threads
from rag_accel.accelerator import Accelerator
from rag_accel.system.processor import usable_cores

#: Both arms compute in it: in a shorter one the text depends on what else is computed beside it.
DTYPE = "float32"
MAX_TOKENS = 32
USERS = (1, 8)
#: Questions of one user alone.
ALONE = 3


@dataclass(frozen=True, slots=True)
class Answers:
    """One run of an arm, its answers by question.

    Args:
        texts: the answers.
        first_s: of each, seconds until its first text.
        tokens: of all answers together.
        wall_s: from the first question to the end of the last answer.
        threads: torch threads it ran with.
    """

    texts: tuple[str, ...]
    first_s: tuple[float, ...]
    tokens: int
    wall_s: float
    threads: int

    @property
    def tokens_per_s(self) -> float:
        """Return tokens of all users a second."""
        return self.tokens / self.wall_s

    @property
    def mean_first_s(self) -> float:
        """Return the mean seconds until the first text of an answer."""
        return sum(self.first_s) / len(self.first_s)


@dataclass(frozen=True, slots=True)
class LocalLevel:
    """Both arms with so many users, each with a question of its own."""

    users: int
    questions: tuple[str, ...]
    plain: Answers
    accelerated: Answers

    @property
    def different(self) -> tuple[str, ...]:
        """Return the questions whose answers differ."""
        pairs = zip(self.questions, self.plain.texts, self.accelerated.texts, strict=True)
        return tuple(question for question, left, right in pairs if left != right)


def plain_chat_model(folder: Path) -> Any:
    """Return LangChain's own chat model over a pipeline of transformers'."""
    huggingface: Any = importlib.import_module("langchain_huggingface")
    transformers: Any = importlib.import_module("transformers")
    transformers.logging.disable_progress_bar()  # the demo tells what it does
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=DTYPE)
    pipeline = transformers.pipeline(
        "text-generation",
        model=model,
        tokenizer=tokenizer,
        max_new_tokens=MAX_TOKENS,
        do_sample=False,
        return_full_text=False,
    )
    llm = huggingface.HuggingFacePipeline(pipeline=pipeline)
    return huggingface.ChatHuggingFace(llm=llm, tokenizer=tokenizer)


def measure_local_model(
    folder: Path,
    build: Callable[[Any], Any],
    questions: Sequence[str],
    accelerator: Accelerator,
    tell: Callable[[str], None],
) -> list[LocalLevel]:
    """Let one user and eight ask a model of a folder, streamed, and tell what is answered.

    Args:
        folder: of the model.
        build: makes a chain of a chat model.
        questions: one a user at least; the last is asked once before anything counts.
        accelerator: runs the accelerated arm.
        tell: is given each line.
    """
    plain = build(plain_chat_model(folder))
    ours = ChatRagAccel(
        model=str(folder), dtype=DTYPE, max_tokens=MAX_TOKENS, accelerator=accelerator
    )
    fast = accelerate(build(ours), accelerator=accelerator)
    count = _counter(folder)
    for chain in (plain, fast):  # neither arm pays for what the first call makes
        _ask(chain, questions[-1:], 1, count, 1)
    found: list[LocalLevel] = []
    for users in USERS:
        asked = tuple(questions[: max(users, ALONE)])
        before = max(
            (_ask(plain, asked, users, count, one) for one in sorted({1, usable_cores()})),
            key=lambda run: run.tokens_per_s,
        )
        after = _ask(fast, asked, users, count, usable_cores(), tell if users == 1 else None)
        found.append(LocalLevel(users, asked, before, after))
    return found


def _counter(folder: Path) -> Callable[[str], int]:
    tokenizer: Any = importlib.import_module("transformers").AutoTokenizer.from_pretrained(folder)
    return lambda text: len(tokenizer(text, add_special_tokens=False)["input_ids"])


def _ask(
    chain: Any,
    questions: Sequence[str],
    users: int,
    count: Callable[[str], int],
    threads: int,
    tell: Callable[[str], None] | None = None,
) -> Answers:
    def ask(question: str) -> tuple[str, float]:
        started, first, text = time.perf_counter(), 0.0, ""
        for piece in chain.stream(question):
            text += piece.get("answer", "")
            if text and not first:
                first = time.perf_counter() - started
        if tell is not None:
            tell(f"\nQ: {question}\nA: {text}\n   first text after {first:.2f} s")
        return text, first or time.perf_counter() - started

    with torch_threads(threads), ThreadPoolExecutor(users) as pool:
        started = time.perf_counter()
        texts, first = zip(*pool.map(ask, questions), strict=True)
        wall = time.perf_counter() - started
    return Answers(texts, first, sum(map(count, texts)), wall, threads)


def local_table(levels: Sequence[LocalLevel]) -> str:
    """Return first text and tokens a second of both arms, one level a line."""
    head = f"{'users':>5}  {'arm':<13}{'first text s':>13}{'tokens/s':>10}"
    lines = [head, "-" * len(head)]
    for level in levels:
        for name, run in (("transformers", level.plain), ("accelerated", level.accelerated)):
            lines.append(
                f"{level.users:>5}  {name:<13}{run.mean_first_s:>13.2f}{run.tokens_per_s:>10.1f}"
            )
    return "\n".join(lines)


def local_as_json(levels: Sequence[LocalLevel]) -> list[dict[str, Any]]:
    """Return the machine-readable result."""
    return [
        {
            "users": level.users,
            "different": list(level.different),
            "plain_torch_threads": level.plain.threads,
            "plain": _figures(level.plain),
            "accelerated": _figures(level.accelerated),
        }
        for level in levels
    ]


def _figures(run: Answers) -> dict[str, float]:
    return {
        "first_text_s": round(run.mean_first_s, 3),
        "tokens_per_s": round(run.tokens_per_s, 1),
    }

"""A language model of this machine behind the demo's chain, as transformers runs it and batched.

Both arms answer the same questions in the same precision and take turns, each turn other questions,
so that neither finds anything computed for an earlier turn. Plain has the number of torch threads
at which it is faster.
"""

from __future__ import annotations

import importlib
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from langchain_rag_accel import accelerate, prepare
from langchain_rag_accel.components.local_chat import ChatRagAccel
from rag_accel.accelerator import Accelerator
from rag_accel.system.processor import usable_cores
from rag_accel_demo.extent import LocalExtent
from rag_accel_demo.levels import PATIENCE_S, EngineStep, RecordedSteps
from rag_accel_demo.load import torch_threads
from rag_accel_demo.progress import LOCAL_ANSWER, PhaseBar

#: Both arms compute in it: in a shorter one the text depends on what else is computed beside it.
DTYPE = "float32"


@dataclass(frozen=True, slots=True)
class Answers:
    """The runs of an arm, their answers by question.

    Args:
        texts: the answers.
        first_s: of each, seconds until its first text.
        tokens: of all answers together.
        wall_s: from the first question of a run to the end of its last answer, all runs together.
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

    def __add__(self, other: Answers) -> Answers:
        """Return both runs' answers, of the same arm."""
        return Answers(
            self.texts + other.texts,
            self.first_s + other.first_s,
            self.tokens + other.tokens,
            self.wall_s + other.wall_s,
            self.threads,
        )


@dataclass(frozen=True, slots=True)
class LocalLevel:
    """Both arms with so many users, each with a question of its own.

    Args:
        users: who ask at once.
        questions: of both arms.
        plain: the answers of the plain arm.
        accelerated: the answers of the accelerated arm.
        steps: of the engines, during the accelerated arm's runs.
    """

    users: int
    questions: tuple[str, ...]
    plain: Answers
    accelerated: Answers
    steps: tuple[EngineStep, ...] = ()

    @property
    def different(self) -> tuple[str, ...]:
        """Return the questions whose answers differ."""
        pairs = zip(self.questions, self.plain.texts, self.accelerated.texts, strict=True)
        return tuple(question for question, left, right in pairs if left != right)

    @property
    def sooner(self) -> float:
        """Return plain's seconds until the first text of an answer / accelerated."""
        return self.plain.mean_first_s / self.accelerated.mean_first_s

    @property
    def gain(self) -> float:
        """Return tokens a second of all users, accelerated / plain."""
        return self.accelerated.tokens_per_s / self.plain.tokens_per_s


def plain_chat_model(folder: Path, max_tokens: int) -> Any:
    """Return LangChain's own chat model over a pipeline of transformers'."""
    huggingface: Any = importlib.import_module("langchain_huggingface")
    transformers: Any = importlib.import_module("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=DTYPE)
    pipeline = transformers.pipeline(
        "text-generation",
        model=model,
        tokenizer=tokenizer,
        max_new_tokens=max_tokens,
        do_sample=False,
        return_full_text=False,
    )
    llm = huggingface.HuggingFacePipeline(pipeline=pipeline)
    return huggingface.ChatHuggingFace(llm=llm, tokenizer=tokenizer)


def measure_local_model(
    folder: Path,
    build: Callable[[Any], Any],
    questions: Sequence[str],
    extent: LocalExtent,
    accelerator: Accelerator,
    progress: PhaseBar,
    tell: Callable[[str], None] | None = None,
) -> list[LocalLevel]:
    """Let one user and several ask a model of a folder, streamed.

    Args:
        folder: of the model.
        build: makes a chain of a chat model.
        questions: those of each turn are others as long as there are enough: some 30.
        extent: how much is asked.
        accelerator: runs the accelerated arm.
        progress: of the whole demo.
        tell: is given each answer of one user, as lines; by default they are not told.
    """
    plain = build(plain_chat_model(folder, extent.max_tokens))
    ours = ChatRagAccel(
        model=str(folder), dtype=DTYPE, max_tokens=extent.max_tokens, accelerator=accelerator
    )
    fast = accelerate(build(ours), accelerator=accelerator)
    progress.begin("compile the local model")
    prepare(fast, timeout_s=PATIENCE_S)
    arms = _Arms(plain, fast, _counter(folder), extent, accelerator, progress)
    waiting = itertools.cycle(questions)
    return [arms.level(users, waiting, tell if users == 1 else None) for users in extent.users]


@dataclass(frozen=True, slots=True)
class _Arms:
    """Both arms of the comparison, and how much of them is measured."""

    plain: Any
    fast: Any
    count: Callable[[str], int]
    extent: LocalExtent
    accelerator: Accelerator
    progress: PhaseBar

    def level(
        self, users: int, waiting: Iterator[str], tell: Callable[[str], None] | None
    ) -> LocalLevel:
        """Let both arms take turns with so many users; what they are asked first does not count."""
        self.progress.begin(f"local model, {users} user{'s' * (users > 1)}")
        counts = self.extent.plain_threads()
        # A run that chooses plain's threads has all users; else a question warms each arm up.
        first = tuple(itertools.islice(waiting, users if self.extent.tries_threads else 1))
        tries = [self._ask(self.plain, first, users, count) for count in counts]
        threads = max(tries, key=lambda run: run.tokens_per_s).threads
        self._ask(self.fast, first, users, usable_cores())
        asked: list[str] = []
        before: list[Answers] = []
        after: list[Answers] = []
        recorded = RecordedSteps()
        for turn in range(self.extent.turns):
            questions = tuple(itertools.islice(waiting, max(users, self.extent.alone)))
            asked += questions
            if turn % 2 == 0:
                before.append(self._ask(self.plain, questions, users, threads))
            with recorded.of(self.accelerator):
                after.append(self._ask(self.fast, questions, users, usable_cores(), tell))
            if turn % 2 == 1:
                before.append(self._ask(self.plain, questions, users, threads))
        return LocalLevel(users, tuple(asked), _together(before), _together(after), recorded.steps)

    def _ask(
        self,
        chain: Any,
        questions: Sequence[str],
        users: int,
        threads: int,
        tell: Callable[[str], None] | None = None,
    ) -> Answers:
        run = _ask(chain, questions, users, self.count, threads, tell)
        self.progress.add(LOCAL_ANSWER * len(questions))
        return run


def _together(runs: Sequence[Answers]) -> Answers:
    first, *others = runs
    return sum(others, first)


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


LOCAL_HEAD = ("users", "arm", "first text s", "tokens/s")


def local_rows(levels: Sequence[LocalLevel]) -> list[tuple[str, ...]]:
    """Return first text and tokens a second of both arms and their ratios, under ``LOCAL_HEAD``."""
    found: list[tuple[str, ...]] = []
    for level in levels:
        users = str(level.users)
        for name, run in (("transformers", level.plain), ("accelerated", level.accelerated)):
            found.append((users, name, f"{run.mean_first_s:.2f}", f"{run.tokens_per_s:.1f}"))
        found.append((users, "ratio", f"{level.sooner:.2f} x", f"{level.gain:.2f} x"))
    return found


def local_as_json(levels: Sequence[LocalLevel]) -> list[dict[str, Any]]:
    """Return the machine-readable result."""
    return [
        {
            "users": level.users,
            "different": list(level.different),
            "plain_torch_threads": level.plain.threads,
            "plain": _figures(level.plain),
            "accelerated": _figures(level.accelerated),
            "ratio": {"first_text": round(level.sooner, 2), "tokens_per_s": round(level.gain, 2)},
        }
        for level in levels
    ]


def _figures(run: Answers) -> dict[str, float]:
    return {
        "first_text_s": round(run.mean_first_s, 3),
        "tokens_per_s": round(run.tokens_per_s, 1),
    }

"""The time to the first token where a prompt's beginning is computed early."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from bench.local_llm.chains import Streamed, streamed
from bench.local_llm.prompts import Prompts
from bench.local_llm.streams import METRIC
from bench.measure import median, rotate
from bench.paired import in_ms
from bench.results import Row, row_of
from rag_accel.accelerator import Accelerator
from rag_accel.engine_api import LatencyModel, PrimitiveKind
from rag_accel.errors import EngineError
from rag_accel.graph import END, START, FrozenRAGraph, RAGraph
from rag_accel.passes.manager import RUNTIME_PASSES, STATIC_PASSES
from rag_accel.testing import FAKE_PROFILE, FakeEngine

_RULES = (
    "You answer questions of people who know their field, and keep to what the passages and the "
    "conversation so far say. Leave out what they do not say, name no passage, and write in full "
    "sentences of moderate length. Say so where nothing answers what was asked."
)
QUESTION = "What do they say?"
EARLY, LATE, ALONE = "accelerated", "split_prefill off", "prompt alone"


def searching(tokens: int) -> FrozenRAGraph:
    """Return a search, and an answer whose prompt has a long history before what is found."""
    graph = RAGraph(inputs=["input", "history"]).add_retrieval("search", output="docs")
    prompt = "{history}\n\nPassages:\n{docs}\n\nQuestion: {input}"
    graph.add_generation("answer", prompt, system=_RULES, max_tokens=tokens)
    graph.add_edge(START, "search").add_edge("search", "answer")
    return graph.add_edge("answer", END).freeze()


def alone(tokens: int) -> FrozenRAGraph:
    """Return an answer to the same history without a search."""
    graph = RAGraph(inputs=["input", "history"])
    prompt = "{history}\n\nQuestion: {input}"
    graph.add_generation("answer", prompt, system=_RULES, max_tokens=tokens)
    return graph.add_edge(START, "answer").add_edge("answer", END).freeze()


@dataclass(frozen=True, slots=True)
class Early:
    """What was found with an early beginning and without; times by arm, turn by turn, in ms."""

    first_ms: Mapping[str, Sequence[float]]
    search_ms: float
    num_equal: int

    @property
    def share(self) -> float:
        """Return the time saved / what can be saved at most: the median over turns."""
        saved = [
            (late - early) / min(prefill, self.search_ms)
            for early, late, prefill in zip(
                *(self.first_ms[name] for name in (EARLY, LATE, ALONE)), strict=True
            )
        ]
        return median(saved)

    def rows(self, history: int) -> list[Row]:
        """Return the time to the first text of each arm, and how many answers are equal."""
        workload = f"history of {history} tokens, search of {self.search_ms:g} ms"
        turns = len(self.first_ms[EARLY])
        return [
            *(row_of(name, workload, METRIC, times) for name, times in self.first_ms.items()),
            Row(EARLY, workload, f"answers_equal_to_{LATE}", self.num_equal, None, turns),
        ]


def early_prefill(
    folder: str, prompts: Prompts, history: int, search_s: float, tokens: int, turns: int
) -> Early:
    """Measure the time to the first text; each turn has a history of its own, for all arms.

    Raises:
        EngineError: the beginning is not computed early: the plan does not say so.
    """
    graph = searching(tokens)
    with ExitStack() as stack:
        early, late = (
            stack.enter_context(_searched(folder, search_s, passes))
            for passes in ("all", all_but("split_prefill"))
        )
        plan = early.explain(graph, "e-graph")
        if f": {PrimitiveKind.PARTIAL_PREFILLING}@" not in plan:
            raise EngineError("no beginning is computed early", found=plan)
        arms = {EARLY: (early, graph), LATE: (late, graph), ALONE: (late, alone(tokens))}
        histories = [f"{prompts.number()}. {prompts.text(history)}" for _ in range(turns + 1)]
        found = rotate(
            {name: partial(_answer, *arm, name, histories) for name, arm in arms.items()}, turns + 1
        )
    counted = {name: [in_ms(one.first_s) for one in each[1:]] for name, each in found.items()}
    pairs = zip(found[EARLY][1:], found[LATE][1:], strict=True)
    same = sum(one.answer == other.answer for one, other in pairs)
    return Early(counted, in_ms(search_s), same)


def all_but(name: str) -> str:
    """Return the option ``passes`` that leaves one pass out."""
    names = (*(one.name for one in STATIC_PASSES), *RUNTIME_PASSES)
    return ",".join(one for one in names if one != name)


def _answer(
    accelerator: Accelerator, graph: FrozenRAGraph, name: str, histories: Sequence[str], turn: int
) -> Streamed:
    history = histories[turn]
    if name == ALONE:
        # On the engine of another arm, whose prefix cache has the history as it is.
        history = f"Alone: {history}"
    return streamed(accelerator.stream(graph, input=QUESTION, history=history))


@contextmanager
def _searched(folder: str, search_s: float, passes: str) -> Iterator[Accelerator]:
    """Give an accelerator with the model and an index whose search sleeps."""
    profile = replace(FAKE_PROFILE, latency=LatencyModel(base_s=search_s))
    index: Any = FakeEngine(profile, wait=time.sleep)
    parts = {"llm": folder, "embedder": FakeEngine(), "index": index}
    with Accelerator(**parts, single_flight=False, passes=passes) as accelerator:
        yield accelerator

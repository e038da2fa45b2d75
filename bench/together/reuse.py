"""The first text of a graph's answer about long texts that were seen before, in another order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from random import Random

from bench.kv.first_token import WAYS
from bench.local_llm.chains import Streamed, streamed
from bench.measure import median, rotate
from bench.paired import in_ms
from bench.results import Row, row_of
from bench.together.material import SYSTEM
from rag_accel.accelerator import Accelerator
from rag_accel.engine_api import Document
from rag_accel.engines import LocalLLM
from rag_accel.graph import END, START, RAGraph

METRIC = "first_text_ms"
EXACT = "exact"


@dataclass(frozen=True, slots=True)
class FirstTexts:
    """Milliseconds to the first text by way of reuse, turn by turn, and tokens of the texts."""

    times: Mapping[str, Sequence[float]]
    tokens: int

    def gain(self, way: str) -> float:
        """Return the time computing everything / that with a way of reuse: median over turns."""
        pairs = zip(self.times[EXACT], self.times[way], strict=True)
        return median([exact / other for exact, other in pairs])

    def rows(self) -> list[Row]:
        """Return a row for each way."""
        workload = f"RAGraph, texts of {self.tokens} tokens seen before"
        return [row_of(way, workload, METRIC, times) for way, times in self.times.items()]


def first_texts(folder: str, texts: Sequence[str], tokens: int, turns: int) -> FirstTexts:
    """Ask about the same texts, each turn in another order; the first turn does not count.

    Args:
        folder: a checkpoint.
        texts: of each prompt.
        tokens: how many these have together.
        turns: that count.
    """
    with _asking(folder, texts) as arms:
        found = rotate(
            {way: partial(_first, accelerator) for way, accelerator in arms.items()}, turns + 1
        )
    times = {way: [in_ms(one.first_s) for one in each[1:]] for way, each in found.items()}
    return FirstTexts(times, tokens)


def _first(accelerator: Accelerator, turn: int) -> Streamed:
    return streamed(accelerator.stream(_graph(), input=f"{turn}: What do all of these say?"))


def _graph() -> RAGraph:
    graph = RAGraph().add_retrieval("search", output="docs")
    graph.add_generation("answer", "{docs}\n\n{input}", system=SYSTEM, max_tokens=2)
    return graph.add_edge(START, "search").add_edge("search", "answer").add_edge("answer", END)


@contextmanager
def _asking(folder: str, texts: Sequence[str]) -> Iterator[Mapping[str, Accelerator]]:
    """Give an accelerator for each way of reuse, with a search that finds all texts."""

    def search(query: str, k: int) -> list[Document]:
        numbered = [Document(str(at), text) for at, text in enumerate(texts)]
        return Random(int(query.partition(":")[0])).sample(numbered, len(numbered))

    with ExitStack() as stack:
        yield {
            way: stack.enter_context(
                Accelerator(llm=LocalLLM(folder, kv_reuse=way), index=search, single_flight=False)
            )
            for way in WAYS
        }

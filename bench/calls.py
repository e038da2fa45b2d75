"""Count our functions and files that a warm query passes: ``python -m bench.calls``.

Counted are the call events of ``sys.setprofile`` in all threads, of functions that stand in our
packages; the median of several queries. It is no measure of time: it says how far a reader has to
go who follows a query.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from rag_accel import END, START, Accelerator, RAGraph
from rag_accel.engine_api import Document

QUERIES = 20
WARM_UP = 10
#: seconds after an answer in which the scheduler ends what it has to
QUIET_S = 0.02
MINILM_DIMENSION = 384
_ROOT = Path(__file__).resolve().parents[1]
_OURS = tuple(f"{_ROOT / name}/" for name in ("rag_accel", "adapters", "integrations", "demo"))
_TEXTS = tuple(f"Passage {number} is about subject {number % 7}." for number in range(64))

Function = tuple[str, str]


class Calls:
    """The calls of our functions while it is switched on, in threads made after it."""

    def __init__(self) -> None:
        self.seen: list[Function] = []
        self.is_on = False
        threading.setprofile(self.note)

    def note(self, frame: FrameType, event: str, argument: object) -> None:
        """Note a call; this is what profiles a thread."""
        if event == "call" and self.is_on and frame.f_code.co_filename.startswith(_OURS):
            self.seen.append((frame.f_code.co_filename, frame.f_code.co_qualname))

    def of(self, ask: Callable[[], Any]) -> list[Function]:
        """Return the calls of one query."""
        self.seen = []
        sys.setprofile(self.note)
        self.is_on = True
        try:
            ask()
            time.sleep(QUIET_S)
        finally:
            self.is_on = False
            sys.setprofile(None)
        return self.seen


@contextmanager
def chain() -> Iterator[Callable[[], Any]]:
    """Give a LangChain chain that embeds, searches and generates once, on a store of ours."""
    from langchain_core.language_models import FakeListChatModel
    from langchain_core.output_parsers import StrOutputParser
    from langchain_core.prompts import ChatPromptTemplate
    from langchain_core.runnables import RunnablePassthrough

    from langchain_rag_accel import RagAccelVectorStore, accelerate
    from rag_accel_demo.material import local_embeddings

    with Accelerator(strict=True) as accelerator:
        store = RagAccelVectorStore.from_texts(
            list(_TEXTS), local_embeddings(), accelerator=accelerator
        )
        prompt = ChatPromptTemplate.from_template("{context} {question}")
        inputs = {"context": store.as_retriever(), "question": RunnablePassthrough()}
        model = FakeListChatModel(responses=["an answer"])
        program = accelerate(inputs | prompt | model | StrOutputParser(), accelerator=accelerator)
        yield lambda: program.invoke("What is subject 3?")


@contextmanager
def graph() -> Iterator[Callable[[], Any]]:
    """Give a RAGraph that embeds, searches and generates once, on three owned engines."""
    from rag_accel.engines import (
        DocumentIndex,
        IndexSpec,
        SentenceTransformerEngine,
    )
    from rag_accel_demo import ExtractiveEngine

    embedder = SentenceTransformerEngine()
    index = DocumentIndex(IndexSpec(MINILM_DIMENSION))
    documents = [Document(str(number), text) for number, text in enumerate(_TEXTS)]
    with Accelerator(
        embedder=embedder, index=index, llm=ExtractiveEngine(), strict=True
    ) as accelerator:
        adding = RAGraph().add_ingestion("add", documents="input")
        adding.add_edge(START, "add").add_edge("add", END)
        accelerator.run(adding, input=documents)
        asking = RAGraph().add_retrieval("search").add_generation("answer", "{search} {input}")
        asking.add_edge(START, "search").add_edge("search", "answer").add_edge("answer", END)
        yield lambda: accelerator.run(asking, input="What is subject 3?")


WAYS = {"chain": chain, "graph": graph}


def count(way: str) -> tuple[float, float, Counter[Function]]:
    """Return the median calls and files of a query, and the mean calls of each function."""
    calls = Calls()
    try:
        with WAYS[way]() as ask:
            for _ in range(WARM_UP):
                calls.of(ask)
            rounds = [calls.of(ask) for _ in range(QUERIES)]
    finally:
        threading.setprofile(None)  # type: ignore[arg-type]
    every = Counter(function for one in rounds for function in one)
    return (
        statistics.median(map(len, rounds)),
        statistics.median(len({file for file, _ in one}) for one in rounds),
        Counter({function: number / QUERIES for function, number in every.items()}),
    )


def main() -> int:
    """Print the calls and files of a chain and of a graph."""
    parser = argparse.ArgumentParser(prog="python -m bench.calls", description=__doc__)
    parser.add_argument("--functions", type=int, default=0, help="list so many functions")
    shown = parser.parse_args().functions
    for way in WAYS:
        calls, files, functions = count(way)
        print(f"{way}: {calls:g} calls of our functions in {files:g} files")
        for (file, name), number in functions.most_common(shown):
            print(f"  {number:6.1f}  {Path(file).relative_to(_ROOT)}  {name}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

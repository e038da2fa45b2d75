"""Call leaves that do nothing, or only sleep: what interception and graphs cost, and what overlaps.

Every figure here is scripted: no model answers and nothing is found, so what is left is ours.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, nullcontext
from functools import partial
from typing import Any

from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableParallel, RunnablePassthrough

from bench.ablation import switches
from bench.ablation.measured import LATENCY, STEP_TIMEOUT_S, Ablation, Arm, Gave, ablate, under
from bench.ablation.switches import Switch
from bench.arms import bench_accelerator
from bench.no_op import one_shot_chain
from bench.no_op_graph import ENGINE, NoOpEngine, line_graph
from bench.paired import in_ms
from langchain_rag_accel import accelerate
from rag_accel.accelerator import Accelerator
from rag_accel.system.classes import full_name
from rag_accel_demo.load import Shape, run_load

RATE = "answers_per_s"
#: Calls in a row of one run, which gives their mean.
ROW = 20
#: Tasks that call at once.
CALLERS = 64
FIND_S = 0.01
_NODES = 10


class Sleeping(BaseRetriever):
    """A retriever of one document after 10 ms, by a sync method only."""

    name_of_it: str = "it"

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun
    ) -> list[Document]:
        time.sleep(FIND_S)
        return [Document(f"{self.name_of_it} about {query}")]


def measure(turns: int, each: int) -> list[Ablation]:
    """Measure calls of no-op chains, sync-only and composite retrievers, and a graph.

    A run of many callers has ``each`` calls for each of them.
    """
    return [*_no_op_chains(turns, each), *_sleeping(turns, each), *_graphs(turns, each)]


# A chain whose model does nothing --------------------------------------------------------------

LACKING: Mapping[str, Switch] = {
    "beginning_at_once": switches.every_call_waits_for_its_permit,
    "quiet_messages": switches.every_message_wakes,
}


def _no_op_chains(turns: int, each: int) -> list[Ablation]:
    with ExitStack() as stack:
        chain = one_shot_chain()
        on = _accelerated(stack, chain)
        # Made under its switch: what a driver is told to call it holds from the beginning.
        off = {name: _accelerated(stack, chain, switch) for name, switch in LACKING.items()}

        def arms(make: Callable[[Any], Arm]) -> tuple[Arm, dict[str, Arm]]:
            return make(on), {name: under(LACKING[name], make(off[name])) for name in off}

        asked = {"question": "?"}
        alone, lacking = arms(lambda fast: _row(lambda: fast.invoke(asked)))
        found = ablate("no op chain", LATENCY, alone, lacking, 4 * turns)
        crowd, lacking = arms(
            lambda fast: _load(fast, [asked] * (CALLERS * each), CALLERS, "tasks")
        )
        return [*found, *ablate("no op chain 64 tasks", RATE, crowd, lacking, turns)]


# Retrievers that sleep -------------------------------------------------------------------------


def _sleeping(turns: int, each: int) -> list[Ablation]:
    with ExitStack() as stack:
        asked = [f"question {number}" for number in range(CALLERS * each)]
        fast = _accelerated(stack, Sleeping())
        arm = _load(fast, asked, CALLERS, "tasks")
        off = {"call_threads": under(switches.the_loops_own_threads, arm)}
        found = ablate("sync retriever 64 tasks", RATE, arm, off, turns)
        composite = _accelerated(stack, _composite(), thread_safe_classes=(full_name(Sleeping),))
        for callers in (1, 16):
            arm = _load(composite, asked[: 2 * each * callers], callers, "threads")
            off = {"composite_calls": under(switches.one_call_after_another, arm)}
            regime = f"three retrievers {callers} thread{'s' * (callers > 1)}"
            found += ablate(regime, RATE, arm, off, turns)
        return found


def _composite() -> Any:
    from langchain_classic.retrievers import EnsembleRetriever

    parts: list[Any] = [Sleeping(name_of_it=name) for name in ("one", "two", "three")]
    found = EnsembleRetriever(retrievers=parts, weights=[1.0] * len(parts))
    return RunnableParallel(documents=found, question=RunnablePassthrough())


# A graph whose engine does nothing -------------------------------------------------------------


GRAPHS_LACKING: Mapping[str, Switch] = {
    "kept_plans": switches.a_plan_for_each_request,
    "own_reports": switches.reports_to_the_driver,
}


class _Graph:
    """One graph, called as a chain is."""

    def __init__(self, accelerator: Accelerator, nodes: int) -> None:
        graph = line_graph(nodes)
        self.invoke = lambda value: accelerator.run(graph, input=value)
        self.ainvoke = lambda value: accelerator.arun(graph, input=value)


def _graphs(turns: int, each: int) -> list[Ablation]:
    with Accelerator(engines={ENGINE: NoOpEngine()}, step_timeout_s=STEP_TIMEOUT_S) as accelerator:
        graph = _Graph(accelerator, _NODES)

        def lacking(arm: Arm) -> dict[str, Arm]:
            return {name: under(switch, arm) for name, switch in GRAPHS_LACKING.items()}

        alone, crowd = (
            _row(partial(graph.invoke, "?")),
            _load(graph, ["?"] * (CALLERS * each), CALLERS, "tasks"),
        )
        regime = f"{_NODES} no op stages"
        return [
            *ablate(regime, LATENCY, alone, lacking(alone), 4 * turns),
            *ablate(f"{regime} 64 tasks", RATE, crowd, lacking(crowd), turns),
        ]


def _accelerated(stack: ExitStack, chain: Any, switch: Switch = nullcontext, **options: Any) -> Any:
    with switch():
        accelerator = stack.enter_context(
            bench_accelerator(step_timeout_s=STEP_TIMEOUT_S, **options)
        )
        return accelerate(chain, accelerator=accelerator)


def _row(call: Callable[[], Any]) -> Arm:
    """Return the arm that makes some calls one after the other; its figure is their mean time."""

    def run(turn: int) -> Gave:
        started = time.perf_counter()
        answers = [call() for _ in range(ROW)]
        return Gave(in_ms(time.perf_counter() - started) / ROW, answers)

    return run


def _load(chain: Any, asked: Any, callers: int, shape: Shape) -> Arm:
    def run(turn: int) -> Gave:
        load = run_load(chain, asked, callers, shape)
        return Gave(load.throughput_rps, load.answers)

    return run

"""Embed on an engine whose step takes as long whatever it holds, as on a GPU or a server.

What a step holds is all that counts there: callers who are parted into two steps wait twice.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack

import numpy as np

from bench.ablation import switches
from bench.ablation.measured import HANG_S, Ablation, Arm, Gave, ablate, same_vectors, under
from bench.ablation.switches import Lacking
from bench.arms import bench_accelerator
from langchain_rag_accel.demo.load import Shape, run_load
from rag_accel.accelerator import Accelerator
from rag_accel.accelerator.leaves import Work
from rag_accel.engine_api import PrimitiveKind, TextBatch
from rag_accel.engines.embedding.callable_engine import CallableEmbeddingEngine

RATE = "texts_per_s"
STEP_S = 0.01
#: What a task computes in Python before each call, as a framework does.
OWN_S = 0.0005
_DIMENSION = 8
#: Texts of a run for each caller.
_EACH = 12

LACKING: Mapping[str, Lacking] = {
    "waiting_for_newcomers": Lacking({"batch_wait_ms": 0.0}),
    "starting_together": Lacking(switch=switches.one_event_at_a_time),
    "gathered_tasks": Lacking(switch=switches.tasks_each_by_themselves),
    "one_wake_a_loop": Lacking(switch=switches.a_wake_for_each_task),
}
_FOR_TASKS = ("starting_together", "gathered_tasks", "one_wake_a_loop")
CROWDS: Mapping[tuple[int, Shape], tuple[str, ...]] = {
    (2, "threads"): ("waiting_for_newcomers",),
    (16, "threads"): ("waiting_for_newcomers", "starting_together"),
    (16, "tasks"): _FOR_TASKS,
    (64, "tasks"): _FOR_TASKS,
}


def measure(turns: int) -> list[Ablation]:
    """Measure what brings callers into one step."""
    found: list[Ablation] = []
    with ExitStack() as stack:
        on = _Caller(stack, {})
        arms = {name: _Caller(stack, one.options) for name, one in LACKING.items()}
        for (callers, shape), lacking in CROWDS.items():
            off = {
                name: under(LACKING[name].switch, _load(arms[name], callers, shape))
                for name in lacking
            }
            regime = f"{callers} {shape} fixed cost"
            found += ablate(
                *(regime, RATE, _load(on, callers, shape), off, turns), same=same_vectors
            )
    return found


def _embed(texts: Sequence[str]) -> list[list[float]]:
    time.sleep(STEP_S)
    return [np.random.default_rng(len(text)).random(_DIMENSION).tolist() for text in texts]


class _Caller:
    """Embed a text a call through an accelerator of its own; called as a chain is."""

    def __init__(self, stack: ExitStack, options: Mapping[str, object]) -> None:
        self._accelerator: Accelerator = stack.enter_context(
            bench_accelerator(hang_s=HANG_S, **options)
        )
        self._engine = self._accelerator.own(
            self, "embedder", lambda: CallableEmbeddingEngine(_embed)
        )

    def invoke(self, text: str) -> object:
        """Return the vector of one text."""
        leaves, identity = self._accelerator.leaves, self._accelerator.anonymous()
        return leaves.compute(identity, self._work(text))

    async def ainvoke(self, text: str) -> object:
        """Do the same from a task."""
        started = time.perf_counter()
        while time.perf_counter() < started + OWN_S:
            pass
        leaves, identity = self._accelerator.leaves, self._accelerator.anonymous()
        return await leaves.acompute(identity, self._work(text))

    def _work(self, text: str) -> Work:
        return Work(self._engine, PrimitiveKind.EMBEDDING, TextBatch((text,), "query"))


def _load(caller: _Caller, callers: int, shape: Shape) -> Arm:
    asked = ["x" * number for number in range(_EACH * callers)]

    def run(turn: int) -> Gave:
        load = run_load(caller, asked, callers, shape)
        return Gave(load.throughput_rps, load.answers)

    return run

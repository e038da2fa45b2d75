"""Run LangGraph programs of which one branch has the longer way to go; engine and model sleep."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial

from bench.ablation import switches
from bench.ablation.measured import LATENCY, STEP_TIMEOUT_S, Ablation, Arm, Gave, ablate
from bench.ablation.switches import Lacking
from bench.arms import bench_accelerator
from bench.depth_program import Program, Scheduled, Sizes
from bench.loads import counted
from bench.paired import in_ms
from langchain_rag_accel import accelerate

LACKING: Mapping[str, Lacking] = {
    "use_skeleton": Lacking({"use_skeleton": False}),
    "depth_order": Lacking(made_under=switches.blind_to_depth),
}


def measure(sizes: Sizes) -> list[Ablation]:
    """Measure the order of a program's calls, for one user and for four at once."""
    found: list[Ablation] = []
    with ExitStack() as stack, asyncio.Runner() as runner:
        on = _program(stack, sizes, Lacking())
        off = {name: _program(stack, sizes, one) for name, one in LACKING.items()}
        for users in (1, 4):
            arm = partial(_arm, runner, users)
            lacking = {name: arm(program) for name, program in off.items()}
            regime = f"program {counted(users, 'user')}"
            found += ablate(regime, LATENCY, arm(on), lacking, sizes.turns)
    return found


def _program(stack: ExitStack, sizes: Sizes, lacking: Lacking) -> Program:
    with lacking.made_under():
        accelerator = stack.enter_context(
            bench_accelerator(step_timeout_s=STEP_TIMEOUT_S, **lacking.options)
        )
    return Program(
        Scheduled(accelerator, sizes), sizes, partial(accelerate, accelerator=accelerator)
    )


def _arm(runner: asyncio.Runner, users: int, program: Program) -> Arm:
    def run(turn: int) -> Gave:
        found = runner.run(program.run(users))
        return Gave(in_ms(found.mean_s), found.answers)

    return run

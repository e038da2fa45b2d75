"""Answer questions by the demo's chain: real embeddings and store, and a reader in Python.

The reader computes on the cores that embedding wants, which no ledger of ours sees.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, nullcontext
from typing import Any

from bench.ablation import switches
from bench.ablation.interception import RATE
from bench.ablation.measured import STEP_TIMEOUT_S, Ablation, Arm, Gave, ablate, under
from bench.ablation.switches import Lacking, Switch
from bench.arms import bench_accelerator
from langchain_rag_accel import accelerate
from rag_accel.engines.embedding.compiled_model import wait_until_compiled
from rag_accel_demo.command import build_chain
from rag_accel_demo.load import Shape, run_load
from rag_accel_demo.material import Material

LACKING: Mapping[str, Lacking] = {
    "batching": Lacking({"max_batch": 1}),
    "beginning_at_once": Lacking(switch=switches.every_call_waits_for_its_permit),
    "quiet_messages": Lacking(switch=switches.every_message_wakes),
    "own_reports": Lacking(switch=switches.reports_to_the_driver),
}
_PATIENCE_S = 60.0


def measure(material: Material, turns: int, each: int) -> list[Ablation]:
    """Measure what serves many callers of one chain."""
    asked = material.questions[: 16 * each]
    with ExitStack() as stack:
        on = _opened(stack, material, {})
        off = {
            name: _opened(stack, material, one.options, one.switch) for name, one in LACKING.items()
        }
        wait_until_compiled(_PATIENCE_S)
        found: list[Ablation] = []
        for shape in ("threads", "tasks"):
            lacking = {
                name: under(one.switch, _load(off[name], asked, shape))
                for name, one in LACKING.items()
            }
            on_arm = _load(on, asked, shape)
            found += ablate(f"16 {shape} chain", RATE, on_arm, lacking, turns, same=_same)
        return found


def _same(one: Any, other: Any) -> bool:
    return one["answer"] == other["answer"] and _ids(one) == _ids(other)


def _ids(answer: Any) -> list[Any]:
    return [one.id for one in answer["documents"]]


def _opened(
    stack: ExitStack, material: Material, options: Mapping[str, Any], switch: Switch = nullcontext
) -> Any:
    with switch():
        accelerator = stack.enter_context(
            bench_accelerator(step_timeout_s=STEP_TIMEOUT_S, **options)
        )
        fast = accelerate(build_chain(material.store), accelerator=accelerator)
    run_load(fast, material.questions[:16], 4, "threads")
    return fast


def _load(chain: Any, asked: Sequence[str], shape: Shape) -> Arm:
    def run(turn: int) -> Gave:
        load = run_load(chain, asked, 16, shape)
        return Gave(load.throughput_rps, load.answers)

    return run

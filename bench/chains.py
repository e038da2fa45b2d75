"""Put a chain under load as it is, accelerated, and with opponents' embeddings; compare answers."""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

from bench.arms import best_torch_threads
from bench.baselines import embedding as opponents
from bench.loads import batch_rows, counted, load_rows, ratio_rows, system_rows
from bench.measure import Pairs, median, rotate
from bench.results import Row
from langchain_rag_accel import accelerate
from rag_accel.accelerator import Accelerator
from rag_accel.engines.embedding.compiled_model import wait_until_compiled
from rag_accel_demo.command import build_chain
from rag_accel_demo.load import SHAPES, Load, Shape, run_load, torch_threads
from rag_accel_demo.material import Material
from rag_accel_demo.report import Comparison, compare

PLAIN, OURS = "plain", "accelerated"
CALLS: dict[Shape, str] = {"threads": "invoke from threads", "tasks": "ainvoke from tasks"}
#: Opponents that are the fastest at embedding; see the suite ``embedding_concurrency``.
PEERS = ("openvino, micro-batcher", "onnxruntime, micro-batcher")
_PATIENCE_S = 60.0
_logger = logging.getLogger("bench.demo")

Chains = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Found:
    """What all arms of one level and shape gave, turn by turn."""

    loads: Mapping[str, Sequence[Load]]

    @property
    def pairs(self) -> Pairs[Load]:
        """Return plain's runs and ours."""
        return self.against(PLAIN)

    def against(self, name: str) -> Pairs[Load]:
        """Return an arm's runs and ours."""
        return Pairs(tuple(self.loads[name]), tuple(self.loads[OURS]))

    @property
    def fastest_peer(self) -> str | None:
        """Return the opponent with the most answers per second in the median."""
        rates = {
            name: median([load.throughput_rps for load in loads])
            for name, loads in self.loads.items()
            if name in PEERS
        }
        return max(rates, key=lambda name: rates[name], default=None)


@dataclass(frozen=True, slots=True)
class ChainBench:
    """Levels of load over one store, and the rows they add.

    Args:
        material: what the chain answers from.
        accelerator: what accelerates it.
        users: users that warm a chain up.
        tuning: questions of a run that looks for plain's best number of torch threads.
        rows: where rows are added.
    """

    material: Material
    accelerator: Accelerator
    users: int
    tuning: Sequence[str]
    rows: list[Row]

    def chains(self, reader: Any | None) -> Chains:
        """Return the chain, plain and accelerated, both warm."""
        plain = build_chain(self.material.store, reader)
        fast = accelerate(plain, accelerator=self.accelerator)
        # Also makes the engine, under the settings the process has by itself.
        for chain in (plain, fast):
            self._warm_up(chain)
        wait_until_compiled(_PATIENCE_S)
        self._warm_up(fast)
        batch_rows(self.accelerator, "warm-up")
        return {PLAIN: plain, OURS: fast}

    def peers(self, stack: ExitStack) -> Chains:
        """Return the chain with opponents' embeddings, warm; those that are not here are named."""
        model = getattr(self.material.embeddings, "_client", None)
        if model is None:
            return {}
        missing, settings = opponents.missing(), opponents.committed()
        found: dict[str, Any] = {}
        for name in PEERS:
            if name in missing:
                self.rows.append(Row(name, missing[name], "missing", 1, None, 1))
                continue
            store = copy.copy(self.material.store)
            store.embedding_function = stack.enter_context(
                opponents.embeddings(name, settings[name], model)
            )
            found[name] = build_chain(store)
            self._warm_up(found[name])
        return found

    def level(
        self, chains: Chains, asked: Sequence[str], users: int, repeats: int, what: str = ""
    ) -> list[Found]:
        """Return the runs of both shapes with so many users."""
        return [
            self._shape(chains, asked, users, shape, repeats, f"{CALLS[shape]}{what}")
            for shape in SHAPES
        ]

    def _shape(
        self,
        chains: Chains,
        asked: Sequence[str],
        users: int,
        shape: Shape,
        repeats: int,
        what: str,
    ) -> Found:
        workload = f"{counted(users, 'user')}, {what}"
        threads = best_threads(chains[PLAIN], self.tuning, users, shape)
        _logger.info("%s: plain runs best on %d torch threads", workload, threads)
        arms = {
            name: partial(_run, chain, asked, users, shape, threads if name == PLAIN else None)
            for name, chain in chains.items()
        }
        found = Found(rotate(arms, repeats))
        self.rows.extend(load_rows(found.pairs, workload, "answers_per_s"))
        self.rows.extend(ratio_rows(found.pairs, workload))
        self.rows.extend(batch_rows(self.accelerator, workload))
        for name, loads in found.loads.items():
            if name not in (PLAIN, OURS):
                self.rows.extend(system_rows(name, workload, loads, "answers_per_s"))
            if name != PLAIN:
                pairs = Pairs(tuple(found.loads[PLAIN]), tuple(loads))
                self.rows.extend(_agreement(name, self.material.store, asked, pairs, workload))
        return found

    def _warm_up(self, chain: Any) -> None:
        run_load(chain, self.tuning, self.users, "threads")


def best_threads(plain: Any, asked: Sequence[str], users: int, shape: Shape) -> int:
    """Return the number of torch threads that serves a chain best."""
    return best_torch_threads(lambda: run_load(plain, asked, users, shape).throughput_rps)


def _run(
    chain: Any, asked: Sequence[str], users: int, shape: Shape, threads: int | None, turn: int
) -> Load:
    if threads is None:
        return run_load(chain, asked, users, shape)
    with torch_threads(threads):
        return run_load(chain, asked, users, shape)


def _agreement(
    system: str, store: Any, questions: Sequence[str], pairs: Pairs[Load], workload: str
) -> list[Row]:
    """Count the answers of all runs that equal plain's of the same turn."""
    compared: list[Comparison] = [
        compare(store, questions, one.answers, other.answers)
        for one, other in zip(pairs.plain, pairs.other, strict=True)
    ]
    total = sum(one.total for one in compared)
    counts = {
        "identical_answers": sum(one.identical for one in compared),
        "score_ties": sum(one.ties for one in compared),
        "different_answers": sum(len(one.different) for one in compared),
    }
    return [Row(system, workload, metric, count, None, total) for metric, count in counts.items()]

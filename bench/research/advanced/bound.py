"""Compute what no scheduler can hide of one request: its longest chain of device and CPU time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from bench.emulated.batch import ContinuousBatch, DeviceSequence, Update
from bench.emulated.table import DeviceTable
from bench.emulated.text import Script
from bench.research.advanced.answers import NUM_QUERIES
from bench.research.advanced.stages import Generated, Notes


def bound_s(table: DeviceTable, notes: Notes) -> float:
    """Return the least seconds of a request whose stages took what ``notes`` say.

    The cores are one lane: the upload, all searches and the rerank come one after the other. A
    query is known when its last token is, so the last query's search and the reranking of what it
    found come after the whole expansion, everything else may have been hidden behind it. The
    answer comes after both; leaves of a tree share the device, other generations are a chain.
    """
    expansion, *synthesis = notes.generated
    upload, search, rerank = (notes.cpu_s.get(one, 0.0) for one in ("upload", "search", "rerank"))
    after_expansion = device_s(table, [expansion]) + (search + rerank) / NUM_QUERIES
    found_s = max(after_expansion, upload + search + rerank)
    return found_s + sum(device_s(table, together) for together in chain_of(synthesis))


def chain_of(generated: Sequence[Generated]) -> list[list[Generated]]:
    """Return which generations run at the same time, in order: all leaves before ``combine``."""
    if any(one.asked == "combine" for one in generated):
        return [list(generated[:-1]), [generated[-1]]]
    return [[one] for one in generated]


def device_s(table: DeviceTable, generated: Iterable[Generated]) -> float:
    """Return the seconds of generations that begin together on an idle device."""
    batch = ContinuousBatch(table)
    for one in generated:
        script = Script(("word",) * one.completion_tokens, one.prompt_tokens, "stop")
        batch.add(DeviceSequence(script, _Nobody(), script.prompt_tokens))
    now_s = 0.0
    while step := batch.begin_step(now_s):
        now_s = step.end_s
        batch.end_step()
    return now_s


class _Nobody:
    def deliver(self, updates: Sequence[Update]) -> bool:
        return True

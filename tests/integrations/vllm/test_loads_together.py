"""Loads of one step whose rows share forwards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from test_loading import FREQUENCIES, HEAD, blocks, load, part, state

from rag_accel.kv.entry import KeyValues
from rag_accel.kv.store import ChunkStore
from vllm_rag_accel.load_state import ComputedText, LoadState
from vllm_rag_accel.loading import BlockStates, Loading
from vllm_rag_accel.step_plan import PromptLoad, StepPlan


class _FailingRows:
    """Fails where a prompt named ``bad`` takes part in a stage."""

    def __init__(self, stage: str = "") -> None:
        self._stage = stage
        self.calls: list[tuple[str, list[str]]] = []

    def encode(
        self, states: Sequence[LoadState], blocks: BlockStates
    ) -> Mapping[ComputedText, KeyValues]:
        self._called("encode", [wanted.load for wanted in states])
        texts = [text for wanted in states for text in wanted.texts.values()]
        return {text: state(int(text.part.text)) for text in texts}

    def fill(self, wanted: Sequence[tuple[PromptLoad, Sequence[range]]]) -> None:
        self._called("fill", [load for load, _ in wanted])

    def choose(self, states: Sequence[LoadState], blocks: BlockStates) -> list[list[int]]:
        self._called("choose", [wanted.load for wanted in states])
        return [[wanted.load.layout.parts[-1].start] for wanted in states]

    def _called(self, stage: str, loads: Sequence[PromptLoad]) -> None:
        names = [load.request for load in loads]
        self.calls.append((stage, names))
        if stage == self._stage and "bad" in names:
            raise RuntimeError("no memory")


def requests() -> list[PromptLoad]:
    """Return three loads of a text that is kept and one that is not, over blocks of their own."""
    found: list[PromptLoad] = []
    for at, name in enumerate(("a", "bad", "c")):
        made = load(part("1", HEAD, 61), part(str(2 + at), 64, 104), reuse="fused")
        made.layout = replace(made.layout, ratio=0.1)
        found.append(replace(made, request=name, blocks=list(range(8 * at, 8 * at + 8))))
    return found


def test_rows_of_all_loads_are_computed_together() -> None:
    store, rows = ChunkStore(1 << 24), _FailingRows()
    store.put(part("1", 0, 1).key, state(1))
    loading = Loading(blocks(), store, FREQUENCIES, rows)
    loading.load(StepPlan(requests()))
    names = ["a", "bad", "c"]
    assert rows.calls == [("encode", names), ("choose", names), ("fill", names)]
    for report in loading.take_reports():
        origins = report.reused, report.encoded, report.computed, report.recomputed
        assert origins == (40, 39, HEAD + 3, 1)
        assert sum(origins) == 104


@pytest.mark.parametrize("stage", ["encode", "choose", "fill"])
def test_a_prompt_that_fails_harms_no_other(stage: Any) -> None:
    """A forward that fails is repeated for each prompt by itself."""
    held, store, rows = blocks(), ChunkStore(1 << 24), _FailingRows(stage)
    loading = Loading(held, store, FREQUENCIES, rows)
    loading.load(StepPlan(requests()))
    assert [report.request for report in loading.take_reports()] == ["a", "c"]
    assert loading.take_failed() == set(range(8, 15))
    tried = [names for name, names in rows.calls if name == stage]
    assert tried == [["a", "bad", "c"], ["a"], ["bad"], ["c"]]


def test_a_prompt_behind_blocks_of_a_failed_one_fails(caplog: pytest.LogCaptureFixture) -> None:
    """The server's prefix cache shares blocks that a load of the same step was to fill."""
    rows = _FailingRows("fill")
    loading = Loading(blocks(), ChunkStore(1 << 24), FREQUENCIES, rows)
    _, bad, other = requests()
    other = replace(other, begin=32, blocks=[*bad.blocks[:2], *other.blocks[2:]])
    loading.load(StepPlan([bad, other]))
    assert loading.take_reports() == []
    assert loading.take_failed() == {*range(8, 15), *other.blocks[2:7]}
    assert "blocks before it have failed" in caplog.text

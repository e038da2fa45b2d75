"""The worker's half of the connector: states put into blocks, and taken out of them."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import torch

from rag_accel.kv.entry import ChunkLabel, KeyValues
from rag_accel.kv.rotation import rotated
from rag_accel.kv.store import ChunkStore
from vllm_rag_accel.cache_layout import CacheLayout
from vllm_rag_accel.step_plan import Layout, PromptLoad, PromptLoadReport, PromptPart, StepPlan

_log = logging.getLogger(__name__)


class RowComputer(Protocol):
    """Computes rows of prompts in the worker, beside the server's own schedule."""

    def encode(
        self, load: PromptLoad, parts: Sequence[PromptPart], blocks: BlockStates
    ) -> Mapping[bytes, KeyValues]:
        """Return states of parts behind the head, by key, computed in blocks of the request's own.

        What stands of the head and is not there yet is computed, too. Parts that do not fit are
        left out.
        """
        ...

    def fill(self, loads: Sequence[tuple[PromptLoad, Sequence[range]]]) -> None:
        """Compute places of prompts whose other places up to them are there."""
        ...

    def choose(self, load: PromptLoad, gaps: Sequence[range], blocks: BlockStates) -> list[int]:
        """Return the places of texts to compute again, which the question attends to most."""
        ...


class BlockStates:
    """The blocks of all layers of one engine.

    Args:
        layers: attention layers of vLLM, in their order.
        caches: of each, by its name.
        layout: of a block.
    """

    def __init__(
        self, layers: Sequence[Any], caches: Mapping[str, torch.Tensor], layout: CacheLayout
    ) -> None:
        self.layers = tuple(layers)
        self.caches = tuple(caches[layer.layer_name] for layer in layers)
        self.layout = layout
        self.device = self.caches[0].device
        self.dtype = self.caches[0].dtype

    def slots(self, blocks: Sequence[int], start: int, stop: int) -> torch.Tensor:
        """Return the slots of a request's places, int64."""
        block = self.layout.block
        places = torch.arange(start, stop)
        numbers = torch.tensor(blocks, dtype=torch.int64)[places // block]
        return (numbers * block + places % block).to(self.device)

    def read(self, slots: torch.Tensor, position: int) -> KeyValues:
        """Return the states of slots, on the host."""
        pairs = [self.layout.read(cache, slots) for cache in self.caches]
        keys, values = (
            torch.stack([pair[which].transpose(0, 1) for pair in pairs]).cpu() for which in (0, 1)
        )
        return KeyValues(keys, values, position)

    def write(self, slots: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Write keys and values ``[layer, head, token, dim]`` to slots, by the backend's writer."""
        for at, (layer, cache) in enumerate(zip(self.layers, self.caches, strict=True)):
            pair = (
                tensor[at].transpose(0, 1).to(self.device, self.dtype).contiguous()
                for tensor in (keys, values)
            )
            layer.impl.do_kv_cache_update(layer, *pair, cache, slots)


class Loading:
    """The states of texts in one worker.

    Args:
        blocks: of the engine.
        store: keeps states.
        frequencies: of the model's rotation.
        rows: computes rows; None where the worker cannot.
    """

    def __init__(
        self,
        blocks: BlockStates,
        store: ChunkStore,
        frequencies: torch.Tensor,
        rows: RowComputer | None = None,
    ) -> None:
        self._blocks = blocks
        self._store = store
        self._frequencies = frequencies
        self.rows = rows
        self._failed: set[int] = set()
        self._reports: list[PromptLoadReport] = []

    @torch.inference_mode()
    def load(self, plan: StepPlan) -> None:
        """Put the states of a step's loads into their blocks.

        A load that fails is computed by the server, as without it.
        """
        for load in plan.loads:
            began = time.perf_counter()
            try:
                report = self._load(load)
            except Exception as error:  # a bad file must not take the engine down
                _log.warning(
                    "the texts of request %s are computed as a whole: %s: %s",
                    load.request,
                    type(error).__name__,
                    error,
                )
                block = self._blocks.layout.block
                self._failed |= set(load.blocks[load.begin // block : -(-load.end // block)])
                # The step computes what is behind it from blocks that hold nothing.
                plan.saves = [save for save in plan.saves if save.request != load.request]
                continue
            self._reports.append(replace(report, seconds=time.perf_counter() - began))

    @torch.inference_mode()
    def save(self, plan: StepPlan) -> None:
        """Keep what a step has computed."""
        for save in plan.saves:
            for part in save.layout.parts:
                slots = self._blocks.slots(save.blocks, part.start, part.stop)
                self._keep(part, self._blocks.read(slots, part.start), save.layout)

    def forget(self) -> None:
        """Forget the states in memory; files stay."""
        self._store.clear()

    def close(self) -> None:
        """Forget states in memory, and end the thread that reads and writes files."""
        self._store.close()

    def take_failed(self) -> set[int]:
        """Return the blocks whose loads have failed since the last call."""
        failed, self._failed = self._failed, set()
        return failed

    def take_reports(self) -> list[PromptLoadReport]:
        """Return the reports since the last call."""
        reports, self._reports = self._reports, []
        return reports

    def _load(self, load: PromptLoad) -> PromptLoadReport:
        layout = load.layout
        parts = [part for part in layout.parts if load.begin < part.stop <= load.end]
        states = self._found(parts)
        texts = [part for part in parts if part.start >= layout.head]
        there = [part for part in parts if part.key in states]
        begin = load.begin
        encoded: Mapping[bytes, KeyValues] = {}
        missing = [part for part in texts if part.key not in states]
        if self.rows is not None and missing and layout.reuse != "exact":
            self._write(load, [part for part in there if part not in texts], states)
            encoded = self.rows.encode(load, missing, self._blocks)
            begin = max(begin, layout.head)
            self._keep_encoded(load, parts, states, encoded)
            there = [part for part in parts if part.key in states or part.key in encoded]
        self._write(load, there, {**states, **encoded})
        gaps = _gaps(begin, load.end, there)
        chosen: list[int] = []
        if gaps and self.rows is None:
            raise LookupError("states of its texts are gone")
        if self.rows is not None:
            if layout.reuse == "fused" and there:
                chosen = self.rows.choose(load, gaps, self._blocks)
            if gaps or chosen:
                self.rows.fill([(load, _joined(gaps, chosen))])
        return _report(load, there, encoded, gaps, chosen)

    def _keep_encoded(
        self,
        load: PromptLoad,
        parts: Sequence[PromptPart],
        states: Mapping[bytes, KeyValues],
        encoded: Mapping[bytes, KeyValues],
    ) -> None:
        """Keep the states of texts that were computed, and that of the head before them."""
        if not load.layout.save:
            return
        for part in parts:
            if part.key in encoded:
                self._keep(part, encoded[part.key], load.layout)
            elif part.stop <= load.layout.head and part.key not in states:
                slots = self._blocks.slots(load.blocks, part.start, part.stop)
                self._keep(part, self._blocks.read(slots, part.start), load.layout)

    def _found(self, parts: Sequence[PromptPart]) -> dict[bytes, KeyValues]:
        """Return the kept states of parts by key, those from the folder among them."""
        states: dict[bytes, KeyValues] = {}
        wanted = {part.key for part in parts}
        for key in wanted:
            state = self._store.find(key)
            if isinstance(state, KeyValues):
                states[key] = state
        missing = wanted - states.keys()
        self._store.prefetch(missing)
        while any(self._store.is_pending(key) for key in missing):
            self._store.wait(1.0)
            for key, state in self._store.poll():
                if key in missing and isinstance(state, KeyValues):
                    states[key] = state
        shape = self._blocks.caches[0].shape[1], self._blocks.layout.dim
        by_key = {part.key: part for part in parts}
        return {
            key: state
            for key, state in states.items()
            if state.keys.shape
            == (len(self._blocks.layers), shape[0], len(by_key[key].ids), shape[1])
        }

    def _write(
        self, load: PromptLoad, parts: Sequence[PromptPart], states: Mapping[bytes, KeyValues]
    ) -> None:
        """Write states of parts to their places, moved there; those of places before stay."""
        keys: list[torch.Tensor] = []
        values: list[torch.Tensor] = []
        slots: list[torch.Tensor] = []
        for part in parts:
            state, used = states[part.key], part.used
            start = max(part.start, load.begin)
            used = slice(used.start + start - part.start, used.stop)
            distance = part.start - part.offset - state.position
            keys.append(rotated(state.keys[:, :, used], distance, self._frequencies))
            values.append(state.values[:, :, used])
            slots.append(self._blocks.slots(load.blocks, start, part.stop))
        if slots:
            self._blocks.write(torch.cat(slots), torch.cat(keys, 2), torch.cat(values, 2))

    def _keep(self, part: PromptPart, state: KeyValues, layout: Layout) -> None:
        label = ChunkLabel(layout.namespace, part.text, purges=self._store.purges)
        self._store.put(part.key, state, label)


def _gaps(begin: int, end: int, parts: Sequence[PromptPart]) -> list[range]:
    """Return the places between parts."""
    gaps: list[range] = []
    at = begin
    for part in parts:
        if at < part.start:
            gaps.append(range(at, part.start))
        at = max(at, part.stop)
    if at < end:
        gaps.append(range(at, end))
    return gaps


def _joined(gaps: Sequence[range], chosen: Sequence[int]) -> list[range]:
    """Return gaps and chosen places as ranges, ascending."""
    places = sorted({*chosen, *(place for gap in gaps for place in gap)})
    joined: list[range] = []
    for place in places:
        if joined and joined[-1].stop == place:
            joined[-1] = range(joined[-1].start, place + 1)
        else:
            joined.append(range(place, place + 1))
    return joined


def _report(
    load: PromptLoad,
    there: Sequence[PromptPart],
    encoded: Mapping[bytes, KeyValues],
    gaps: Sequence[range],
    chosen: Sequence[int],
) -> PromptLoadReport:
    fresh = sum(part.stop - max(part.start, load.begin) for part in there if part.key in encoded)
    taken = sum(part.stop - max(part.start, load.begin) for part in there)
    return PromptLoadReport(
        load.request,
        reused=taken - fresh - len(chosen),
        encoded=fresh,
        computed=sum(map(len, gaps)),
        recomputed=len(chosen),
    )

"""The worker's half of the connector: states put into blocks, and taken out of them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch

from rag_accel.kv.entry import ChunkLabel, KeyValues, LaneState, Purges
from rag_accel.kv.rotation import rotated
from rag_accel.kv.store import ChunkStore
from vllm_rag_accel.cache_layout import CacheLayout
from vllm_rag_accel.load_state import ComputedText, LoadState, joined_places
from vllm_rag_accel.step_plan import PromptLoad, PromptLoadReport, PromptPart, StepPlan

_log = logging.getLogger(__name__)
#: Seconds after which a step waits for no file any more: its texts are computed.
LONGEST_READ_S = 10.0


class RowComputer(Protocol):
    """Computes rows of prompts in the worker, outside the server's own schedule."""

    def encode(
        self, states: Sequence[LoadState], blocks: BlockStates
    ) -> Mapping[ComputedText, KeyValues]:
        """Return the states of the texts in the encodings of prompts.

        They are computed in blocks of the prompts' own, with what is missing of the heads. An
        encoding that does not fit is left out.
        """
        ...

    def fill(self, wanted: Sequence[tuple[PromptLoad, Sequence[range]]]) -> None:
        """Compute places of prompts whose other places up to them are there."""
        ...

    def choose(self, states: Sequence[LoadState], blocks: BlockStates) -> list[list[int]]:
        """Return the places of each prompt's texts to compute again, given its gaps."""
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
        """Put the states of a step's loads into their blocks, with the rows that these need.

        The rows of all prompts are computed together. A load that fails is computed by the server,
        as without it.
        """
        if not plan.loads:
            return
        began = time.perf_counter()
        under_way = [self._begun(load) for load in plan.loads]
        self._store.prefetch(
            {part.behind or part.key for state in under_way for part in state.parts}
        )
        under_way = self._each(self._find, under_way)
        under_way = self._together(self._encode, under_way)
        under_way = self._each(self._write, under_way)
        under_way = self._together(self._choose, under_way)
        under_way = self._together(self._fill, under_way)
        seconds = time.perf_counter() - began
        loaded: set[str] = set()
        for state in under_way:
            load = state.load
            if self._failed & set(load.blocks[: load.begin // self._blocks.layout.block]):
                self._fail(state, LookupError("blocks before it have failed"))
            else:
                loaded.add(load.request)
                self._reports.append(state.report(seconds))
        # The step computes what is behind a failed load from blocks that hold nothing.
        failed = {load.request for load in plan.loads} - loaded
        plan.saves = [save for save in plan.saves if save.request not in failed]

    @torch.inference_mode()
    def save(self, plan: StepPlan) -> None:
        """Keep what a step has computed."""
        for save in plan.saves:
            for part in save.layout.parts:
                slots = self._blocks.slots(save.blocks, part.start, part.stop)
                state, tenant = self._blocks.read(slots, part.start), save.layout.namespace
                self._keep(part.key, state, part.text, tenant, self._store.purges)

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

    def _each(
        self, stage: Callable[[LoadState], None], states: Sequence[LoadState]
    ) -> list[LoadState]:
        """Run a stage on one load after another; return those that have not failed."""
        return self._together(lambda group: stage(group[0]), states, size=1)

    def _together(
        self,
        stage: Callable[[Sequence[LoadState]], None],
        states: Sequence[LoadState],
        size: int | None = None,
    ) -> list[LoadState]:
        """Run a stage on groups of loads; one that fails is split, down to the load that does."""
        done: list[LoadState] = []
        step = size or max(1, len(states))
        for start in range(0, len(states), step):
            group = states[start : start + step]
            try:
                stage(group)
            except Exception as error:  # a bad file must not take the engine down
                if len(group) > 1:
                    done += self._together(stage, group, 1)
                else:
                    self._fail(group[0], error)
            else:
                done += group
        return done

    def _fail(self, state: LoadState, error: Exception) -> None:
        load, block = state.load, self._blocks.layout.block
        _log.warning(
            "the texts of request %r are computed as a whole: %s: %s",
            load.request,
            type(error).__name__,
            error,
        )
        self._failed |= set(load.blocks[load.begin // block : -(-load.end // block)])

    def _begun(self, load: PromptLoad) -> LoadState:
        parts = [part for part in load.layout.parts if load.begin < part.stop <= load.end]
        digests = {
            part.key: self._store.digests((part.text,), load.layout.namespace)
            for part in load.layout.texts
        }
        return LoadState(load, parts, self._store.purges, digests)

    def _find(self, state: LoadState) -> None:
        """Find kept states, and put each to its places while the next one is read.

        A state behind others is preferred, where the prompt has any of these.
        """
        tokens = {part.key: len(part.ids) for part in state.parts}
        behind = {part.behind: part.key for part in state.parts if part.behind}
        for name, found in self._found({name: tokens[key] for name, key in behind.items()}):
            if state.may_use(behind[name], found.seen):
                self._take(state, behind[name], found)
            else:
                state.apart.add(behind[name])
        wanted = {key: count for key, count in tokens.items() if key not in state.states}
        for key, found in self._found(wanted):
            self._take(state, key, found)
        head = state.load.layout.head
        state.begin = max(state.load.begin, head if state.is_head_kept() else 0)

    def _take(self, state: LoadState, key: bytes, found: KeyValues) -> None:
        state.states[key] = found
        self._put(state.load, [part for part in state.parts if part.key == key], state.states)
        state.placed.add(key)

    def _encode(self, states: Sequence[LoadState]) -> None:
        """Compute the texts without a state, and keep them."""
        rows = self.rows
        wanting = [
            state for state in states if state.missing and state.load.layout.reuse != "exact"
        ]
        if rows is None or not wanting:
            return
        shared: dict[bytes, ComputedText] = {}
        for state in wanting:
            state.plan(self._blocks.layout.block, shared, self._frequencies)
        found = rows.encode(wanting, self._blocks)
        kept: set[bytes] = set()
        for state in wanting:
            state.placed.clear()  # texts were computed in the blocks of others
            state.head_rows = max(0, state.load.layout.head - state.begin)
            state.begin += state.head_rows
            state.encoded = {key: found[text] for key, text in state.texts.items() if text in found}
            if state.load.layout.save:
                self._keep_encoded(state, kept)

    def _keep_encoded(self, state: LoadState, kept: set[bytes]) -> None:
        """Keep the states of texts that were computed, and that of the head before them."""
        load, tenant = state.load, state.load.layout.namespace
        for part in state.parts:
            name = state.texts[part.key].name if part.key in state.encoded else part.key
            if name in kept:
                continue
            found = state.encoded.get(part.key)
            if part.stop <= load.layout.head and part.key not in state.states:
                slots = self._blocks.slots(load.blocks, part.start, part.stop)
                found = self._blocks.read(slots, part.start)
            if found is not None:
                self._keep(name, found, part.text, tenant, state.purges)
                kept.add(name)

    def _write(self, state: LoadState) -> None:
        """Put the other states of texts to their places; tell the places between them."""
        head = state.load.layout.head
        texts = [
            part for part in state.there if part.start >= head and part.key not in state.placed
        ]
        self._put(state.load, texts, {**state.states, **state.encoded})
        state.note_gaps()
        if state.gaps and self.rows is None:
            raise LookupError("states of its texts are gone")

    def _choose(self, states: Sequence[LoadState]) -> None:
        """Choose the places of texts that are computed again."""
        fused = [
            state
            for state in states
            if state.load.layout.reuse == "fused" and state.load.layout.ratio and state.there
        ]
        if self.rows is not None and fused:
            chosen = self.rows.choose(fused, self._blocks)
            for state, places in zip(fused, chosen, strict=True):
                state.chosen = places

    def _fill(self, states: Sequence[LoadState]) -> None:
        """Compute gaps and chosen places."""
        wanted = [
            (state.load, joined_places(state.gaps, state.chosen))
            for state in states
            if state.gaps or state.chosen
        ]
        if self.rows is not None and wanted:
            self.rows.fill(wanted)

    def _found(self, wanted: Mapping[bytes, int]) -> Iterator[tuple[bytes, KeyValues]]:
        """Yield kept states by key, those in memory first, then those of files as they are read.

        Args:
            wanted: the tokens of each; a state of another shape is none.
        """
        missing: set[bytes] = set()
        there: list[tuple[bytes, LaneState | None]] = []
        for key in wanted:
            state = self._store.find(key)
            if state is None:
                missing.add(key)
            else:
                there.append((key, state))
        self._store.prefetch(missing)
        late_at = time.monotonic() + LONGEST_READ_S
        while True:
            for key, state in there:
                if (
                    isinstance(state, KeyValues)
                    and key in wanted
                    and self._fits(state, wanted[key])
                ):
                    yield key, state
            if not any(self._store.is_pending(key) for key in missing):
                return
            if time.monotonic() > late_at:
                raise TimeoutError(f"files were not read within {LONGEST_READ_S:g} s")
            self._store.wait(1.0)
            there = list(self._store.poll())

    def _fits(self, state: KeyValues, tokens: int) -> bool:
        heads, dim = self._blocks.caches[0].shape[1], self._blocks.layout.dim
        return state.keys.shape == (len(self._blocks.layers), heads, tokens, dim)

    def _put(
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

    def _keep(
        self, name: bytes, state: KeyValues, text: str, namespace: str, purges: Purges | None
    ) -> None:
        self._store.put(name, state, ChunkLabel(namespace, text, state.seen, purges))

"""States put into blocks and taken out of them, over a backend of a layout of its own."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from vllm_fakes import BLOCK, DIM, HEADS, LAYERS, FakeLayer

from rag_accel.errors import ConfigError
from rag_accel.kv.disk import DiskStore
from rag_accel.kv.entry import KeyValues
from rag_accel.kv.files import VERSION
from rag_accel.kv.keys import ChunkSource
from rag_accel.kv.rotation import rotated
from rag_accel.kv.store import ChunkStore
from rag_accel.kv.tiers import TieredStore
from vllm_rag_accel.cache_layout import learn_layout
from vllm_rag_accel.load_state import ComputedText, LoadState
from vllm_rag_accel.loading import BlockStates, Loading
from vllm_rag_accel.step_plan import Layout, PromptLoad, PromptPart, PromptSave, StepPlan

FREQUENCIES = 1.0 / 10_000 ** (torch.arange(0, DIM, 2).float() / DIM)
HEAD, TOKENS = 21, 40


def blocks(dtype: torch.dtype = torch.float32) -> BlockStates:
    """Return 32 empty blocks of each layer."""
    layers = [FakeLayer(f"layer.{at}") for at in range(LAYERS)]
    caches = {
        layer.layer_name: torch.zeros(32, HEADS, BLOCK, 2 * DIM, dtype=dtype) for layer in layers
    }
    layout = learn_layout(layers[0], caches[layers[0].layer_name])
    return BlockStates(layers, caches, layout)


def state(seed: int, tokens: int = TOKENS, position: int = HEAD) -> KeyValues:
    """Return states of seeded numbers."""
    generator = torch.Generator().manual_seed(seed)
    shape = (LAYERS, HEADS, tokens, DIM)
    keys, values = (torch.randn(shape, generator=generator) for _ in range(2))
    return KeyValues(keys, values, position)


def part(name: str, start: int, stop: int, offset: int = 0, tokens: int = TOKENS) -> PromptPart:
    """Return a part whose key is its name."""
    return PromptPart(name.encode() * 32, name, tuple(range(tokens)), offset, start, stop)


def load(*parts: PromptPart, begin: int = 0, reuse: Any = "full") -> PromptLoad:
    """Return the load of a prompt up to its last part, over scattered blocks."""
    end = parts[-1].stop
    layout = Layout(reuse, HEAD, parts)
    return PromptLoad(
        "a", tuple(range(end + 9)), [9, 3, 20, 5, 11, 7, 15, 2], begin, end, end + 9, layout
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_layout_is_learnt_and_read_back(dtype: torch.dtype) -> None:
    held = blocks(dtype)
    slots = held.slots([4, 30, 1], 5, 41)
    written = state(1, tokens=36)
    held.write(slots, written.keys, written.values)
    read = held.read(slots, HEAD)
    assert torch.equal(read.keys, written.keys.to(dtype))
    assert torch.equal(read.values, written.values.to(dtype))


def test_a_backend_that_rounds_elements_away_is_refused() -> None:
    class Rounding:
        def do_kv_cache_update(
            self, layer: Any, keys: Any, values: Any, cache: Any, slots: Any
        ) -> None:
            cache[:, :, :, :DIM] = 1.0

    layer = FakeLayer("layer", Rounding())
    with pytest.raises(ConfigError, match="cannot be read back"):
        learn_layout(layer, torch.zeros(2, HEADS, BLOCK, 2 * DIM))


def test_parts_are_moved_to_where_they_stand() -> None:
    held, store = blocks(), ChunkStore(1 << 24)
    one, two = part("1", 30, 70), part("2", 75, 110, offset=3)
    for place, each in enumerate((one, two)):
        store.put(each.key, state(place))
    filled: list[list[range]] = []
    loading = Loading(held, store, FREQUENCIES, _Rows(filled))
    loading.load(StepPlan([load(one, two)]))
    for place, each in enumerate((one, two)):
        found = held.read(held.slots(load(one, two).blocks, each.start, each.stop), each.start)
        kept = state(place)
        moved = rotated(kept.keys, each.start - each.offset - HEAD, FREQUENCIES)
        assert torch.equal(found.keys, moved[:, :, each.used])
        assert torch.equal(found.values, kept.values[:, :, each.used])
    assert filled == [[range(30), range(70, 75)]]
    (report,) = loading.take_reports()
    assert (report.reused, report.encoded, report.computed) == (75, 0, 35)
    assert loading.take_failed() == set()


def test_blocks_of_the_servers_own_cache_stay() -> None:
    held, store = blocks(), ChunkStore(1 << 24)
    one = part("1", 30, 70)
    store.put(one.key, state(1))
    request = load(one, begin=48)
    Loading(held, store, FREQUENCIES, _Rows([])).load(StepPlan([request]))
    before = held.read(held.slots(request.blocks, 0, 48), 0)
    behind = held.read(held.slots(request.blocks, 48, 70), 0)
    assert not before.keys.any()
    assert behind.keys.any()


def test_what_is_gone_is_computed_by_the_server(caplog: pytest.LogCaptureFixture) -> None:
    loading = Loading(blocks(), ChunkStore(1 << 24), FREQUENCIES)
    with caplog.at_level(logging.WARNING):
        loading.load(StepPlan([load(part("1", 21, 61), begin=16)]))
    assert loading.take_failed() == {3, 20, 5}
    assert loading.take_failed() == set()
    assert loading.take_reports() == []
    assert "computed as a whole" in caplog.text


def test_one_load_that_fails_harms_no_other() -> None:
    held, store = blocks(), ChunkStore(1 << 24)
    there, gone = part("1", 0, 40), part("2", 0, 40)
    store.put(there.key, state(1))
    loading = Loading(held, store, FREQUENCIES)
    bad = replace(load(gone), request="b", blocks=[30, 29, 28])
    loading.load(StepPlan([bad, load(there)]))
    assert loading.take_failed() == {30, 29, 28}
    assert [report.request for report in loading.take_reports()] == ["a"]


def test_a_state_of_another_length_is_not_taken() -> None:
    held, store = blocks(), ChunkStore(1 << 24)
    one = part("1", 0, 40)
    store.put(one.key, state(1, tokens=12))
    loading = Loading(held, store, FREQUENCIES)
    loading.load(StepPlan([load(one)]))
    assert loading.take_failed()


def test_saved_parts_are_what_the_blocks_hold() -> None:
    held, store = blocks(), ChunkStore(1 << 24)
    computed = state(4, tokens=60)
    numbers = [8, 1, 30, 12]
    held.write(held.slots(numbers, 0, 60), computed.keys, computed.values)
    wanted = part("1", 21, 60, tokens=39)
    save = PromptSave("a", numbers, Layout("exact", 21, (wanted,)))
    Loading(held, store, FREQUENCIES).save(StepPlan(saves=[save]))
    kept = store.find(wanted.key)
    assert isinstance(kept, KeyValues)
    assert torch.equal(kept.keys, computed.keys[:, :, 21:])
    assert kept.position == 21


def test_what_stands_behind_a_failed_load_is_not_kept() -> None:
    """The server has yet to compute what the load left out."""
    store = ChunkStore(1 << 24)
    loading = Loading(blocks(), store, FREQUENCIES)
    gone, wanted = part("1", 0, 40), part("2", 40, 80)
    layout = Layout("exact", 0, (wanted,))
    plan = StepPlan(
        [load(gone, reuse="exact")],
        [PromptSave("a", [9, 3, 20, 5, 11], layout), PromptSave("b", [1, 2, 3, 4, 6], layout)],
    )
    loading.load(plan)
    assert [save.request for save in plan.saves] == ["b"]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[TieredStore]:
    """Return a store over a folder."""
    store = _tiered(tmp_path)
    yield store
    store.close()


def _tiered(path: Path, model: str = "model") -> TieredStore:
    disk = DiskStore(path / "kv", limit_bytes=1 << 26, model=model, dtype=torch.float32)
    return TieredStore(1 << 24, disk)


def test_a_file_is_read_by_another_process(folder: TieredStore, tmp_path: Path) -> None:
    key = ChunkSource("model", "", ()).key(range(TOKENS))
    one = replace(part("1", 0, 40), key=key)
    folder.put(key, state(1))
    folder.close()
    other = _tiered(tmp_path)
    held = blocks()
    loading = Loading(held, other, FREQUENCIES)
    loading.load(StepPlan([load(one)]))
    found = held.read(held.slots(load(one).blocks, 0, 40), 0)
    assert torch.equal(found.values, state(1).values)
    loading.close()


@pytest.mark.parametrize("damage", ["cut", "changed", "newer", "foreign", "gone"])
def test_a_file_that_cannot_be_used_is_computed(
    folder: TieredStore, tmp_path: Path, damage: str
) -> None:
    key = ChunkSource("model", "", ()).key(range(TOKENS))
    folder.put(key, state(1))
    folder.close()
    (path,) = (tmp_path / "kv").glob("*.kv")
    content = path.read_bytes()
    if damage == "cut":
        path.write_bytes(content[: len(content) // 2])
    elif damage == "changed":
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    elif damage == "newer":
        written = f'"version":"{VERSION}"'.encode()
        path.write_bytes(content.replace(written, b'"version":"9"'))
    elif damage == "gone":
        path.unlink()
    other = _tiered(tmp_path, "another" if damage == "foreign" else "model")
    loading = Loading(blocks(), other, FREQUENCIES)
    loading.load(StepPlan([load(replace(part("1", 0, 40), key=key))]))
    assert loading.take_failed()
    loading.close()


class _Rows:
    """Notes which rows are to be computed."""

    def __init__(self, filled: list[list[range]]) -> None:
        self._filled = filled

    def encode(
        self, states: Sequence[LoadState], blocks: BlockStates
    ) -> Mapping[ComputedText, KeyValues]:
        return {}

    def fill(self, wanted: Sequence[tuple[PromptLoad, Sequence[range]]]) -> None:
        self._filled += [list(places) for _, places in wanted]

    def choose(self, states: Sequence[LoadState], blocks: BlockStates) -> list[list[int]]:
        return [[] for _ in states]

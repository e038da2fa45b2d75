"""Rows computed outside the schedule: cut into forwards, texts behind heads, chosen places."""

from __future__ import annotations

import random
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm_fakes import BLOCK, DIM, HEADS, LAYERS, FakeLayer

from rag_accel.kv.entry import KeyValues
from vllm_rag_accel.cache_layout import learn_layout
from vllm_rag_accel.load_state import ComputedText, Encoding, LoadState
from vllm_rag_accel.loading import BlockStates
from vllm_rag_accel.row_forward import RowRun, row_packs
from vllm_rag_accel.rows import VirtualRows, attention_scores
from vllm_rag_accel.step_plan import Layout, PromptLoad, PromptPart
from vllm_rag_accel.worker import PATH, rows_refusal


def run(start: int, count: int, prompt: int | None = None) -> RowRun:
    return RowRun(tuple(range(start, start + count)), start, [4, 2], prompt)


@pytest.mark.parametrize("seed", range(8))
def test_rows_are_cut_into_forwards_in_their_order(seed: int) -> None:
    """Each forward is full but the last, and no row is computed before one of a lower position."""
    rng = random.Random(seed)
    runs: list[RowRun] = []
    at = 0
    for _ in range(rng.randrange(1, 12)):
        runs.append(run(at, rng.randrange(1, 20)))
        at = runs[-1].stop + rng.randrange(3)
    most = rng.randrange(1, 30)
    packs = row_packs(runs, most, most)
    assert [sum(len(one.ids) for one in pack) for pack in packs[:-1]] == [most] * (len(packs) - 1)
    assert 0 < sum(len(one.ids) for one in packs[-1]) <= most
    order = [sorted(place for one in pack for place in one.ids) for pack in packs]
    assert [place for pack in order for place in pack] == [
        place for one in runs for place in range(one.start, one.stop)
    ]
    for pack in packs:
        assert [len(one.ids) for one in pack] == sorted(len(one.ids) for one in pack)
        assert all(one.ids == tuple(range(one.start, one.stop)) for one in pack)


def test_a_forward_has_at_most_so_many_runs() -> None:
    packs = row_packs([run(0, 2), run(4, 9), run(20, 1), run(30, 1)], 10, 2)
    assert [[(one.start, one.stop) for one in pack] for pack in packs] == [
        [(0, 2), (4, 12)],
        [(12, 13), (20, 21)],
        [(30, 31)],
    ]


def test_no_rows_are_no_forward() -> None:
    assert row_packs([], 8, 8) == []


@pytest.mark.parametrize("soft_cap", [0.0, 2.0])
def test_scores_are_the_attention_of_the_rows(soft_cap: float) -> None:
    """As a loop over heads and rows has them, each row seeing the places up to its own."""
    generator = torch.Generator().manual_seed(0)
    queries = torch.randn(70, 4, DIM, generator=generator)
    keys = torch.randn(90, 2, DIM, generator=generator)
    expected = torch.zeros(90)
    for row in range(70):
        seen = 90 - 70 + row + 1
        for head in range(4):
            products = keys[:seen, head // 2] @ queries[row, head] * 0.5
            if soft_cap:
                products = soft_cap * torch.tanh(products / soft_cap)
            expected[:seen] += products.softmax(0) / 4
    found = attention_scores(queries, keys, 0.5, soft_cap)
    assert torch.allclose(found, expected, atol=1e-5)


class _Recorded:
    """A forward that writes the position and the token of each row to its slot."""

    def __init__(self, blocks: BlockStates) -> None:
        self.blocks = blocks
        self.forwards: list[list[RowRun]] = []
        self.queries: torch.Tensor = torch.zeros(0)

    def run(self, runs: Sequence[RowRun]) -> None:
        self.forwards.append(list(runs))
        for one in runs:
            slots = self.blocks.slots(one.blocks, one.start, one.stop)
            shape = (LAYERS, HEADS, len(one.ids), DIM)
            tokens = torch.tensor(one.ids).float()[:, None].expand(shape)
            places = torch.arange(one.start, one.stop).float()[:, None].expand(shape)
            self.blocks.write(slots, tokens, places)

    def run_up_to(self, runs: Sequence[RowRun], layer: Any, take: Any) -> None:
        self.forwards.append(list(runs))
        for one in runs:
            take(one, self.queries[one.start : one.stop])


@pytest.fixture
def blocks() -> BlockStates:
    layers = [FakeLayer(f"layer.{at}") for at in range(LAYERS)]
    for layer in layers:
        layer.impl.scale = 1.0
    caches = {layer.layer_name: torch.zeros(64, HEADS, BLOCK, 2 * DIM) for layer in layers}
    return BlockStates(layers, caches, learn_layout(layers[0], caches[layers[0].layer_name]))


@pytest.fixture
def forward(blocks: BlockStates) -> _Recorded:
    return _Recorded(blocks)


@pytest.fixture
def rows(forward: _Recorded) -> VirtualRows:
    config = SimpleNamespace(
        cache_config=SimpleNamespace(block_size=BLOCK),
        scheduler_config=SimpleNamespace(max_num_batched_tokens=64, max_num_seqs=8),
    )
    made = VirtualRows(config, None)
    made._forward = forward  # type: ignore[assignment]
    return made


def load(
    lengths: Sequence[int], head: int = 21, first: int = 0, ratio: float = 0.2, asked: Any = "last"
) -> PromptLoad:
    """Return the load of texts behind a head, with a question of nine tokens behind them."""
    parts: list[PromptPart] = []
    at = head
    for number, length in enumerate(lengths):
        key = bytes([first + number]) * 32
        ids = tuple(1000 + 100 * (first + number) + token for token in range(length))
        parts.append(PromptPart(key, "", ids, 0, at, at + length))
        at += length
    ids = (*range(head), *(id for part in parts for id in part.ids), *range(9))
    blocks = random.Random(first).sample(range(64), -(-len(ids) // BLOCK))
    layout = Layout("fused", head, tuple(parts), ratio=ratio, asked=asked)
    return PromptLoad(str(first), ids, blocks, 0, at, len(ids), layout)


def alone(request: PromptLoad, parts: Sequence[PromptPart]) -> LoadState:
    """Return the load of a prompt whose texts are encoded behind its head alone."""
    head = request.layout.head
    encodings = [Encoding((ComputedText(part, part.key),), head) for part in parts]
    return LoadState(request, request.layout.parts, encodings=encodings)


def state_of(*seen: str) -> KeyValues:
    return KeyValues(torch.zeros(1), torch.zeros(1), 0, frozenset(seen))


def choosing(request: PromptLoad, gaps: Sequence[range] = (), *seen: str) -> LoadState:
    """Return the load of a prompt whose first text's state has seen others."""
    first = request.layout.parts[0].key
    states = {first: state_of(*seen)}
    made = LoadState(request, request.layout.parts, states=states, gaps=list(gaps))
    made.digests = {first: frozenset()}
    return made


def test_texts_without_room_are_encoded_one_after_another(
    rows: VirtualRows, forward: _Recorded, blocks: BlockStates
) -> None:
    """Each needs a copy of the head's last block: together they do not fit."""
    request = load((30, 30, 30, 30))
    wanted = alone(request, request.layout.texts)
    found = rows.encode([wanted], blocks)
    assert len(forward.forwards) > 1
    for part, encoding in zip(request.layout.texts, wanted.encodings, strict=True):
        state = found[encoding.texts[0]]
        assert state.position == request.layout.head
        assert state.keys[0, 0, :, 0].tolist() == list(part.ids)
        assert state.values[0, 0, :, 0].tolist() == list(range(21, 51))


def test_a_text_longer_than_all_free_blocks_is_left_out(
    rows: VirtualRows, blocks: BlockStates
) -> None:
    request = load((30,))
    part = request.layout.parts[0]
    long = PromptPart(part.key, "", tuple(range(400)), 370, part.start, part.stop)
    assert rows.encode([alone(request, [long])], blocks) == {}


@pytest.mark.parametrize("asked", ["last", "question"])
def test_the_places_with_the_greatest_scores_are_chosen(
    rows: VirtualRows, forward: _Recorded, blocks: BlockStates, asked: Any
) -> None:
    request = load((30, 30), asked=asked)
    generator = torch.Generator().manual_seed(3)
    count = len(request.ids)
    keys = torch.randn(LAYERS, HEADS, count, DIM, generator=generator)
    blocks.write(blocks.slots(request.blocks, 0, count), keys, keys)
    forward.queries = torch.randn(count, 4, DIM, generator=generator)
    (chosen,) = rows.choose([choosing(request)], blocks)
    first = count - 1 if asked == "last" else request.end
    scores = attention_scores(forward.queries[first:], keys[1].transpose(0, 1), 1.0)
    best = sorted(range(21, 81), key=lambda at: -float(scores[at]))[:12]
    assert chosen == sorted(best)


def test_a_prompt_keeps_its_choice(
    rows: VirtualRows, forward: _Recorded, blocks: BlockStates
) -> None:
    """One that is preempted and resumed behind a part of it computes the rest of the same rows.

    Its texts may have other states then, by which it is chosen anew.
    """
    request = load((30, 30))
    generator = torch.Generator().manual_seed(3)
    forward.queries = torch.randn(len(request.ids), 4, DIM, generator=generator)
    (chosen,) = rows.choose([choosing(request)], blocks)
    request.begin = 48
    resumed = choosing(request)
    resumed.states[b"head"] = state_of()
    (again,) = rows.choose([resumed], blocks)
    assert again == [at for at in chosen if at >= 48]
    assert len(forward.forwards) == 1
    rows.choose([choosing(request, [], "another text")], blocks)
    assert len(forward.forwards) == 2


def test_places_of_gaps_are_not_chosen(
    rows: VirtualRows, forward: _Recorded, blocks: BlockStates
) -> None:
    """A text that is computed as a whole is no candidate."""
    request = load((30, 30), ratio=1.0)
    forward.queries = torch.zeros(len(request.ids), 4, DIM)
    (chosen,) = rows.choose([choosing(request, [range(51, 81)])], blocks)
    assert chosen == list(range(21, 51))


def test_the_last_row_of_the_step_is_asked_where_the_question_is_cut(
    rows: VirtualRows, forward: _Recorded, blocks: BlockStates
) -> None:
    request = load((30, 30))
    request.scheduled = request.end + 4
    forward.queries = torch.zeros(len(request.ids), 4, DIM)
    rows.choose([choosing(request)], blocks)
    (asked,) = forward.forwards[0]
    assert (asked.start, asked.stop) == (request.end, request.end + 4)


def _config(**changed: Any) -> Any:
    parallel = SimpleNamespace(
        worker_cls=changed.get("worker", PATH), data_parallel_size=changed.get("data_parallel", 1)
    )
    return SimpleNamespace(
        parallel_config=parallel,
        use_v2_model_runner=changed.get("v2", False),
        lora_config=changed.get("lora"),
    )


def test_a_worker_of_ours_computes_rows() -> None:
    assert rows_refusal(_config()) is None


@pytest.mark.parametrize(
    ("changed", "helps"),
    [
        ({"worker": "auto"}, "--worker-cls vllm_rag_accel.worker.Worker"),
        ({"v2": True}, "VLLM_USE_V2_MODEL_RUNNER=0"),
        ({"data_parallel": 2}, "--data-parallel-size"),
        ({"lora": object()}, "--enable-lora"),
    ],
)
def test_rows_are_refused_with_the_setting_that_helps(changed: Any, helps: str) -> None:
    assert helps in str(rows_refusal(_config(**changed)))

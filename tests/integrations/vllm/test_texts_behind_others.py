"""Missing texts are computed behind each other, and used in prompts with any of these."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from test_loading import FREQUENCIES
from vllm_fakes import (
    BLOCK,
    DIM,
    HEADS,
    LAYERS,
    CausalForward,
    FakeLayer,
    asking,
    fake_step,
    letters,
)

from rag_accel.engines.llm.vllm.engine import purge_texts
from rag_accel.kv.disk import DiskStore
from rag_accel.kv.entry import ChunkLabel, KeyValues
from rag_accel.kv.keys import ChunkSource
from rag_accel.kv.neighbours import MOST_NEIGHBOURS, MOST_TOGETHER
from rag_accel.kv.reuse_request import ReuseRequest
from rag_accel.kv.store import ChunkStore
from vllm_rag_accel.cache_layout import learn_layout
from vllm_rag_accel.claims import ClaimOptions, Claims
from vllm_rag_accel.loading import BlockStates, Loading
from vllm_rag_accel.options import ConnectorOptions
from vllm_rag_accel.row_forward import RowRun
from vllm_rag_accel.rows import VirtualRows
from vllm_rag_accel.step_plan import PromptLoadReport

HEAD = "You answer by the context. "
A, B, C = "The river Aare flows through Bern.", "Lake Thun is near it.", "Bread is made of flour."
D, E = "Salt comes from the sea or a mine.", "The ferry crosses the lake twice."
SOURCE = ChunkSource("model", "", tuple(map(ord, HEAD)))


class Server:
    """Both halves of the connector over a small model, without vLLM."""

    def __init__(self, store: Any = None) -> None:
        layers = [FakeLayer(f"layer.{at}") for at in range(LAYERS)]
        caches = {layer.layer_name: torch.zeros(512, HEADS, BLOCK, 2 * DIM) for layer in layers}
        layout = learn_layout(layers[0], caches[layers[0].layer_name])
        self.blocks = BlockStates(layers, caches, layout)
        self.store = ChunkStore(1 << 24) if store is None else store
        config = SimpleNamespace(
            cache_config=SimpleNamespace(block_size=BLOCK),
            scheduler_config=SimpleNamespace(max_num_batched_tokens=9999, max_num_seqs=64),
        )
        rows = VirtualRows(config, None)
        self.forward = CausalForward(self.blocks, FREQUENCIES)
        rows._forward = self.forward  # type: ignore[assignment]
        self.loading = Loading(self.blocks, self.store, FREQUENCIES, rows)
        self.claims = Claims(letters(), lambda key: False, ClaimOptions("model", 9999))
        self.steps = 0

    def ask(self, *prompts: tuple[str, ...], rest: int = 60, **given: Any) -> list[tuple[int, int]]:
        """Load the texts of prompts in one step; return the tokens reused and encoded of each."""
        new: dict[str, Any] = {}
        scheduled: dict[str, int] = {}
        for at, texts in enumerate(prompts):
            self.steps += 1
            prompt = f"{HEAD}{' '.join(texts)}\n{'?' * rest}"
            wanted = ReuseRequest("full", texts, before="", **given)
            request = asking(str(self.steps), prompt, wanted)
            claimed = self.claims.matched(request, 0)
            assert claimed
            self.claims.allocated(request, claimed)
            count = -(-len(prompt) // BLOCK)
            new[request.request_id] = range(100 * at, 100 * at + count)[::-1], claimed
            scheduled[request.request_id] = len(prompt) - claimed
        self.loading.load(self.claims.step(fake_step(new, scheduled=scheduled)))
        assert self.loading.take_failed() == set()
        reports: list[PromptLoadReport] = self.loading.take_reports()
        return [(report.reused, report.encoded) for report in reports]

    def state(self, text: str, *, alone: bool = False) -> KeyValues | None:
        """Return the state of a text behind others, or behind the head alone."""
        source = SOURCE if alone else SOURCE.behind_others()
        found = self.store.find(source.key(map(ord, text)))
        assert found is None or isinstance(found, KeyValues)
        return found

    def assert_computed(self, state: KeyValues | None, *texts: str) -> None:
        """Check that a state is that of the last text of a prompt that is computed as a whole."""
        assert state is not None
        ids = tuple(map(ord, HEAD + "".join(texts)))
        table = range(400, 400 - (-len(ids) // BLOCK))
        self.forward.run([RowRun(ids, 0, table)])
        start = len(ids) - len(texts[-1])
        whole = self.blocks.read(self.blocks.slots(table, start, len(ids)), start)
        assert state.position == start
        torch.testing.assert_close(state.keys, whole.keys, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(state.values, whole.values, atol=1e-5, rtol=1e-5)
        assert state.seen == self.store.digests(texts[:-1], "")


def test_texts_of_one_prompt_see_those_before_them_and_nothing_else() -> None:
    server = Server()
    assert server.ask((A, B, C)) == [(0, len(A + B + C))]
    server.assert_computed(server.state(A, alone=True), A)
    server.assert_computed(server.state(B), A, B)
    server.assert_computed(server.state(C), A, B, C)
    assert (server.state(A), server.state(B, alone=True)) == (None, None)


def test_by_the_recipe_alone_texts_see_the_head_only() -> None:
    server = Server()
    server.ask((A, B))
    assert server.ask((A, B), recipe="alone") == [(len(HEAD + A), len(B))]
    server.assert_computed(server.state(B, alone=True), B)


def test_a_state_is_used_where_a_text_that_it_has_seen_stands_anywhere() -> None:
    server = Server()
    server.ask((A, B, C))
    assert server.ask((C, D, A)) == [(len(HEAD + C + A), len(D))]


def test_without_any_of_them_the_text_is_encoded_alone_once() -> None:
    server = Server()
    server.ask((A, B))
    used = [server.ask((D, B)) for _ in range(2)]
    assert used == [[(len(HEAD), len(D + B))], [(len(HEAD + D + B), 0)]]
    server.assert_computed(server.state(B, alone=True), B)


def test_a_new_text_is_encoded_behind_the_kept_ones_before_it() -> None:
    """Behind their states as they are: that of the third has not seen the first two."""
    server = Server()
    server.ask((A, B))
    server.ask((A, B, D, E))
    server.assert_computed(server.state(D), A, B, D)
    server.assert_computed(server.state(E), A, B, D, E)


def test_at_most_three_kept_texts_are_before_new_ones() -> None:
    server = Server()
    for text in (A, B, C, D):
        server.ask((text,))
    server.ask((A, B, C, D, E))
    last = server.state(E)
    assert last is not None
    assert last.seen == server.store.digests((B, C, D), "")
    assert last.position == len(HEAD + B + C + D)


def test_texts_without_room_in_the_blocks_begin_another_sequence() -> None:
    """Here the copy of the head's last block leaves no room for the last text."""
    server = Server()
    assert server.ask((A, B, C), rest=1) == [(0, len(A + B + C))]
    server.assert_computed(server.state(B), A, B)
    server.assert_computed(server.state(C, alone=True), C)


def test_kept_texts_that_leave_no_room_are_not_before_new_ones() -> None:
    server = Server()
    server.ask((A,))
    assert server.ask((A, B), rest=1) == [(len(HEAD + A), len(B))]
    server.assert_computed(server.state(B, alone=True), B)


def test_a_state_says_of_few_texts_only_that_it_has_seen_them() -> None:
    server = Server()
    texts = tuple(f"Text {number} of many." for number in range(20))
    server.ask(texts)
    seen = [len(state.seen) for text in texts if (state := server.state(text)) is not None]
    assert seen == [*range(1, MOST_TOGETHER), 1, 2, 3]
    server.ask((texts[0], texts[16], texts[19], texts[15], E))
    last = server.state(E)
    assert last is not None
    assert last.position == len(HEAD + texts[0] + texts[15])
    assert last.seen == server.store.digests(texts[:MOST_TOGETHER], "")
    assert 2 * MOST_TOGETHER <= MOST_NEIGHBOURS


def test_a_text_is_not_its_own_neighbour() -> None:
    """Here it was encoded behind a text that had seen it before."""
    server = Server()
    server.ask((A, B))
    server.store.remove(SOURCE.key(map(ord, A)))
    server.ask((B, A))
    state = server.state(A)
    assert state is not None
    assert state.seen == server.store.digests((A, B), "")
    assert server.ask((D, A)) == [(len(HEAD), len(D + A))]


def _sequences(server: Server) -> list[str]:
    """Return the texts that were computed behind heads, sequence by sequence."""
    runs = [run.ids for run in server.forward.runs if run.start >= len(HEAD)]
    return ["".join(map(chr, ids)) for ids in runs if len(ids) > 1]


def test_prompts_of_a_step_share_the_states_that_they_may_use() -> None:
    """C has seen A and B, of which the third prompt has none, and B has seen A alone."""
    server = Server()
    reports = server.ask((A, B, C), (B, C, D), (D, C))
    assert reports == [(0, len(A + B + C)), (0, len(B + C + D)), (0, len(D + C))]
    assert _sequences(server)[:4] == [A + B + C, D, B, C]


def test_what_is_not_kept_of_one_prompt_is_not_given_to_another() -> None:
    server = Server()
    server.ask((A, B), (A, B), save=False)
    assert _sequences(server)[:2] == [A + B, A + B]
    assert len(server.store) == 0


def test_a_text_that_stands_twice_is_computed_once() -> None:
    server = Server()
    assert server.ask((A, B, A)) == [(0, len(A + B + A))]
    server.assert_computed(server.state(B), A, B)


def test_what_was_purged_while_it_was_computed_is_not_kept() -> None:
    server = Server()
    run = server.forward.run

    def purged(runs: Any) -> None:
        run(runs)
        server.store.forget([A], "")

    server.forward.run = purged  # type: ignore[method-assign]
    server.ask((A, B))
    assert len(server.store) == 0


def test_a_purged_text_takes_all_that_has_seen_it_along(tmp_path: Path) -> None:
    """In the worker's memory and in the folder, by whichever process."""
    store = ConnectorOptions(tmp_path / "kv").store("model", torch.float32)
    server = Server(store)
    server.ask((A, B))
    server.ask((B, A, C))  # C behind B, which has seen A
    server.ask((D,))
    store.close()
    store = ConnectorOptions(tmp_path / "kv").store("model", torch.float32)
    server = Server(store)
    assert server.ask((A, C)) == [(len(HEAD + A + C), 0)]
    purge_texts(str(tmp_path / "kv"), [A], "")
    assert server.ask((A, B, C, D)) == [(len(HEAD + D), len(A + B + C))]
    store.close()


def test_states_of_similar_texts_that_a_fill_has_linked_are_used(tmp_path: Path) -> None:
    disk = DiskStore(tmp_path / "kv", limit_bytes=1 << 26, model="model", dtype=torch.float32)
    made = Server()
    made.ask((A, B))
    state, target = made.state(B), SOURCE.behind([tuple(map(ord, A))]).key(map(ord, B))
    assert state is not None
    seen = disk.folder.text_digests([A], "")
    disk.put(target, state.having_seen(seen), ChunkLabel("", B, seen))
    disk.link(SOURCE.behind_others().key(map(ord, B)), target)
    store = ConnectorOptions(tmp_path / "kv").store("model", torch.float32)
    assert Server(store).ask((A, B)) == [(len(B), len(A))]
    store.close()

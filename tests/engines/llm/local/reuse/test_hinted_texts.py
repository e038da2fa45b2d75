"""What a folder keeps of texts that are hinted at is read before a prompt asks for it."""

from __future__ import annotations

import threading
from typing import Any

import kept_engines
import pytest
from chunk_prompts import tokens
from kept_engines import TEXTS, Make, answer, reused

from rag_accel.engine_api import Capability
from rag_accel.engines.llm.local.engine import LocalLLMEngine
from rag_accel.engines.llm.local.reuse import prefetcher as hinting
from rag_accel.engines.llm.local.reuse.prefetcher import Heads
from rag_accel.kv.disk import DiskStore
from rag_accel.kv.store import ChunkStore

OTHER = "Which of the documents says so is not known."


class Reads:
    """Looks in a folder, of which a test can wait for some."""

    def __init__(self) -> None:
        self.found: list[bool] = []
        self.kept = 0
        self._changed = threading.Condition()

    def note(self, found: bool) -> None:
        with self._changed:
            self.found.append(found)
            self._changed.notify_all()

    def note_kept(self) -> None:
        with self._changed:
            self.kept += 1
            self._changed.notify_all()

    def wait_kept(self, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.kept >= count, 30)

    def wait(self, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.found.count(True) >= count, 30)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    made, find, put = Reads(), DiskStore.find, ChunkStore.put_prefetched

    def noted(self: DiskStore, key: bytes) -> Any:
        found = find(self, key)
        made.note(found is not None)
        return found

    def noted_put(self: ChunkStore, *given: Any) -> bool:
        is_kept = put(self, *given)
        made.note_kept()
        return is_kept

    monkeypatch.setattr(DiskStore, "find", noted)
    monkeypatch.setattr(ChunkStore, "put_prefetched", noted_put)
    return made


make = kept_engines.make


@pytest.fixture
def engine(make: Make, reads: Reads) -> LocalLLMEngine:
    """Return an engine that has seen a prompt, over a folder that keeps two texts."""
    first = make(kv_recipe="alone")
    answer(first, *TEXTS)
    first.close()
    second = make(kv_recipe="alone")
    answer(second, OTHER)
    reads.found.clear()
    return second


def test_a_hinted_text_is_there_before_its_prompt_is_submitted(
    engine: LocalLLMEngine, reads: Reads
) -> None:
    engine.hint(TEXTS)
    reads.wait_kept(2)
    assert reused(answer(engine, *TEXTS)) == tokens(*TEXTS)
    assert reads.found == [True, True]
    assert (engine.counts["chunk_hits_disk"], engine.counts["chunk_hits_memory"]) == (0, 2)


def test_a_text_is_hinted_at_with_the_white_space_around_it(
    engine: LocalLLMEngine, reads: Reads
) -> None:
    engine.hint([f"  {TEXTS[0]}\n"])
    reads.wait(1)


def test_a_hint_comes_from_any_thread(engine: LocalLLMEngine, reads: Reads) -> None:
    thread = threading.Thread(target=engine.hint, args=(TEXTS,))
    thread.start()
    thread.join()
    reads.wait(2)


def test_a_text_is_tokenised_on_another_thread(
    engine: LocalLLMEngine, reads: Reads, monkeypatch: pytest.MonkeyPatch
) -> None:
    callers: list[int] = []
    forms = hinting._forms

    def noted(texts: Any) -> Any:
        callers.append(threading.get_ident())
        return forms(texts)

    monkeypatch.setattr(hinting, "_forms", noted)
    engine.hint(TEXTS)
    reads.wait(2)
    assert threading.get_ident() not in callers
    assert callers


def test_a_hint_of_another_tenant_reads_nothing(engine: LocalLLMEngine, reads: Reads) -> None:
    answer(engine, OTHER, namespace="other")
    reads.found.clear()
    engine.hint(TEXTS, "other")
    engine.hint(TEXTS, "unknown")
    engine.hint(TEXTS[:1])
    reads.wait(1)  # hints are followed in their order
    assert reads.found == [False, False, True]


@pytest.mark.parametrize("options", [{"kv_reuse": "exact"}, {"kv_folder": None}])
def test_an_engine_that_reads_nothing_slow_takes_no_hints(
    make: Make, options: dict[str, Any]
) -> None:
    engine = make(**options)
    assert Capability.HINT not in engine.profile.capabilities
    engine.hint(TEXTS)


def test_an_engine_over_a_folder_says_that_it_takes_hints(make: Make) -> None:
    assert Capability.HINT in make().profile.capabilities


def test_the_latest_heads_of_the_latest_tenants_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hinting, "MOST_HEADS", 2)
    monkeypatch.setattr(hinting, "MOST_NAMESPACES", 2)
    heads = Heads()
    for head in ((1,), (2,), (1,), (3,)):
        heads.note("one", head)
    heads.note("two", (4,))
    assert heads.of("one") == ((3,), (1,))
    heads.note("three", (5,))
    assert (heads.of("one"), heads.of("two"), heads.of("three")) == ((), ((4,),), ((5,),))

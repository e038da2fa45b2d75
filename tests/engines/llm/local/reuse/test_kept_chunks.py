"""Retrieved texts of one engine are there for the next; others do not wait for the disk."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import kept_engines
import pytest
import torch
from chunk_prompts import asked, tokens
from fake_runner import finish, value
from kept_engines import TEXTS, Make, answer, reused
from llm_harness import eventually
from tiny_chat import model

from rag_accel.cli import main
from rag_accel.engine_api import GenerationOutput, StepBudget, WorkId
from rag_accel.engines.llm.local.local_llm import LocalLLM
from rag_accel.engines.llm.local.options import LocalOptions
from rag_accel.engines.llm.local.reuse.pending_loads import PATIENCE_S
from rag_accel.errors import ConfigError
from rag_accel.kv.disk import DiskStore
from rag_accel.testing import ManualClock

make = kept_engines.make


def filled(make: Make, **options: Any) -> GenerationOutput:
    """Return the answer of an engine that has encoded the texts and is closed."""
    engine = make(**options)
    answer(engine, *TEXTS)
    again = answer(engine, *TEXTS)
    engine.close()
    return again


def test_the_next_engine_computes_no_token_of_the_texts(make: Make) -> None:
    first = filled(make)
    engine = make()
    found = answer(engine, *TEXTS)
    assert reused(found) == reused(first) == tokens(*TEXTS)
    assert found.text == first.text
    assert engine.counts["chunk_hits_disk"] == 2
    assert engine.counts["chunk_misses"] == 0


def test_texts_of_the_folder_are_used_in_another_order(make: Make) -> None:
    filled(make)
    assert reused(answer(make(), *reversed(TEXTS))) == tokens(*TEXTS)


def test_another_model_finds_nothing(make: Make) -> None:
    filled(make)
    other = copy.deepcopy(model())
    other.get_decoder().layers[1].mlp.up_proj.weight.data *= 1.01
    assert reused(answer(make(other), *TEXTS)) == 0


def test_another_tenant_finds_nothing(make: Make) -> None:
    filled(make)
    assert reused(answer(make(), *TEXTS, namespace="other")) == 0


def test_damaged_files_are_computed_again(make: Make, tmp_path: Path) -> None:
    first = filled(make)
    for path in (tmp_path / "kept").glob("*.kv"):
        path.write_bytes(path.read_bytes()[:-3] + b"abc")
    engine = make()
    found = answer(engine, *TEXTS)
    assert (reused(found), found.text) == (0, first.text)
    assert engine.counts["chunk_files_refused"] == 2
    engine.close()
    assert reused(answer(make(), *TEXTS)) == tokens(*TEXTS)


def test_no_folder_is_made_where_every_prompt_is_computed(make: Make, tmp_path: Path) -> None:
    answer(make(kv_reuse="exact"), *TEXTS)
    assert not (tmp_path / "kept").exists()


def test_a_folder_that_cannot_be_made_is_refused(make: Make, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="kv_folder"):
        make(kv_folder=str(tmp_path / "file" / "kept"))


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Return what a look in the folder waits for."""
    let = threading.Event()
    found = DiskStore.find

    def find(self: DiskStore, key: bytes) -> Any:
        assert let.wait(60)
        return found(self, key)

    monkeypatch.setattr(DiskStore, "find", find)
    yield let
    let.set()


def test_others_go_on_while_texts_are_looked_for(make: Make, gate: threading.Event) -> None:
    engine = make()
    engine.submit([asked("texts", *TEXTS), asked("plain")])
    assert value(finish(engine, "plain"), "plain").completion_tokens == 6
    gate.set()
    assert value(finish(engine, "texts"), "texts").completion_tokens == 6


def test_a_step_ends_in_time_while_texts_are_looked_for(make: Make, gate: threading.Event) -> None:
    engine = make()
    engine.submit([asked("texts", *TEXTS)])
    assert engine.step(StepBudget(time_s=0.001)) == []
    engine.interrupt()
    assert engine.step(StepBudget()) == []


def test_work_is_cancelled_while_its_texts_are_looked_for(
    make: Make, gate: threading.Event
) -> None:
    engine = make()
    engine.submit([asked("one", *TEXTS), asked("two", *TEXTS)])
    engine.cancel([WorkId("one")])
    gate.set()
    assert value(finish(engine, "two"), "two").completion_tokens == 6
    engine.submit([asked("three", TEXTS[0])])
    engine.cancel([WorkId("three")])
    assert engine.step(StepBudget()) == []


def test_prompts_that_wait_for_one_text_encode_it_once(make: Make, gate: threading.Event) -> None:
    engine = make()
    engine.submit([asked("one", *TEXTS), asked("two", *TEXTS)])
    gate.set()
    outputs = finish(engine, "one", "two")
    assert sorted(reused(value(outputs, id)) for id in ("one", "two")) == [0, tokens(*TEXTS)]


def test_nothing_is_kept_that_has_seen_a_text_purged_meanwhile(
    make: Make, gate: threading.Event, tmp_path: Path
) -> None:
    gate.set()
    engine = make()
    answer(engine, TEXTS[0])
    gate.clear()
    engine.submit([asked("two", *TEXTS)])  # the first is in memory, the second is looked for
    eventually(lambda: any((tmp_path / "kept").glob("*.kv")))
    assert main(["cache", "purge", str(tmp_path / "kept"), "--text", TEXTS[0]]) == 0
    gate.set()
    assert value(finish(engine, "two"), "two").completion_tokens == 6
    engine.close()
    assert not list((tmp_path / "kept").glob("*.kv"))


def test_texts_are_computed_if_the_disk_does_not_answer(make: Make, gate: threading.Event) -> None:
    clock = ManualClock()
    engine = make(clock=clock)
    engine.submit([asked("one", *TEXTS)])
    assert engine.step(StepBudget(time_s=0.0)) == []
    clock.advance(PATIENCE_S + 1)
    assert value(finish(engine, "one"), "one").completion_tokens == 6
    other = asked("two", *TEXTS, namespace="other")  # under other keys
    engine.submit([other])
    assert value(finish(engine, "two"), "two").completion_tokens == 6


def test_a_disk_that_answers_again_is_asked_again(make: Make, gate: threading.Event) -> None:
    clock = ManualClock()
    engine = make(clock=clock)
    engine.submit([asked("one", *TEXTS)])
    clock.advance(PATIENCE_S + 1)
    finish(engine, "one")
    gate.set()
    for at in range(1000):  # what was asked first arrives between steps
        engine.submit([asked(f"again{at}", namespace=f"{at}")])
        finish(engine, f"again{at}")
        engine.submit([asked(f"new{at}", TEXTS[0], namespace=f"new{at}")])
        finish(engine, f"new{at}")
        if engine.counts["chunk_misses"] > 2:  # beyond those two that came late
            return
    raise AssertionError("the disk is not asked any more")


@pytest.mark.parametrize("name", ["kv_disk_bytes", "kv_max_age_s"])
@pytest.mark.parametrize("kind", [LocalOptions, partial(LocalLLM, "folder")])
def test_bounds_below_zero_are_refused(kind: Any, name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        kind(**{name: -1})


def test_state_in_bfloat16_comes_back(make: Make) -> None:
    half = copy.deepcopy(model()).to(torch.bfloat16)
    engine = make(half)
    first = answer(engine, *TEXTS)
    engine.close()
    found = answer(make(half), *TEXTS)
    assert reused(found) == tokens(*TEXTS)
    assert found.text == first.text

"""Requests and files that cannot be used: each is named or computed, and the engine lives.

The engine has vLLM's own worker class: claims end at the first gap, and rows are refused.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from exact_engine import FOREIGN_WARNINGS, EngineAnswer, ExactEngine
from exact_prompts import TOLERANCE, TextPrompt
from exact_reference import Reference

from rag_accel.kv.reuse_request import ENTRY, ReuseRequest

pytestmark = [pytest.mark.filterwarnings(f"ignore::{name}") for name in FOREIGN_WARNINGS]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("unfit")


@pytest.fixture(scope="module")
def engine(models: Path, folder: Path) -> Iterator[ExactEngine]:
    made = ExactEngine(models / "llama", folder, worker_cls="auto")
    yield made
    made.close()


@pytest.fixture(scope="module")
def reference(models: Path) -> Reference:
    return Reference(models / "llama")


@pytest.fixture
def prompt(request: pytest.FixtureRequest) -> TextPrompt:
    """Return a prompt of tokens that no other test has."""
    return TextPrompt.random(random.Random(request.node.name), (64, 40))


def ask_with(
    engine: ExactEngine, prompt: TextPrompt, params: object, salt: str | None = None
) -> EngineAnswer:
    """Return the answer to a request with any ``kv_transfer_params``."""

    class Sent:
        def params(self) -> Any:
            return params

        def salt(self) -> str | None:
            return salt

    (answer,) = engine.ask([prompt.ids()], [Sent()])  # type: ignore[list-item]
    return answer


@pytest.mark.parametrize(
    "values",
    [
        "text",
        [1],
        {"version": 99},
        {"version": 1, "reuse": "most", "spans": [[0, 9]]},
        {"version": 1, "spans": "all"},
        {"version": 1, "spans": [[45, 80], [60, 90]], "head": 45},
        {"version": 1, "spans": [[80, 90], [45, 60]], "head": 45},
        {"version": 1, "spans": [[45, 1 << 20]], "head": 45},
        {"version": 1, "spans": [[45, 90]], "head": 60},
        {"version": 1, "texts": 3},
        {"version": 1, "texts": ["nowhere in this prompt, but long enough"]},
        {"version": 1, "other": {}},
        {"version": 1, "texts": ["\ud800 is half of a character, and no tokenizer takes it"]},
    ],
)
def test_nonsense_is_named_and_computed(
    engine: ExactEngine, reference: Reference, prompt: TextPrompt, values: object
) -> None:
    answer = ask_with(engine, prompt, {ENTRY: values})
    assert answer.reuse["refused"]
    assert answer.cached == 0
    assert prompt.full(reference, answer) < TOLERANCE


def test_approximate_texts_without_their_salt_are_computed(
    engine: ExactEngine, reference: Reference, prompt: TextPrompt
) -> None:
    wanted = prompt.request("full")
    for salt in (None, "another"):
        engine.reset()
        answer = ask_with(engine, prompt, wanted.params(), salt)
        assert "cache_salt" in answer.reuse["refused"]
        assert prompt.full(reference, answer) < TOLERANCE


def test_rows_are_refused_by_the_servers_own_worker(
    engine: ExactEngine, reference: Reference, prompt: TextPrompt
) -> None:
    (answer,) = engine.ask([prompt.ids()], [prompt.request("fused")])
    assert "--worker-cls vllm_rag_accel.worker.Worker" in answer.reuse["refused"]
    assert prompt.full(reference, answer) < TOLERANCE


def _fill(engine: ExactEngine, prompt: TextPrompt, **given: Any) -> None:
    """Let the engine compute and keep the first text of a prompt, behind its head."""
    head = len(prompt.head)
    ids = [*prompt.head, *prompt.texts[0]]
    files = engine.files()
    request = ReuseRequest("exact", spans=((head, len(ids)),), head=head, **given)
    engine.ask([ids], [request], tokens=1)
    engine.wait_for_files(files + 2)
    engine.reset()


def test_without_rows_a_claim_ends_at_the_first_gap(
    engine: ExactEngine, reference: Reference, prompt: TextPrompt
) -> None:
    """The first text stands directly behind the head, where its states are exact."""
    _fill(engine, prompt)
    (answer,) = engine.ask([prompt.ids()], [prompt.request("full")])
    assert answer.cached == len(prompt.head) + len(prompt.texts[0])
    assert prompt.full(reference, answer) < TOLERANCE


def test_a_file_that_vanishes_between_look_up_and_load_is_computed(
    engine: ExactEngine,
    reference: Reference,
    prompt: TextPrompt,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = set(folder.glob("*.kv"))
    _fill(engine, prompt)
    engine.forget_memory()
    load = engine.loading.load

    def load_too_late(plan: Any) -> None:
        for path in set(folder.glob("*.kv")) - before:
            path.unlink()
        load(plan)

    monkeypatch.setattr(engine.loading, "load", load_too_late)
    (answer,) = engine.ask([prompt.ids()], [prompt.request("exact")])
    assert prompt.full(reference, answer) < TOLERANCE


def test_another_tenants_texts_are_not_found(
    engine: ExactEngine, reference: Reference, prompt: TextPrompt
) -> None:
    _fill(engine, prompt, namespace="one")
    (other,) = engine.ask([prompt.ids()], [prompt.request("exact", namespace="other")])
    assert other.cached == 0
    engine.reset()
    (own,) = engine.ask([prompt.ids()], [prompt.request("exact", namespace="one")])
    assert own.cached == len(prompt.head) + len(prompt.texts[0])
    assert prompt.full(reference, own) < TOLERANCE


def test_a_prompt_longer_than_the_model_is_refused_by_the_server(
    engine: ExactEngine, reference: Reference, prompt: TextPrompt
) -> None:
    with pytest.raises(Exception, match="maximum context length"):
        engine.ask([prompt.ids() * 8], [prompt.request("exact")])
    (answer,) = engine.ask([prompt.ids()], [prompt.request("exact")])
    assert prompt.full(reference, answer) < TOLERANCE


def test_a_full_disk_keeps_states_in_memory(
    engine: ExactEngine, reference: Reference, prompt: TextPrompt, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*given: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("rag_accel.kv.disk.replaced_file", full)
    files = engine.files()
    for _ in range(2):
        (answer,) = engine.ask([prompt.ids()], [prompt.request("exact")])
        assert prompt.full(reference, answer) < TOLERANCE
        engine.reset()
    assert engine.files() == files

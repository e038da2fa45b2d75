"""Small steps and few blocks change no state: prompts in pieces, preempted requests."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from exact_engine import FOREIGN_WARNINGS, ExactEngine
from exact_prompts import TOLD_APART, TOLERANCE, TextPrompt
from exact_reference import Reference

STEP = 64
#: Three prompts fit into the blocks, but not with what is generated behind them.
BLOCKS, GENERATED = 51, 48
pytestmark = [pytest.mark.filterwarnings(f"ignore::{name}") for name in FOREIGN_WARNINGS]


@pytest.fixture(scope="module")
def engine(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ExactEngine]:
    made = ExactEngine(
        models / "llama",
        tmp_path_factory.mktemp("states"),
        extra={"step_rows": 4096},
        max_num_batched_tokens=STEP,
        num_gpu_blocks_override=BLOCKS,
    )
    yield made
    made.close()


@pytest.fixture(scope="module")
def reference(models: Path) -> Reference:
    return Reference(models / "llama")


@pytest.fixture
def prompt(request: pytest.FixtureRequest) -> TextPrompt:
    """Return a prompt of tokens that no other test has."""
    return TextPrompt.random(random.Random(request.node.name))


@pytest.fixture
def chosen(engine: ExactEngine, monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """Return a list of the places that the engine chooses from now on, prompt by prompt."""
    return engine.record_choices(monkeypatch)


@pytest.mark.parametrize("reuse", ["exact", "full", "fused"])
def test_prompts_of_many_steps(
    engine: ExactEngine, reference: Reference, prompt: TextPrompt, reuse: Any
) -> None:
    """Rows of texts are cut into forwards of a step's tokens; what is exact stays exact."""
    options: dict[str, Any] = {"ratio": 1.0} if reuse == "fused" else {}
    wanted = prompt.request(reuse, **options)
    for _ in range(2):
        (answer,) = engine.ask([prompt.ids()], [wanted])
        if reuse == "full":
            assert prompt.reused(reference, answer) < TOLERANCE
            assert prompt.full(reference, answer) > TOLD_APART
        else:
            assert prompt.full(reference, answer) < TOLERANCE
        assert answer.reuse["reuse"] == reuse
        engine.reset()


def test_chosen_rows_of_many_forwards(
    engine: ExactEngine, reference: Reference, prompt: TextPrompt, chosen: list[list[int]]
) -> None:
    (answer,) = engine.ask([prompt.ids()], [prompt.request("fused", ratio=0.3)])
    (rows,) = chosen
    assert len(rows) > STEP
    assert prompt.reused(reference, answer, rows=rows) < TOLERANCE


@pytest.mark.parametrize("reuse", ["exact", "full", "fused"])
def test_preempted_requests_go_on_over_the_same_states(
    engine: ExactEngine,
    reference: Reference,
    prompt: TextPrompt,
    chosen: list[list[int]],
    monkeypatch: pytest.MonkeyPatch,
    reuse: Any,
) -> None:
    """A request whose blocks were taken loads its texts again when it is resumed."""
    preempted = preemptions(engine, monkeypatch)
    prompts = [
        prompt.ordered(order) for order in ((0, 1, 2, 3, 4), (4, 2, 0, 1, 3), (1, 0, 3, 4, 2))
    ]
    if reuse == "exact":  # its states are loaded only once they are all kept
        files = engine.files()
        engine.ask([one.ids() for one in prompts], [one.request(reuse) for one in prompts])
        engine.wait_for_files(files + 1 + sum(len(one.texts) for one in prompts))
        engine.reset()
    answers = engine.ask(
        [one.ids() for one in prompts],
        [one.request(reuse, question=str(at)) for at, one in enumerate(prompts)],
        tokens=GENERATED,
    )
    assert preempted
    for at, (one, answer) in enumerate(zip(prompts, answers, strict=True)):
        if reuse == "exact":
            assert one.full(reference, answer) < TOLERANCE
        else:
            rows: Sequence[int] = chosen[at] if reuse == "fused" else ()
            assert one.reused(reference, answer, rows=rows) < TOLERANCE


def preemptions(engine: ExactEngine, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list of the requests that are preempted from now on."""
    scheduler = engine.llm.llm_engine.engine_core.engine_core.scheduler
    found: list[str] = []
    preempt = scheduler._preempt_request

    def recorded(request: Any, *given: Any, **named: Any) -> None:
        found.append(request.request_id)
        preempt(request, *given, **named)

    monkeypatch.setattr(scheduler, "_preempt_request", recorded)
    return found

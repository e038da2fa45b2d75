"""Each way of reuse gives what a transformers model gives over the same keys and values."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from exact_engine import FOREIGN_WARNINGS, EngineAnswer, ExactEngine
from exact_prompts import TOLD_APART, TOLERANCE, TextPrompt
from exact_reference import Reference

from rag_accel.kv.reuse_request import ReuseRequest
from rag_accel.kv.selection import QuestionGuided, scored_layer

ORDER = (3, 0, 4, 1, 2)
pytestmark = [pytest.mark.filterwarnings(f"ignore::{name}") for name in FOREIGN_WARNINGS]


@pytest.fixture(scope="module", params=["llama", "qwen3"])
def model(request: pytest.FixtureRequest, models: Path) -> Path:
    return models / request.param


@pytest.fixture(scope="module")
def engine(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ExactEngine]:
    made = ExactEngine(model, tmp_path_factory.mktemp("states"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def reference(model: Path) -> Reference:
    return Reference(model)


@pytest.fixture
def prompt(request: pytest.FixtureRequest) -> TextPrompt:
    """Return a prompt of tokens that no other test has."""
    return TextPrompt.random(random.Random(request.node.name))


@pytest.fixture
def chosen(engine: ExactEngine, monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """Return a list of the places that the engine chooses from now on, prompt by prompt."""
    return engine.record_choices(monkeypatch)


def test_whole_prompt_is_computed(
    engine: ExactEngine, reference: Reference, prompt: TextPrompt
) -> None:
    """The reference gives what the engine does of its own."""
    (answer,) = engine.ask([prompt.ids()], [None])
    assert prompt.full(reference, answer) < TOLERANCE
    assert answer.reuse == {}


def test_exact_states_come_from_files(
    engine: ExactEngine, reference: Reference, prompt: TextPrompt
) -> None:
    """A prefix that was saved is loaded, and changes nothing."""
    wanted = prompt.request("exact")
    files = engine.files()
    (first,) = engine.ask([prompt.ids()], [wanted])
    assert first.cached == 0
    engine.wait_for_files(files + 1 + len(prompt.texts))
    engine.reset()
    engine.forget_memory()
    (answer,) = engine.ask([prompt.ids()], [wanted])
    assert answer.cached == answer.reuse["reused_tokens"] == prompt.texts_stop()
    assert prompt.full(reference, answer) < TOLERANCE
    assert prompt.full(reference, first) < TOLERANCE


def test_shuffled_texts_are_moved(
    engine: ExactEngine, reference: Reference, prompt: TextPrompt
) -> None:
    """Texts in another order, with tokens between them, come from where they were encoded."""
    engine.ask([prompt.ids()], [prompt.request("full")])
    shuffled = prompt.ordered(ORDER)
    (answer,) = engine.ask([shuffled.ids()], [shuffled.request("full")])
    kept = len(prompt.head) + sum(map(len, prompt.texts))
    assert answer.reuse["reused_tokens"] == kept
    assert answer.reuse["computed_tokens"] == shuffled.texts_stop() - kept
    assert shuffled.reused(reference, answer) < TOLERANCE
    assert shuffled.full(reference, answer) > TOLD_APART


def test_texts_missing_at_first_are_encoded_in_the_step(
    engine: ExactEngine, reference: Reference, prompt: TextPrompt
) -> None:
    """The first answer is the one that loaded states give, in memory and from files."""
    wanted = prompt.request("full")
    (first,) = engine.ask([prompt.ids()], [wanted])
    engine.reset()
    (later,) = engine.ask([prompt.ids()], [wanted])
    texts, stop = sum(map(len, prompt.texts)), prompt.texts_stop()
    assert origins(first) == (0, texts, stop - texts)
    kept = texts + len(prompt.head)
    assert origins(later) == (kept, 0, stop - kept)
    for answer in (first, later):
        assert prompt.reused(reference, answer) < TOLERANCE
        assert prompt.full(reference, answer) > TOLD_APART


def test_texts_missing_at_first_are_encoded_behind_each_other(
    engine: ExactEngine, reference: Reference, prompt: TextPrompt
) -> None:
    """A later prompt takes these states; a text of which it has none of the others is alone."""
    first = engine.ask([prompt.ids()], [prompt.request("full", recipe="neighbours")])[0]
    texts, shuffled = prompt.texts, prompt.ordered(ORDER)
    question = (
        prompt.question * 2
    )  # in whose blocks there is room for a copy of the head's last one
    apart = replace(prompt, texts=texts[4:], gaps=prompt.gaps[:1], question=question)
    later = [
        engine.ask([one.ids()], [one.request("full", recipe="neighbours")])[0]
        for one in (shuffled, apart)
    ]
    assert [answer.reuse["encoded_tokens"] for answer in (first, *later)] == [
        sum(map(len, texts)),
        0,
        len(texts[4]),
    ]
    assert prompt.reused(reference, first, behind=texts) < TOLERANCE
    assert shuffled.reused(reference, later[0], behind=texts) < TOLERANCE
    assert apart.reused(reference, later[1]) < TOLERANCE
    assert shuffled.reused(reference, later[0]) > TOLD_APART


def test_a_new_text_is_encoded_behind_loaded_ones(
    engine: ExactEngine, reference: Reference, prompt: TextPrompt
) -> None:
    before = replace(prompt, texts=prompt.texts[:2], gaps=prompt.gaps[:2])
    engine.ask([before.ids()], [before.request("full", recipe="neighbours")])
    engine.reset()
    (answer,) = engine.ask([prompt.ids()], [prompt.request("full", recipe="neighbours")])
    assert answer.reuse["encoded_tokens"] == sum(map(len, prompt.texts[2:]))
    assert prompt.reused(reference, answer, behind=prompt.texts) < TOLERANCE


def origins(answer: EngineAnswer) -> tuple[int, int, int]:
    """Return the tokens of a prompt that were reused, encoded and computed."""
    reuse = answer.reuse
    return reuse["reused_tokens"], reuse["encoded_tokens"], reuse["computed_tokens"]


def test_last_text_is_computed_in_the_prompt(
    engine: ExactEngine, reference: Reference, prompt: TextPrompt
) -> None:
    """A request that does not name its last text has it computed behind the others."""
    wanted = prompt.request("full", texts=len(prompt.texts) - 1)
    (answer,) = engine.ask([prompt.ids()], [wanted])
    assert prompt.reused(reference, answer, texts=len(prompt.texts) - 1) < TOLERANCE
    assert prompt.full(reference, answer) > TOLD_APART


@pytest.mark.parametrize("asked", ["last", "question"])
@pytest.mark.parametrize("is_first", [True, False], ids=["encoded", "loaded"])
def test_chosen_rows_are_computed_again(
    engine: ExactEngine,
    reference: Reference,
    prompt: TextPrompt,
    chosen: list[list[int]],
    asked: str,
    is_first: bool,
) -> None:
    """The rows are those of the reference's own attention, and computed over the reused states."""
    shuffled = prompt.ordered(ORDER)
    if not is_first:
        engine.ask([prompt.ids()], [prompt.request("full")])
    wanted = shuffled.request("fused", ratio=0.15, asked=asked)
    (answer,) = engine.ask([shuffled.ids()], [wanted])
    (rows,) = chosen
    count = math.ceil(0.15 * sum(map(len, prompt.texts)))
    assert len(rows) == answer.reuse["recomputed_tokens"] == count
    assert sum(origins(answer)) + count == shuffled.texts_stop()
    assert rows == choice(reference, shuffled, count, asked)
    assert shuffled.reused(reference, answer, rows=rows) < TOLERANCE
    assert shuffled.reused(reference, answer) > TOLD_APART
    assert shuffled.full(reference, answer) > TOLD_APART


def choice(reference: Reference, prompt: TextPrompt, count: int, asked: str) -> Sequence[int]:
    """Return the places that a selector chooses by the reference's attention."""
    prompt.assemble(reference)
    ids, stop = prompt.ids(), prompt.texts_stop()
    reference.run(ids[stop:], range(stop, len(ids)))
    looks = reference.looks[scored_layer(len(reference.looks))]
    rows = looks[:, -1:] if asked == "last" else looks
    scores = rows.mean(0).sum(0).tolist()
    return QuestionGuided().choose(scores, prompt.places(), count)


def test_all_rows_are_full_attention(
    engine: ExactEngine, reference: Reference, prompt: TextPrompt
) -> None:
    """With every token computed again nothing of the reuse is left."""
    (answer,) = engine.ask([prompt.ids()], [prompt.request("fused", ratio=1.0)])
    assert answer.reuse["recomputed_tokens"] == sum(map(len, prompt.texts))
    assert prompt.full(reference, answer) < TOLERANCE


def test_eight_together_are_as_alone(
    engine: ExactEngine, reference: Reference, prompt: TextPrompt, chosen: list[list[int]]
) -> None:
    """Prompts whose rows share forwards get the states that each gets alone."""
    rng = random.Random(8)
    prompts = [prompt.ordered(rng.sample(range(5), 5)) for _ in range(8)]
    wanted: list[ReuseRequest | None] = [
        one.request("fused" if at % 2 else "full", question=str(at)) if at < 7 else None
        for at, one in enumerate(prompts)
    ]
    together = engine.ask([one.ids() for one in prompts], wanted)
    rows_together = list(chosen)
    chosen.clear()
    for one, request, answer in zip(prompts, wanted, together, strict=True):
        engine.reset()
        (alone,) = engine.ask([one.ids()], [request])
        assert alone.ids == answer.ids
        assert close(alone, answer)
        if request is None:
            assert one.full(reference, answer) < TOLERANCE
        elif request.reuse == "full":
            assert one.reused(reference, answer) < TOLERANCE
        else:
            assert one.reused(reference, answer, rows=chosen[-1]) < TOLERANCE
    assert rows_together == chosen


def close(one: EngineAnswer, other: EngineAnswer) -> bool:
    """Tell whether two answers have the same logprobs."""
    return all(
        abs(value - theirs.get(id, value)) < TOLERANCE
        for mine, theirs in zip(one.logprobs, other.logprobs, strict=True)
        for id, value in mine.items()
    )


def test_a_prompt_whose_rows_fail_is_computed_as_a_whole(
    engine: ExactEngine,
    reference: Reference,
    prompt: TextPrompt,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One in the same step is reused as ever."""
    bad = prompt.ordered(ORDER)
    fill: Callable[[Any], None] = engine.rows.fill

    def failing(wanted: Any) -> None:
        if any(load.ids == tuple(bad.ids()) for load, _ in wanted):
            raise RuntimeError("no memory")
        fill(wanted)

    monkeypatch.setattr(engine.rows, "fill", failing)
    prompts = [bad, prompt]
    failed, reused = engine.ask(
        [one.ids() for one in prompts], [one.request("full") for one in prompts]
    )
    assert bad.full(reference, failed) < TOLERANCE
    assert prompt.reused(reference, reused) < TOLERANCE


def test_exact_request_after_approximate_ones_is_exact(
    engine: ExactEngine, reference: Reference, prompt: TextPrompt
) -> None:
    """Approximate states are found neither in the server's blocks nor in files of exact ones."""
    ids = prompt.ids()
    files = engine.files()
    engine.ask([ids], [prompt.request("full")])
    engine.ask([ids], [prompt.request("fused")])
    engine.wait_for_files(files + 1 + len(prompt.texts))
    for wanted in (None, prompt.request("exact")):
        (answer,) = engine.ask([ids], [wanted])
        assert prompt.full(reference, answer) < TOLERANCE
    # The first text is the same behind the head, in either way.
    engine.wait_for_files(files + 2 * len(prompt.texts))
    engine.reset()
    (answer,) = engine.ask([ids], [prompt.request("exact")])
    assert answer.reuse["reused_tokens"] == prompt.texts_stop()
    assert prompt.full(reference, answer) < TOLERANCE


def test_answer_of_one_token_says_what_was_reused(engine: ExactEngine, prompt: TextPrompt) -> None:
    """It ends in the step that its texts are loaded for."""
    (first,) = engine.ask([prompt.ids()], [prompt.request("full")], tokens=1)
    assert first.reuse["encoded_tokens"] == sum(map(len, prompt.texts))

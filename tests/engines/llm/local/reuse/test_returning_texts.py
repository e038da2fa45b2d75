"""New texts are encoded where prompts to come will bring back what that costs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from chunk_prompts import A, B, C, answer, asked, tokens
from fake_runner import FakeRunner, finish, tokenizer

from rag_accel.engine_api import PrimitiveKind, PromptUse
from rag_accel.engines.llm.local.engine import LocalLLMEngine
from rag_accel.engines.llm.local.options import LocalOptions
from rag_accel.engines.llm.local.reuse.returns import TextReturns
from rag_accel.testing.clock import ManualClock

#: Seconds of a forward, and of each of its rows.
FORWARD_S, ROW_S = 0.03, 0.001


@pytest.fixture
def even_forwards() -> None:
    """Leave times to the clock of the tests."""


@pytest.fixture
def engine() -> LocalLLMEngine:
    """Return an engine whose forwards take as long as those of a small model."""
    clock, runner = ManualClock(), FakeRunner()
    run = runner.run

    def timed(rows: object) -> object:
        clock.advance(FORWARD_S + ROW_S * sum(map(len, rows)))  # type: ignore[arg-type]
        return run(rows)  # type: ignore[arg-type]

    runner.run = timed  # type: ignore[assignment]
    options = LocalOptions(kv_reuse="full", stall_s=1000.0)
    return LocalLLMEngine(runner, tokenizer(), options=options, clock=clock)


def use(engine: LocalLLMEngine, id: str, *texts: str) -> PromptUse:
    found = answer(engine, asked(id, *texts)).use
    assert found is not None
    return found


def one_off(number: int) -> str:
    return f"Page {number} says what {number + 1} pages have said."


def test_texts_that_never_come_back_are_soon_computed_with_their_prompt(
    engine: LocalLLMEngine,
) -> None:
    exact = [use(engine, str(at), one_off(at)).is_exact for at in range(40)]
    assert not exact[1]
    assert all(exact[20:])


def test_a_text_that_is_kept_is_reused_whatever_others_do(engine: LocalLLMEngine) -> None:
    use(engine, "first", A)
    for at in range(40):
        use(engine, str(at), one_off(at))
    assert use(engine, "last", A).from_chunks == tokens(A)


def test_a_text_that_comes_back_is_encoded_although_others_do_not(engine: LocalLLMEngine) -> None:
    for at in range(60):
        use(engine, str(at), one_off(at))
    reused = [use(engine, f"again {at}", A).from_chunks for at in range(10)]
    assert reused[0] == 0
    assert reused[-1] == tokens(A)


def test_a_prompt_that_is_only_computed_ahead_counts_no_text(engine: LocalLLMEngine) -> None:
    work = asked("one", A)
    engine.submit([replace(work, kind=PrimitiveKind.PREFILLING)])
    finish(engine, "one")
    assert not engine._reuse._returns._prompts  # type: ignore[attr-defined]


@pytest.mark.parametrize(("before", "expected"), [(0, 16.0), (1000, 0.0)])
def test_the_first_guess_gives_way_to_what_prompts_say(before: int, expected: float) -> None:
    returns = TextReturns()
    for number in range(before):
        returns.note([number.to_bytes(4, "big")])
    assert returns.expected([b"new"]) == pytest.approx(expected, abs=0.1)


def test_a_text_is_expected_as_often_as_it_came() -> None:
    returns = TextReturns()
    for number in range(1000):
        returns.note([number.to_bytes(4, "big"), *([b"often"] if number > 990 else [])])
    assert returns.expected([b"often"]) == 9
    assert returns.expected([b"often", b"new"]) == pytest.approx(4.5, abs=0.1)


def test_known_texts_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rag_accel.engines.llm.local.reuse.returns.MOST_TEXTS", 3)
    returns = TextReturns()
    for key in (b"a", b"b", b"c", b"d"):
        returns.note([key] * 3)
    assert list(returns._prompts) == [b"b", b"c", b"d"]


def test_a_short_prompt_is_computed_where_that_is_faster() -> None:
    clock = ManualClock()
    runner = FakeRunner()
    runner.before = lambda: clock.advance(1.0)  # whatever a forward has to compute
    chosen = LocalOptions(kv_reuse="fused", stall_s=1000.0)
    engine = LocalLLMEngine(runner, tokenizer(), options=chosen, clock=clock)
    answer(engine, asked("one", A, B, C))
    done = answer(engine, asked("two", C, B, A))
    assert done.use is not None
    assert (done.use.from_chunks, done.use.recomputed) == (0, 0)
    assert done.use.is_exact

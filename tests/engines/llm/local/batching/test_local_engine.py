"""The engine on a model that is a hash of all tokens: a wrong lane or slot changes the text."""

from __future__ import annotations

import copy
import random
from dataclasses import replace
from typing import Any

import pytest
from fake_runner import (
    TEMPLATE,
    FakeRunner,
    error,
    finish,
    prompt_ids,
    tokenizer,
    value,
    work,
)

from rag_accel.engine_api import (
    Engine,
    EngineRequest,
    GenerationInput,
    Handle,
    Message,
    PrimitiveKind,
    PromptUse,
    StepBudget,
    TextBatch,
    WorkId,
)
from rag_accel.engines.llm.local.batching.forward_cost import ALONE
from rag_accel.engines.llm.local.batching.schedule import LEAST_CHUNK
from rag_accel.engines.llm.local.engine import LocalLLMEngine
from rag_accel.engines.llm.local.options import LocalOptions
from rag_accel.errors import ClosedError, ConfigError, EngineError, EngineOutputError
from rag_accel.kv.selection import QuestionGuided
from rag_accel.testing import EngineContract, ManualClock

HEAD = "A lane holds keys and values of one sequence of tokens, said the guide."
PARTIAL, FULL = PrimitiveKind.PARTIAL_PREFILLING, PrimitiveKind.FULL_PREFILLING


def make(runner: FakeRunner | None = None, **options: Any) -> LocalLLMEngine:
    """Return an engine; ``options`` are those of LocalOptions, or else of the engine."""
    names = LocalOptions.__dataclass_fields__
    bounds = {name: value for name, value in options.items() if name in names}
    rest = {name: value for name, value in options.items() if name not in names}
    rest.setdefault("eos", ())
    bounds.setdefault("stall_s", 1000.0)
    return LocalLLMEngine(
        runner or FakeRunner(), tokenizer(), options=LocalOptions(**bounds), **rest
    )


@pytest.fixture
def runner() -> FakeRunner:
    return FakeRunner()


@pytest.fixture
def engine(runner: FakeRunner) -> LocalLLMEngine:
    return make(runner)


def text_of(runner: FakeRunner, *texts: str, count: int = 8) -> str:
    """Return what a plain loop over the whole sequence writes."""
    return tokenizer().decode(runner.greedy(prompt_ids(*texts), count), skip_special_tokens=True)


class TestLocalEngineContract(EngineContract):
    def make_engine(self) -> Engine:
        return make()

    def make_request(self, number: int) -> EngineRequest:
        return work(f"w{number}")

    def make_bad_request(self) -> EngineRequest:
        return replace(work("bad"), payload=TextBatch(("a text",)))

    def make_waiting_request(self) -> EngineRequest:
        return work("long", max_tokens=2000)


class TestLocalEngineContractOfPrefilling(EngineContract):
    def make_engine(self) -> Engine:
        return make(step_tokens=5)

    def make_request(self, number: int) -> EngineRequest:
        return work(f"w{number}", kind=FULL)


def test_the_text_is_that_of_a_plain_loop(engine: LocalLLMEngine, runner: FakeRunner) -> None:
    engine.submit([work("a", HEAD)])
    assert value(finish(engine, "a"), "a").text == text_of(runner, HEAD)


def test_what_is_done_to_the_tokenizer_later_changes_nothing(runner: FakeRunner) -> None:
    mine = copy.deepcopy(tokenizer())
    engine = LocalLLMEngine(runner, mine, eos=())
    mine.chat_template = "{{ messages }}"
    mine.add_tokens(["guide"])
    engine.submit([work("a", HEAD)])
    assert value(finish(engine, "a"), "a").text == text_of(runner, HEAD)


def test_usage_counts_tokens_by_where_they_came_from(engine: LocalLLMEngine) -> None:
    engine.submit([work("a", HEAD)])
    first = value(finish(engine, "a"), "a")
    engine.submit([work("b", HEAD + " And then?")])
    second = value(finish(engine, "b"), "b")
    size = len(prompt_ids(HEAD))
    assert (first.prompt_tokens, first.completion_tokens) == (size, 8)
    assert first.use == PromptUse(computed=size)
    assert second.use.from_prefix > 10
    assert second.use.computed + second.use.from_prefix == second.prompt_tokens


def test_prompts_that_begin_alike_and_come_together_share_their_beginning(
    engine: LocalLLMEngine, runner: FakeRunner
) -> None:
    texts = [f"{HEAD} {HEAD} {at}" for at in range(4)]
    engine.submit([work(str(at), text) for at, text in enumerate(texts)])
    outputs = finish(engine, *"0123")
    uses = [value(outputs, id).use for id in "0123"]
    assert uses[0].from_prefix == 0
    assert all(use.from_prefix > use.computed for use in uses[1:])
    for at, text in enumerate(texts):
        assert value(outputs, str(at)).text == text_of(runner, text)


def test_an_answer_is_part_of_the_next_turns_beginning() -> None:
    # Plain letters: random bytes would read as other tokens the second time.
    letter = tokenizer()("x", add_special_tokens=False)["input_ids"][0]
    runner = FakeRunner(peak=lambda history: letter)
    engine = make(runner)
    engine.submit([work("a", HEAD, max_tokens=5)])
    answer = value(finish(engine, "a"), "a")
    payload = replace(
        work("b").payload,
        messages=(Message("user", HEAD), Message("assistant", answer.text), Message("user", "?")),
    )
    engine.submit([replace(work("b"), payload=payload)])
    use = value(finish(engine, "b"), "b").use
    assert use.from_prefix >= answer.prompt_tokens + 4  # the last token was not computed


def test_tenants_share_no_beginnings(engine: LocalLLMEngine, runner: FakeRunner) -> None:
    engine.submit([work("a", HEAD, namespace="one"), work("b", HEAD, namespace="two")])
    outputs = finish(engine, "a", "b")
    engine.submit([work("c", HEAD, namespace="three")])
    outputs += finish(engine, "c")
    assert [value(outputs, id).use.from_prefix for id in "abc"] == [0, 0, 0]
    assert runner.pool.copied == 0


def test_streamed_pieces_come_token_by_token_and_make_up_the_text(
    engine: LocalLLMEngine, runner: FakeRunner
) -> None:
    engine.submit([work("a", HEAD, stream=True, max_tokens=60)])
    outputs = finish(engine, "a")
    pieces = [one for one in outputs if one.kind == "partial"]
    assert "".join(one.value for one in pieces) == text_of(runner, HEAD, count=60)
    assert len(pieces) > 10
    assert all(one.value for one in pieces)


@pytest.mark.parametrize("stream", [False, True])
def test_stop_strings_end_the_text(stream: bool, runner: FakeRunner) -> None:
    ids = tokenizer()("the end. STOP more", add_special_tokens=False)["input_ids"]
    size = len(prompt_ids(HEAD))
    runner = FakeRunner(peak=lambda history: ids[len(history) - size])
    engine = make(runner)
    engine.submit([work("a", HEAD, stop=("STOP",), stream=stream, max_tokens=len(ids))])
    outputs = finish(engine, "a")
    assert value(outputs, "a").text == "the end. "
    assert value(outputs, "a").finish_reason == "stop"
    pieces = "".join(one.value for one in outputs if one.kind == "partial")
    assert pieces == ("the end. " if stream else "")


def test_seeded_texts_are_the_same_alone_and_together() -> None:
    work_items = [
        work(str(at), f"{HEAD[at:]} {at}?", max_tokens=4, options={"temperature": 1.5, "seed": at})
        for at in range(100)
    ]
    alone, together = make(), make(step_tokens=64)
    together.submit(work_items)
    outputs = finish(together, *map(str, range(100)))
    for one in work_items:
        alone.submit([one])
        expected = value(finish(alone, str(one.id)), str(one.id)).text
        assert value(outputs, str(one.id)).text == expected


def test_logprobs_name_each_token(engine: LocalLLMEngine) -> None:
    engine.submit([work("a", HEAD, options={"logprobs": True}), work("b", HEAD)])
    outputs = finish(engine, "a", "b")
    assert len(value(outputs, "a").logprobs) == 8
    assert all(one.logprob < 0 for one in value(outputs, "a").logprobs)
    assert value(outputs, "b").logprobs == ()


def test_max_tokens_beyond_the_context_end_there() -> None:
    engine = make(FakeRunner(context=len(prompt_ids("hi")) + 3))
    engine.submit([work("a", "hi", max_tokens=100)])
    found = value(finish(engine, "a"), "a")
    assert (found.completion_tokens, found.finish_reason) == (3, "length")


def test_without_max_tokens_the_default_counts() -> None:
    engine = make(max_tokens_default=4)
    engine.submit([work("a", max_tokens=None)])
    assert value(finish(engine, "a"), "a").completion_tokens == 4


BAD = {
    "options": ({"options": {"beams": 4}}, ConfigError, "beams"),
    "max_tokens": ({"max_tokens": 0}, ConfigError, "max_tokens"),
    "handle": ({"handle": Handle("unknown")}, EngineError, "unknown handle"),
    "kind": ({"kind": PrimitiveKind.EMBEDDING}, EngineError, "kind not executed"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_work_ends_alone(engine: LocalLLMEngine, runner: FakeRunner, case: str) -> None:
    fields, kind, words = BAD[case]
    engine.submit([work("a", HEAD), work("bad", **fields), work("b", "hi")])
    outputs = finish(engine, "a", "bad", "b")
    assert isinstance(error(outputs, "bad"), kind)
    assert words in str(error(outputs, "bad"))
    assert value(outputs, "b").text == text_of(runner, "hi")


@pytest.mark.parametrize(
    ("runner", "words"),
    [(FakeRunner(context=60), "context"), (FakeRunner(pool_size=60), "pool")],
    ids=["context", "pool"],
)
@pytest.mark.parametrize("kind", [PrimitiveKind.DECODING, FULL])
def test_a_prompt_without_room_ends_alone(
    runner: FakeRunner, words: str, kind: PrimitiveKind
) -> None:
    engine = make(runner)
    engine.submit([work("long", HEAD * 5, kind=kind), work("a", "hi")])
    outputs = finish(engine, "long", "a")
    assert words in str(error(outputs, "long"))
    assert value(outputs, "a").text == text_of(runner, "hi")


def test_logits_that_are_not_numbers_end_their_work_alone() -> None:
    poison = tokenizer()("%", add_special_tokens=False)["input_ids"][0]
    runner = FakeRunner(poison=poison)
    engine = make(runner)
    base = engine.held_bytes
    engine.submit([work("a", "hi"), work("bad", "100 %")])
    outputs = finish(engine, "a", "bad")
    assert isinstance(error(outputs, "bad"), EngineOutputError)
    assert value(outputs, "a").text == text_of(runner, "hi")
    engine.close()
    assert engine.held_bytes == base


def test_an_id_in_use_is_refused(engine: LocalLLMEngine) -> None:
    engine.submit([work("a")])
    engine.submit([work("a")])
    (output,) = engine.step(StepBudget())
    assert "used again" in str(output.error)


def prefill(engine: LocalLLMEngine, id: str, *texts: str, **options: Any) -> Handle:
    engine.submit([work(id, *texts, **{"kind": FULL, **options})])
    (output,) = finish(engine, id)
    assert output.kind == "final"
    assert output.value is None or output.value.computed + output.value.from_prefix > 0
    assert output.handle is not None
    return output.handle


@pytest.mark.parametrize("kind", [PrimitiveKind.PREFILLING, PARTIAL, FULL])
def test_a_handle_saves_what_was_computed(
    engine: LocalLLMEngine, runner: FakeRunner, kind: PrimitiveKind
) -> None:
    handle = prefill(engine, "p", HEAD, kind=kind)
    runner.forwards.clear()
    engine.submit([work("a", HEAD, "And?", handle=handle, max_tokens=1)])
    found = value(finish(engine, "a"), "a")
    assert found.text == text_of(runner, HEAD, "And?", count=1)
    assert runner.computed <= found.prompt_tokens - 0.8 * len(prompt_ids(HEAD)) + 6
    assert found.use == PromptUse(computed=found.prompt_tokens)  # all for this prompt


def test_a_beginning_may_end_within_a_word(engine: LocalLLMEngine, runner: FakeRunner) -> None:
    handle = prefill(engine, "p", HEAD[:30], kind=PARTIAL)
    second = prefill(engine, "q", HEAD, kind=FULL, handle=handle)
    runner.forwards.clear()
    engine.submit([work("a", HEAD, handle=second, max_tokens=1)])
    found = value(finish(engine, "a"), "a")
    assert found.text == text_of(runner, HEAD, count=1)
    assert runner.computed == 1
    assert found.use == PromptUse(computed=found.prompt_tokens)


def test_a_handle_may_be_resumed_again(engine: LocalLLMEngine, runner: FakeRunner) -> None:
    handle = prefill(engine, "p", HEAD)
    for id, text in (("a", "one"), ("b", "two")):
        engine.submit([work(id, HEAD, text, handle=handle)])
        found = value(finish(engine, id), id)
        assert found.text == text_of(runner, HEAD, text)
        # The first is what it was computed for.
        assert (found.use.from_prefix > 0) == (id == "b")


def test_a_handle_whose_state_gave_way_is_computed_again() -> None:
    size = len(prompt_ids(HEAD))
    runner = FakeRunner(pool_size=size + 20)
    engine = make(runner)
    handle = prefill(engine, "p", HEAD)
    engine.submit([work("a", HEAD.upper()[:30])])
    finish(engine, "a")
    engine.submit([work("b", HEAD, handle=handle)])
    assert value(finish(engine, "b"), "b").text == text_of(runner, HEAD)
    engine.release([handle])


def test_a_handle_of_another_tenant_is_unknown(engine: LocalLLMEngine) -> None:
    handle = prefill(engine, "p", HEAD, namespace="one")
    engine.submit([work("a", HEAD, handle=handle, namespace="two")])
    assert "unknown handle" in str(error(finish(engine, "a"), "a"))


def test_a_released_handle_is_unknown_and_holds_nothing() -> None:
    engine = make(prefix_lanes=0)
    handle = prefill(engine, "p", HEAD)
    assert engine.held_bytes > 0
    engine.release([handle, handle])
    assert engine.held_bytes == 0
    engine.submit([work("a", HEAD, handle=handle)])
    assert "unknown handle" in str(error(finish(engine, "a"), "a"))


def test_a_beginning_the_template_refuses_is_a_handle_on_nothing(runner: FakeRunner) -> None:
    strict = (
        "{% if messages[-1].content != 'end' %}{{ raise_exception('no') }}{% endif %}" + TEMPLATE
    )
    engine = make(runner, template=strict)
    handle = prefill(engine, "p", HEAD, kind=PARTIAL)
    engine.submit([work("a", HEAD, "end", handle=handle)])
    assert value(finish(engine, "a"), "a").text == text_of(runner, HEAD, "end")


def test_two_thousand_cancelled_works_hold_nothing() -> None:
    engine = make(FakeRunner(pool_size=500), step_tokens=64, prefix_lanes=0)
    rng = random.Random(0)
    base = engine.held_bytes
    for round in range(100):
        ids = [f"{round}-{at}" for at in range(20)]
        engine.submit(
            [
                work(id, HEAD[: rng.randint(1, 60)], stream=True, kind=rng.choice([FULL, PARTIAL]))
                if at % 5 == 0
                else work(id, HEAD[: rng.randint(1, 60)], stream=True, max_tokens=40)
                for at, id in enumerate(ids)
            ]
        )
        outputs = engine.step(StepBudget())
        engine.cancel([WorkId(id) for id in ids])
        engine.release([one.handle for one in outputs if one.handle is not None])
        assert engine.held_bytes == base
    assert not engine.step(StepBudget())


def test_a_cancelled_beginning_is_not_reported(runner: FakeRunner) -> None:
    engine = make(runner, template="{{ raise_exception('no') }}")
    engine.submit([work("p", HEAD, kind=PARTIAL)])
    engine.cancel([WorkId("p")])
    assert not engine.step(StepBudget())


def test_an_interrupt_is_obeyed_between_pieces_of_a_prompt(runner: FakeRunner) -> None:
    engine = make(runner, step_tokens=16)
    engine.submit([work("a", HEAD * 10)])
    runner.before = lambda: engine.interrupt() if len(runner.forwards) == 2 else None
    assert [output.kind for output in engine.step(StepBudget())] == ["progress"]
    assert len(runner.forwards) == 3


def test_an_interrupt_just_before_a_step_is_not_lost(runner: FakeRunner) -> None:
    engine = make(runner, step_tokens=16)
    engine.submit([work("a", HEAD * 10)])
    engine.interrupt()
    assert [output.kind for output in engine.step(StepBudget())] == ["progress"]
    assert len(runner.forwards) == 1
    assert value(engine.step(StepBudget()), "a").text == text_of(runner, HEAD * 10)


def test_no_forward_begins_once_the_time_is_over(runner: FakeRunner) -> None:
    clock = ManualClock()
    engine = make(runner, step_tokens=16, clock=clock)
    engine.submit([work("a", HEAD * 10)])
    runner.before = lambda: clock.advance(0.1)
    assert [output.kind for output in engine.step(StepBudget(0.25))] == ["progress"]
    assert len(runner.forwards) == 3


@pytest.mark.parametrize(
    ("stall_s", "rows"), [(2.0, 256), (3.0, 384), (7.0, 896), (1000.0, 2048), (0.004, LEAST_CHUNK)]
)
def test_pieces_of_prompts_take_about_the_time_that_a_forward_may(
    runner: FakeRunner, stall_s: float, rows: int
) -> None:
    _at_128_rows_a_second(runner, stall_s / ALONE, StepBudget())
    assert [len(forward[0]) for forward in runner.forwards] == [512, rows]


def test_a_prompt_that_others_wait_for_has_no_more_rows_however_fast(runner: FakeRunner) -> None:
    _at_128_rows_a_second(runner, 1000.0, StepBudget(), others="b")
    assert [len(forward[0]) for forward in runner.forwards] == [512, 512]


def test_pieces_of_prompts_are_not_cut_for_steps_that_are_shorter(runner: FakeRunner) -> None:
    _at_128_rows_a_second(runner, 2.0 / ALONE, StepBudget(0.02))
    assert [len(forward[0]) for forward in runner.forwards] == [512, 256]


def _at_128_rows_a_second(
    runner: FakeRunner, stall_s: float, budget: StepBudget, others: str = ""
) -> None:
    """Run a forward that the engine learns from, then one under ``budget``."""
    clock = ManualClock()
    engine = make(runner, stall_s=stall_s, clock=clock)
    engine.submit([work("a", HEAD * 90), *(work(id, HEAD) for id in others)])
    engine.interrupt()
    runner.before = lambda: clock.advance(4.0)
    engine.step(StepBudget())
    engine.interrupt()
    engine.step(budget)


def test_a_forward_that_fails_can_be_done_again(engine: LocalLLMEngine, runner: FakeRunner) -> None:
    def fail() -> None:
        runner.before = lambda: None
        raise MemoryError("no room on the device")

    engine.submit([work("a", HEAD, stream=True), work("b", "hi")])
    engine.step(StepBudget())
    runner.before = fail
    with pytest.raises(MemoryError):
        engine.step(StepBudget())
    outputs = finish(engine, "a", "b")
    assert value(outputs, "a").text == text_of(runner, HEAD)
    assert value(outputs, "b").text == text_of(runner, "hi")


@pytest.mark.parametrize("seed", range(8))
def test_whatever_comes_and_goes_when_each_text_is_that_of_a_plain_loop(seed: int) -> None:
    rng = random.Random(seed)
    runner = FakeRunner(pool_size=rng.choice([150, 400, 2000]))
    engine = make(runner, step_tokens=rng.choice([1, 8, 64]), prefix_lanes=rng.choice([0, 1, 5]))
    texts, handles = {}, []
    for number in range(60):
        id, text = f"w{number}", HEAD[: rng.randint(0, 60)] + rng.choice("abc")
        kind = rng.choice([FULL, PARTIAL, *[PrimitiveKind.DECODING] * 4])
        handle = rng.choice([None, *handles[-3:]])
        texts[id] = text
        engine.submit([work(id, text, kind=kind, handle=handle, stream=rng.random() < 0.5)])
        for _ in range(rng.randint(0, 4)):
            if rng.random() < 0.3:
                engine.interrupt()
            for output in engine.step(StepBudget()):
                if output.handle is not None:
                    handles.append(output.handle)
                elif output.kind == "final":
                    assert output.value.text == text_of(runner, texts[output.id])
                else:
                    assert output.kind in ("partial", "progress")
        if rng.random() < 0.2:
            engine.cancel([WorkId(rng.choice(list(texts)))])
        if handles and rng.random() < 0.3:
            engine.release([handles.pop(0)])
    engine.close()
    assert engine.held_bytes == 0


def test_a_closed_engine_holds_nothing_and_takes_nothing(engine: LocalLLMEngine) -> None:
    prefill(engine, "p", HEAD)
    engine.submit([work("a", stream=True), work("b")])
    engine.step(StepBudget())
    engine.close()
    assert engine.held_bytes == 0
    with pytest.raises(ClosedError):
        engine.submit([work("c")])


@pytest.mark.parametrize(
    "options",
    [
        {"step_tokens": 0},
        {"stall_s": 0.0},
        {"prefix_lanes": -1},
        {"max_threads": 0},
        {"max_requests": 0},
        {"selector": QuestionGuided("none")},  # type: ignore[arg-type]
        {"selector": None},
    ],
)
def test_bounds_out_of_range_are_refused_by_name(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        LocalOptions(**options)


@pytest.mark.parametrize("value", ["3", True, float("nan"), 2.5])
def test_bounds_that_are_no_numbers_are_refused_by_name(value: Any) -> None:
    with pytest.raises(ConfigError, match="max_requests"):
        LocalOptions(max_requests=value)
    if value != 2.5:
        with pytest.raises(ConfigError, match="stall_s"):
            LocalOptions(stall_s=value)


@pytest.mark.parametrize(("named", "expected"), [(None, 0), (3, 3)])
def test_a_model_off_the_cpu_takes_no_threads_unless_some_are_named(
    runner: FakeRunner, monkeypatch: pytest.MonkeyPatch, named: int | None, expected: int
) -> None:
    monkeypatch.setattr(runner.pool, "on_cpu", False)
    engine = LocalLLMEngine(runner, tokenizer(), options=LocalOptions(max_threads=named))
    assert engine.profile.max_threads == expected
    engine.close()


@pytest.mark.parametrize(
    ("on_cpu", "named", "rows"), [(True, None, 512), (False, None, 2048), (False, 700, 700)]
)
def test_the_first_forward_of_a_long_prompt_is_as_large_as_where_it_runs_allows(
    monkeypatch: pytest.MonkeyPatch, on_cpu: bool, named: int | None, rows: int
) -> None:
    runner = FakeRunner(pool_size=1 << 16, context=1 << 16)
    monkeypatch.setattr(runner.pool, "on_cpu", on_cpu)
    engine = LocalLLMEngine(runner, tokenizer(), options=LocalOptions(step_tokens=named))
    prompt = GenerationInput((Message("user", "word " * 2600),), max_tokens=1)
    engine.submit([EngineRequest(WorkId("a"), "a", PrimitiveKind.DECODING, prompt)])
    engine.step(StepBudget(time_s=0.0))
    assert sum(map(len, runner.forwards[0])) == rows
    engine.close()

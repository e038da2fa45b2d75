"""Whatever becomes of a list that is searched while it is written, no request is lost."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from accel_harness import DECODER, PATIENCE_S, Gate, become_idle
from list_harness import OFF, ON, Awaited, Listed, echo, echoing, engines, fan_out

from rag_accel import (
    EngineError,
    EngineOutputError,
    RequestCancelledError,
)
from rag_accel.engine_api import EngineOutput, GenerationOutput, PrimitiveKind, StepBudget
from rag_accel.graph.item_lists import ItemReader
from rag_accel.testing import FAKE_PROFILE, FakeEngine, Faults


@pytest.mark.parametrize("passes", [OFF, ON])
def test_what_holds_no_list_is_an_error_that_says_so(passes: str) -> None:
    with engines(echoing(), passes) as acc:
        with pytest.raises(EngineOutputError, match=r"holds no list.*I cannot.*JSON array"):
            acc.run(fan_out(form="json"), input="I cannot.")
        assert acc.run(fan_out(form="json"), input='["a"]')[0] == ("a",)


class Broken(ItemReader):
    """Fail once the text says so."""

    def feed(self, text: str) -> tuple[str, ...]:
        if "!" in text:
            raise RuntimeError("a reader of the user's")
        return super().feed(text)


class ListedBroken(Listed):
    """Be a list whose reader fails where the function does not."""

    def reader(self) -> ItemReader:
        return Broken()


def test_a_reader_that_fails_leaves_the_rest_to_the_function() -> None:
    graph = fan_out(3, read=ListedBroken)
    with engines(echoing(steps=9)) as acc:
        found = acc.run(graph, input="one\ntwo!\nthree")
    with engines(echoing(), OFF) as acc:
        assert found == acc.run(graph, input="one\ntwo!\nthree")


@pytest.mark.parametrize("passes", [OFF, ON])
def test_a_missing_item_fails_as_the_function_that_takes_it(passes: str) -> None:
    with engines(echoing(), passes) as acc, pytest.raises(IndexError):
        acc.run(fan_out(3, spare=False), input="one\ntwo")


def test_a_search_that_fails_ends_the_decoding_too() -> None:
    error = LookupError("no index")
    index = FakeEngine(faults=Faults(lambda request: error))
    llm = echoing(steps=10_000)
    with engines(llm, index=index) as acc:
        with pytest.raises(LookupError) as caught:
            acc.run(fan_out(), input="one\n" + "word " * 5000)
        assert caught.value is error
        become_idle(acc)
        assert not llm._held  # pyright: ignore[reportPrivateUsage]


def gated(gate: Gate) -> FakeEngine:
    """Return an LLM that has written half of its text when it comes to the gate."""
    steps = 0

    def last_steps_wait(payload: Any) -> Any:
        nonlocal steps
        steps += 1
        return echo(gate(payload) if steps == 3 else payload)

    return echoing(compute=lambda payload: last_steps_wait(payload))


def test_a_request_cancelled_amid_its_list_leaves_nothing() -> None:
    search = Awaited()
    with Gate() as gate, engines(gated(gate), index=FakeEngine(compute=search)) as acc:
        handle = acc.submit(fan_out(), input="one\ntwo and more")
        gate.wait_until_entered()
        search.wait()
        handle.cancel()
        with pytest.raises(RequestCancelledError):
            handle.result(PATIENCE_S)
        gate.open()
        become_idle(acc)
        assert acc.run(fan_out(), input="a\nb")[0] == ("a", "b")


class Fickle(FakeEngine):
    """End each text otherwise than its pieces have said."""

    def step(self, budget: StepBudget) -> Any:
        return [self._changed(output) for output in super().step(budget)]

    def _changed(self, output: EngineOutput) -> EngineOutput:
        if output.kind != "final" or not isinstance(output.value, GenerationOutput):
            return output
        return replace(output, value=GenerationOutput(output.value.text.replace("one", "other")))


@pytest.mark.parametrize("text", ["one\ntwo", "\none"])
def test_a_text_that_ends_otherwise_than_it_began_is_an_error(text: str) -> None:
    llm = Fickle(DECODER, steps=4, compute=echo)
    with engines(llm) as acc, pytest.raises(EngineOutputError, match="than its pieces") as caught:
        acc.run(fan_out(), input=text + "\n" + "more " * 20)
    assert "'other' after 'one'" in str(caught.value)
    assert "pipeline_decoding" in str(caught.value)
    with engines(Fickle(DECODER, steps=4, compute=echo), OFF) as acc:
        assert acc.run(fan_out(), input="one\ntwo")[0] == ("other", "two")


def test_an_engine_that_gives_no_pieces_is_waited_for() -> None:
    profile = replace(FAKE_PROFILE, kinds=DECODER.kinds, capabilities=frozenset())
    whole = FakeEngine(profile, steps=3, compute=echo)
    with engines(whole) as acc:
        assert acc.run(fan_out(), input="one\ntwo")[0] == ("one", "two")
    assert not any(request.stream for batch in whole.served for request in batch)


@pytest.mark.parametrize("prefills", [True, False])
def test_every_request_ends_whatever_becomes_of_the_others(prefills: bool) -> None:
    def fault(request: Any) -> Any:
        for word, kind in {"item": PrimitiveKind.EMBEDDING, "text": PrimitiveKind.DECODING}.items():
            if request.kind is kind and f"bad {word}" in str(request.payload):
                return LookupError(word)
        return None

    profile = FAKE_PROFILE if prefills else DECODER
    llm = FakeEngine(profile, steps=5, compute=echo, faults=Faults(fault))
    words = ["good", "bad item", "good", "bad text"]
    outcomes: list[Any] = []
    with engines(llm, embedder=FakeEngine(faults=Faults(fault))) as acc:
        texts = [f"{words[n % 4]} {n}\nsecond\nthird" for n in range(40)]
        handles = [acc.submit(fan_out(3), input=text) for text in texts]
        for handle in handles[::5]:
            handle.cancel()
        for handle in handles:
            try:
                outcomes.append(handle.result(PATIENCE_S))
            except Exception as error:
                outcomes.append(error)
    for n, (text, outcome) in enumerate(zip(texts, outcomes, strict=True)):
        if n % 5 == 0:
            continue  # some of these had ended before
        if words[n % 4] == "good":
            assert outcome[0] == tuple(text.splitlines())
        else:
            assert str(outcome) == words[n % 4].removeprefix("bad ")


@pytest.mark.parametrize("passes", [OFF, ON])
def test_a_step_that_a_neighbour_breaks_is_retried_amid_a_list(passes: str) -> None:
    def fault(request: Any) -> Any:
        return "raise" if "bad" in str(request.payload) else None

    gate = Gate()

    def waits(payload: Any) -> Any:
        gate(payload)
        return echo(payload)

    with gate, engines(echoing(compute=waits, faults=Faults(fault)), passes) as acc:
        good = acc.submit(fan_out(), input="one\ntwo and more of it")
        gate.wait_until_entered()
        bad = acc.submit(fan_out(), input="bad")
        gate.open()
        assert good.result(PATIENCE_S)[0] == ("one", "two and more of it")
        with pytest.raises(EngineError, match="scripted fault"):
            bad.result(PATIENCE_S)

"""A generation on an engine that prefills reads its prompt once, and leaves no handle behind."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from accel_harness import Gate, chain, generation_graph, opened, reply

from rag_accel import DeadlineError
from rag_accel.engine_api import EngineOutput, Handle, PrimitiveKind, StepBudget
from rag_accel.testing import FAKE_PROFILE, FakeEngine, Faults


class Prefilling(FakeEngine):
    """End each prefill with a handle, as the engines of ours do, and check how it is used."""

    def __init__(self, **parts: Any) -> None:
        super().__init__(FAKE_PROFILE, **parts)
        self.prefilled: dict[Handle, Any] = {}
        self.released: list[Handle] = []
        self.resumed: list[Any] = []

    def submit(self, work: Any) -> None:
        for request in work:
            if request.handle is not None:
                self.resumed.append((self.prefilled[request.handle], request.payload))
        super().submit([replace(request, handle=None) for request in work])

    def step(self, budget: StepBudget) -> Any:
        held = {request.id: request for request in (p.request for p in self._held.values())}
        return [self._with_handle(held, output) for output in super().step(budget)]

    def _with_handle(self, held: Any, output: EngineOutput) -> EngineOutput:
        request = held.get(output.id)
        if output.kind != "final" or request.kind is not PrimitiveKind.PREFILLING:
            return output
        handle = Handle(f"prefill {output.id}")
        self.prefilled[handle] = request.payload
        return EngineOutput(output.id, "final", handle=handle)

    def release(self, handles: Any) -> None:
        super().release(handles)
        self.released += handles
        for handle in handles:
            self.prefilled.pop(handle, None)


def two_generations() -> Any:
    return chain(
        lambda g, name: g.add_generation(name, prompt="first {input}", system="Be brief."),
        lambda g, name: g.add_generation(name, prompt="then {s0}", stop=["\n"], max_tokens=9),
    )


def test_decoding_resumes_what_was_prefilled_for_it() -> None:
    engine = Prefilling()
    with opened(llm=engine) as acc:
        assert acc.run(two_generations(), input="x") == reply("then " + reply("first x"))
    assert len(engine.resumed) == 2
    for prefilled, decoded in engine.resumed:
        assert prefilled.messages == decoded.messages
    assert engine.resumed[1][1].stop == ("\n",)
    assert engine.resumed[1][1].max_tokens == 9


def test_a_prompt_is_rendered_once() -> None:
    shown: list[int] = []

    class Counting:
        def __str__(self) -> str:
            shown.append(1)
            return "x"

    with opened(llm=Prefilling()) as acc:
        assert acc.run(generation_graph(), input=Counting()) == reply("x")
    assert len(shown) == 1


def test_a_handle_is_released_once_its_decoding_is_done() -> None:
    gate = Gate(is_open=True)
    engine = Prefilling()
    graph = chain(
        lambda g, name: g.add_generation(name, prompt="{input}"),
        lambda g, name: g.add_function(name, lambda text: gate() or text, inputs="s0"),
    )
    with opened(llm=engine) as acc:
        acc.run(graph, input="x")
    assert len(engine.released) == 1
    assert not engine.prefilled


@pytest.mark.parametrize("steps", [1, 3])
def test_no_handle_stays_whatever_becomes_of_the_requests(steps: int) -> None:
    def faults(request: Any) -> Any:
        if request.kind is PrimitiveKind.DECODING and "bad" in request.payload.messages[-1].content:
            return LookupError("bad")
        return None

    engine = Prefilling(steps=steps, faults=Faults(faults))
    with opened(llm=engine) as acc:
        handles = [
            acc.submit(two_generations(), input=f"{'bad' if n % 3 else 'good'} {n}")
            for n in range(30)
        ]
        for handle in handles[::4]:
            handle.cancel()
        for handle in handles:
            try:
                handle.result(20)
            except Exception:
                continue
    assert not engine.prefilled
    assert not engine.live_handles


def test_a_handle_that_comes_after_the_deadline_is_released() -> None:
    engine = Prefilling(compute=(gate := Gate()))
    with gate, opened(llm=engine) as acc:
        with pytest.raises(DeadlineError):
            acc.run(generation_graph(), deadline_s=0.05, input="x")
        gate.open()
    assert len(engine.released) == 1
    assert not engine.prefilled


def test_a_handle_of_a_final_text_is_released_and_the_text_counts() -> None:
    released: list[Any] = []

    class Odd(FakeEngine):
        def step(self, budget: StepBudget) -> Any:
            outputs = super().step(budget)
            return [replace(output, handle=Handle(f"h {output.id}")) for output in outputs]

        def release(self, handles: Any) -> None:
            released.extend(handles)

    profile = replace(FAKE_PROFILE, kinds=frozenset({PrimitiveKind.DECODING}))
    with opened(llm=Odd(profile)) as acc:
        assert acc.run(two_generations(), input="x") == reply("then " + reply("first x"))
    assert len(released) == 2


def test_an_engine_that_prefills_without_a_handle_still_works() -> None:
    with opened(llm=FakeEngine()) as acc:
        assert acc.run(two_generations(), input="x") == reply("then " + reply("first x"))

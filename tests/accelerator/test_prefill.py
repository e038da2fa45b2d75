"""A generation on an engine that prefills reads its prompt once, and leaves no handle behind."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from accel_harness import Gate, chain, generation_graph, opened, reply

from rag_accel import END, START, DeadlineError, RAGraph
from rag_accel.engine_api import KINDS, EngineOutput, Handle, PrimitiveKind, StepBudget
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
        if output.kind != "final" or not KINDS[request.kind].prefills:
            return output
        handle = Handle(f"prefill {output.id}")
        self.prefilled[handle] = request.payload
        return EngineOutput(output.id, "final", handle=handle)

    def release(self, handles: Any) -> None:
        super().release(handles)
        self.released += handles
        for handle in handles:
            self.prefilled.pop(handle, None)


#: Leaves each prefilling a work of its own.
APART = "prune_dependencies,split_prefill"


def two_generations() -> Any:
    return chain(
        lambda g, name: g.add_generation(name, prompt="first {input}", system="Be brief."),
        lambda g, name: g.add_generation(name, prompt="then {s0}", stop=["\n"], max_tokens=9),
    )


def test_decoding_resumes_what_was_prefilled_for_it() -> None:
    engine = Prefilling()
    with opened(llm=engine, passes=APART) as acc:
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

    with opened(llm=Prefilling(), passes=APART) as acc:
        assert acc.run(generation_graph(), input=Counting()) == reply("x")
    assert len(shown) == 1


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


# Prompts whose beginning is prefilled early -------------------------------------------------------

RULES = "Answer briefly, and only from the passages. " * 8


def refining() -> RAGraph:
    """Return a graph of two generations, of which the second refines the answer of the first."""
    graph = RAGraph().add_retrieval("search", output="docs")
    graph.add_generation("first", prompt="{input}\n{docs}", system=RULES)
    graph.add_generation("refine", prompt=RULES + "{input} {docs} {first}")
    graph.add_edge(START, "search").add_edge("search", "first").add_edge("first", "refine")
    return graph.add_edge("refine", END)


def with_llm(llm: Any, **options: Any) -> Any:
    parts = {"embedder": FakeEngine(), "index": FakeEngine(), "shutdown_s": 20.0}
    return opened(llm=llm, **parts | options)


def kinds_of(engine: Prefilling) -> dict[str, Any]:
    return {str(one.id).partition("/")[2]: one for step in engine.served for one in step}


def test_a_full_prefilling_resumes_the_beginning_of_its_prompt() -> None:
    engine = Prefilling()
    with with_llm(engine, passes="none") as acc:
        expected = acc.run(refining(), input="why?")
    engine = Prefilling()
    with with_llm(engine, passes=APART) as acc:
        assert acc.run(refining(), input="why?") == expected
    work = kinds_of(engine)
    assert [str(one.kind) for name, one in work.items() if name.startswith("refine")] == [
        "PARTIAL_PREFILLING",
        "FULL_PREFILLING",
        "DECODING",
    ]
    early, rest = engine.resumed[-2]
    assert [message.role for message in early.messages] == ["user"]
    assert rest.messages[-1].content.startswith(early.messages[-1].content)
    assert rest.messages == engine.resumed[-1][1].messages
    assert len(engine.released) == 4
    assert not engine.prefilled


def test_a_joined_generation_resumes_the_beginning_of_its_prompt() -> None:
    engine = Prefilling()
    with with_llm(engine) as acc:
        acc.run(refining(), input="why?")
    work = kinds_of(engine)
    assert [str(one.kind) for name, one in work.items() if name.startswith("refine")] == [
        "PARTIAL_PREFILLING",
        "DECODING",
    ]
    early, whole = engine.resumed[-1]
    assert whole.messages[-1].content.startswith(early.messages[-1].content)
    assert len(engine.released) == len(engine.resumed)
    assert not engine.prefilled


def test_what_a_function_changes_in_place_is_prefilled_as_it_is_in_the_end() -> None:
    # It waits for the function, as everything does that came after it.
    engine = Prefilling()
    graph = RAGraph(inputs=["input", "notes"]).add_retrieval("search", output="docs")
    graph.add_function("change", lambda notes: notes.append("later"), inputs="notes")
    graph.add_generation("answer", prompt=RULES + "{notes} {docs}")
    graph.add_edge(START, "change").add_edge("change", "search").add_edge("search", "answer")
    graph.add_edge("answer", END)
    with with_llm(engine) as acc:
        assert "early\nlater" in acc.run(graph, input="why?", notes=["early"])
    assert "early\nlater" in engine.resumed[0][0].messages[-1].content


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize(
    ("failing", "passes"),
    [
        *((kind, APART) for kind in ("PARTIAL_PREFILLING", "FULL_PREFILLING", "DECODING")),
        *((kind, "all") for kind in ("PARTIAL_PREFILLING", "DECODING")),
    ],
)
def test_no_handle_of_a_beginning_stays_whatever_becomes_of_the_requests(
    steps: int, failing: str, passes: str
) -> None:
    def faults(request: Any) -> Any:
        if request.kind == failing and "bad" in request.payload.messages[-1].content:
            return LookupError("bad")
        return None

    engine = Prefilling(steps=steps, faults=Faults(faults))
    with with_llm(engine, passes=passes) as acc:
        handles = [
            acc.submit(refining(), input=f"{'bad' if n % 3 else 'good'} {n}") for n in range(20)
        ]
        for handle in handles[::4]:
            handle.cancel()
        ends = [_end(handle) for handle in handles]
    assert {"LookupError", "str"} <= set(ends)
    assert not engine.prefilled
    assert not engine.live_handles


def _end(handle: Any) -> str:
    try:
        return type(handle.result(20)).__name__
    except Exception as error:
        return type(error).__name__


def test_a_beginning_that_comes_after_the_deadline_is_released() -> None:
    engine = Prefilling(compute=(gate := Gate()))
    with gate, with_llm(engine) as acc:
        with pytest.raises(DeadlineError):
            acc.run(refining(), deadline_s=0.05, input="x")
        gate.open()
    assert len(engine.released) >= 1
    assert not engine.prefilled


def test_functions_do_not_see_prefilled_beginnings() -> None:
    graph = (
        refining().add_function("seen", lambda values: sorted(values)).add_edge("refine", "seen")
    )
    with with_llm(Prefilling()) as acc:
        seen = acc.run(graph.add_edge("seen", END), outputs=["seen"], input="x")["seen"]
    assert seen == ["docs", "first", "input", "refine"]

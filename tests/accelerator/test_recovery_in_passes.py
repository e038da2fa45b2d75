"""What the passes cut up is tried again piece by piece, and nothing that went on is repeated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from accel_harness import opened
from list_harness import ON, echoing, engines, fan_out

from rag_accel import END, START, Constant, RAGraph, Retry
from rag_accel.engine_api import (
    KINDS,
    Capability,
    Document,
    EngineOutput,
    EngineRequest,
    Handle,
    StepBudget,
)
from rag_accel.errors import EngineError
from rag_accel.testing import FAKE_PROFILE, FakeEngine, Faults

AT_ONCE = Retry(2, backoff_s=0.0)
LOST = ConnectionResetError("the peer went away")


def finders() -> dict[str, Any]:
    return {"embedder": FakeEngine(), "index": FakeEngine()}


class Renewed(FakeEngine):
    """An engine that is renewed once, after it has prefilled: no handle of before is known then."""

    def __init__(self, error: Exception) -> None:
        super().__init__(FAKE_PROFILE)
        self._error = error
        self._renewals = 1
        self.known: set[Handle] = set()
        self.taken: list[EngineRequest] = []

    def submit(self, work: Sequence[EngineRequest]) -> None:
        self.taken += work
        if self._renewals and any(request.handle is not None for request in work):
            self._renewals = 0
            self.known.clear()
            raise self._error
        for request in work:
            assert request.handle is None or request.handle in self.known
        super().submit([replace(request, handle=None) for request in work])

    def step(self, budget: StepBudget) -> Sequence[EngineOutput]:
        held = {progress.request.id: progress.request for progress in self._held.values()}
        return [self._with_handle(held, output) for output in super().step(budget)]

    def _with_handle(self, held: dict[Any, EngineRequest], output: EngineOutput) -> EngineOutput:
        if output.kind != "final" or not KINDS[held[output.id].kind].prefills:
            return output
        handle = Handle(f"prefill {output.id}")
        self.known.add(handle)
        return EngineOutput(output.id, "final", handle=handle)


@pytest.mark.parametrize("error", [LOST, EngineError("an unknown handle")], ids=["lost", "renewed"])
@pytest.mark.parametrize("passes", ["prune_dependencies,split_prefill", "all"])
def test_a_decoding_whose_handle_died_reads_its_whole_prompt(error: Exception, passes: str) -> None:
    instructions = "Be brief and say what you know of it. " * 20
    graph = RAGraph().add_retrieval("docs", retry=AT_ONCE)
    graph.add_generation("answer", instructions + "{input}: {docs}", retry=AT_ONCE)
    graph.add_edge(START, "docs").add_edge("docs", "answer").add_edge("answer", END)
    with opened(llm=FakeEngine(), **finders(), passes=passes) as accelerator:
        undisturbed = accelerator.run(graph, input="why")
    llm = Renewed(error)
    with opened(llm=llm, **finders(), passes=passes) as accelerator:
        assert accelerator.run(graph, input="why") == undisturbed
    resumed = [request for request in llm.taken if request.handle is not None]
    assert resumed, "nothing was resumed, so nothing was tried"
    again = [request for request in llm.taken if request.id == resumed[0].id]
    assert [request.handle is None for request in again] == [False, True]


class Late(FakeEngine):
    """An engine that takes no work of some names the first time."""

    def __init__(self, *names: str, **parts: Any) -> None:
        super().__init__(**parts)
        self._refused = set(names)
        self.taken: list[str] = []

    def submit(self, work: Sequence[EngineRequest]) -> None:
        names = [request.id.partition("/")[2] for request in work]
        self.taken += names
        if self._refused.intersection(names):
            self._refused.difference_update(names)
            raise LOST
        super().submit(work)


def documents(count: int) -> list[Document]:
    return [Document(f"d{number}", "x" * (number * 7 % 11)) for number in range(count)]


def test_a_slice_that_failed_is_tried_again_alone() -> None:
    profile = replace(
        FAKE_PROFILE, max_batch=1, capabilities=frozenset({Capability.ITEMWISE}), max_threads=1
    )
    graph = RAGraph().add_function("found", lambda query: documents(4), inputs="input")
    graph.add_retrieval("some", top_k=4)
    graph.add_function("both", lambda found, some: found, inputs=["found", "some"])
    graph.add_rerank("best", documents="both", top_n=3, retry=AT_ONCE)
    graph.add_edge(START, ["found", "some"]).add_edge(["found", "some"], "both")
    graph.add_edge("both", "best").add_edge("best", END)
    with opened(reranker=FakeEngine(profile), **finders(), passes="all") as accelerator:
        undisturbed = accelerator.run(graph, input="why")
    reranker = Late("best.reranking.2", profile=profile)
    with opened(reranker=reranker, **finders(), passes="all") as accelerator:
        handle = accelerator.submit(graph, input="why")
        assert handle.result(20.0) == undisturbed
        assert handle.retries == {"best": 1}
    counts = {name: reranker.taken.count(name) for name in set(reranker.taken)}
    assert counts == {f"best.reranking.{n}": 1 + (n == 2) for n in range(1, 5)}


def test_a_list_whose_writing_fails_before_its_first_item_is_written_again() -> None:
    graph = fan_out().with_retry(AT_ONCE)
    with engines(echoing()) as accelerator:
        undisturbed = accelerator.run(graph, input="one\ntwo")
    good = echoing()
    llm = Late("expand.decoding", profile=good.profile, steps=4, compute=good._compute)  # pyright: ignore[reportPrivateUsage]
    with engines(llm, ON) as accelerator:
        assert accelerator.run(graph, input="one\ntwo") == undisturbed
    assert llm.taken == ["expand.decoding"] * 2


def test_an_item_that_was_forwarded_is_never_forwarded_again() -> None:
    graph = fan_out().with_retry(AT_ONCE)
    llm = echoing(faults=Faults(lambda request: LOST if "bad" in str(request.payload) else None))
    with engines(llm, ON) as accelerator:
        with pytest.raises(ConnectionResetError):
            accelerator.run(graph, input="one\ntwo\nbad")
        assert len({work[0].id for work in llm.served}) == 1
        begun = [call for call in llm.calls if call.method == "submit" and call.ids]
        assert len(begun) == 1


def test_a_list_may_be_replaced_by_a_constant_text() -> None:
    base = fan_out().freeze()
    expand = replace(base.by_name["expand"], fallback=Constant("one\ntwo"))  # type: ignore[type-var]
    frozen = base.edit(replace=[expand])
    with engines(echoing()) as accelerator:
        undisturbed = accelerator.run(base, input="one\ntwo")
    good = echoing(faults=Faults(submit_error=LOST))
    with engines(good, ON) as accelerator:
        assert accelerator.run(frozen, input="whatever") == undisturbed

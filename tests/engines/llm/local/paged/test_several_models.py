"""Models on paged attention share a process: with each other, with tenants and accelerators."""

from __future__ import annotations

import copy
import gc
import threading
from collections.abc import Sequence
from typing import Any
from weakref import WeakSet

import pytest
import tiny_chat
import torch
from fake_runner import tokenizer, work
from numpy.typing import NDArray
from tiny_models import paged_runner_for

from rag_accel import END, START, Accelerator, RAGraph
from rag_accel.engine_api import GenerationOutput, StepBudget, WorkId
from rag_accel.engines import LocalLLM
from rag_accel.engines.llm.local.engine import LocalLLMEngine
from rag_accel.engines.llm.local.options import LocalOptions
from rag_accel.engines.llm.local.paged.block_pool import BlockPool
from rag_accel.engines.llm.local.paged.making import GraphForms
from rag_accel.engines.llm.local.paged.runner import PagedForm

pytest.importorskip("openvino")

THREADS = 2
PATIENCE_S = 60.0
QUESTIONS = ["How high is it?", "What is a lane?", "Who said so, and of which document?"]


def graph_of(engine: str = "llm") -> RAGraph:
    graph = RAGraph()
    graph.add_generation("answer", "{input}", max_tokens=tiny_chat.TOKENS, engine=engine)
    graph.add_edge(START, "answer").add_edge("answer", END)
    return graph


def other_model() -> Any:
    """Return a model of the same configuration, and so of the same trace, with other weights."""
    model = copy.deepcopy(tiny_chat.model())
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.copy_(weight.flip(0))
    return model


def paged(model: Any) -> LocalLLM:
    return LocalLLM(model, tokenizer(), runner="paged", pool_bytes=1 << 24, max_threads=THREADS)


def generated(model: Any) -> list[str]:
    """Return what a model's own ``generate`` makes of the questions."""
    return [tiny_chat.generated_by(model, question) for question in QUESTIONS]


class Forwards:
    """The forwards of all models: what each was granted, and the threads of its form."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.threads: list[tuple[int, int]] = []
        self._forms: list[GraphForms] = []
        run, find = PagedForm.run, GraphForms.find

        def noted(form: PagedForm, inputs: dict[str, NDArray[Any]]) -> Any:
            compiled = form._request.get_compiled_model()
            has = compiled.get_property("INFERENCE_NUM_THREADS")
            self.threads.append((torch.get_num_threads(), has))
            return run(form, inputs)

        def found(forms: GraphForms, threads: int) -> PagedForm:
            if forms not in self._forms:
                self._forms.append(forms)
            return find(forms, threads)

        monkeypatch.setattr(PagedForm, "run", noted)
        monkeypatch.setattr(GraphForms, "find", found)

    def are_granted(self) -> bool:
        """Tell whether no form had more threads than were granted."""
        return all(threads <= granted for granted, threads in self.threads)

    def wait(self) -> None:
        """Wait for all forms that are being compiled, and forget the forwards until then."""
        for forms in self._forms:
            forms.wait(PATIENCE_S)
        self.threads.clear()


@pytest.fixture
def forwards(monkeypatch: pytest.MonkeyPatch) -> Forwards:
    """Note the forwards of a test."""
    return Forwards(monkeypatch)


def answers(accelerators: Sequence[Accelerator], graphs: Sequence[RAGraph]) -> list[list[str]]:
    """Return the answers of each graph to all questions, asked of all at the same time."""
    running = [
        [accelerator.submit(graph, input=question) for question in QUESTIONS]
        for accelerator, graph in zip(accelerators, graphs, strict=True)
    ]
    return [[request.result() for request in requests] for requests in running]


def test_two_models_answer_as_each_alone_on_the_threads_they_are_granted(
    forwards: Forwards,
) -> None:
    models = [tiny_chat.model(), other_model()]
    expected = [generated(model) for model in models]
    assert expected[0] != expected[1]
    first, second = map(paged, models)
    with Accelerator(llm=first, engines={"writer": second}, threads=THREADS) as accelerator:
        graphs = [graph_of(), graph_of("writer")]
        # Until a form for one thread is there, that for all is run; and each model needs its own,
        # which is compiled once steps of both have come together.
        for _ in range(20):
            forwards.wait()
            assert answers([accelerator] * 2, graphs) == expected
            if (1, 1) in forwards.threads and forwards.are_granted():
                break
        said = [accelerator.explain(graph) for graph in graphs]
    assert (1, 1) in forwards.threads
    assert forwards.are_granted()
    for name, text in zip(("llm", "writer"), said, strict=True):
        (_, told) = text.split(f"  {name}: owned")
        assert "runs on OpenVINO's paged attention: as asked for" in told
        assert "compiled for 2 threads and 1 thread, with a copy of the weights each" in told


def test_accelerators_that_share_a_model_answer_as_each_alone(forwards: Forwards) -> None:
    expected = generated(tiny_chat.model())
    shared = paged(tiny_chat.model())
    with (
        Accelerator(llm=shared, threads=THREADS) as one,
        Accelerator(llm=shared, threads=THREADS) as other,
    ):
        assert answers([one, other], [graph_of()] * 2) == [expected] * 2
        one.close()
        assert answers([other], [graph_of()]) == [expected]


def join(threads: set[threading.Thread]) -> None:
    """Wait for threads, which hold what they step until they end."""
    for thread in threads:
        thread.join(PATIENCE_S)


def test_what_a_closed_accelerator_held_goes_while_another_one_runs_the_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pools: WeakSet[BlockPool] = WeakSet()
    make = BlockPool.__init__

    def noted(pool: BlockPool, **sizes: Any) -> None:
        make(pool, **sizes)
        pools.add(pool)

    monkeypatch.setattr(BlockPool, "__init__", noted)
    shared = paged(tiny_chat.model())
    with Accelerator(llm=shared, threads=THREADS) as accelerator:
        kept = set(threading.enumerate())
        for _ in range(2):
            with Accelerator(llm=shared, threads=THREADS) as other:
                assert len(pools) == 2
                ending = set(threading.enumerate()) - kept
                del other
            join(ending)
            del ending
            for _ in range(3):  # what is finalised goes with the collection behind
                gc.collect()
            assert len(pools) == 1
        assert answers([accelerator], [graph_of()]) == [generated(tiny_chat.model())]


LONG = " ".join(QUESTIONS * 8)
#: a step of one forward
ONE = StepBudget(threads=THREADS, time_s=0.0)


def engine_of(**options: Any) -> LocalLLMEngine:
    runner = paged_runner_for(tiny_chat.model())
    return LocalLLMEngine(runner, tokenizer(), options=LocalOptions(**options))


def outputs(engine: LocalLLMEngine, count: int) -> dict[str, GenerationOutput]:
    """Return the outputs of so many works by their ids, once all have ended."""
    ended: dict[str, GenerationOutput] = {}
    for _ in range(1000):
        for output in engine.step(ONE):
            assert output.error is None
            if output.kind == "final":
                assert isinstance(output.value, GenerationOutput)
                ended[output.id] = output.value
        if len(ended) == count:
            return ended
    raise AssertionError(f"only {ended} ended")


def test_tenants_with_the_same_prompt_have_blocks_of_their_own() -> None:
    engine = engine_of()
    expected = tiny_chat.generated_by(tiny_chat.model(), LONG)
    from_prefix: list[int] = []
    for at, tenant in enumerate(("one", "other", "other")):
        engine.submit([work(str(at), LONG, namespace=tenant, max_tokens=tiny_chat.TOKENS)])
        found = outputs(engine, 1)[str(at)]
        assert found.text == expected
        assert found.use is not None
        from_prefix.append(found.use.from_prefix)
    assert from_prefix[:2] == [0, 0]
    assert from_prefix[2] > 0
    engine.close()
    assert engine.held_bytes == 0


def test_a_request_cancelled_in_its_prompt_frees_its_blocks_and_changes_no_neighbour() -> None:
    engine = engine_of(step_tokens=16, prefix_lanes=0)
    neighbours = {f"neighbour {at}": question for at, question in enumerate(QUESTIONS)}
    engine.submit([work("gone", LONG)])
    engine.step(ONE)
    held = engine.held_bytes
    assert held > 0
    engine.submit([work(id, text, max_tokens=tiny_chat.TOKENS) for id, text in neighbours.items()])
    engine.step(ONE)
    before = engine.held_bytes
    engine.cancel([WorkId("gone")])
    assert engine.held_bytes == before - held
    engine.submit([work("next", LONG, max_tokens=tiny_chat.TOKENS)])  # in the blocks that it had
    found = outputs(engine, len(neighbours) + 1)
    for id, text in {**neighbours, "next": LONG}.items():
        assert found[id].text == tiny_chat.generated_by(tiny_chat.model(), text)
    assert engine.held_bytes == 0
    engine.close()

"""A plan of a LlamaIndex program gives the program's results and the events of its parts."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from li_graph_programs import AskedGraph, GraphParts, filled, retriever
from li_programs import QUERY_ENGINES, EchoLLM, Parts, run_in_loop
from llama_index.core import Settings
from llama_index.core.base.response.schema import Response
from llama_index.core.callbacks import CallbackManager
from llama_index.core.callbacks.base import global_stack_trace_ids
from llama_index.core.callbacks.base_handler import BaseCallbackHandler
from llama_index.core.indices.query.query_transform import HyDEQueryTransform
from llama_index.core.instrumentation.event_handlers import BaseEventHandler
from llama_index.core.llms.callbacks import llm_completion_callback
from llama_index.core.postprocessor import LongContextReorder, SimilarityPostprocessor
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.query_engine import RetrieverQueryEngine, TransformQueryEngine
from llama_index.core.retrievers import BaseRetriever, QueryFusionRetriever
from llama_index.core.schema import IndexNode, NodeWithScore, QueryBundle, TextNode
from llama_index_instrumentation import get_dispatcher

from llama_index_rag_accel import accelerate, coverage, explain
from rag_accel import Accelerator, ConfigError, TranslationError, plan_of
from rag_accel.accelerator import current_request
from rag_accel.interception.patches import patches

QUESTION = "When was the bridge opened?"
WAYS = ("run", "arun")

#: what user code did, in order
DONE: list[tuple[Any, ...]] = []
#: the requests in which it did it
ASKED: list[Any] = []


class Halving(BaseNodePostprocessor):
    """Halve the scores in place, and note the query with its vector, which retrieval leaves."""

    name: str = "halving"
    error: Any = None

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        assert query_bundle is not None
        DONE.append((self.name, query_bundle.query_str, query_bundle.embedding))
        ASKED.append(current_request.get())
        if self.error is not None:
            raise self.error
        for node in nodes:
            node.score = (node.score or 0.0) / 2
        return nodes


class Listed(BaseRetriever):
    """Find two nodes, one of them a reference to another retriever if there is one."""

    def __init__(self, name: str, inner: Any = None, error: Exception | None = None) -> None:
        super().__init__()
        self.name, self.inner, self.error = name, inner, error

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        DONE.append((self.name, query_bundle.query_str))
        if self.error is not None:
            raise self.error
        nodes: list[Any] = [TextNode(text=f"{self.name} of {query_bundle.query_str}", id_="n0")]
        if self.inner is not None:
            nodes.append(IndexNode(text="more", index_id="more", id_="n1", obj=self.inner))
        return [NodeWithScore(node=node, score=1.0 - 0.1 * at) for at, node in enumerate(nodes)]


class Named(RetrieverQueryEngine):
    """Leave the order alone."""


def engine_over(retriever: Any, parts: Parts, *postprocessors: Any) -> RetrieverQueryEngine:
    return RetrieverQueryEngine.from_args(
        retriever, llm=parts.llm, node_postprocessors=list(postprocessors)
    )


def searches(parts: Parts) -> Any:
    return parts.index().as_retriever(similarity_top_k=2)


def fusion(mode: str, *retrievers: Any, **options: Any) -> Any:
    given: dict[str, Any] = {"num_queries": 1, "use_async": False, "mode": mode, **options}
    return QueryFusionRetriever(list(retrievers), llm=EchoLLM(), **given)


STORE = filled(AskedGraph())


def of_graph(parts: Parts, *names: str, **options: Any) -> Any:
    given = GraphParts(STORE, embedding=parts.embedding)
    return retriever(given, *names, **{"use_async": False, **options})


HYDE = HyDEQueryTransform(llm=EchoLLM())
NOTHING = SimilarityPostprocessor(similarity_cutoff=2.0)
B = Listed("b")


def halved(parts: Parts) -> Any:
    halving = (Halving(), Halving(name="again"))
    return engine_over(searches(parts), parts, halving[0], LongContextReorder(), halving[1])


def nested_transforms(parts: Parts) -> Any:
    inner = TransformQueryEngine(parts.engine(), HyDEQueryTransform(llm=parts.llm))
    return TransformQueryEngine(inner, HyDEQueryTransform(llm=parts.llm, include_original=False))


def nested_retrievers(parts: Parts) -> Any:
    inner = fusion("simple", Listed("a"), Listed("b", inner=Listed("of b")))
    return engine_over(fusion("simple", inner, searches(parts), Listed("c")), parts, Halving())


#: programs whose parts run one after the other
IN_ORDER: dict[str, Callable[[Parts], Any]] = {
    **{name: QUERY_ENGINES[name] for name in ("compact", "refine", "tree summarize")},
    **{name: QUERY_ENGINES[name] for name in ("accumulate", "postprocessed", "hyde")},
    "no text found": lambda parts: parts.engine(node_postprocessors=[NOTHING]),
    "user's postprocessors": halved,
    "nested transforms": nested_transforms,
    "a subclass": lambda parts: Named.from_args(searches(parts), llm=parts.llm),
    "a retriever": searches,
    "a recursive retriever": lambda parts: Listed("outer", inner=searches(parts)),
    "fusion that writes queries": QUERY_ENGINES["fusion"],
}
#: programs with retrievers that are taken apart
TAKEN_APART: dict[str, Callable[[Parts], Any]] = {
    "simple fusion": lambda parts: engine_over(fusion("simple", searches(parts), B), parts),
    "reciprocal fusion": lambda parts: fusion("reciprocal_rerank", searches(parts), B),
    "nested retrievers": nested_retrievers,
    "property graph": lambda parts: engine_over(of_graph(parts, "synonyms", "texts"), parts),
    "property graph alone": lambda parts: of_graph(parts, "context", "custom"),
}
#: retrievers that run others side by side on a loop: one stage
TOGETHER: dict[str, Callable[[Parts], Any]] = {
    "fusion on a loop": lambda parts: fusion("simple", Listed("a"), Listed("b"), use_async=True),
    "graph on a loop": lambda parts: of_graph(parts, "synonyms", "context", use_async=True),
}


class Failing(EchoLLM):
    """A model that is not there."""

    @llm_completion_callback()
    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> Any:
        raise ConnectionError("no model")


def failing(place: str, parts: Parts) -> Any:
    error = ValueError("broken")
    bad = Listed("a", error=error if place == "retriever" else None)
    halving = Halving(error=error if place == "postprocessor" else None)
    parts = Parts(llm=Failing()) if place == "model" else parts
    return engine_over(fusion("simple", bad, Listed("b")), parts, halving)


FAILING = {
    f"failing {place}": partial(failing, place) for place in ("retriever", "postprocessor", "model")
}
PROGRAMS = {**IN_ORDER, **TAKEN_APART, **TOGETHER, **FAILING}


class Told(BaseCallbackHandler):
    """Write down every event with its payload."""

    def __init__(self) -> None:
        super().__init__([], [])
        self.log: list[tuple[Any, ...]] = []

    def on_event_start(
        self, event_type: Any, payload: Any = None, *args: Any, **kwargs: Any
    ) -> str:
        self.log.append(("start", event_type.value, plain(payload)))
        return ""

    def on_event_end(self, event_type: Any, payload: Any = None, *args: Any, **kwargs: Any) -> None:
        self.log.append(("end", event_type.value, plain(payload)))

    def start_trace(self, trace_id: str | None = None) -> None:
        self.log.append(("trace", "start", trace_id))

    def end_trace(self, trace_id: str | None = None, trace_map: Any = None) -> None:
        self.log.append(("trace", "end", trace_id))


class Dispatched(BaseEventHandler):
    """Write down every event of the instrumentation with what it holds."""

    log: list[tuple[Any, ...]] = []

    @classmethod
    def class_name(cls) -> str:
        return "Dispatched"

    def handle(self, event: Any, **kwargs: Any) -> None:
        held = event.model_dump(exclude={"id_", "timestamp", "span_id", "tags"})
        fields = {name: plain(getattr(event, name)) for name in held}
        self.log.append((type(event).__name__, repr(fields)))


def plain(value: Any) -> str:
    """Return what a value shows, without the ids that are made for each call."""
    if isinstance(value, NodeWithScore):
        return repr((type(value.node).__name__, value.node.get_content(), value.score))
    if isinstance(value, QueryBundle):  # its vector is there once it was searched for
        return repr((value.query_str, value.embedding_strs))
    if isinstance(value, Response):
        ids = {node.node_id for node in value.source_nodes}
        return repr((value.response, plain(value.source_nodes), set(value.metadata or ()) == ids))
    if isinstance(value, dict):
        return repr({str(key): plain(one) for key, one in value.items()})
    if isinstance(value, list | tuple):
        return repr([plain(one) for one in value])
    return repr(value)


@pytest.fixture(autouse=True)
def own_manager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restore what objects use that are given nothing: it gets the manager of a test."""
    for name in ("_callback_manager", "_node_parser", "_transformations"):
        monkeypatch.setattr(Settings, name, None)
    global_stack_trace_ids.set([])  # a test before may have left a trace open


def made(name: str) -> Any:
    """Return a program all of whose parts have one manager of callbacks."""
    Settings.callback_manager = manager = CallbackManager([Told()])
    program = PROGRAMS[name](Parts())
    _set_manager(program, manager, set())
    return program


def _set_manager(part: Any, manager: CallbackManager, seen: set[int]) -> None:
    seen.add(id(part))
    if hasattr(part, "callback_manager") or isinstance(part, BaseRetriever):
        part.callback_manager = manager
    for held in getattr(part, "__dict__", {}).values():
        for one in held if isinstance(held, list) else [held]:
            is_part = type(one).__module__.startswith(("llama_index.", "li_", __name__))
            is_part = is_part and not isinstance(one, CallbackManager | TextNode)
            if is_part and id(one) not in seen:
                _set_manager(one, manager, seen)


def ask(program: Any, way: str, given: Any = QUESTION) -> Any:
    """Call a program as the way of its plan does."""
    method = "retrieve" if isinstance(program, BaseRetriever) else "query"
    if way == "run":
        return getattr(program, method)(given)
    return run_in_loop(getattr(program, f"a{method}")(given))


def run(accelerator: Accelerator, plan: Any, way: str, given: Any = QUESTION) -> Any:
    found = getattr(accelerator, way)(plan, input=given)
    return found if way == "run" else run_in_loop(found)


Logs = list[list[tuple[Any, ...]]]
ENGINE_EVENTS = {"SpanDropEvent", "QueryStartEvent", "QueryEndEvent", "query", "trace", "exception"}


def recorded(program: Any, call: Callable[..., Any], *args: Any) -> tuple[tuple[Any, ...], Logs]:
    """Return what a call came to, and callbacks and events of parts and what user code did."""
    events, root = Dispatched(log=[]), get_dispatcher("root")
    (told,) = program.callback_manager.handlers
    root.add_event_handler(events)
    for log in (told.log, DONE):
        log.clear()
    try:
        result = call(*args)
        outcome: tuple[Any, ...] = type(result), plain(result)
    except Exception as error:
        outcome = type(error), str(error)
    finally:
        root.event_handlers.remove(events)
    logs = (told.log, events.log, DONE)
    return outcome, [[one for one in log if ENGINE_EVENTS.isdisjoint(one[:2])] for log in logs]


@pytest.mark.cross_product(keep=23)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_outcomes_and_events_of_parts_are_those_of_the_program(
    name: str, way: str, accelerator: Accelerator
) -> None:
    program = made(name)
    # A retriever of others is given the query that these share.
    is_shared = name in TAKEN_APART and isinstance(program, BaseRetriever)
    given = [QueryBundle(QUESTION) if is_shared else QUESTION for _ in WAYS]
    expected, plainly = recorded(program, ask, program, way, given[0])
    other = made(name)
    with coverage() as meter:
        found, planned = recorded(other, run, accelerator, plan_of(other), way, given[1])
    assert found == expected
    assert meter.passed_by == 0, str(meter)
    assert planned[1], "no event was heard"
    for before, after in zip(plainly, planned, strict=True):
        counts = Counter(map(repr, after)), Counter(map(repr, before))
        # After an error nothing fuses nodes; on a loop LlamaIndex asks all retrievers at once.
        assert counts[0] <= counts[1] if name == "failing retriever" else counts[0] == counts[1]
        in_order = name in IN_ORDER or (after is planned[-1] and name in TAKEN_APART)
        if name in IN_ORDER or (in_order and way == "run"):
            assert after == before
    if name in FAILING:
        assert expected[0] is (ConnectionError if name == "failing model" else ValueError)
        assert planned[2] == plainly[2][: len(planned[2])]
        assert len(planned[2]) == 1 or name != "failing retriever"


def test_an_explanation_ends_with_the_stages_or_the_part_that_has_none(
    accelerator: Accelerator,
) -> None:
    said = accelerator.explain(plan_of(made("user's postprocessors"))).splitlines()
    head, _, stages = explain(
        accelerate(made("user's postprocessors"), accelerator=accelerator)
    ).partition("  plan: plan_of(program) is a graph of these stages\n")
    assert head
    assert stages.splitlines() == [f"  {line}" for line in said[2:-2]]
    fast = accelerate(Parts().engine(streaming=True), accelerator=accelerator)
    assert explain(fast).endswith("\n  plan: none (at program.synthesizer: streaming=True)")
    assert "plan:" not in explain(accelerate(EchoLLM(), accelerator=accelerator))


def test_calls_are_intercepted_as_one_requests_while_the_plan_lives(
    accelerator: Accelerator,
) -> None:
    plan = plan_of(engine_over(searches(Parts()), Parts(), Halving(), Halving(name="again")))
    assert patches.patched()
    ASKED.clear()
    accelerator.run(plan, input=QUESTION)
    assert len({id(identity) for identity in ASKED}) == 1
    assert len(ASKED) == 2
    assert ASKED[0].accelerator is accelerator
    assert current_request.get() is None
    del plan
    gc.collect()
    assert not patches.patched()


def test_a_trace_surrounds_each_stage_of_an_engine(accelerator: Accelerator) -> None:
    program, depth = made("compact"), 0
    log = program.callback_manager.handlers[0].log
    log.clear()  # of the index that was made
    accelerator.run(plan_of(program), input=QUESTION)
    for kind, event, _ in log:
        depth += {"start": 1, "end": -1}.get(event, 0) if kind == "trace" else 0
        assert depth == 1 or kind == "trace"


@pytest.mark.parametrize("given", [None, 5, ["text"]])
def test_an_input_that_is_no_query_is_named(given: Any, accelerator: Accelerator) -> None:
    with pytest.raises(ConfigError, match="no query") as raised:
        accelerator.run(plan_of(made("compact")), input=given)
    assert type(given).__name__ in str(raised.value.found)
    assert "QueryBundle" in str(raised.value.valid)


# Whatever is not declared ------------------------------------------------------------------------


class OwnOrder(RetrieverQueryEngine):
    """Run its parts in an order of its own."""

    def retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return super().retrieve(query_bundle)[::-1]


def own_order(parts: Parts) -> Any:
    return OwnOrder.from_args(searches(parts), llm=parts.llm)


def holding(**held: Any) -> Callable[[Parts], Any]:
    def make(parts: Parts) -> Any:
        engine = parts.engine()
        vars(engine).update(held)
        return engine

    return make


@pytest.mark.parametrize(
    ("make", "where", "named"),
    [
        (QUERY_ENGINES["router"], "program", "RouterQueryEngine"),
        (QUERY_ENGINES["sub-question"], "program", "SubQuestionQueryEngine"),
        (own_order, "program", "OwnOrder"),
        (holding(retrieve=len), "program", "RetrieverQueryEngine"),
        (lambda parts: accelerate(parts.engine()), "program", "RetrieverQueryEngine"),
        (lambda parts: parts.engine(streaming=True), "program.synthesizer", "streaming=True"),
        (holding(_retriever=len), "program.retriever", "builtin_function"),
        (holding(_node_postprocessors=[Halving(), 1]), "program.postprocessors.1", "int"),
        (holding(_response_synthesizer=None), "program.synthesizer", "NoneType"),
        (lambda parts: TransformQueryEngine(own_order(parts), HYDE), "program.engine", "OwnOrder"),
        (holding(_retriever=fusion("simple", Listed("a"), "b")), "program.retriever.1", "str"),
        (lambda parts: parts.index(), "program", "VectorStoreIndex"),
    ],
)
def test_a_part_that_is_not_declared_is_named_with_its_place(
    make: Callable[[Parts], Any], where: str, named: str
) -> None:
    with pytest.raises(TranslationError, match="not declared") as raised:
        plan_of(make(Parts()))
    assert raised.value.where == where
    assert named in str(raised.value.found)
    assert raised.value.valid
    assert "accelerate" in str(raised.value.hint)

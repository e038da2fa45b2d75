"""A plan of a LlamaIndex program gives the program's results and the events of its parts."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from li_graph_programs import AskedGraph, GraphParts, filled, retriever
from li_programs import QUERY_ENGINES, EchoLLM, Parts, nodes_of, run_in_loop
from llama_index.core import Settings
from llama_index.core.base.llms.types import CompletionResponse
from llama_index.core.base.response.schema import Response
from llama_index.core.callbacks import CallbackManager
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
from rag_accel import Accelerator, ConfigError, DeadlineError, TranslationError, plan_of
from rag_accel.accelerator import current_request
from rag_accel.interception.patches import patches

QUESTION = "When was the bridge opened?"
WAYS = ("run", "arun")

#: what user code did, in order
DONE: list[tuple[Any, ...]] = []


class Halving(BaseNodePostprocessor):
    """Halve the scores in place, and note the query with its vector, which retrieval leaves."""

    name: str = "halving"
    error: Any = None

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        assert query_bundle is not None
        DONE.append((self.name, query_bundle.query_str, query_bundle.embedding))
        if self.error is not None:
            raise self.error
        for node in nodes:
            node.score = (node.score or 0.0) / 2
        return nodes


class Listed(BaseRetriever):
    """Find two nodes, one of them a reference to another retriever if there is one."""

    def __init__(
        self, name: str, inner: Any = None, error: Exception | None = None, **options: Any
    ) -> None:
        super().__init__(**options)
        self.name, self.inner, self.error = name, inner, error

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        DONE.append((self.name, query_bundle.query_str))
        if self.error is not None:
            raise self.error
        nodes: list[Any] = [TextNode(text=f"{self.name} of {query_bundle.query_str}", id_="n0")]
        if self.inner is not None:
            nodes.append(IndexNode(text="more", index_id="more", id_="n1", obj=self.inner))
        return [NodeWithScore(node=node, score=1.0 - 0.1 * at) for at, node in enumerate(nodes)]


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


def graph_retriever(parts: Parts, *names: str, **options: Any) -> Any:
    given = GraphParts(STORE, embedding=parts.embedding)
    return retriever(given, *names, **{"use_async": False, **options})


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
    **{
        name: QUERY_ENGINES[name]
        for name in ("compact", "refine", "tree summarize", "accumulate", "postprocessed", "hyde")
    },
    "no text found": lambda parts: parts.engine(
        node_postprocessors=[SimilarityPostprocessor(similarity_cutoff=2.0)]
    ),
    "user's postprocessors": halved,
    "nested transforms": nested_transforms,
    "a retriever": searches,
    "a recursive retriever": lambda parts: Listed("outer", inner=searches(parts)),
    "fusion that writes queries": QUERY_ENGINES["fusion"],
}
#: programs with retrievers that are taken apart
TAKEN_APART: dict[str, Callable[[Parts], Any]] = {
    "simple fusion": lambda parts: engine_over(
        fusion("simple", searches(parts), Listed("b")), parts
    ),
    "reciprocal fusion": lambda parts: fusion("reciprocal_rerank", searches(parts), Listed("b")),
    "nested retrievers": nested_retrievers,
    "property graph": lambda parts: engine_over(
        graph_retriever(parts, "synonyms", "context", "texts"), parts
    ),
    "property graph alone": lambda parts: graph_retriever(parts, "context", "custom"),
}
#: retrievers that run others side by side on a loop: one stage
TOGETHER: dict[str, Callable[[Parts], Any]] = {
    "fusion on a loop": lambda parts: fusion("simple", Listed("a"), Listed("b"), use_async=True),
    "property graph on a loop": lambda parts: graph_retriever(
        parts, "synonyms", "context", use_async=True
    ),
}
PROGRAMS = {**IN_ORDER, **TAKEN_APART, **TOGETHER}


class Told(BaseCallbackHandler):
    """Write down every event with its payload."""

    def __init__(self) -> None:
        super().__init__([], [])
        self.log: list[tuple[Any, ...]] = []

    def on_event_start(
        self,
        event_type: Any,
        payload: Any = None,
        event_id: str = "",
        parent_id: str = "",
        **kwargs: Any,
    ) -> str:
        self.log.append(("start", event_type.value, plain(payload)))
        return event_id

    def on_event_end(
        self, event_type: Any, payload: Any = None, event_id: str = "", **kwargs: Any
    ) -> None:
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
        return repr((type(value).__name__, value.response, plain(value.source_nodes)))
    if isinstance(value, dict):
        return repr({str(key): plain(one) for key, one in value.items()})
    if isinstance(value, list | tuple):
        return repr([plain(one) for one in value])
    return repr(value)


def asked(name: str) -> str | QueryBundle:
    """Return what a program is asked: a retriever of others gets the query that these share."""
    is_shared = name in TAKEN_APART and isinstance(PROGRAMS[name](Parts()), BaseRetriever)
    return QueryBundle(QUESTION) if is_shared else QUESTION


@contextmanager
def listening(program: Any) -> Iterator[list[list[tuple[Any, ...]]]]:
    """Write down the callbacks of a program's parts, the events, and what user code does."""
    events = Dispatched(log=[])
    (told,) = program.callback_manager.handlers
    told.log.clear()
    root = get_dispatcher("root")
    root.add_event_handler(events)
    DONE.clear()
    try:
        yield [told.log, events.log, DONE]
    finally:
        root.event_handlers.remove(events)


@pytest.fixture(autouse=True)
def own_manager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restore what objects use that are given nothing: it gets the manager of a test."""
    for name in ("_callback_manager", "_node_parser", "_transformations"):
        monkeypatch.setattr(Settings, name, None)


def made(name: str) -> Any:
    """Return a program all of whose parts have one manager of callbacks."""
    return managed(PROGRAMS[name])


def managed(make: Callable[[Parts], Any], **parts: Any) -> Any:
    Settings.callback_manager = manager = CallbackManager([Told()])
    program = make(Parts(**parts))
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


def run(accelerator: Accelerator, way: str, plan: Any, given: Any = QUESTION) -> Any:
    if way == "run":
        return accelerator.run(plan, input=given)
    return run_in_loop(accelerator.arun(plan, input=given))


def outcome(call: Callable[..., Any], *args: Any) -> tuple[Any, ...]:
    """Return what a call came to: its result and its sources, or its error."""
    try:
        result = call(*args)
    except Exception as error:
        return type(error), str(error)
    if isinstance(result, list):
        return (plain(result),)
    ids = {node.node_id for node in result.source_nodes}
    return type(result), str(result), nodes_of(result), set(result.metadata or ()) == ids


ENGINE_EVENTS = {"SpanDropEvent", "QueryStartEvent", "QueryEndEvent", "query", "trace", "exception"}


def of_parts(log: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Return what was told of parts of a program, and not of its engines."""
    return [entry for entry in log if ENGINE_EVENTS.isdisjoint(entry[:2])]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_results_and_events_of_parts_are_those_of_the_program(
    name: str, way: str, accelerator: Accelerator
) -> None:
    program, given = made(name), asked(name)
    with listening(program) as plainly:
        expected = outcome(ask, program, way, given)
        plainly = [list(log) for log in plainly]
    other, given = made(name), asked(name)
    plan = plan_of(other)
    with listening(other) as planned, coverage() as meter:
        assert outcome(run, accelerator, way, plan, given) == expected
        planned = [list(log) for log in planned]
    assert meter.passed_by == 0, str(meter)
    for of_program, of_plan in zip(plainly, planned, strict=True):
        before, after = of_parts(of_program), of_parts(of_plan)
        assert Counter(map(repr, after)) == Counter(map(repr, before))
        if name in IN_ORDER or (of_plan is planned[-1] and name in TAKEN_APART and way == "run"):
            assert after == before
    assert planned[1], "no event was heard"


@pytest.mark.parametrize("name", ["hyde", "user's postprocessors", "a retriever"])
def test_a_query_may_be_given_with_its_texts_to_embed(name: str, accelerator: Accelerator) -> None:
    def query() -> QueryBundle:
        return QueryBundle("which?", custom_embedding_strs=["The tunnel has four lanes."])

    given = query()
    found = outcome(run, accelerator, "run", plan_of(made(name)), given)
    assert found == outcome(ask, made(name), "run", query())
    assert found != outcome(ask, made(name), "run", QUESTION)


def test_parts_are_stages_in_their_order(accelerator: Accelerator) -> None:
    said = accelerator.explain(plan_of(made("nested retrievers")))
    for stage in (
        "retriever.0.0: Function(query) -> retriever.0.0  after query",
        "retriever.0.1: Function(query) -> retriever.0.1  after query, retriever.0.0",
        "retriever.0: Function(query, retriever.0.0, retriever.0.1)",
        "retriever.1: Function(query) -> retriever.1  after query, retriever.0",
        "postprocessor: Function(query, retriever)",
        "END: after synthesizer",
    ):
        assert stage in said, said


@pytest.mark.parametrize("name", ["hyde", "user's postprocessors"])
def test_an_explanation_ends_with_the_stages(name: str, accelerator: Accelerator) -> None:
    plan, fast = plan_of(made(name)), accelerate(made(name), accelerator=accelerator)
    _, _, stages = explain(fast).partition("  plan: plan_of(program) is a graph of these stages\n")
    drawn = [f"  {line}" for line in accelerator.explain(plan).splitlines()]
    assert stages.splitlines() == drawn[2:-2]
    assert "retriever: Function" in stages


def test_an_explanation_names_the_part_that_has_no_stage(accelerator: Accelerator) -> None:
    fast = accelerate(Parts().engine(streaming=True), accelerator=accelerator)
    assert explain(fast).endswith("\n  plan: none (at program.synthesizer: streaming=True)")
    assert "plan:" not in explain(accelerate(EchoLLM(), accelerator=accelerator))


def test_calls_belong_to_one_request_of_the_plans_accelerator(accelerator: Accelerator) -> None:
    seen: list[Any] = []

    class Noting(EchoLLM):
        @llm_completion_callback()
        def complete(
            self, prompt: str, formatted: bool = False, **kwargs: Any
        ) -> CompletionResponse:
            seen.append(current_request.get())
            return CompletionResponse(text="noted")

    accelerator.run(plan_of(nested_transforms(Parts(llm=Noting()))), input=QUESTION)
    assert len(seen) == 3
    assert len({id(identity) for identity in seen}) == 1
    assert seen[0].accelerator is accelerator
    assert current_request.get() is None


def test_a_trace_surrounds_each_stage_of_an_engine(accelerator: Accelerator) -> None:
    program = made("compact")
    with listening(program) as (told, *_):
        accelerator.run(plan_of(program), input=QUESTION)
        depth = 0
        for kind, event, _ in told:
            depth += {"start": 1, "end": -1}.get(event, 0) if kind == "trace" else 0
            assert depth == 1 or kind == "trace"


def test_leaf_calls_are_intercepted_while_the_plan_lives() -> None:
    plan = plan_of(made("compact"))
    assert patches.patched()
    del plan
    gc.collect()
    assert not patches.patched()


# Errors ------------------------------------------------------------------------------------------


class Failing(EchoLLM):
    """A model that is not there."""

    @llm_completion_callback()
    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        raise ConnectionError("no model")


def failing(place: str, error: Exception) -> Any:
    bad = Listed("a", error=error if place == "retriever" else None)
    halving = Halving(error=error if place == "postprocessor" else None)
    llm = Failing() if place == "model" else EchoLLM()
    return managed(
        lambda parts: engine_over(fusion("simple", bad, Listed("b")), parts, halving), llm=llm
    )


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("place", ["retriever", "postprocessor", "model"])
def test_errors_and_what_runs_before_them_are_those_of_the_program(
    place: str, way: str, accelerator: Accelerator
) -> None:
    program = failing(place, ValueError("broken"))
    with listening(program) as plainly:
        expected = outcome(ask, program, way)
        told, events, done = [of_parts(log) for log in plainly]
    program = failing(place, ValueError("broken"))
    with listening(program) as planned:
        assert outcome(run, accelerator, way, plan_of(program)) == expected
        of_plan = [of_parts(log) for log in planned]
    if place == "retriever":
        # What would fuse the nodes is not called; on a loop LlamaIndex asks all retrievers at once.
        for after, before in zip(of_plan, (told, events, done), strict=True):
            assert Counter(map(repr, after)) <= Counter(map(repr, before))
        assert of_plan[2] == done[:1]
    else:
        for after, before in zip(of_plan, (told, events, done), strict=True):
            assert Counter(map(repr, after)) == Counter(map(repr, before))
        assert of_plan[2] == done
    assert expected[0] is (ConnectionError if place == "model" else ValueError)


def test_an_error_is_the_same_object(accelerator: Accelerator) -> None:
    error = ValueError("broken")
    with pytest.raises(ValueError, match="broken") as raised:
        accelerator.run(plan_of(failing("retriever", error)), input=QUESTION)
    assert raised.value is error


async def test_cancelling_ends_a_call(accelerator: Accelerator) -> None:
    begun = asyncio.Event()

    class Waiting(Listed):
        async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
            begun.set()
            await asyncio.Event().wait()
            return []

    task = asyncio.create_task(accelerator.arun(plan_of(Waiting("a")), input=QUESTION))
    await asyncio.wait_for(begun.wait(), 10.0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_a_deadline_ends_it() -> None:
    with (
        Accelerator(strict=True, deadline_s=0.0) as accelerator,
        pytest.raises(DeadlineError),
    ):
        accelerator.run(plan_of(made("compact")), input=QUESTION)


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


def replaced(parts: Parts) -> Any:
    engine = parts.engine()
    engine.retrieve = lambda query_bundle: []
    return engine


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
        (replaced, "program", "RetrieverQueryEngine"),
        (lambda parts: accelerate(parts.engine()), "program", "RetrieverQueryEngine"),
        (lambda parts: parts.engine(streaming=True), "program.synthesizer", "streaming=True"),
        (holding(_retriever=len), "program.retriever", "builtin_function"),
        (holding(_node_postprocessors=[Halving(), 1]), "program.postprocessors.1", "int"),
        (holding(_response_synthesizer=None), "program.synthesizer", "NoneType"),
        (
            lambda parts: TransformQueryEngine(own_order(parts), HyDEQueryTransform(llm=parts.llm)),
            "program.engine",
            "OwnOrder",
        ),
        (
            lambda parts: engine_over(fusion("simple", Listed("a"), "no retriever"), parts),
            "program.retriever.1",
            "str",
        ),
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


def test_a_subclass_that_leaves_the_order_alone_is_taken_apart(accelerator: Accelerator) -> None:
    class Named(RetrieverQueryEngine):
        """Have a name."""

    plan = plan_of(Named.from_args(searches(Parts()), llm=EchoLLM()))
    assert "retriever: Function(query)" in accelerator.explain(plan)

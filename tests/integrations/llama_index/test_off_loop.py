"""Async engines that upstream lets block their loop leave it free, and do the same."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import pytest
from li_programs import (
    QUERY_ENGINES,
    EchoLLM,
    HashEmbedding,
    Parts,
    nodes_of,
    recording,
    run_in_loop,
    shown,
)
from llama_index.core import Settings, get_response_synthesizer
from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.llms.types import ChatMessage, CompletionResponse
from llama_index.core.callbacks import CallbackManager, LlamaDebugHandler
from llama_index.core.evaluation import GuidelineEvaluator, RelevancyEvaluator
from llama_index.core.indices.query.query_transform import HyDEQueryTransform
from llama_index.core.indices.query.query_transform.base import StepDecomposeQueryTransform
from llama_index.core.instrumentation.span_handlers import SimpleSpanHandler
from llama_index.core.llms import MockLLM
from llama_index.core.llms.callbacks import llm_completion_callback
from llama_index.core.postprocessor import SimilarityPostprocessor
from llama_index.core.query_engine import (
    FLAREInstructQueryEngine,
    MultiStepQueryEngine,
    RetryGuidelineQueryEngine,
    RetryQueryEngine,
    RetrySourceQueryEngine,
    TransformQueryEngine,
)
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
from llama_index.core.vector_stores import SimpleVectorStore, VectorStoreQuery
from llama_index_instrumentation import get_dispatcher
from pydantic import PrivateAttr

from llama_index_rag_accel import accelerate, activate
from llama_index_rag_accel.off_loop import blocking_method
from rag_accel import Accelerator
from rag_accel.accelerator import current_request
from rag_accel.adoption.known_classes import full_name

QUESTION = "When was the bridge opened?"
AT_ONCE = 16
PATIENCE_S = 30
GUIDELINE = "The response should be short."

_SEEN: ContextVar[str] = ContextVar("seen", default="nothing")


class WatchedLLM(EchoLLM):
    """A model that notes its calls, in which a test may have something done."""

    seen: list[Any] = []
    during: Any = None

    @llm_completion_callback()
    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        self.seen.append((threading.get_ident(), prompt))
        if self.during is not None:
            self.during(prompt)
        if GUIDELINE in prompt:
            return CompletionResponse(text='{"passing": false, "feedback": "too long"}')
        return super().complete(prompt, formatted, **kwargs)

    @llm_completion_callback()
    async def acomplete(
        self, prompt: str, formatted: bool = False, **kwargs: Any
    ) -> CompletionResponse:
        """Return the same from the caller's own thread."""
        return self.complete(prompt, formatted, **kwargs)


class FlareLLM(WatchedLLM):
    """A model that looks something up once, and then is done."""

    @llm_completion_callback()
    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        found = super().complete(prompt, formatted, **kwargs)
        if "Skill 1" not in prompt:
            return found
        is_begun = "Existing Answer: \n" not in prompt
        return CompletionResponse(text=f"{found.text} " + ("done" if is_begun else "[Search(it)]"))


def _parts(during: Callable[[str], None] | None = None, llm: type[WatchedLLM] = WatchedLLM) -> Any:
    return Parts(llm=llm(seen=[], during=during))


def _retry(parts: Parts) -> Any:
    return RetryQueryEngine(parts.engine(), RelevancyEvaluator(llm=parts.llm), max_retries=1)


def _guideline(parts: Parts) -> Any:
    evaluator = GuidelineEvaluator(llm=parts.llm, guidelines=GUIDELINE)
    return RetryGuidelineQueryEngine(
        parts.engine(), evaluator, resynthesize_query=True, max_retries=1
    )


def _source(parts: Parts) -> Any:
    evaluator = RelevancyEvaluator(llm=parts.llm)
    return RetrySourceQueryEngine(parts.engine(), evaluator, llm=parts.llm, max_retries=1)


def _flare(parts: Parts) -> Any:
    return FLAREInstructQueryEngine(parts.engine(), llm=parts.llm, max_iterations=2)


ENGINES: dict[str, Callable[[Parts], Any]] = {
    "hyde": QUERY_ENGINES["hyde"],
    "multi-step": QUERY_ENGINES["multi-step"],
    "retry": _retry,
    "guideline": _guideline,
    "source": _source,
    "flare": _flare,
}
#: Upstream calls the models of these from the loop's own thread alone.
ON_LOOP = ("hyde", "multi-step", "flare")

every_engine = pytest.mark.parametrize("make", ENGINES.values(), ids=ENGINES)


@pytest.fixture(autouse=True)
def own_settings() -> Iterator[None]:
    """Give what is made within an engine a model; forget it afterwards."""
    before = vars(Settings).copy()
    Settings.llm = MockLLM()
    yield
    vars(Settings).update(before)


@contextmanager
def _knowing(*classes: type, **options: Any) -> Iterator[Accelerator]:
    """Give an accelerator to which these are thread-safe, and that raises errors of ours."""
    names = tuple(map(full_name, classes))
    with Accelerator(strict=True, thread_safe_classes=names, **options) as made:
        yield made
        assert made.bypassed == {}


@pytest.fixture
def accelerator() -> Iterator[Accelerator]:
    """Give an accelerator to which the fakes are thread-safe."""
    with _knowing(WatchedLLM, FlareLLM, HashEmbedding) as made:
        yield made


def _llm_of(make: Callable[[Parts], Any]) -> type[WatchedLLM]:
    return FlareLLM if make is _flare else WatchedLLM


def _ask(engine: Any, number: int = 1) -> list[Any]:
    async def all_at_once() -> list[Any]:
        questions = [f"{QUESTION} {place}" for place in range(number)]
        return await asyncio.gather(
            *(engine.aquery(one) for one in questions), return_exceptions=True
        )

    return run_in_loop(all_at_once())


def _meeting() -> Callable[[str], None]:
    """Return what lets each of the first calls go on once all of them have begun."""
    barrier, lock, places = threading.Barrier(AT_ONCE), threading.Lock(), iter(range(AT_ONCE))

    def meet(prompt: str) -> None:
        with lock:
            is_first = next(places, None) is not None
        if is_first:
            barrier.wait(PATIENCE_S)

    return meet


@contextmanager
def _parents() -> Iterator[Counter[tuple[str, str]]]:
    """Count the spans of a block by their name and their parent's."""
    root, spans = get_dispatcher("root"), SimpleSpanHandler()
    found: Counter[tuple[str, str]] = Counter()
    root.add_span_handler(spans)
    try:
        yield found
    finally:
        root.span_handlers.remove(spans)
    for span in spans.completed_spans:
        parent = span.parent_id or ""
        found[span.id_.partition("-")[0], parent.partition("-")[0]] += 1


# The same ---------------------------------------------------------------------------------------


@every_engine
def test_what_is_shown_is_what_the_plain_engine_shows(
    make: Callable[[Parts], Any], accelerator: Accelerator
) -> None:
    parts, bare = _parts(llm=_llm_of(make)), _parts(llm=_llm_of(make))
    engine = accelerate(make(parts), accelerator=accelerator)
    plain_engine = make(bare)
    with _parents() as plain_parents:
        plain = shown(lambda: _ask(plain_engine)[0])
    with _parents() as parents:
        assert shown(lambda: _ask(engine)[0]) == plain
    assert parents == plain_parents
    assert [prompt for _, prompt in parts.llm.seen] == [prompt for _, prompt in bare.llm.seen]
    assert accelerator.is_idle


@every_engine
def test_an_activated_engine_shows_the_same(
    make: Callable[[Parts], Any], accelerator: Accelerator
) -> None:
    plain_engine, engine = (make(_parts(llm=_llm_of(make))) for _ in range(2))
    plain = shown(lambda: _ask(plain_engine)[0])
    with activate(accelerator):
        assert shown(lambda: _ask(engine)[0]) == plain


def test_a_transform_is_moved_from_asynthesize_too(accelerator: Accelerator) -> None:
    def synthesized(engine: Any) -> Any:
        async def call() -> Any:
            return await engine.asynthesize(bundle, nodes)

        return run_in_loop(call())

    bundle, bare = QueryBundle(QUESTION), _parts()
    nodes = bare.index().as_retriever().retrieve(QUESTION)
    parts, plain_engine = _parts(), ENGINES["hyde"](bare)
    plain = shown(lambda: synthesized(plain_engine))
    engine = accelerate(ENGINES["hyde"](parts), accelerator=accelerator)
    assert shown(lambda: synthesized(engine)) == plain
    assert len({thread for thread, _ in parts.llm.seen}) == 2


# The loop is free -------------------------------------------------------------------------------


@every_engine
def test_sixteen_queries_are_under_way_at_once(
    make: Callable[[Parts], Any], accelerator: Accelerator
) -> None:
    parts = _parts(_meeting(), _llm_of(make))
    plain = [str(one) for one in _ask(make(_parts(llm=_llm_of(make))), AT_ONCE)]
    found = _ask(accelerate(make(parts), accelerator=accelerator), AT_ONCE)
    assert [str(one) for one in found] == plain


def test_the_users_transformer_keeps_the_last_evaluation(accelerator: Accelerator) -> None:
    plain, engine = (_guideline(_parts()) for _ in range(2))
    _ask(plain)
    _ask(accelerate(engine, accelerator=accelerator))
    assert engine.query_transformer.evaluation == plain.query_transformer.evaluation


@every_engine
def test_the_loop_goes_on_while_a_model_waits(
    make: Callable[[Parts], Any], accelerator: Accelerator
) -> None:
    waiting, ticked, results = threading.Event(), threading.Event(), list[bool]()

    def wait_for_a_tick(prompt: str) -> None:
        if not results:
            waiting.set()
            results.append(ticked.wait(PATIENCE_S))

    async def tick() -> None:
        await asyncio.to_thread(waiting.wait, PATIENCE_S)
        ticked.set()

    async def both() -> None:
        await asyncio.gather(engine.aquery(QUESTION), tick())

    engine = accelerate(make(_parts(wait_for_a_tick, _llm_of(make))), accelerator=accelerator)
    run_in_loop(both())
    assert results == [True]


@pytest.mark.parametrize("name", ["multi-step", "retry"])
def test_more_queries_than_threads_all_end(name: str) -> None:
    plain = [str(one) for one in _ask(ENGINES[name](_parts()), 4)]
    with _knowing(WatchedLLM, HashEmbedding, call_threads=1) as accelerator:
        engine = accelerate(ENGINES[name](_parts()), accelerator=accelerator)
        assert [str(one) for one in _ask(engine, 4)] == plain


def test_a_loop_in_debug_mode_has_nothing_to_say(
    accelerator: Accelerator, caplog: pytest.LogCaptureFixture
) -> None:
    async def ask() -> list[Any]:
        loop = asyncio.get_running_loop()
        loop.set_debug(True)
        loop.slow_callback_duration = PATIENCE_S
        return await asyncio.gather(*(engine.aquery(QUESTION) for _ in range(4)))

    engine = accelerate(ENGINES["multi-step"](_parts()), accelerator=accelerator)
    assert len({str(one) for one in run_in_loop(ask())}) == 1
    assert [one for one in caplog.records if one.name == "asyncio" and one.levelno > 10] == []


# What stays where it is -------------------------------------------------------------------------


def _threads(engine: Any, llm: WatchedLLM, number: int = 4) -> set[bool]:
    """Ask several times at once; tell of the model's calls whether the loop's thread made them."""

    async def ask() -> int:
        await asyncio.gather(*(engine.aquery(f"{QUESTION} {place}") for place in range(number)))
        return threading.get_ident()

    loop_thread = run_in_loop(ask())
    return {thread == loop_thread for thread, _ in llm.seen}


@pytest.mark.parametrize("name", ON_LOOP)
def test_a_model_of_the_users_keeps_its_thread_and_its_order(name: str) -> None:
    make = ENGINES[name]
    parts, bare = _parts(llm=_llm_of(make)), _parts(llm=_llm_of(make))
    with _knowing(HashEmbedding) as accelerator:
        assert _threads(accelerate(make(parts), accelerator=accelerator), parts.llm) == {True}
    assert _threads(make(bare), bare.llm) == {True}
    assert [prompt for _, prompt in parts.llm.seen] == [prompt for _, prompt in bare.llm.seen]


@pytest.mark.parametrize("name", ON_LOOP)
def test_an_option_keeps_everything_on_the_loop(name: str, accelerator: Accelerator) -> None:
    make = ENGINES[name]
    parts = _parts(llm=_llm_of(make))
    options = accelerator.options.merged(off_loop=False)
    with Accelerator(options=options) as other:
        assert _threads(accelerate(make(parts), accelerator=other), parts.llm) == {True}


def test_a_plain_engine_beside_an_accelerated_one_stays_plain(accelerator: Accelerator) -> None:
    parts = _parts()
    engine = ENGINES["hyde"](parts)
    fast = accelerate(engine, accelerator=accelerator)
    assert _threads(engine, parts.llm) == {True}
    assert False in _threads(fast, parts.llm)


class OwnPostprocessor(SimilarityPostprocessor):
    """A postprocessor of the user's."""


class OwnEngine(MultiStepQueryEngine):
    """An engine of the user's."""


class OwnTransform(HyDEQueryTransform):
    """A transform of the user's."""


def _multi_step(parts: Parts, **arguments: Any) -> Any:
    cls = arguments.pop("cls", MultiStepQueryEngine)
    given = {
        "query_engine": parts.engine(),
        "query_transform": StepDecomposeQueryTransform(llm=parts.llm, verbose=False),
        "response_synthesizer": get_response_synthesizer(llm=parts.llm),
        "num_steps": 2,
    }
    return cls(**{**given, **arguments})


def _with_handler(parts: Parts) -> Any:
    engine = _multi_step(parts)
    engine.callback_manager = CallbackManager([LlamaDebugHandler(print_trace_on_end=False)])
    return engine


def _with_own_method(parts: Parts) -> Any:
    engine = _multi_step(parts)
    steps = engine._query_multistep
    engine._query_multistep = lambda bundle: steps(bundle)
    return engine


def _with_postprocessor(parts: Parts) -> Any:
    return _multi_step(parts, query_engine=parts.engine(node_postprocessors=[OwnPostprocessor()]))


WITH_OWN_PARTS: dict[str, Callable[[Parts], Any]] = {
    "postprocessor": _with_postprocessor,
    "stop function": lambda parts: _multi_step(parts, stop_fn=lambda stop: False),
    "callback handler": _with_handler,
    "engine class": lambda parts: _multi_step(parts, cls=OwnEngine),
    "method of the object": _with_own_method,
    "transform": lambda parts: TransformQueryEngine(parts.engine(), OwnTransform(llm=parts.llm)),
}


@pytest.mark.parametrize("make", WITH_OWN_PARTS.values(), ids=WITH_OWN_PARTS)
def test_a_part_of_the_users_keeps_the_call_on_the_loop(
    make: Callable[[Parts], Any], accelerator: Accelerator
) -> None:
    parts = _parts()
    assert _threads(accelerate(make(parts), accelerator=accelerator), parts.llm) == {True}


def test_what_all_objects_share_counts_too(accelerator: Accelerator) -> None:
    parts = _parts()
    Settings.llm = EchoLLM()
    engine = accelerate(ENGINES["hyde"](parts), accelerator=accelerator)
    assert _threads(engine, parts.llm) == {True}


class OwnQuery(RetryQueryEngine):
    """An engine whose async method is the user's."""

    async def _aquery(self, query_bundle: Any) -> Any:
        return self._query(query_bundle)


def test_only_the_versions_read_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    assert blocking_method(RetryQueryEngine._aquery) is not None
    assert blocking_method(OwnQuery._aquery) is None
    assert blocking_method(BaseQueryEngine._aquery) is None

    async def _aquery(self: Any, query_bundle: Any) -> Any:
        return await asyncio.to_thread(self._query, query_bundle)

    _aquery.__module__ = RetryQueryEngine.__module__
    _aquery.__qualname__ = "RetryQueryEngine._aquery"
    monkeypatch.setattr(RetryQueryEngine, "_aquery", _aquery)
    assert blocking_method(RetryQueryEngine._aquery) is None


def test_an_override_is_not_patched(accelerator: Accelerator) -> None:
    before = OwnQuery.__dict__["_aquery"]
    with activate(accelerator):
        assert OwnQuery.__dict__["_aquery"] is before
        assert asyncio.iscoroutinefunction(RetryQueryEngine._aquery)


# Classes that the user names --------------------------------------------------------------------


class SyncLLM(EchoLLM):
    """A model of the user's that has no async method."""

    during: Any = None

    @llm_completion_callback()
    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        self.during(prompt)
        return super().complete(prompt, formatted, **kwargs)


class OwnRetriever(BaseRetriever):
    """A retriever of the user's that has no async method."""

    def __init__(self, during: Callable[[str], None]) -> None:
        self.during = during
        super().__init__()

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        self.during(query_bundle.query_str)
        return [NodeWithScore(node=TextNode(text="found", id_="one"), score=1.0)]


class OwnStore(SimpleVectorStore):
    """A store of the user's that has no async method."""

    _during: Any = PrivateAttr(default=None)

    def query(self, query: Any, **kwargs: Any) -> Any:
        self._during("")
        return super().query(query, **kwargs)


class OwnEmbedding(HashEmbedding):
    """An embedding of the user's."""

    _during: Any = PrivateAttr(default=None)

    def _get_text_embedding(self, text: str) -> list[float]:
        self._during("")
        return super()._get_text_embedding(text)


def _completing(during: Callable[[str], None]) -> Any:
    llm = SyncLLM(during=during)
    return llm, lambda one: one.acomplete(QUESTION)


def _chatting(during: Callable[[str], None]) -> Any:
    llm = SyncLLM(during=during)
    return llm, lambda one: one.achat([ChatMessage(QUESTION)])


def _retrieving(during: Callable[[str], None]) -> Any:
    return OwnRetriever(during), lambda one: one.aretrieve(QUESTION)


def _searching(during: Callable[[str], None]) -> Any:
    store = OwnStore()
    store._during = during
    store.add([TextNode(text="a", id_="a", embedding=[1.0, 0.0])])
    return store, lambda one: one.aquery(VectorStoreQuery([1.0, 0.0], similarity_top_k=1))


def _embedding(during: Callable[[str], None]) -> Any:
    embedding = OwnEmbedding()
    embedding._during = during
    return embedding, lambda one: one.aget_text_embedding("a")


LEAVES = {
    "acomplete": _completing,
    "achat": _chatting,
    "aretrieve": _retrieving,
    "aquery of a store": _searching,
    "aget_text_embedding": _embedding,
}
every_leaf = pytest.mark.parametrize("make", LEAVES.values(), ids=LEAVES)


def _nothing(prompt: str) -> None:
    """Do nothing."""


@every_leaf
def test_a_default_async_method_of_a_named_class_leaves_the_loop_free(make: Any) -> None:
    async def all_at_once() -> list[Any]:
        return await asyncio.gather(*(call(fast) for _ in range(AT_ONCE)))

    obj, call = make(_meeting())
    with _knowing(type(obj)) as accelerator:
        fast = accelerate(obj, accelerator=accelerator)
        assert len(run_in_loop(all_at_once())) == AT_ONCE


@every_leaf
def test_a_default_async_method_of_another_class_stays_on_the_loop(make: Any) -> None:
    async def once() -> int:
        await call(fast)
        return threading.get_ident()

    threads = list[int]()
    obj, call = make(lambda prompt: threads.append(threading.get_ident()))
    with _knowing() as accelerator:
        fast = accelerate(obj, accelerator=accelerator)
        assert threads == [run_in_loop(once())] * len(threads)
        assert threads != []


@every_leaf
def test_a_default_async_method_shows_the_same(make: Any) -> None:
    async def once(obj: Any) -> Any:
        return await call(obj)

    def seen(obj: Any) -> Any:
        with recording() as (events, spans), _parents() as parents:
            found = run_in_loop(once(obj))
        return str(found), events, spans, parents

    obj, call = make(_nothing)
    with _knowing(type(obj)) as accelerator:
        plain = seen(obj)
        assert seen(accelerate(obj, accelerator=accelerator)) == plain


# What goes wrong, and what goes with a call -----------------------------------------------------


@pytest.mark.parametrize("error", [ValueError("no"), StopIteration("no"), TimeoutError("no")])
@pytest.mark.parametrize("name", ["hyde", "multi-step", "flare"])
@pytest.mark.cross_product(keep=6)
def test_an_error_of_one_of_sixteen_is_its_own(
    name: str, error: Exception, accelerator: Accelerator
) -> None:
    def fail_at_seven(prompt: str) -> None:
        if f"{QUESTION} 7" in prompt:
            raise type(error)(*error.args)

    make = ENGINES[name]
    plain = _ask(make(_parts(fail_at_seven, _llm_of(make))), AT_ONCE)
    parts = _parts(fail_at_seven, _llm_of(make))
    found = _ask(accelerate(make(parts), accelerator=accelerator), AT_ONCE)
    assert [(type(one), str(one)) for one in found] == [(type(one), str(one)) for one in plain]
    assert isinstance(found[7], Exception)
    assert type(found[7].__cause__) is type(plain[7].__cause__)
    assert accelerator.is_idle


def test_an_error_keeps_the_traceback_of_where_it_was_raised(accelerator: Accelerator) -> None:
    def fail(prompt: str) -> None:
        raise ValueError("no")

    engine = accelerate(ENGINES["hyde"](_parts(fail)), accelerator=accelerator)
    (error,) = _ask(engine)
    names = list[str]()
    trace = error.__traceback__
    while trace is not None:
        names.append(trace.tb_frame.f_code.co_name)
        trace = trace.tb_next
    assert names[-1] == "fail"
    assert "_run" in names


def test_a_query_that_is_cancelled_leaves_nothing_behind(accelerator: Accelerator) -> None:
    waiting, may_fail, problems = threading.Event(), threading.Event(), list[Any]()

    def wait(prompt: str) -> None:
        if f"{QUESTION} 1" in prompt:
            waiting.set()
            may_fail.wait(PATIENCE_S)
            raise ValueError("nobody waits for this")

    async def ask() -> list[Any]:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda loop, context: problems.append(context))
        tasks = [asyncio.create_task(engine.aquery(f"{QUESTION} {one}")) for one in range(3)]
        await asyncio.to_thread(waiting.wait, PATIENCE_S)
        tasks[1].cancel()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        may_fail.set()
        async with asyncio.timeout(PATIENCE_S):
            while not accelerator.is_idle:  # noqa: ASYNC110 - told by no event
                await asyncio.sleep(0)
        return found

    engine = accelerate(ENGINES["hyde"](_parts(wait)), accelerator=accelerator)
    found = run_in_loop(ask())
    assert [type(one).__name__ for one in found] == ["Response", "CancelledError", "Response"]
    assert problems == []
    assert accelerator.is_idle


def test_context_variables_go_with_the_call_and_come_back(accelerator: Accelerator) -> None:
    def note(prompt: str) -> None:
        noted.append(_SEEN.get())
        _SEEN.set("model")

    async def ask() -> str:
        _SEEN.set("caller")
        await engine.aquery(QUESTION)
        return _SEEN.get()

    noted = list[str]()
    engine = accelerate(ENGINES["hyde"](_parts(note)), accelerator=accelerator)
    assert run_in_loop(ask()) == "model"
    assert noted == ["caller", "model"]


def test_a_moved_call_is_part_of_its_querys_request(accelerator: Accelerator) -> None:
    lock, found = threading.Lock(), dict[str, set[Any]]()

    def note(prompt: str) -> None:
        question = next(one for one in questions if one in prompt)
        with lock:
            found.setdefault(question, set()).add(current_request.get())

    questions = [f"{QUESTION} {place}" for place in range(4)]
    engine = accelerate(ENGINES["hyde"](_parts(note)), accelerator=accelerator)
    _ask(engine, 4)
    assert [len(found[one]) for one in questions] == [1] * 4
    assert len(set[Any]().union(*found.values())) == 4
    assert None not in set[Any]().union(*found.values())


def test_nodes_come_in_the_plain_order(accelerator: Accelerator) -> None:
    plain = [nodes_of(one) for one in _ask(ENGINES["flare"](_parts(llm=FlareLLM)), 4)]
    engine = accelerate(ENGINES["flare"](_parts(llm=FlareLLM)), accelerator=accelerator)
    assert [nodes_of(one) for one in _ask(engine, 4)] == plain

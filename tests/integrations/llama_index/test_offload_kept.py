"""What is not known to be thread-safe stays on its loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from li_off_loop import (
    ENGINES,
    ON_LOOP,
    QUESTION,
    WatchedLLM,
    knowing,
    knowing_fakes,
    llm_of,
    parts_of,
)
from li_programs import (
    EchoLLM,
    HashEmbedding,
    Parts,
    run_in_loop,
)
from llama_index.core import Settings, get_response_synthesizer
from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.callbacks import CallbackManager, LlamaDebugHandler
from llama_index.core.indices.query.query_transform import HyDEQueryTransform
from llama_index.core.indices.query.query_transform.base import StepDecomposeQueryTransform
from llama_index.core.postprocessor import SimilarityPostprocessor
from llama_index.core.query_engine import (
    MultiStepQueryEngine,
    RetryQueryEngine,
    TransformQueryEngine,
)

from llama_index_rag_accel import accelerate, activate
from llama_index_rag_accel.concurrency.blocking_methods import blocking_method
from rag_accel import Accelerator

pytestmark = pytest.mark.usefixtures("shared_models")
accelerator = knowing_fakes


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
    parts, bare = parts_of(llm=llm_of(make)), parts_of(llm=llm_of(make))
    # Strings embedded side by side let other tasks of the loop run meanwhile.
    with knowing(HashEmbedding, parallel_calls=False) as accelerator:
        assert _threads(accelerate(make(parts), accelerator=accelerator), parts.llm) == {True}
    assert _threads(make(bare), bare.llm) == {True}
    assert [prompt for _, prompt in parts.llm.seen] == [prompt for _, prompt in bare.llm.seen]


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
    parts = parts_of()
    assert _threads(accelerate(make(parts), accelerator=accelerator), parts.llm) == {True}


def test_what_all_objects_share_counts_too(accelerator: Accelerator) -> None:
    parts = parts_of()
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

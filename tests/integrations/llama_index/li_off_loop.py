"""Models, engines and helpers of the tests of calls that leave their loop free."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from li_programs import (
    QUERY_ENGINES,
    EchoLLM,
    HashEmbedding,
    Parts,
    run_in_loop,
)
from llama_index.core import Settings
from llama_index.core.base.llms.types import CompletionResponse
from llama_index.core.evaluation import GuidelineEvaluator, RelevancyEvaluator
from llama_index.core.instrumentation.span_handlers import SimpleSpanHandler
from llama_index.core.llms import MockLLM
from llama_index.core.llms.callbacks import llm_completion_callback
from llama_index.core.query_engine import (
    FLAREInstructQueryEngine,
    RetryGuidelineQueryEngine,
    RetryQueryEngine,
    RetrySourceQueryEngine,
)
from llama_index_instrumentation import get_dispatcher

from rag_accel import Accelerator
from rag_accel.system.classes import full_name

QUESTION = "When was the bridge opened?"
AT_ONCE = 16
PATIENCE_S = 30
GUIDELINE = "The response should be short."


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


def parts_of(
    during: Callable[[str], None] | None = None, llm: type[WatchedLLM] = WatchedLLM
) -> Any:
    """Return parts whose model does something during each call."""
    return Parts(llm=llm(seen=[], during=during))


def retry(parts: Parts) -> Any:
    """Return an engine that tries once more."""
    return RetryQueryEngine(parts.engine(), RelevancyEvaluator(llm=parts.llm), max_retries=1)


def guideline(parts: Parts) -> Any:
    """Return an engine that asks anew by a guideline."""
    evaluator = GuidelineEvaluator(llm=parts.llm, guidelines=GUIDELINE)
    return RetryGuidelineQueryEngine(
        parts.engine(), evaluator, resynthesize_query=True, max_retries=1
    )


def source(parts: Parts) -> Any:
    """Return an engine that asks anew with other nodes."""
    evaluator = RelevancyEvaluator(llm=parts.llm)
    return RetrySourceQueryEngine(parts.engine(), evaluator, llm=parts.llm, max_retries=1)


def flare(parts: Parts) -> Any:
    """Return an engine that looks up what its answer lacks."""
    return FLAREInstructQueryEngine(parts.engine(), llm=parts.llm, max_iterations=2)


ENGINES: dict[str, Callable[[Parts], Any]] = {
    "hyde": QUERY_ENGINES["hyde"],
    "multi-step": QUERY_ENGINES["multi-step"],
    "retry": retry,
    "guideline": guideline,
    "source": source,
    "flare": flare,
}
#: Upstream calls the models of these from the loop's own thread alone.
ON_LOOP = ("hyde", "multi-step", "flare")


@contextmanager
def own_settings() -> Iterator[None]:
    """Give what is made within an engine a model; forget it afterwards."""
    before = vars(Settings).copy()
    Settings.llm = MockLLM()
    try:
        yield
    finally:
        vars(Settings).update(before)


every_engine = pytest.mark.parametrize("make", ENGINES.values(), ids=ENGINES)


@contextmanager
def knowing(*classes: type, **options: Any) -> Iterator[Accelerator]:
    """Give an accelerator to which these are thread-safe, and that raises errors of ours."""
    names = tuple(map(full_name, classes))
    with Accelerator(strict=True, thread_safe_classes=names, **options) as made:
        yield made
        assert made.bypassed == {}


@pytest.fixture
def knowing_fakes() -> Iterator[Accelerator]:
    """Give an accelerator to which the models of the engines are thread-safe."""
    with knowing(WatchedLLM, FlareLLM, HashEmbedding) as made:
        yield made


def llm_of(make: Callable[[Parts], Any]) -> type[WatchedLLM]:
    """Return the class of the model for an engine."""
    return FlareLLM if make is flare else WatchedLLM


def ask(engine: Any, number: int = 1) -> list[Any]:
    """Ask so many questions at once; return the answers and the errors."""

    async def all_at_once() -> list[Any]:
        questions = [f"{QUESTION} {place}" for place in range(number)]
        return await asyncio.gather(
            *(engine.aquery(one) for one in questions), return_exceptions=True
        )

    return run_in_loop(all_at_once())


def meeting() -> Callable[[str], None]:
    """Return what lets each of the first calls go on once all of them have begun."""
    barrier, lock, places = threading.Barrier(AT_ONCE), threading.Lock(), iter(range(AT_ONCE))

    def meet(prompt: str) -> None:
        with lock:
            is_first = next(places, None) is not None
        if is_first:
            barrier.wait(PATIENCE_S)

    return meet


@contextmanager
def parents_of_spans() -> Iterator[Counter[tuple[str, str]]]:
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

"""The ways in which callers use accelerated programs: loops, threads, streams left, copies."""

from __future__ import annotations

import asyncio
import copy
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from idle_accelerators import soon_idle
from li_more_programs import MORE, OF_EACH_FORM, Program, evidence
from li_more_workflows import AskingTheUser, RerankFlow, answered_by_the_user, function_agent
from li_programs import CHAT_ENGINES, EchoLLM, Parts
from llama_index.core.agent.workflow import AgentStream
from llama_index.core.llms.callbacks import llm_completion_callback
from workflows import Workflow, step
from workflows.errors import WorkflowCancelledByUser
from workflows.events import StartEvent, StopEvent

from llama_index_rag_accel import accelerate, activate
from rag_accel import Accelerator

# Upstream's agents use what is deprecated in its workflows.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

QUESTION = "When was the bridge opened?"

each_form = pytest.mark.parametrize("program", OF_EACH_FORM.values(), ids=OF_EACH_FORM)


@each_form
def test_eight_threads_get_and_show_the_same(program: Program, accelerator: Accelerator) -> None:
    def in_threads(obj: Any) -> list[Any]:
        with ThreadPoolExecutor(8) as pool:
            return list(pool.map(lambda _: program.run(obj), range(8)))

    bare, fast = program.made(), accelerate(program.made(), accelerator=accelerator)
    assert evidence(lambda: in_threads(fast)) == evidence(lambda: in_threads(bare))
    assert soon_idle(accelerator)


async def becomes_idle(accelerator: Accelerator) -> bool:
    """Tell whether an accelerator becomes idle: the loop closes nested generators one by one."""
    for _ in range(1000):
        if accelerator.is_idle:
            return True
        await asyncio.sleep(0.005)
    return False


@pytest.mark.parametrize("name", CHAT_ENGINES)
def test_a_chat_that_is_left_ends_its_request(name: str, accelerator: Accelerator) -> None:
    fast = accelerate(CHAT_ENGINES[name](Parts()), accelerator=accelerator)
    response = fast.stream_chat(QUESTION)
    next(iter(response.response_gen))
    del response
    assert soon_idle(accelerator)


class FailingLLM(EchoLLM):
    """A model that fails when it is asked for a stream."""

    @llm_completion_callback()
    def stream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> Any:
        raise TimeoutError("no answer")


@pytest.mark.parametrize("name", CHAT_ENGINES)
async def test_a_chat_whose_model_fails_ends_its_request_while_its_response_is_kept(
    name: str, accelerator: Accelerator
) -> None:
    fast = accelerate(CHAT_ENGINES[name](Parts(llm=FailingLLM())), accelerator=accelerator)
    kept = fast.stream_chat(QUESTION)
    assert await becomes_idle(accelerator)
    kept_too = await fast.astream_chat(QUESTION)
    assert await becomes_idle(accelerator)
    assert {type(one.exception) for one in (kept, kept_too)} == {TimeoutError}
    assert isinstance(kept_too.awrite_response_to_history_task.exception(), TimeoutError)


async def test_an_async_stream_that_is_left_ends_its_request(accelerator: Accelerator) -> None:
    fast = accelerate(Parts().engine(streaming=True), accelerator=accelerator)
    stream = (await fast.aquery(QUESTION)).async_response_gen()
    await anext(stream)
    assert not accelerator.is_idle
    await stream.aclose()
    del stream
    assert await becomes_idle(accelerator)


class Ended(StopEvent):
    """An end of a run, with the stream that the run gave."""

    response: Any


class EndsWithAStream(Workflow):
    """A workflow whose last event holds a stream."""

    def __init__(self, parts: Parts) -> None:
        super().__init__()
        self.engine = parts.engine(streaming=True)

    @step
    async def only(self, start: StartEvent) -> Ended:
        return Ended(response=await self.engine.aquery(start.question))


@pytest.mark.parametrize(
    ("make", "response_of"),
    [(RerankFlow, lambda given: given), (EndsWithAStream, lambda e: e.response)],
)
@pytest.mark.parametrize("is_left", [False, True])
async def test_a_run_that_gives_a_stream_is_a_request_until_that_ends(
    make: Callable[[Parts], Any],
    response_of: Callable[[Any], Any],
    is_left: bool,
    accelerator: Accelerator,
) -> None:
    fast = accelerate(make(Parts()), accelerator=accelerator)
    response = response_of(await fast.run(question=QUESTION))
    stream = response.async_response_gen()
    await anext(stream)
    assert not accelerator.is_idle
    if is_left:
        await stream.aclose()
        await response.response_gen.aclose()
    else:
        assert [token async for token in stream]
    assert await becomes_idle(accelerator)


async def test_an_agent_that_is_left_in_the_middle_of_its_stream_ends_its_request(
    accelerator: Accelerator,
) -> None:
    handler = accelerate(function_agent(Parts()), accelerator=accelerator).run(QUESTION)
    async for event in handler.stream_events():
        if isinstance(event, AgentStream):
            break
    await handler.cancel_run()
    with pytest.raises(WorkflowCancelledByUser):
        await handler
    assert await becomes_idle(accelerator)


def pickled(obj: Any) -> Any:
    """Return what comes back from a pickle of an object."""
    return pickle.loads(pickle.dumps(obj))


def outcome(call: Callable[[], Any]) -> Any:
    """Return what a call gives, or the class of its error."""
    try:
        return call()
    except Exception as error:
        return type(error)


@pytest.mark.cross_product(keep=8)
@pytest.mark.usefixtures("default_model")
@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, pickled])
@pytest.mark.parametrize("name", [name for name in MORE if not name.endswith("async")])
def test_a_copy_gives_what_a_plain_copy_gives(
    name: str, way: Callable[[Any], Any], accelerator: Accelerator
) -> None:
    program = MORE[name]
    plain = outcome(lambda: program.run(way(program.made())))
    with activate(accelerator):
        assert outcome(lambda: program.run(way(accelerate(program.made())))) == plain


@pytest.mark.parametrize("is_stored_by_plain", [True, False])
async def test_a_stored_context_goes_on_plain_or_accelerated(
    is_stored_by_plain: bool, accelerator: Accelerator
) -> None:
    plain = AskingTheUser(Parts())
    fast = accelerate(AskingTheUser(Parts()), accelerator=accelerator)
    expected = await answered_by_the_user(plain, plain)
    first, second = (plain, fast) if is_stored_by_plain else (fast, plain)
    assert await answered_by_the_user(first, second) == expected
    assert await becomes_idle(accelerator)

"""LlamaIndex workflows and agents over fakes, each with a use whose result can be compared."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from functools import partial
from typing import Any

from li_programs import Parts, nodes_of
from llama_index.core import get_response_synthesizer
from llama_index.core.agent.workflow import AgentStream, FunctionAgent, ToolCall, ToolCallResult
from llama_index.core.base.llms.types import (
    ChatMessage,
    ChatResponse,
    CompletionResponse,
    LLMMetadata,
    MessageRole,
)
from llama_index.core.llms.callbacks import llm_chat_callback, llm_completion_callback
from llama_index.core.llms.function_calling import FunctionCallingLLM
from llama_index.core.llms.llm import ToolSelection
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import NodeWithScore, QueryBundle
from llama_index.core.tools import FunctionTool, QueryEngineTool
from workflows import Context, Workflow, step
from workflows.events import (
    Event,
    HumanResponseEvent,
    InputRequiredEvent,
    StartEvent,
    StopEvent,
)

QUESTION = "When was the bridge opened?"


class ToolLLM(FunctionCallingLLM):
    """A model that calls every tool once, then answers from what they gave, word by word."""

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata(context_window=4096, is_function_calling_model=True)

    def _prepare_chat_with_tools(
        self, tools: Sequence[Any], chat_history: Any = None, **kwargs: Any
    ) -> dict[str, Any]:
        return {"messages": chat_history, "tools": [tool.metadata.name for tool in tools]}

    def get_tool_calls_from_response(
        self, response: ChatResponse, error_on_no_tool_call: bool = True, **kwargs: Any
    ) -> list[ToolSelection]:
        names = response.message.additional_kwargs.get("tool_calls", [])
        arguments = {"input": QUESTION}
        return [ToolSelection(tool_id=one, tool_name=one, tool_kwargs=arguments) for one in names]

    def _chunks(self, messages: Sequence[ChatMessage], tools: Sequence[str]) -> Iterator[Any]:
        results = [one.content for one in messages if one.role == MessageRole.TOOL]
        if not results:
            yield _chat_response("", additional_kwargs={"tool_calls": [*tools]})
            return
        text = ""
        for word in sorted(str(one) for one in results):
            text += word + " "
            yield _chat_response(text, delta=word + " ")

    @llm_chat_callback()
    def chat(self, messages: Any, tools: Sequence[str] = (), **kwargs: Any) -> ChatResponse:
        return list(self._chunks(messages, tools))[-1]

    @llm_chat_callback()
    async def achat(self, messages: Any, tools: Sequence[str] = (), **kwargs: Any) -> ChatResponse:
        return list(self._chunks(messages, tools))[-1]

    @llm_chat_callback()
    def stream_chat(self, messages: Any, tools: Sequence[str] = (), **kwargs: Any) -> Any:
        return self._chunks(messages, tools)

    @llm_chat_callback()
    async def astream_chat(self, messages: Any, tools: Sequence[str] = (), **kwargs: Any) -> Any:
        async def chunks() -> AsyncIterator[ChatResponse]:
            for chunk in self._chunks(messages, tools):
                yield chunk

        return chunks()

    @llm_completion_callback()
    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        raise NotImplementedError

    @llm_completion_callback()
    async def acomplete(self, *args: Any, **kwargs: Any) -> CompletionResponse:
        raise NotImplementedError

    @llm_completion_callback()
    def stream_complete(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    @llm_completion_callback()
    async def astream_complete(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError


def _chat_response(text: str, delta: str = "", **kwargs: Any) -> ChatResponse:
    message = ChatMessage(role=MessageRole.ASSISTANT, content=text, **kwargs)
    return ChatResponse(message=message, delta=delta)


class Retrieved(Event):
    """Nodes that were found."""

    nodes: list[NodeWithScore]


class Reranked(Event):
    """The same nodes in another order."""

    nodes: list[NodeWithScore]


class ByLength(BaseNodePostprocessor):
    """A reranker that prefers long texts."""

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        scored = [NodeWithScore(node=one.node, score=len(one.node.get_content())) for one in nodes]
        return sorted(scored, key=lambda one: -(one.score or 0))[:2]


class RerankFlow(Workflow):
    """Retrieval, reranking and a synthesis whose stream is taken after the run."""

    def __init__(self, parts: Parts) -> None:
        super().__init__()
        self.retriever = parts.index().as_retriever(similarity_top_k=3)
        self.reranker = ByLength()
        self.synthesizer = get_response_synthesizer(llm=parts.llm, streaming=True)

    @step
    async def retrieve(self, context: Context, start: StartEvent) -> Retrieved:
        await context.store.set("question", start.question)
        return Retrieved(nodes=await self.retriever.aretrieve(start.question))

    @step
    async def rerank(self, context: Context, found: Retrieved) -> Reranked:
        question = await context.store.get("question")
        return Reranked(nodes=self.reranker.postprocess_nodes(found.nodes, query_str=question))

    @step
    async def synthesize(self, context: Context, found: Reranked) -> StopEvent:
        question = await context.store.get("question")
        return StopEvent(result=await self.synthesizer.asynthesize(question, found.nodes))


class North(Event):
    """A question of one branch."""

    question: str


class South(Event):
    """A question of the other branch."""

    question: str


class Answer(Event):
    """The answer of a branch."""

    branch: str
    text: str


class FanIn(Workflow):
    """Two branches of two kinds, whose answers meet in a step that waits for both."""

    def __init__(self, parts: Parts) -> None:
        super().__init__()
        self.llm = parts.llm
        self.engine = parts.engine()

    @step
    async def split(self, context: Context, start: StartEvent) -> North | South | None:
        context.send_event(North(question=start.question))
        context.send_event(South(question=start.question))
        return None

    @step
    async def north(self, asked: North) -> Answer:
        return Answer(branch="north", text=str(await self.engine.aquery(asked.question)))

    @step
    async def south(self, asked: South) -> Answer:
        return Answer(branch="south", text=(await self.llm.acomplete(asked.question)).text)

    @step
    async def join(self, context: Context, answer: Answer) -> StopEvent | None:
        found = context.collect_events(answer, [Answer, Answer])
        if found is None:
            return None
        return StopEvent(result=sorted((one.branch, one.text) for one in found))


class AskingTheUser(Workflow):
    """A user is asked between two calls of a model."""

    def __init__(self, parts: Parts) -> None:
        super().__init__()
        self.llm = parts.llm

    @step
    async def propose(self, context: Context, start: StartEvent) -> InputRequiredEvent:
        proposed = (await self.llm.acomplete(start.question)).text
        await context.store.set("proposed", proposed)
        return InputRequiredEvent(prefix=proposed)

    @step
    async def conclude(self, context: Context, answer: HumanResponseEvent) -> StopEvent:
        proposed = await context.store.get("proposed")
        return StopEvent(result=(await self.llm.acomplete(f"{proposed} {answer.response}")).text)


async def answered_by_the_user(workflow: Any, other: Any = None) -> Any:
    """Stop where the user is asked, store the context, and go on with it, perhaps in another."""
    first = workflow.run(question=QUESTION)
    asked = [one.prefix async for one in _until_asked(first)]
    stored = json.loads(json.dumps(first.ctx.to_dict()))
    await first.cancel_run()
    going_on = workflow if other is None else other
    second = going_on.run(ctx=Context.from_dict(going_on, stored))
    second.ctx.send_event(HumanResponseEvent(response="yes"))
    return asked, await second


async def _until_asked(handler: Any) -> AsyncIterator[InputRequiredEvent]:
    async for event in handler.stream_events():
        if isinstance(event, InputRequiredEvent):
            yield event
            return


def opening_year(input: str) -> str:
    """Return the year of an opening."""
    return f"1932 for {input}"


def function_agent(parts: Parts, streaming: bool = True) -> FunctionAgent:
    """Return an agent with two tools, one of them a query engine."""
    search = QueryEngineTool.from_defaults(parts.engine(), name="search", description="Search")
    tools = [search, FunctionTool.from_defaults(opening_year)]
    return FunctionAgent(llm=ToolLLM(), tools=tools, streaming=streaming)


async def _streamed_events(agent: Any) -> Any:
    handler = agent.run(QUESTION)
    seen: list[Any] = []
    async for event in handler.stream_events():
        if isinstance(event, ToolCallResult):
            seen.append((event.tool_name, event.tool_output.content))
        elif isinstance(event, AgentStream):
            seen.append((event.delta, event.response))
        elif isinstance(event, ToolCall):
            seen.append((event.tool_name, event.tool_kwargs))
        else:
            seen.append(type(event))
    return seen, str(await handler)


async def _answer(workflow: Any) -> Any:
    handler = workflow.run(question=QUESTION)
    streamed = [type(event) async for event in handler.stream_events(expose_internal=False)]
    return streamed, await handler


async def _streamed_answer(workflow: Any) -> Any:
    response = await workflow.run(question=QUESTION)
    tokens = [token async for token in response.async_response_gen()]
    return tokens, type(response), nodes_of(response)


WORKFLOWS: dict[str, tuple[Callable[[Parts], Any], Callable[[Any], Any]]] = {
    "rerank": (RerankFlow, _streamed_answer),
    "fan-in": (FanIn, _answer),
    "user in the loop": (AskingTheUser, answered_by_the_user),
    "function agent": (function_agent, _streamed_events),
    "function agent, not streaming": (
        partial(function_agent, streaming=False),
        _streamed_events,
    ),
}

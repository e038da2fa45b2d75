"""A streamed chat, joined, is the whole chat: for each kind of served object and of its results."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from functools import wraps
from typing import Annotated, Any, Literal, TypedDict

import pytest
from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel, FakeListLLM
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage
from langchain_core.output_parsers import (
    CommaSeparatedListOutputParser,
    JsonOutputParser,
    StrOutputParser,
)
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import (
    Runnable,
    RunnableBranch,
    RunnableGenerator,
    RunnableLambda,
    RunnableParallel,
    RunnablePassthrough,
)
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.graph.message import add_messages
from langgraph.prebuilt import create_react_agent
from langgraph.types import Command, RetryPolicy
from llama_index.core import Document, MockEmbedding, VectorStoreIndex
from llama_index.core.agent.workflow import FunctionAgent, ReActAgent
from llama_index.core.base.llms.types import CompletionResponse, LLMMetadata
from llama_index.core.chat_engine import CondenseQuestionChatEngine, SimpleChatEngine
from llama_index.core.llms import CustomLLM, MockFunctionCallingLLM
from llama_index.core.llms.callbacks import llm_completion_callback
from llama_index.core.memory import ChatMemoryBuffer
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.response_synthesizers.no_text import NoText
from llama_index.core.tools import FunctionTool
from pydantic import BaseModel, SecretStr
from serving_kit import AsgiCall, client_of, served, serving_app, until
from workflows import Workflow, step
from workflows.events import StartEvent, StopEvent

from langchain_rag_accel.served import serve_object as serve_langchain
from langchain_rag_accel.streamed_answers import answering_nodes, streams_its_answer
from llama_index_rag_accel.served import serve_object as serve_llama_index
from rag_accel import Constant
from rag_accel.accelerator import Accelerator
from rag_accel.engine_api import Document as RagDocument
from rag_accel.graph.nodes import END as RAG_END
from rag_accel.graph.nodes import START as RAG_START
from rag_accel.graph.ragraph import RAGraph
from rag_accel.serving.native import serve_native
from rag_accel.serving.served import ServedProgram, ServingTerms

# LlamaIndex looks at all attributes of an agent it makes, deprecated ones of pydantic too.
pytestmark = [
    pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecationWarning"),
    pytest.mark.filterwarnings("ignore:create_react_agent has been moved"),
    pytest.mark.filterwarnings("ignore:.*is_running"),
]

YEAR = "It opened in 1932."


class Speaker(BaseChatModel):
    """A chat model that answers with a text, a word at a time, the third once ``gate`` is open."""

    text: str = YEAR
    prefix: bool = False
    gate: Any = None

    @property
    def _llm_type(self) -> str:
        return "speaker"

    def _said(self, messages: list[BaseMessage]) -> str:
        return f"{self.text} {messages[-1].text}" if self.prefix else self.text

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=AIMessage(self._said(messages)))])

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        for piece in self._said(messages).replace(" ", " \0").split("\0"):
            chunk = ChatGenerationChunk(message=AIMessageChunk(content=piece))
            if run_manager:
                run_manager.on_llm_new_token(piece, chunk=chunk)
            yield chunk

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        for number, piece in enumerate(self._said(messages).replace(" ", " \0").split("\0")):
            if self.gate is not None and number == 2:
                await self.gate.wait()
            chunk = ChatGenerationChunk(message=AIMessageChunk(content=piece))
            if run_manager:
                await run_manager.on_llm_new_token(piece, chunk=chunk)
            yield chunk

    def bind_tools(self, tools: Any, **kwargs: Any) -> Runnable[Any, Any]:
        return self


bot = Speaker()
rewriter = Speaker(text="REWRITTEN:", prefix=True)
PROMPT = ChatPromptTemplate.from_template("Answer: {input}")


class Answered(BaseModel):
    """A result with fields."""

    year: int
    place: str = "Sydney"


def returns(value: Any) -> RunnableLambda[Any, Any]:
    """Return a runnable that runs a model and returns something else."""

    async def give(text: str) -> Any:
        await bot.ainvoke(text)
        return value

    return RunnableLambda(give)


def never(value: Any) -> Any:
    raise RuntimeError(f"not {value}")


async def redacted(texts: AsyncIterator[Any]) -> AsyncIterator[str]:
    """Strike out a number, in each piece by itself."""
    async for text in texts:
        yield text.replace("1932", "****")


async def counted(_: AsyncIterator[Any]) -> AsyncIterator[str]:
    for number in range(3):
        yield f"{number} "


JSON = Speaker(text='{"year": 1932, "words": ["it", "opened"]}')
CHAINS: dict[str, Any] = {
    "text": PROMPT | bot | StrOutputParser(),
    "message": PROMPT | bot,
    "model of texts": PROMPT | FakeListLLM(responses=[YEAR]),
    "bound": PROMPT | bot.bind(stop=["x"]) | StrOutputParser(),
    "retried": (PROMPT | bot | StrOutputParser()).with_retry(stop_after_attempt=2),
    "fallback": returns(None).pipe(never).with_fallbacks([PROMPT | bot]),
    "branch": RunnableBranch(
        (lambda text: "?" in text, PROMPT | bot), PROMPT | JSON | JsonOutputParser()
    ),
    "picked": RunnablePassthrough.assign(answer=PROMPT | bot | StrOutputParser()).pick("answer"),
    "picked json": PROMPT
    | JSON
    | JsonOutputParser()
    | RunnablePassthrough()
    | (lambda made: made["year"]),
    "rewritten": PROMPT | rewriter | StrOutputParser() | bot,
    "changed": PROMPT | bot | (lambda message: message.text.upper()),
    "redacted by piece": PROMPT
    | Speaker(text="It was 19 32, 1932.")
    | StrOutputParser()
    | RunnableGenerator(redacted),
    "generated": RunnableGenerator(counted),
    "mapping": RunnableParallel(
        answer=PROMPT | bot | StrOutputParser(), question=RunnablePassthrough()
    ),
    "json": PROMPT | JSON | JsonOutputParser(),
    "cut json": PROMPT | Speaker(text='{"a": [1, "b') | JsonOutputParser(),
    "list": PROMPT | Speaker(text="a, b, c") | CommaSeparatedListOutputParser(),
    "dict": returns({"year": 1932, "nested": [1, {"a": None}]}),
    "nothing": returns(None),
    "tuple": returns(("assistant", "1932")),
    "pydantic": returns(Answered(year=1932)),
    "document list": returns([RagDocument("a", "It opened.")]),
    "human message": returns(HumanMessage("Who?")),
    "empty": PROMPT | Speaker(text="") | StrOutputParser(),
}


@pytest.fixture
def accelerator() -> Iterator[Accelerator]:
    with Accelerator() as made:
        yield made


async def chatted(program: Any) -> tuple[str | int, str | int]:
    """Return a chat's answer as a whole and as it is streamed; statuses where they are errors."""
    assert isinstance(program, ServedProgram)
    body: dict[str, Any] = {"model": "bot", "messages": [{"role": "user", "content": "When?"}]}
    async with client_of(serving_app(program)) as client:
        whole = await client.post("/v1/chat/completions", json=body)
        streamed = await client.post("/v1/chat/completions", json={**body, "stream": True})
    said = whole.json()["choices"][0]["message"]["content"] if whole.status_code == 200 else None
    return (
        whole.status_code if said is None else said,
        streamed.status_code if streamed.status_code != 200 else joined(streamed.text),
    )


def joined(told: str) -> str:
    parts = [json.loads(part[6:]) for part in told.split("\n\n") if part.startswith("data: {")]
    assert not [part["error"] for part in parts if "error" in part]
    choices = [choice for part in parts for choice in part["choices"]]
    assert choices[-1]["finish_reason"] == "stop"
    return "".join(choice["delta"].get("content") or "" for choice in choices)


@pytest.mark.parametrize("name", CHAINS)
async def test_a_streamed_chain_is_the_whole_chain(name: str, accelerator: Accelerator) -> None:
    inputs = ("input",) if name in ("picked",) else None
    program = serve_langchain(CHAINS[name], ServingTerms(accelerator, inputs))
    whole, streamed = await chatted(program)
    assert streamed == whole
    assert isinstance(whole, str)


class Said(TypedDict):
    """A state whose messages have no reducer."""

    messages: list[Any]


class Told(TypedDict, total=False):
    """A state with messages that the output lacks."""

    messages: Annotated[list[Any], add_messages]
    year: int


class Year(TypedDict, total=False):
    """An output without messages."""

    year: int


def answer(state: Any) -> Any:
    return {"messages": [bot.invoke(state["messages"])]}


async def answer_later(state: Any) -> Any:
    said = await bot.ainvoke(state["messages"])
    return {"messages": [said]}


def answer_with_prompt(state: Any) -> Any:
    asked = PROMPT.invoke({"input": " ".join(str(m.content) for m in state["messages"])})
    response: AIMessage = bot.invoke(asked)
    return {"messages": [*state["messages"], response]}


def rewrite(state: Any) -> Any:
    return {"messages": [rewriter.invoke(state["messages"])]}


def rewrite_and_answer(state: Any) -> Any:
    asked = rewriter.invoke(state["messages"])
    return {"messages": [bot.invoke([asked])]}


patient = bot.with_retry(stop_after_attempt=2)


def ask_again(state: Any) -> Any:
    return {"messages": [patient.invoke(state["messages"])]}


def ask_by_helper(state: Any) -> Any:
    asked = helped(state["messages"])
    return {"messages": [bot.invoke([asked])]}


def helped(messages: Any) -> Any:
    return bot.invoke(messages)


def shout(state: Any) -> Any:
    said = bot.invoke(state["messages"])
    return {"messages": [AIMessage(said.text.upper())]}


def redo(state: Any) -> Any:
    said = bot.invoke(state["messages"])
    said.content = "Nothing."
    return {"messages": [said]}


def ask_until_short(state: Any) -> Any:
    said: Any = None
    for _ in range(2):
        said = bot.invoke(state["messages"])
    return {"messages": [said]}


def apologise(state: Any) -> Any:
    try:
        return {"messages": [bot.invoke(state["messages"])]}
    finally:
        bot.invoke("again")


def local_model(state: Any) -> Any:
    other = [rewriter][0]
    asked = other.invoke(state["messages"])
    return {"messages": [bot.invoke([asked])]}


def as_tuple(state: Any) -> Any:
    bot.invoke(state["messages"])
    return {"messages": [("assistant", "Said so.")]}


def replace(state: Any) -> Any:
    return {"messages": [AIMessage("Final.", id=state["messages"][-1].id)]}


def note_year(state: Any) -> Any:
    bot.invoke(state["messages"])
    return {"year": 1932}


def add_later(state: Any) -> Any:
    return {"messages": [AIMessage("And later.")]}


def annotated_command(state: Any) -> Command[Literal["later"]]:
    return Command(goto="later", update={"messages": [bot.invoke(state["messages"])]})


class Answerer:
    """An object whose method is a node."""

    def __init__(self) -> None:
        self.model = bot

    def answer(self, state: Any) -> Any:
        return {"messages": [self.model.invoke(state["messages"])]}


def logged(function: Any) -> Any:
    @wraps(function)
    def call(state: Any) -> Any:
        bot.invoke("first")
        return function(state)

    return call


def graph_of(*nodes: Any, state: Any = MessagesState, **options: Any) -> Any:
    """Return a graph of nodes in a row."""
    graph = StateGraph(state, **options)
    before = START
    for number, node in enumerate(nodes):
        graph.add_node(f"n{number}", node)
        graph.add_edge(before, f"n{number}")
        before = f"n{number}"
    return graph.add_edge(before, END).compile()


def parallel_graph() -> Any:
    graph = StateGraph(MessagesState).add_node("a", answer).add_node("b", add_later)
    graph.add_edge(START, "a").add_edge(START, "b")
    return graph.add_edge("a", END).add_edge("b", END).compile()


def longer_beside() -> Any:
    graph = StateGraph(MessagesState).add_node("a", answer)
    graph.add_node("b", lambda state: {}).add_node("c", add_later)
    graph.add_edge(START, "a").add_edge(START, "b").add_edge("b", "c")
    return graph.add_edge("a", END).add_edge("c", END).compile()


def joining_graph() -> Any:
    graph = StateGraph(MessagesState).add_node("a", answer).add_node("b", lambda state: {})
    graph.add_node("c", add_later).add_edge(START, "a").add_edge(START, "b")
    return graph.add_edge(["a", "b"], "c").add_edge("c", END).compile()


def deferred_graph() -> Any:
    graph = StateGraph(MessagesState).add_node("a", answer)
    graph.add_node("b", add_later, defer=True).add_edge(START, "a").add_edge(START, "b")
    return graph.add_edge("a", END).add_edge("b", END).compile()


def conditional_graph() -> Any:
    graph = StateGraph(MessagesState).add_node("a", answer).add_node("b", add_later)
    graph.add_edge(START, "a").add_conditional_edges("a", lambda state: "b")
    return graph.add_edge("b", END).compile()


def routed_graph() -> Any:
    graph = StateGraph(MessagesState).add_node("a", answer).add_node("b", add_later)
    graph.add_conditional_edges(START, lambda state: "a")
    return graph.add_edge("a", END).add_edge("b", END).compile()


def command_graph() -> Any:
    graph = StateGraph(MessagesState).add_node("first", annotated_command)
    return graph.add_node("later", add_later).add_edge(START, "first").compile()


def retrying_graph() -> Any:
    graph = StateGraph(MessagesState).add_node("a", answer, retry_policy=RetryPolicy())
    return graph.add_edge(START, "a").add_edge("a", END).compile()


def outer_graph() -> Any:
    return graph_of(graph_of(rewrite, answer))


def look_up(place: str) -> str:
    """Return what is known of a place."""
    return f"{place} opened in 1932."


STREAMED = {"one node", "async node", "with prompt", "behind a rewriter", "method", "routed"}
GRAPHS: dict[str, Callable[[], Any]] = {
    "one node": lambda: graph_of(answer),
    "async node": lambda: graph_of(answer_later),
    "with prompt": lambda: graph_of(answer_with_prompt),
    "behind a rewriter": lambda: graph_of(rewrite, answer),
    "method": lambda: graph_of(Answerer().answer),
    "routed": routed_graph,
    "rewrites in the node": lambda: graph_of(rewrite_and_answer),
    "asks again": lambda: graph_of(ask_again),
    "asks by a helper": lambda: graph_of(ask_by_helper),
    "asks a model it takes": lambda: graph_of(local_model),
    "shouts": lambda: graph_of(shout),
    "changes the message": lambda: graph_of(redo),
    "loops": lambda: graph_of(ask_until_short),
    "asks at the end": lambda: graph_of(apologise),
    "decorated": lambda: graph_of(logged(answer)),
    "tuple": lambda: graph_of(as_tuple),
    "tuple without reducer": lambda: graph_of(as_tuple, state=Said),
    "no reducer": lambda: graph_of(answer, state=Said),
    "replaced": lambda: graph_of(answer, replace),
    "another behind": lambda: graph_of(answer, add_later),
    "no messages in the output": lambda: graph_of(note_year, state=Told, output_schema=Year),
    "hidden answer": lambda: graph_of(answer, note_year, state=Told, output_schema=Year),
    "parallel": parallel_graph,
    "longer beside": longer_beside,
    "joined": joining_graph,
    "deferred": deferred_graph,
    "goes on": conditional_graph,
    "declared command": command_graph,
    "retries": retrying_graph,
    "graph within": outer_graph,
    "runnable": lambda: graph_of(RunnableLambda(answer)),
    "agent without tools": lambda: create_react_agent(bot, []),
    "agent": lambda: create_react_agent(bot, [look_up]),
}


@pytest.mark.parametrize("name", GRAPHS)
async def test_a_streamed_graph_is_the_whole_graph(name: str, accelerator: Accelerator) -> None:
    graph = GRAPHS[name]()
    assert bool(answering_nodes(graph)) >= (name in STREAMED)
    program = serve_langchain(graph, ServingTerms(accelerator, ("messages",)))
    whole, streamed = await chatted(program)
    assert streamed == whole
    assert isinstance(whole, str)


@pytest.mark.parametrize(
    "name",
    [name for name in GRAPHS if name not in STREAMED | {"parallel", "longer beside", "runnable"}],
)
def test_a_graph_whose_nodes_may_say_something_else_is_answered_whole(name: str) -> None:
    assert answering_nodes(GRAPHS[name]()) <= {"c"}


async def test_an_answer_that_is_replaced_after_all_is_an_error(accelerator: Accelerator) -> None:
    program: Any = serve_langchain(graph_of(answer, replace), ServingTerms(accelerator))
    program._answering = frozenset({"n0"})  # as if nothing showed where the node leads
    body = {"model": "bot", "messages": [{"role": "user", "content": "?"}], "stream": True}
    async with client_of(serving_app(program)) as client:
        told = (await client.post("/v1/chat/completions", json=body)).text
    assert '"error"' in told.split("\n\n")[-3]


class WordLLM(CustomLLM):
    """A model that says a text, a word at a time."""

    text: str = YEAR

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata(context_window=4096, num_output=64)

    @llm_completion_callback()
    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        return CompletionResponse(text=self.text)

    @llm_completion_callback()
    def stream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> Any:
        said = ""
        for word in self.text.replace(" ", " \0").split("\0"):
            said += word
            yield CompletionResponse(text=said, delta=word)


REACT = "Thought: I know it.\nAnswer: It opened in 1932."


def index() -> VectorStoreIndex:
    return VectorStoreIndex.from_documents(
        [Document(text="The bridge opened in 1932.")], embed_model=MockEmbedding(8)
    )


def chat_engine(mode: Any) -> Any:
    memory = ChatMemoryBuffer.from_defaults(token_limit=2000)
    return index().as_chat_engine(chat_mode=mode, llm=WordLLM(), memory=memory)


class Giving(Workflow):
    """A workflow that streams texts of its own and gives a result."""

    def __init__(self, result: Any) -> None:
        super().__init__()
        self._result = result

    @step
    async def give(self, ev: StartEvent) -> StopEvent:
        return StopEvent(result=self._result)


ENGINES: dict[str, Callable[[], Any]] = {
    "query": lambda: index().as_query_engine(llm=WordLLM()),
    "streaming query": lambda: index().as_query_engine(llm=WordLLM(), streaming=True),
    "query without an answer": lambda: RetrieverQueryEngine(
        index().as_retriever(), NoText(llm=WordLLM())
    ),
    "simple chat": lambda: SimpleChatEngine.from_defaults(
        llm=WordLLM(), memory=ChatMemoryBuffer.from_defaults(token_limit=2000)
    ),
    "context chat": lambda: chat_engine("context"),
    "condensed question chat": lambda: chat_engine("condense_question"),
    "condensed question, streamed": lambda: CondenseQuestionChatEngine.from_defaults(
        query_engine=index().as_query_engine(llm=WordLLM(), streaming=True),
        llm=WordLLM(),
        memory=ChatMemoryBuffer.from_defaults(token_limit=2000),
    ),
    "agent that reasons": lambda: ReActAgent(name="r", llm=WordLLM(text=REACT), streaming=True),
    "agent without tools": lambda: FunctionAgent(
        name="f", llm=MockFunctionCallingLLM(), system_prompt="Be short."
    ),
    "agent with tools": lambda: FunctionAgent(
        name="f",
        llm=MockFunctionCallingLLM(),
        tools=[FunctionTool.from_defaults(look_up)],
    ),
}


@pytest.mark.parametrize("name", ENGINES)
async def test_a_streamed_engine_is_the_whole_engine(name: str, accelerator: Accelerator) -> None:
    program = serve_llama_index(ENGINES[name](), ServingTerms(accelerator))
    whole, streamed = await chatted(program)
    assert streamed == whole
    assert isinstance(whole, str)
    assert whole != "None"


@pytest.mark.parametrize("result", ["text", {"year": 1932}, [1, "a"], 7, None], ids=str)
async def test_a_streamed_workflow_is_its_result(result: Any, accelerator: Accelerator) -> None:
    program = serve_llama_index(Giving(result), ServingTerms(accelerator, ("question",)))
    whole, streamed = await chatted(program)
    assert streamed == whole
    assert whole == (result if isinstance(result, str) else json.dumps(result))


def ragraph(function: Any = None, **generation: Any) -> RAGraph:
    graph = RAGraph().add_generation("say", "{input}", output="said", **generation)
    graph.add_edge(RAG_START, "say")
    if function is None:
        return graph.add_edge("say", RAG_END)
    graph.add_function("then", function, inputs=["said"])
    return graph.add_edge("say", "then").add_edge("then", RAG_END)


def search_graph() -> RAGraph:
    graph = RAGraph().add_retrieval("search", query="input", top_k=2)
    return graph.add_edge(RAG_START, "search").add_edge("search", RAG_END)


def two_ends() -> RAGraph:
    graph = RAGraph().add_generation("a", "{input}").add_generation("b", "Again {input}")
    graph.add_edge(RAG_START, "a").add_edge(RAG_START, "b")
    return graph.add_edge("a", RAG_END).add_edge("b", RAG_END)


RAGRAPHS: dict[str, Callable[[], RAGraph]] = {
    "text": ragraph,
    "guarded": lambda: ragraph(lambda said: "No." if "WHEN" in said else said),
    "dict": lambda: ragraph(lambda said: {"said": said, "none": None}),
    "number": lambda: ragraph(lambda said: 1932),
    "nothing": lambda: ragraph(lambda said: None),
    "documents": search_graph,
    "two ends": two_ends,
    "with a fallback": lambda: ragraph(fallback=Constant("Spare.")),
}


def said_upper(prompt: str) -> str:
    return prompt.upper()


def found(query: str, k: int) -> Any:
    return [RagDocument(str(number), query) for number in range(k)]


@pytest.mark.parametrize("name", RAGRAPHS)
async def test_a_streamed_ragraph_is_the_whole_ragraph(name: str) -> None:
    with Accelerator(llm=said_upper, index=found) as accelerator:
        terms = ServingTerms(accelerator)
        whole, streamed = await chatted(serve_native(RAGRAPHS[name](), accelerator, terms))
    assert streamed == whole
    assert isinstance(whole, str)


def test_what_passes_a_model_on_streams_its_answer() -> None:
    certain = {name for name, chain in CHAINS.items() if streams_its_answer(chain)}
    assert certain == {
        *("text", "message", "model of texts", "bound", "retried", "picked", "rewritten"),
        *("generated", "empty"),
    }


@pytest.mark.parametrize(
    "make",
    [
        lambda model: model,
        lambda model: PROMPT | model | StrOutputParser(),
        lambda model: graph_of(answering(model)),
    ],
    ids=["model", "chain", "graph"],
)
async def test_text_is_sent_before_the_answer_has_ended(
    make: Any, accelerator: Accelerator
) -> None:
    gate = asyncio.Event()
    model = Speaker(gate=gate)
    program = serve_langchain(make(model), ServingTerms(accelerator))
    body = {"model": "bot", "messages": [{"role": "user", "content": "?"}], "stream": True}
    call = AsgiCall(serving_app(program).asgi(), "/v1/chat/completions", body)
    await until(lambda: b"opened" in call.body)
    assert b"1932" not in call.body
    gate.set()
    await call.task
    assert joined(call.body.decode()) == YEAR


def answering(model: Any) -> Any:
    async def node(state: Any) -> Any:
        return {"messages": [await model.ainvoke(state["messages"])]}

    return node


def test_a_graph_is_a_chat_for_langchains_own_client() -> None:
    with Accelerator() as accelerator:
        program = serve_langchain(graph_of(rewrite, answer), ServingTerms(accelerator))
        with served(program) as (host, port, _):
            client = ChatOpenAI(
                model="bot",
                temperature=0,
                base_url=f"http://{host}:{port}/v1",
                api_key=SecretStr("n"),
            )
            whole = client.invoke("When?")
            streamed = [piece.text for piece in client.stream("When?")]
    assert whole.text == "".join(streamed) == YEAR
    assert len([text for text in streamed if text]) > 1

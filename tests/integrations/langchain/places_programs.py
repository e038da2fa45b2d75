"""LangGraph programs whose leaf stands in each place that reaches it in a way of its own."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Annotated, Any, TypedDict

from langchain_core.embeddings import Embeddings
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import ContextThreadPoolExecutor, run_in_executor
from langchain_core.tools import BaseTool, tool
from langchain_core.vectorstores import InMemoryVectorStore
from langgraph.config import get_stream_writer
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, StateGraph
from langgraph.prebuilt import create_react_agent
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore
from langgraph.types import RetryPolicy, Send, interrupt
from lc_fakes import AsyncChat, AsyncRetriever, FakeEmbeddings, Journal, SyncChat

QUESTION = "what is red?"
#: what a node returns: part of the state
Update = dict[str, Any]


class State(TypedDict):
    """What the nodes of the programs read and write."""

    question: str
    answer: str
    notes: Annotated[list[str], operator.add]


class ToolCaller(SyncChat):
    """A model that calls the first tool it is offered, then answers."""

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        return self.bind(tools=[tool.name for tool in tools])

    def _generate(self, messages: Any, *args: Any, tools: Any = (), **kwargs: Any) -> ChatResult:
        if not tools or isinstance(messages[-1], ToolMessage):
            return super()._generate(messages)
        with self.journal.call():
            call = {"name": tools[0], "args": {"query": messages[-1].text}, "id": "call-1"}
            message = AIMessage("", tool_calls=[call])
            return ChatResult(generations=[ChatGeneration(message=message)])


#: by what the meter calls a kind of leaf, its class; each program has a class made for it, so that
#: what is patched for one run cannot hide that another one found nothing
CLASSES: dict[str, type[Any]] = {
    "chat model": AsyncChat,
    "embeddings": FakeEmbeddings,
    "retriever": AsyncRetriever,
}


@dataclass
class Kit:
    """What a builder makes its program of, and how that wants to be called.

    Args:
        kind: which kind of leaf stands in the program.
        is_async: whether its functions are coroutines.
        saver: the checkpointer, if the program is to have one.
        error: what a leaf's first call with a text raises.
        given: the input.
        configurable: what the caller puts into the config.
        resume: what the second call resumes with, if the first is interrupted.
        journals: the calls of all leaves by kind.
    """

    kind: str = "chat model"
    is_async: bool = False
    saver: Any = None
    error: Exception | None = None
    given: Any = field(default_factory=lambda: {"question": QUESTION})
    configurable: dict[str, Any] = field(default_factory=dict)
    resume: Any = None
    journals: dict[str, Journal] = field(default_factory=dict)

    def leaf(self, kind: str = "", cls: type[Any] | None = None) -> Any:
        """Return a leaf of a class of its own."""
        kind = kind or self.kind
        base = cls or CLASSES[kind]
        made = type(f"Own{base.__name__}", (base,), {"__module__": __name__})()
        made.journal = self.journals.setdefault(kind, Journal())
        if self.error is not None:
            made.error, made.flaky = self.error, True
        return made

    def pick(self, sync: Any, coroutine: Any) -> Any:
        """Return whichever of the two the program is to be made of."""
        return coroutine if self.is_async else sync

    def asking(self, leaf: Any) -> Any:
        """Return a node whose function holds a leaf, or a runnable of one, and asks it."""

        def answer(state: State) -> Update:
            return {"answer": ask(leaf, state["question"])}

        async def aanswer(state: State) -> Update:
            return {"answer": await aask(leaf, state["question"])}

        return self.pick(answer, aanswer)

    def line(self, schema: Any = State, **nodes: Any) -> Any:
        """Return the compiled graph of nodes that run one after the other."""
        return self.compiled(self.builder(schema, **nodes))

    def builder(self, schema: Any = State, **nodes: Any) -> Any:
        """Return the graph of nodes that run one after the other, behind one that streams."""
        graph: Any = StateGraph(schema)
        names = ["begin", *nodes]
        for name, node in {"begin": _begin, **nodes}.items():
            graph.add_node(name, node)
        for source, target in zip([START, *names], names, strict=False):
            graph.add_edge(source, target)
        return graph

    def compiled(self, graph: Any, **kwargs: Any) -> Any:
        """Return a graph compiled with the checkpointer, if there is one."""
        return graph.compile(checkpointer=self.saver, **kwargs)


def _begin(state: Any) -> Update:
    get_stream_writer()({"begun": True})
    return {}


def ask(leaf: Any, text: str) -> str:
    """Call a leaf of any kind, or a runnable made of one, and return its answer as text."""
    return text_of(leaf.embed_query(text) if isinstance(leaf, Embeddings) else leaf.invoke(text))


async def aask(leaf: Any, text: str) -> str:
    """Do as ``ask``, asynchronously."""
    is_embedding = isinstance(leaf, Embeddings)
    return text_of(await (leaf.aembed_query(text) if is_embedding else leaf.ainvoke(text)))


def text_of(answer: Any) -> str:
    """Return what a leaf answered as text."""
    if isinstance(answer, list):
        return " ".join(map(text_of, answer))
    return str(answer.text if isinstance(answer, BaseMessage) else answer)


# In a node's code -------------------------------------------------------------------------------


def closure(kit: Kit) -> Any:
    return kit.line(answer=kit.asking(kit.leaf()))


def class_made_in_node(kit: Kit) -> Any:
    def answer(state: State) -> Update:
        return {"answer": ask(kit.leaf(), state["question"])}

    async def aanswer(state: State) -> Update:
        return {"answer": await aask(kit.leaf(), state["question"])}

    return kit.line(answer=kit.pick(answer, aanswer))


def runnable_node(kit: Kit) -> Any:
    return kit.line(answer=itemgetter("question") | kit.leaf() | (lambda a: {"answer": text_of(a)}))


def store_as_retriever(kit: Kit) -> Any:
    """Search a store by its retriever: one leaf with the search, one with the embedding."""
    store = InMemoryVectorStore(kit.leaf("embeddings"))
    entry = {"id": "red", "vector": [0.5] * 4, "text": "red apple", "metadata": {}}
    store.store["red"] = entry  # so that nobody counts its embedding
    return kit.line(answer=kit.asking(store.as_retriever(search_kwargs={"k": 1})))


# In a tool --------------------------------------------------------------------------------------


def _tool(kit: Kit, leaf: Any) -> BaseTool:
    @tool
    def lookup(query: str) -> str:
        """Look something up."""
        return ask(leaf, query)

    @tool("lookup")
    async def alookup(query: str) -> str:
        """Look something up."""
        return await aask(leaf, query)

    return kit.pick(lookup, alookup)


def react_agent(kit: Kit) -> Any:
    kit.given = {"messages": [HumanMessage(QUESTION, id="asked")]}
    model = kit.leaf("chat model", ToolCaller)
    return create_react_agent(model, [_tool(kit, kit.leaf())], checkpointer=kit.saver)


# Where the shape of the graph puts it -----------------------------------------------------------


def conditional_edge(kit: Kit) -> Any:
    leaf = kit.leaf()

    def route(state: State) -> str:
        return "left" if len(ask(leaf, state["question"])) % 2 else "right"

    async def aroute(state: State) -> str:
        return "left" if len(await aask(leaf, state["question"])) % 2 else "right"

    graph = kit.builder()
    for side in ("left", "right"):
        graph.add_node(side, lambda state, side=side: {"notes": [side]})
        graph.add_edge(side, END)
    graph.add_conditional_edges("begin", kit.pick(route, aroute), ["left", "right"])
    return kit.compiled(graph)


def send(kit: Kit) -> Any:
    leaf = kit.leaf()

    def fan(state: State) -> list[Send]:
        return [Send("part", {"question": f"{state['question']} {place}"}) for place in range(3)]

    def note(state: State) -> Update:
        return {"notes": [ask(leaf, state["question"])]}

    async def anote(state: State) -> Update:
        return {"notes": [await aask(leaf, state["question"])]}

    graph = kit.builder()
    graph.add_node("part", kit.pick(note, anote))
    graph.add_conditional_edges("begin", fan, ["part"])
    return kit.compiled(graph)


def reducer(kit: Kit) -> Any:
    """Let a channel's reducer call the leaf, which no node's code does."""
    leaf = kit.leaf()

    def merged(old: str, new: str) -> str:
        return ask(leaf, new) if new else old

    class Merging(TypedDict):
        question: str
        answer: str

    # Postponed annotations cannot name what is local, and the reducer's leaf is.
    Merging.__annotations__["answer"] = Annotated[str, merged]
    return kit.line(Merging, answer=lambda state: {"answer": state["question"]})


def subgraph_node(kit: Kit) -> Any:
    graph: Any = StateGraph(State)
    graph.add_node("deep", kit.asking(kit.leaf()))
    return kit.line(inner=graph.add_edge(START, "deep").compile())


# Where the runtime brings it --------------------------------------------------------------------


def task_function(kit: Kit) -> Any:
    leaf = kit.leaf()

    @task
    def look(text: str) -> str:
        return ask(leaf, text)

    @task
    async def alook(text: str) -> str:
        return await aask(leaf, text)

    @entrypoint(checkpointer=kit.saver)
    def flow(given: dict[str, str]) -> str:
        return " and ".join([look(given["question"]).result(), look("what is green?").result()])

    @entrypoint(checkpointer=kit.saver)
    async def aflow(given: dict[str, str]) -> str:
        return " and ".join([await alook(given["question"]), await alook("what is green?")])

    return kit.pick(flow, aflow)


def configurable(kit: Kit) -> Any:
    def answer(state: State, config: RunnableConfig) -> Update:
        return {"answer": ask(config["configurable"]["leaf"], state["question"])}  # type: ignore

    async def aanswer(state: State, config: RunnableConfig) -> Update:
        return {"answer": await aask(config["configurable"]["leaf"], state["question"])}  # type: ignore

    kit.configurable = {"leaf": kit.leaf()}
    return kit.line(answer=kit.pick(answer, aanswer))


def graph_store(kit: Kit) -> Any:
    """Search a LangGraph store, which embeds in threads without a context, from a node."""

    def answer(state: State, *, store: BaseStore) -> Update:
        store.put(("facts",), "red", {"text": "red apple"})
        found = store.search(("facts",), query=state["question"])
        return {"answer": str([item.value for item in found])}

    async def aanswer(state: State, *, store: BaseStore) -> Update:
        await store.aput(("facts",), "red", {"text": "red apple"})
        found = await store.asearch(("facts",), query=state["question"])
        return {"answer": str([item.value for item in found])}

    store = InMemoryStore(index={"embed": kit.leaf("embeddings"), "dims": 4, "fields": ["text"]})
    return kit.compiled(kit.builder(answer=kit.pick(answer, aanswer)), store=store)


def context_threads(kit: Kit) -> Any:
    leaf, texts = kit.leaf(), [QUESTION, "what is green?"]

    def answer(state: State) -> Update:
        # One after the other, as their events are compared in order.
        with ContextThreadPoolExecutor(max_workers=1) as pool:
            return {"notes": list(pool.map(lambda text: ask(leaf, text), texts))}

    async def aanswer(state: State) -> Update:
        return {"notes": [await run_in_executor(None, ask, leaf, text) for text in texts]}

    return kit.line(answer=kit.pick(answer, aanswer))


def interrupted(kit: Kit) -> Any:
    leaf = kit.leaf()

    def answer(state: State) -> Update:
        found = ask(leaf, state["question"])
        return {"answer": f"{found} {interrupt(found)}"}

    async def aanswer(state: State) -> Update:
        found = await aask(leaf, state["question"])
        return {"answer": f"{found} {interrupt(found)}"}

    kit.resume = "indeed"
    return kit.line(answer=kit.pick(answer, aanswer))


def retry_policy(kit: Kit) -> Any:
    kit.error = OSError("does not answer")
    again = RetryPolicy(max_attempts=2, initial_interval=0.0, jitter=False, retry_on=OSError)
    graph = kit.builder()
    graph.add_node("answer", kit.asking(kit.leaf()), retry_policy=again)
    return kit.compiled(graph.add_edge("begin", "answer"))


PROGRAMS: tuple[Callable[[Kit], Any], ...] = (
    *(closure, class_made_in_node, runnable_node, store_as_retriever, react_agent),
    *(conditional_edge, send, reducer, subgraph_node),
    *(task_function, configurable, graph_store, context_threads, interrupted, retry_policy),
)
#: programs that hand over their items in no fixed order
UNORDERED = (send, context_threads)
#: programs whose one leaf is of a kind of its own
OF_ONE_KIND = {store_as_retriever: "retriever", graph_store: "embeddings"}

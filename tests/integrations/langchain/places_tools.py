"""Be programs whose leaf stands in a tool, or in an agent that calls tools."""

from __future__ import annotations

from operator import itemgetter
from typing import Annotated, Any

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langchain_core.messages.tool import tool_call
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import BaseTool, StructuredTool, create_retriever_tool, tool
from langgraph.graph.message import add_messages
from langgraph.prebuilt import InjectedStore, ToolNode, create_react_agent
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore
from places_kit import QUESTION, Kit, Program, State, Update
from places_leaves import aask, ask, chat_class, text_of
from typing_extensions import TypedDict


class Talk(TypedDict):
    """Hold a conversation."""

    messages: Annotated[list[AnyMessage], add_messages]


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


def tool_decorator(kit: Kit) -> Any:
    return _calling(kit, _tool(kit, kit.leaf()))


def structured_tool(kit: Kit) -> Any:
    leaf = kit.leaf()

    def lookup(query: str) -> str:
        return ask(leaf, query)

    async def alookup(query: str) -> str:
        return await aask(leaf, query)

    made = StructuredTool.from_function(
        func=lookup, coroutine=alookup, name="lookup", description="Look something up."
    )
    return _calling(kit, made)


class _Lookup(BaseTool):
    name: str = "lookup"
    description: str = "Look something up."
    leaf: Any = None

    def _run(self, query: str) -> str:
        return ask(self.leaf, query)

    async def _arun(self, query: str) -> str:
        return await aask(self.leaf, query)


def tool_field(kit: Kit) -> Any:
    return _calling(kit, _Lookup(leaf=kit.leaf()))


def retriever_tool(kit: Kit) -> Any:
    return _calling(kit, create_retriever_tool(kit.leaf(), "lookup", "Look something up."))


def runnable_as_tool(kit: Kit) -> Any:
    asked = RunnableLambda(itemgetter("query")) | kit.leaf() | RunnableLambda(text_of)
    made = asked.as_tool(name="lookup", description="Look something up.", arg_types={"query": str})
    return _calling(kit, made)


def leaf_as_tool(kit: Kit) -> Any:
    made = kit.leaf().as_tool(name="lookup", description="Look something up.")

    def answer(state: State) -> Update:
        return {"answer": text_of(made.invoke(state["question"]))}

    async def aanswer(state: State) -> Update:
        return {"answer": text_of(await made.ainvoke(state["question"]))}

    return kit.line(answer=kit.pick(answer, aanswer))


def tool_node(kit: Kit) -> Any:
    call = tool_call(name="lookup", args={"query": QUESTION}, id="call-1")
    kit.given = {"messages": [AIMessage(content="", tool_calls=[call], id="asked")]}
    return kit.line(Talk, tools=ToolNode([_tool(kit, kit.leaf())]))


def tool_called_by_model(kit: Kit) -> Any:
    """Let a model choose the tool, and the node call it."""
    model = chat_class(kit.tally)()
    lookup = _tool(kit, kit.leaf())
    calling = model.bind_tools([lookup])

    def answer(state: State) -> Update:
        (call,) = calling.invoke(state["question"]).tool_calls
        return {"answer": text_of(lookup.invoke(call))}

    async def aanswer(state: State) -> Update:
        (call,) = (await calling.ainvoke(state["question"])).tool_calls
        return {"answer": text_of(await lookup.ainvoke(call))}

    return kit.line(answer=kit.pick(answer, aanswer))


def react_agent(kit: Kit) -> Any:
    kit.given = {"messages": [HumanMessage(QUESTION, id="asked")]}
    model = chat_class(kit.tally)()
    return create_react_agent(model, [_tool(kit, kit.leaf())], checkpointer=kit.saver)


def agent_as_node(kit: Kit) -> Any:
    kit.given = {"messages": [HumanMessage(QUESTION, id="asked")]}
    agent = create_react_agent(chat_class(kit.tally)(), [_tool(kit, kit.leaf())])
    return kit.line(Talk, agent=agent)


def agent_hook(kit: Kit) -> Any:
    """Let a leaf choose what the agent's model is told."""
    leaf = kit.leaf()

    def remind(state: Any) -> Any:
        return {"llm_input_messages": [HumanMessage(ask(leaf, state["messages"][-1].text))]}

    async def aremind(state: Any) -> Any:
        reminder = await aask(leaf, state["messages"][-1].text)
        return {"llm_input_messages": [HumanMessage(reminder)]}

    kit.given = {"messages": [HumanMessage(QUESTION, id="asked")]}
    hook = kit.pick(remind, aremind)
    model = chat_class(kit.tally)()
    return create_react_agent(model, [], pre_model_hook=hook, checkpointer=kit.saver)


def agent_prompt(kit: Kit) -> Any:
    """Let the agent's prompt be a chain with the leaf in it."""
    asked = RunnableLambda(_last_text) | kit.leaf() | text_of
    prompt = asked | (lambda text: [HumanMessage(text)])
    kit.given = {"messages": [HumanMessage(QUESTION, id="asked")]}
    model = chat_class(kit.tally)()
    return create_react_agent(model, [], prompt=prompt, checkpointer=kit.saver)


def _last_text(state: Any) -> str:
    return state["messages"][-1].text


def store_in_tool(kit: Kit) -> Any:
    """Search a LangGraph store, which embeds, from a tool that it is injected into."""

    @tool
    def lookup(query: str, store: Annotated[BaseStore, InjectedStore()]) -> str:
        """Look something up."""
        store.put(("facts",), "red", {"text": "red apple"})
        return str([found.value for found in store.search(("facts",), query=query)])

    @tool("lookup")
    async def alookup(query: str, store: Annotated[BaseStore, InjectedStore()]) -> str:
        """Look something up."""
        await store.aput(("facts",), "red", {"text": "red apple"})
        return str([found.value for found in await store.asearch(("facts",), query=query)])

    call = tool_call(name="lookup", args={"query": QUESTION}, id="call-1")
    kit.given = {"messages": [AIMessage(content="", tool_calls=[call], id="asked")]}
    store = InMemoryStore(index={"embed": kit.leaf(), "dims": 4, "fields": ["text"]})
    graph = kit.builder(Talk, tools=ToolNode([kit.pick(lookup, alookup)]))
    return kit.compiled(graph, store=store)


def _calling(kit: Kit, made: BaseTool) -> Any:
    def answer(state: State) -> Update:
        return {"answer": text_of(made.invoke({"query": state["question"]}))}

    async def aanswer(state: State) -> Update:
        return {"answer": text_of(await made.ainvoke({"query": state["question"]}))}

    return kit.line(answer=kit.pick(answer, aanswer))


PROGRAMS = (
    Program(tool_decorator, ("chat", "embeddings", "retriever", "store", "compressor")),
    Program(structured_tool),
    Program(tool_field),
    Program(retriever_tool, ("retriever",)),
    Program(runnable_as_tool, ("chat", "retriever")),
    Program(leaf_as_tool, ("retriever",)),
    Program(tool_node),
    Program(tool_called_by_model),
    Program(react_agent),
    Program(agent_as_node),
    Program(agent_hook),
    Program(agent_prompt, ("chat", "retriever")),
    Program(store_in_tool, ("embeddings",)),
)

"""Be programs whose leaf stands in a tool, or in an agent that calls tools."""

from __future__ import annotations

from typing import Annotated, Any

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langchain_core.messages.tool import tool_call
from langchain_core.tools import BaseTool, StructuredTool, create_retriever_tool, tool
from langgraph.graph.message import add_messages
from langgraph.prebuilt import ToolNode, create_react_agent
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


def tool_node(kit: Kit) -> Any:
    call = tool_call(name="lookup", args={"query": QUESTION}, id="call-1")
    kit.given = {"messages": [AIMessage(content="", tool_calls=[call], id="asked")]}
    return kit.line(Talk, tools=ToolNode([_tool(kit, kit.leaf())]))


def react_agent(kit: Kit) -> Any:
    kit.given = {"messages": [HumanMessage(QUESTION, id="asked")]}
    model = chat_class(kit.tally)()
    return create_react_agent(model, [_tool(kit, kit.leaf())], checkpointer=kit.saver)


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
    Program(tool_node),
    Program(react_agent),
)

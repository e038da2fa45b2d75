"""Build five RAG programs with LangGraph, each fresh with every call."""

from __future__ import annotations

from collections.abc import Sequence
from operator import add
from typing import Annotated, Any, Literal

from langchain_core.documents import Document
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.tools import create_retriever_tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.types import Command, Send, interrupt
from typing_extensions import TypedDict

from bench.unbatched.leaves import (
    LeafCalls,
    WaitingChatModel,
    listed,
    new_retriever,
    rewritten,
    seed,
    text_model,
    told,
    verdict,
    written,
)
from bench.unbatched.program import Program

MOST_REWRITES = 2
_WANTED_DOCUMENTS = 2


class State(TypedDict):
    """The state of a request from its question to its answer; each graph uses some of it."""

    question: str
    documents: list[str]
    rewrites: int
    plan: list[str]
    notes: Annotated[list[str], add]
    answer: str


def agentic_rag() -> Program:
    """Return an agent that calls a retriever tool one to three times, then answers."""
    calls = LeafCalls()
    model = WaitingChatModel(reply=_search_or_answer, calls=calls)
    tool = create_retriever_tool(new_retriever(calls), "search", "Search the guide.")

    async def agent(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    graph = StateGraph(MessagesState)
    graph.add_node("agent", agent)
    graph.add_node("tools", ToolNode([tool]))
    graph.add_edge(START, "agent")
    graph.add_conditional_edges("agent", tools_condition)
    graph.add_edge("tools", "agent")
    return Program(
        name="agentic RAG",
        runnable=graph.compile(),
        turns=lambda question: [{"messages": [HumanMessage(question)]}],
        read=lambda state: told(state["messages"]),
        calls=calls,
    )


def corrective_rag() -> Program:
    """Return sync nodes that grade each document and search again where too few help."""
    calls = LeafCalls()
    retriever = new_retriever(calls)
    grader, rewriter, writer = (text_model(one, calls) for one in (verdict, rewritten, written))

    def retrieve(state: State) -> dict[str, Any]:
        return {"documents": _texts(retriever.invoke(state["question"]))}

    def grade(state: State) -> dict[str, Any]:
        asked = state["question"]
        kept = [
            text
            for text in state["documents"]
            if grader.invoke(f"Does this help?\n{text}\n{asked}").text == "yes"
        ]
        return {"documents": kept}

    def rewrite(state: State) -> dict[str, Any]:
        better = rewriter.invoke(f"Rewrite:\n{state['question']}").text
        return {"question": better, "rewrites": state["rewrites"] + 1}

    def answer(state: State) -> dict[str, Any]:
        return {"answer": writer.invoke(_prompt_of(state)).text}

    def after_grading(state: State) -> Literal["answer", "rewrite"]:
        enough = len(state["documents"]) >= _WANTED_DOCUMENTS
        return "answer" if enough or state["rewrites"] == MOST_REWRITES else "rewrite"

    graph = _line(retrieve=retrieve, grade=grade)
    graph.add_node("rewrite", rewrite)
    graph.add_node("answer", answer)
    graph.add_conditional_edges("grade", after_grading)
    graph.add_edge("rewrite", "retrieve")
    graph.add_edge("answer", END)
    return _program("corrective RAG, sync nodes", graph.compile(), calls)


def self_adaptive_rag() -> Program:
    """Return a graph whose conditional edges ask a model where to search and whether to go on."""
    calls = LeafCalls()
    guide, archive = (new_retriever(calls, name) for name in ("guide", "archive"))
    router, checker = text_model(verdict, calls), text_model(verdict, calls)
    rewriter, writer = text_model(rewritten, calls), text_model(written, calls)

    async def route(state: State) -> Literal["search_guide", "search_archive"]:
        found = await router.ainvoke(f"Is this for the guide?\n{state['question']}")
        return "search_guide" if found.text == "yes" else "search_archive"

    async def search_guide(state: State) -> dict[str, Any]:
        return {"documents": _texts(await guide.ainvoke(state["question"]))}

    async def search_archive(state: State) -> dict[str, Any]:
        return {"documents": _texts(await archive.ainvoke(state["question"]))}

    async def answer(state: State) -> dict[str, Any]:
        return {"answer": (await writer.ainvoke(_prompt_of(state))).text}

    async def rewrite(state: State) -> dict[str, Any]:
        better = (await rewriter.ainvoke(f"Rewrite:\n{state['question']}")).text
        return {"question": better, "rewrites": state["rewrites"] + 1}

    async def after_answer(state: State) -> Literal["rewrite", "__end__"]:
        found = await checker.ainvoke(f"{_prompt_of(state)}\nIs this right?\n{state['answer']}")
        done = found.text == "yes" or state["rewrites"] == MOST_REWRITES
        return "__end__" if done else "rewrite"

    graph = StateGraph(State)
    for node in (search_guide, search_archive, answer, rewrite):
        graph.add_node(node.__name__, node)
    graph.add_conditional_edges(START, route)
    graph.add_edge("search_guide", "answer")
    graph.add_edge("search_archive", "answer")
    graph.add_conditional_edges("answer", after_answer)
    graph.add_conditional_edges("rewrite", route)
    return _program("self-adaptive RAG", graph.compile(), calls)


def map_reduce() -> Program:
    """Return a plan that waits for consent, then a study of each of its parts side by side."""
    calls = LeafCalls()
    retriever = new_retriever(calls)
    planner, writer = text_model(listed, calls), text_model(written, calls)

    async def plan(state: State) -> dict[str, Any]:
        return {"plan": (await planner.ainvoke(f"Plan:\n{state['question']}")).text.splitlines()}

    def consent(state: State) -> dict[str, Any]:
        return {"plan": state["plan"] if interrupt(state["plan"]) else []}

    def parts(state: State) -> list[Send]:
        asked = state["question"]
        return [Send("study", {"question": f"{asked} {part}"}) for part in state["plan"]]

    async def study(state: State) -> dict[str, Any]:
        found = _texts(await retriever.ainvoke(state["question"]))
        return {"notes": [(await writer.ainvoke(_prompt(state["question"], found))).text]}

    async def reduce(state: State) -> dict[str, Any]:
        return {"answer": (await writer.ainvoke("\n".join(state["notes"]))).text}

    graph = _line(plan=plan, consent=consent)
    graph.add_node("study", study)
    graph.add_node("reduce", reduce)
    graph.add_conditional_edges("consent", parts, ["study"])
    graph.add_edge("study", "reduce")
    graph.add_edge("reduce", END)
    return Program(
        name="map-reduce with an interrupt",
        runnable=graph.compile(checkpointer=InMemorySaver()),
        turns=lambda question: [{"question": question}, Command(resume=True)],
        read=lambda state: (state["plan"], state.get("notes"), state.get("answer")),
        calls=calls,
    )


def plan_and_execute() -> Program:
    """Return a plan whose steps are searched for and noted one by one, each checked after."""
    calls = LeafCalls()
    retriever = new_retriever(calls)
    planner, writer = text_model(listed, calls), text_model(written, calls)

    async def plan(state: State) -> dict[str, Any]:
        return {"plan": (await planner.ainvoke(f"Plan:\n{state['question']}")).text.splitlines()}

    async def execute(state: State) -> dict[str, Any]:
        step = f"{state['question']} {state['plan'][0]}"
        found = _texts(await retriever.ainvoke(step))
        return {"notes": [(await writer.ainvoke(_prompt(step, found))).text]}

    async def replan(state: State) -> dict[str, Any]:
        said = await writer.ainvoke("\n".join(["Go on?", *state["plan"], *state["notes"]]))
        return {"plan": state["plan"][1:], "answer": said.text}

    def after_replan(state: State) -> Literal["execute", "__end__"]:
        return "execute" if state["plan"] else "__end__"

    graph = _line(plan=plan, execute=execute, replan=replan)
    graph.add_conditional_edges("replan", after_replan)
    return _program("plan and execute", graph.compile(), calls)


def _search_or_answer(messages: Sequence[BaseMessage]) -> AIMessage:
    searches = sum(isinstance(message, ToolMessage) for message in messages)
    asked = str(messages[0].content)
    if searches <= seed(asked) % 3:
        query = rewritten(f"{searches}\n{asked}")
        return AIMessage(
            "", tool_calls=[{"name": "search", "args": {"query": query}, "id": f"{searches}"}]
        )
    return AIMessage(written(told(messages)))


def _line(**nodes: Any) -> StateGraph[State]:
    """Return a graph that begins with these nodes, one after the other."""
    graph = StateGraph(State)
    for name, node in nodes.items():
        graph.add_node(name, node)
    for source, target in zip([START, *nodes], nodes, strict=False):
        graph.add_edge(source, target)
    return graph


def _program(name: str, graph: Any, calls: LeafCalls) -> Program:
    return Program(
        name=name,
        runnable=graph,
        turns=lambda question: [{"question": question, "rewrites": 0}],
        read=lambda state: (state["question"], state.get("documents"), state["answer"]),
        calls=calls,
    )


def _texts(documents: Sequence[Document]) -> list[str]:
    return [document.page_content for document in documents]


def _prompt_of(state: State) -> str:
    return _prompt(state["question"], state["documents"])


def _prompt(question: str, documents: Sequence[str]) -> str:
    return "\n".join(["Answer from these:", *documents, question])

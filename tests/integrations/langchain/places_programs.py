"""LangGraph programs whose leaf stands in each place that reaches it in a way of its own."""

from __future__ import annotations

from operator import itemgetter
from typing import Annotated, Any, Literal

from langchain_core.messages import HumanMessage
from langchain_core.runnables import RunnableConfig, run_in_executor
from langchain_core.runnables.config import ContextThreadPoolExecutor
from langchain_core.tools import BaseTool, tool
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, StateGraph
from langgraph.prebuilt import create_react_agent
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore
from langgraph.types import RetryPolicy, Send, interrupt
from places_kit import QUESTION, Kit, Program, State, Update
from places_leaves import CLASSES, aask, ask, chat_class, digest, store_class, text_of
from typing_extensions import TypedDict

# In a node's code -------------------------------------------------------------------------------


def closure(kit: Kit) -> Any:
    return kit.line(answer=kit.answering(kit.leaf()))


def class_made_in_node(kit: Kit) -> Any:
    kind, tally = kit.kind, kit.tally

    def answer(state: State) -> Update:
        return {"answer": ask(CLASSES[kind](tally)(), state["question"])}

    async def aanswer(state: State) -> Update:
        return {"answer": await aask(CLASSES[kind](tally)(), state["question"])}

    return kit.line(answer=kit.pick(answer, aanswer))


def runnable_node(kit: Kit) -> Any:
    return kit.line(answer=itemgetter("question") | kit.leaf() | _as_answer)


def retries(kit: Kit) -> Any:
    steady = kit.leaf().with_retry(stop_after_attempt=2, wait_exponential_jitter=False)
    return kit.line(answer=kit.answering(steady))


def store_as_retriever(kit: Kit) -> Any:
    """Search a store by its retriever: one leaf with the search, one with the embedding."""
    store = store_class(kit.tally, counted_as="retriever")()
    return kit.line(answer=kit.answering(store.as_retriever(search_kwargs={"k": 1})))


def _as_answer(found: Any) -> Update:
    return {"answer": text_of(found)}


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


def tool_decorator(kit: Kit) -> Any:
    return _calling(kit, _tool(kit, kit.leaf()))


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


def _calling(kit: Kit, made: BaseTool) -> Any:
    def answer(state: State) -> Update:
        return _as_answer(made.invoke({"query": state["question"]}))

    async def aanswer(state: State) -> Update:
        return _as_answer(await made.ainvoke({"query": state["question"]}))

    return kit.line(answer=kit.pick(answer, aanswer))


def react_agent(kit: Kit) -> Any:
    kit.given = {"messages": [HumanMessage(QUESTION, id="asked")]}
    model = chat_class(kit.tally)()
    return create_react_agent(model, [_tool(kit, kit.leaf())], checkpointer=kit.saver)


# Where the shape of the graph puts it -----------------------------------------------------------


def conditional_edge(kit: Kit) -> Any:
    leaf = kit.leaf()

    def route(state: State) -> str:
        return _side(ask(leaf, state["question"]))

    async def aroute(state: State) -> str:
        return _side(await aask(leaf, state["question"]))

    graph = kit.builder()
    for side in ("left", "right"):
        graph.add_node(side, lambda state, side=side: {"notes": [side]})
        graph.add_edge(side, END)
    path = kit.pick(route, aroute)
    graph.add_conditional_edges("begin", path, {"left": "left", "right": "right"})
    return kit.compiled(graph)


def _side(text: str) -> Literal["left", "right"]:
    return "left" if int(digest(text), 16) % 2 else "right"


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
    graph = StateGraph(State)
    graph.add_node("deep", kit.answering(kit.leaf()))
    graph.add_edge(START, "deep")
    return kit.line(inner=graph.compile())


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
    """Search a LangGraph store, which embeds, from a node."""

    def answer(state: State, *, store: BaseStore) -> Update:
        store.put(("facts",), "red", {"text": "red apple"})
        found = store.search(("facts",), query=state["question"])
        return {"answer": str([item.value for item in found])}

    async def aanswer(state: State, *, store: BaseStore) -> Update:
        await store.aput(("facts",), "red", {"text": "red apple"})
        found = await store.asearch(("facts",), query=state["question"])
        return {"answer": str([item.value for item in found])}

    store = InMemoryStore(index={"embed": kit.leaf(), "dims": 4, "fields": ["text"]})
    return kit.compiled(kit.builder(answer=kit.pick(answer, aanswer)), store=store)


def context_threads(kit: Kit) -> Any:
    leaf = kit.leaf()

    def answer(state: State) -> Update:
        # One after the other, as their events are compared in order.
        with ContextThreadPoolExecutor(max_workers=1) as pool:
            found = pool.map(lambda text: ask(leaf, text), [state["question"], "what is green?"])
            return {"notes": list(found)}

    async def aanswer(state: State) -> Update:
        texts = [state["question"], "what is green?"]
        found = [await run_in_executor(None, ask, leaf, text) for text in texts]
        return {"notes": found}

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
    again = RetryPolicy(max_attempts=2, initial_interval=0.0, jitter=False, retry_on=OSError)
    graph = kit.builder()
    graph.add_node("answer", kit.answering(kit.leaf()), retry_policy=again)
    graph.add_edge("begin", "answer")
    return kit.compiled(graph)


def failing(kit: Kit) -> Any:
    return closure(kit)


PROGRAMS = (
    Program(closure, tuple(CLASSES)),
    Program(class_made_in_node, tuple(CLASSES)),
    Program(runnable_node, ("chat", "llm", "retriever")),
    Program(retries, ("chat", "retriever"), error=OSError, once=True),
    Program(store_as_retriever, ("retriever",)),
    Program(tool_decorator),
    Program(tool_field),
    Program(react_agent),
    Program(conditional_edge),
    Program(send, is_ordered=False),
    Program(reducer),
    Program(subgraph_node),
    Program(task_function),
    Program(configurable),
    Program(graph_store, ("embeddings",)),
    Program(context_threads, is_ordered=False),
    Program(interrupted, saving=True),
    Program(retry_policy, error=OSError, once=True),
    Program(failing, error=ValueError),
)

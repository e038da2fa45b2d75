"""Be programs whose leaf comes from the runtime: tasks, contexts, stores, threads, retries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from langchain_core.runnables import RunnableConfig, run_in_executor
from langchain_core.runnables.config import ContextThreadPoolExecutor
from langgraph.func import entrypoint, task
from langgraph.graph import START, StateGraph
from langgraph.runtime import Runtime
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore
from langgraph.types import RetryPolicy, interrupt
from places_functions import closure
from places_kit import Kit, Program, State, Update
from places_leaves import aask, ask


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


def entrypoint_function(kit: Kit) -> Any:
    leaf = kit.leaf()

    @entrypoint(checkpointer=kit.saver)
    def flow(given: dict[str, str]) -> str:
        return ask(leaf, given["question"])

    @entrypoint(checkpointer=kit.saver)
    async def aflow(given: dict[str, str]) -> str:
        return await aask(leaf, given["question"])

    return kit.pick(flow, aflow)


@dataclass(frozen=True, slots=True)
class Context:
    """Hold the leaf that a caller passes as context."""

    leaf: Any


def runtime_context(kit: Kit) -> Any:
    def answer(state: State, runtime: Runtime[Context]) -> Update:
        return {"answer": ask(runtime.context.leaf, state["question"])}

    async def aanswer(state: State, runtime: Runtime[Context]) -> Update:
        return {"answer": await aask(runtime.context.leaf, state["question"])}

    kit.context = Context(kit.leaf())
    graph = StateGraph(State, context_schema=Context)
    graph.add_node("answer", kit.pick(answer, aanswer))
    graph.add_edge(START, "answer")
    return kit.compiled(graph)


def configurable(kit: Kit) -> Any:
    def answer(state: State, config: RunnableConfig) -> Update:
        return {"answer": ask(config["configurable"]["leaf"], state["question"])}  # type: ignore

    async def aanswer(state: State, config: RunnableConfig) -> Update:
        return {"answer": await aask(config["configurable"]["leaf"], state["question"])}  # type: ignore

    kit.configurable = {"leaf": kit.leaf()}
    return kit.line(answer=kit.pick(answer, aanswer))


class Carrying(State):
    """Hold the leaf that a caller passes as input."""

    leaf: Any


def state_value(kit: Kit) -> Any:
    def answer(state: Carrying) -> Update:
        return {"answer": ask(state["leaf"], state["question"])}

    async def aanswer(state: Carrying) -> Update:
        return {"answer": await aask(state["leaf"], state["question"])}

    kit.given = {**kit.given, "leaf": kit.leaf()}
    return kit.line(Carrying, answer=kit.pick(answer, aanswer))


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
        with ContextThreadPoolExecutor(max_workers=2) as pool:
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
    Program(task_function, ("chat", "embeddings", "retriever", "store", "compressor")),
    Program(entrypoint_function),
    Program(runtime_context),
    Program(configurable),
    Program(state_value, saving=False),
    Program(graph_store, ("embeddings",)),
    Program(context_threads, is_ordered=False),
    Program(interrupted, saving=True),
    Program(retry_policy, error=OSError, once=True),
    Program(failing, error=ValueError),
)

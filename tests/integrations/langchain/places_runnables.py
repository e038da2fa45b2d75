"""Be programs whose node is a runnable, or calls one that was made of the leaf."""

from __future__ import annotations

from operator import itemgetter
from typing import Any

from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda, RunnableParallel
from places_kit import Kit, Program, State, Update
from places_leaves import store_class, text_of


def runnable_node(kit: Kit) -> Any:
    return kit.line(answer=itemgetter("question") | kit.leaf() | _as_answer)


def bound_leaf_method(kit: Kit) -> Any:
    """Make a node of a store's own method, which is taken before anything is accelerated."""
    leaf = kit.leaf()
    step = RunnableLambda(leaf.similarity_search, leaf.asimilarity_search)
    return kit.line(answer=itemgetter("question") | step | _as_answer)


def chain_node(kit: Kit) -> Any:
    leaf = kit.leaf()
    prompt = ChatPromptTemplate.from_template("{question}")
    chain = (
        RunnableParallel(question=itemgetter("question"))
        | prompt
        | RunnableLambda(_as_text)
        | RunnableParallel(left=leaf, right=leaf.with_config(tags=["right"]))
        | RunnableLambda(_of_both)
    )
    return kit.line(answer=chain)


def retries(kit: Kit) -> Any:
    return kit.line(
        answer=kit.answering(
            kit.leaf().with_retry(stop_after_attempt=2, wait_exponential_jitter=False)
        )
    )


def streamed_in_node(kit: Kit) -> Any:
    leaf = kit.leaf()

    def answer(state: State) -> Update:
        return {"answer": "".join(text_of(chunk) for chunk in leaf.stream(state["question"]))}

    async def aanswer(state: State) -> Update:
        chunks = [text_of(chunk) async for chunk in leaf.astream(state["question"])]
        return {"answer": "".join(chunks)}

    return kit.line(answer=kit.pick(answer, aanswer))


def batched_in_node(kit: Kit) -> Any:
    leaf = kit.leaf()

    def answer(state: State) -> Update:
        return {"answer": text_of(leaf.batch([state["question"], "and what is green?"]))}

    async def aanswer(state: State) -> Update:
        found = await leaf.abatch([state["question"], "and what is green?"])
        return {"answer": text_of(found)}

    return kit.line(answer=kit.pick(answer, aanswer))


def store_as_retriever(kit: Kit) -> Any:
    """Search a store by its retriever: one leaf with the search, one with the embedding."""
    store = store_class(kit.tally, counted_as="retriever")()
    return kit.line(answer=kit.answering(store.as_retriever(search_kwargs={"k": 1})))


def _as_text(prompt: Any) -> str:
    return prompt.to_string()


def _of_both(found: Any) -> Update:
    return _as_answer([found["left"], found["right"]])


def _as_answer(found: Any) -> Update:
    return {"answer": text_of(found)}


_RUNNABLES = ("chat", "retriever")

PROGRAMS = (
    Program(runnable_node, ("chat", "llm", "retriever")),
    Program(bound_leaf_method, ("store",)),
    Program(chain_node, _RUNNABLES, is_ordered=False),
    Program(retries, _RUNNABLES, error=OSError, once=True),
    Program(streamed_in_node, _RUNNABLES),
    Program(batched_in_node, _RUNNABLES, is_ordered=False),
    Program(store_as_retriever, ("retriever",)),
)

"""The walk finds the objects that do a program's work, at their positions, and runs nothing."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.language_models import FakeListChatModel, FakeListLLM
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import (
    ConfigurableField,
    RouterRunnable,
    RunnableBranch,
    RunnableGenerator,
    RunnableLambda,
    RunnableParallel,
    RunnablePassthrough,
)
from langchain_core.vectorstores import InMemoryVectorStore

from rag_accel_adapters.langchain.walk import leaves, walk

PROMPT = ChatPromptTemplate.from_template("{input}")
GLOBAL_MODEL = FakeListChatModel(responses=["global"])


def model(name: str = "m") -> FakeListChatModel:
    return FakeListChatModel(responses=[name])


class Retriever(BaseRetriever):
    def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
        raise AssertionError("the walk ran something")


def store() -> InMemoryVectorStore:
    return InMemoryVectorStore(DeterministicFakeEmbedding(size=4))


def _paths(program: Any) -> dict[str, Any]:
    return {found.path: found.obj for found in leaves(program)}


def test_steps_of_a_sequence_are_found_by_number() -> None:
    one = model()
    assert _paths(PROMPT | one) == {"program.1": one}


def test_parts_of_a_mapping_are_found_by_key() -> None:
    one, two = model(), Retriever()
    assert _paths(RunnableParallel(a=one, b=two)) == {"program.a": one, "program.b": two}
    assert _paths(RunnablePassthrough.assign(a=one)) == {"program.mapper.a": one}


def test_branches_fallbacks_routes_and_alternatives_are_found() -> None:
    one, two, three = model(), model(), model()
    branch = RunnableBranch((lambda given: True, one), (two, three), model("default"))
    assert list(_paths(branch)) == [
        "program.then0",
        "program.if1",
        "program.then1",
        "program.default",
    ]
    assert list(_paths(one.with_fallbacks([two]))) == ["program.runnable", "program.fallback0"]
    assert list(_paths(RouterRunnable(runnables={"a": one, "b": two}))) == [
        "program.a",
        "program.b",
    ]
    either = one.configurable_alternatives(ConfigurableField(id="m"), second=two)
    assert set(map(id, _paths(either).values())) == {id(one), id(two)}


@pytest.mark.parametrize(
    "bind",
    [
        lambda one: one.bind(stop=["x"]),
        lambda one: one.with_config(tags=["x"]),
        lambda one: one.with_retry(),
        lambda one: one.map(),
        lambda one: one.bind(stop=["x"]).with_config(tags=["y"]),
    ],
)
def test_what_is_bound_is_found_once(bind: Callable[[Any], Any]) -> None:
    one = model()
    assert [found.obj for found in leaves(bind(one))] == [one]


def test_an_object_at_several_positions_is_found_at_each() -> None:
    one = model()
    assert list(_paths(RunnableParallel(a=one, b=one))) == ["program.a", "program.b"]


def test_a_store_and_its_embeddings_are_found_in_a_retriever() -> None:
    held = store()
    found = _paths(held.as_retriever())
    assert found["program.vectorstore"] is held
    assert held.embedding in found.values()


def test_the_documents_of_a_store_are_not_walked_one_by_one() -> None:
    held = store()
    held.add_texts([f"text {number}" for number in range(2000)])
    assert len(list(walk(held))) == 2


def _with_closure(one: Any) -> Any:
    return lambda given: one.invoke(given)


def _with_partial(one: Any) -> Any:
    def call(used: Any, given: Any) -> Any:
        return used.invoke(given)

    return functools.partial(call, one)


def _with_keyword_partial(one: Any) -> Any:
    def call(given: Any, used: Any) -> Any:
        return used.invoke(given)

    return functools.partial(call, used=one)


def _with_container(one: Any) -> Any:
    models = {"first": [one]}
    return lambda given: models["first"][0].invoke(given)


class Holder:
    def __init__(self, one: Any) -> None:
        self.model = one
        self.models = [one]

    def call(self, given: Any) -> Any:
        return self.model.invoke(given)

    def __call__(self, given: Any) -> Any:
        return self.model.invoke(given)


class ListHolder:
    def __init__(self, one: Any) -> None:
        self.models = [one]

    def call(self, given: Any) -> Any:
        return self.models[0].invoke(given)


def _with_object(one: Any) -> Any:
    holder = Holder(one)
    return lambda given: holder.call(given)


def _with_helper(one: Any) -> Any:
    def helper(given: Any) -> Any:
        return one.invoke(given)

    def call(given: Any) -> Any:
        return [helper(part) for part in given]

    return call


def _with_comprehension(one: Any) -> Any:
    return lambda given: [one.invoke(part) for part in given]


def _with_decorator(one: Any) -> Any:
    def decorate(function: Any) -> Any:
        @functools.wraps(function)
        def inner(given: Any) -> Any:
            return function(given)

        return inner

    return decorate(lambda given: one.invoke(given))


@pytest.mark.parametrize(
    "hold",
    [
        _with_closure,
        _with_partial,
        _with_keyword_partial,
        _with_container,
        _with_object,
        _with_helper,
        _with_comprehension,
        _with_decorator,
        lambda one: Holder(one).call,
        lambda one: ListHolder(one).call,
    ],
    ids=[
        "closure",
        "partial",
        "keyword partial",
        "container",
        "object",
        "helper",
        "comprehension",
        "decorator",
        "bound method",
        "bound method over a list",
    ],
)
def test_a_model_held_by_a_function_is_found(hold: Callable[[Any], Any]) -> None:
    one = model()
    assert {id(found.obj) for found in leaves(RunnableLambda(hold(one)))} == {id(one)}


def test_a_model_used_inside_a_function_as_a_global_is_found() -> None:
    def call(given: Any) -> Any:
        return [GLOBAL_MODEL.invoke(part) for part in given]

    assert {id(found.obj) for found in leaves(RunnableLambda(call))} == {id(GLOBAL_MODEL)}


def _module_helper(given: Any) -> Any:
    return GLOBAL_MODEL.invoke(given)


def test_a_model_used_by_a_helper_of_the_same_module_is_found() -> None:
    found = leaves(RunnableLambda(lambda given: _module_helper(given)))
    assert {id(one.obj) for one in found} == {id(GLOBAL_MODEL)}


def test_a_library_function_is_not_searched() -> None:
    import json

    program = RunnableLambda(lambda given: json.dumps(given)) | RunnableLambda(json.loads)
    assert leaves(program) == []


def test_functions_that_call_each_other_end_the_walk() -> None:
    def even(number: int) -> bool:
        return number == 0 or odd(number - 1)

    def odd(number: int) -> bool:
        return number != 0 and even(number - 1)

    assert leaves(RunnableLambda(even)) == []


def test_generators_and_async_functions_are_looked_into() -> None:
    one, two, three = model(), model(), model()

    def chunks(given: Any) -> Any:
        yield one.invoke(given)

    async def call(given: Any) -> Any:
        return await two.ainvoke(given)

    tapped = RunnablePassthrough(lambda given: three.invoke(given))
    program = RunnableGenerator(chunks) | RunnableLambda(call) | tapped
    assert {id(found.obj) for found in leaves(program)} == {id(one), id(two), id(three)}


def test_a_variable_not_bound_yet_is_no_obstacle() -> None:
    def make() -> Any:
        def call(given: Any) -> Any:
            return later.invoke(given)

        program = RunnableLambda(call)
        found = leaves(program)
        later = model()
        return found

    assert make() == []


def test_classic_retrievers_are_looked_into() -> None:
    from langchain_classic.retrievers import EnsembleRetriever, MultiQueryRetriever

    one, inner = FakeListLLM(responses=["x"]), Retriever()
    queries = MultiQueryRetriever.from_llm(retriever=inner, llm=one)
    both = EnsembleRetriever(retrievers=[queries, store().as_retriever()], weights=[0.5, 0.5])
    kinds = [type(found.obj).__name__ for found in leaves(both)]
    assert kinds == [
        "EnsembleRetriever",
        "MultiQueryRetriever",
        "Retriever",
        "FakeListLLM",
        "VectorStoreRetriever",
        "InMemoryVectorStore",
        "DeterministicFakeEmbedding",
    ]


def test_the_nodes_of_a_compiled_graph_are_looked_into() -> None:
    from langgraph.graph import END, START, StateGraph
    from typing_extensions import TypedDict

    class State(TypedDict):
        text: str

    one = model()

    def node(state: State) -> State:
        return {"text": str(one.invoke(state["text"]).content)}

    graph = StateGraph(State)
    graph.add_node("node", node)
    graph.add_edge(START, "node")
    graph.add_edge("node", END)
    assert one in [found.obj for found in leaves(graph.compile())]


def test_positions_are_named_from_what_is_walked() -> None:
    paths = [found.path for found in walk(PROMPT | (lambda given: given) | model(), "chain")]
    assert paths == ["chain", "chain.0", "chain.1", "chain.1", "chain.2"]


def test_an_object_of_another_kind_has_no_leaves() -> None:
    assert leaves(3) == []
    assert leaves("text") == []
    assert leaves(None) == []


def test_a_proxy_that_stands_for_nothing_is_no_obstacle() -> None:
    class Proxy:
        @property
        def __class__(self) -> Any:  # type: ignore[override]
            raise RuntimeError("outside of a request")

        @property
        def __dict__(self) -> Any:  # type: ignore[override]
            raise RuntimeError("outside of a request")

    one, proxy = model(), Proxy()
    found = leaves(RunnableLambda(lambda given: (proxy, one.invoke(given))))
    assert [leaf.obj for leaf in found] == [one]

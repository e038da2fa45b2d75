"""Property graphs are built with calls side by side where that is safe, and as the plain ones."""

from __future__ import annotations

import asyncio
import inspect
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from idle_accelerators import soon_idle
from li_off_loop import knowing
from li_programs import EchoLLM, HashEmbedding
from li_side_by_side import NUM_CALLS, ameeting
from llama_index.core import Document, PropertyGraphIndex
from llama_index.core.base.llms.types import CompletionResponse
from llama_index.core.graph_stores.types import KG_NODES_KEY, KG_RELATIONS_KEY
from llama_index.core.indices.property_graph import (
    SchemaLLMPathExtractor,
    SimpleLLMPathExtractor,
)
from llama_index.core.indices.property_graph.transformations import schema_llm, simple_llm
from llama_index.core.llms.callbacks import llm_completion_callback
from llama_index.core.schema import TextNode

from llama_index_rag_accel import accelerate, activate
from rag_accel import Accelerator

pytestmark = pytest.mark.usefixtures("shared_models")

TEXTS = [f"Pump {place} feeds tank {place + 1}." for place in range(NUM_CALLS)]


class GraphLLM(EchoLLM):
    """A model that writes the path which a text tells of, after what a test has it do."""

    seen: list[str] = []
    aduring: Any = None
    as_json: bool = False

    @llm_completion_callback()
    async def acomplete(
        self, prompt: str, formatted: bool = False, **kwargs: Any
    ) -> CompletionResponse:
        pump, tank = self._told(prompt)
        self.seen.append(f"{pump}-{tank}")
        answer = self._answer(pump, tank)
        if self.aduring is not None:
            other = await self.aduring(prompt)
            answer = answer if other is None else other
        return CompletionResponse(text=answer)

    def _told(self, prompt: str) -> tuple[str, str]:
        return re.findall(r"Pump (\d+) feeds tank (\d+)", prompt)[-1]

    def _answer(self, pump: str, tank: str) -> str:
        if not self.as_json:
            return f"(pump {pump}, feeds, tank {tank})\n(tank {tank}, holds, water)"
        path = {
            "subject": {"type": "PRODUCT", "name": f"pump {pump}"},
            "relation": {"type": "USED_BY"},
            "object": {"type": "PRODUCT", "name": f"tank {tank}"},
        }
        return json.dumps({"triplets": [path]})


def simple(llm: GraphLLM, **more: Any) -> SimpleLLMPathExtractor:
    """Return an extractor of the paths that a model writes, one a line."""
    return SimpleLLMPathExtractor(llm=llm, **more)


def by_schema(llm: GraphLLM, **more: Any) -> SchemaLLMPathExtractor:
    """Return an extractor of the paths that a model writes by a schema."""
    llm.as_json = True
    return SchemaLLMPathExtractor(llm=llm, **more)


EXTRACTORS: dict[str, Callable[..., Any]] = {"simple": simple, "schema": by_schema}
every_extractor = pytest.mark.parametrize("name", EXTRACTORS)

#: as many as upstream's extractors have by themselves
OWN_WORKERS = inspect.signature(SimpleLLMPathExtractor.__init__).parameters["num_workers"].default


def model(aduring: Any = None) -> GraphLLM:
    """Return a model that does something during each call."""
    return GraphLLM(seen=[], aduring=aduring)


def text_nodes(texts: list[str] = TEXTS) -> list[TextNode]:
    """Return nodes with metadata of their own."""
    return [
        TextNode(text=text, id_=f"n{place}", metadata={"page": place})
        for place, text in enumerate(texts)
    ]


def built_of(nodes: Any) -> Any:
    """Return what an extractor has put into nodes, in order."""
    return [
        (
            node.id_,
            list(node.metadata),
            [one.model_dump() for one in node.metadata[KG_NODES_KEY]],
            [one.model_dump() for one in node.metadata[KG_RELATIONS_KEY]],
        )
        for node in nodes
    ]


def built(extractor: Any, **more: Any) -> PropertyGraphIndex:
    """Return an index of the texts as documents in LlamaIndex's default stores."""
    documents = [
        Document(text=text, id_=f"d{place}", metadata={"page": place})
        for place, text in enumerate(TEXTS)
    ]
    return PropertyGraphIndex.from_documents(
        documents,
        llm=extractor.llm,
        kg_extractors=[extractor],
        embed_model=HashEmbedding(),
        transformations=[_whole],
        **more,
    )


def _whole(nodes: Any, **_: Any) -> Any:
    """Return each document as one node of the same id, which upstream would draw at random."""
    return [
        TextNode(text=node.text, id_=f"n-{node.id_}", metadata=dict(node.metadata))
        for node in nodes
    ]


def graph_in(index: PropertyGraphIndex) -> Any:
    """Return the nodes, relations, triplets and vectors of an index, nodes in the order kept."""
    graph: Any = index.property_graph_store.graph  # type: ignore[attr-defined]
    store = index.vector_store
    return (
        [(key, type(one), one.model_dump()) for key, one in graph.nodes.items()],
        [(key, one.model_dump()) for key, one in graph.relations.items()],
        graph.triplets,
        None if store is None else store.to_dict(),  # type: ignore[attr-defined]
    )


@pytest.fixture
def accelerator() -> Iterator[Accelerator]:
    """Give an accelerator to which the fakes are thread-safe."""
    with knowing(GraphLLM, HashEmbedding) as made:
        yield made


def _plain(name: str) -> Any:
    return built_of(EXTRACTORS[name](model())(text_nodes()))


# They overlap ------------------------------------------------------------------------------------


@every_extractor
def test_calls_of_an_accelerated_extractor_overlap(name: str, accelerator: Accelerator) -> None:
    extractor = accelerate(EXTRACTORS[name](model(ameeting())), accelerator=accelerator)
    assert built_of(extractor(text_nodes())) == _plain(name)
    assert soon_idle(accelerator)


@pytest.mark.parametrize("use_async", [True, False])
@every_extractor
def test_an_activated_index_is_built_of_the_same(
    name: str, use_async: bool, accelerator: Accelerator
) -> None:
    plain = graph_in(built(EXTRACTORS[name](model()), use_async=use_async))
    with activate(accelerator):
        fast = built(EXTRACTORS[name](model(ameeting())), use_async=use_async)
    assert graph_in(fast) == plain
    assert len(plain[0]) > NUM_CALLS


def _most_at_once(make: Any, nodes: Any = None) -> int:
    """Return how many calls of the model an extractor has had at once."""
    running = most = 0

    async def during(_: str) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        for _turn in range(5):
            await asyncio.sleep(0)
        running -= 1

    make(model(during))(text_nodes() if nodes is None else nodes)
    return most


# They show the same ------------------------------------------------------------------------------


# Bad input ---------------------------------------------------------------------------------------

BAD = "Pump 2 "


@pytest.fixture(autouse=True)
def nothing_is_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep no record of an error, whose traceback leads to the program."""
    for module in (simple_llm, schema_llm):
        monkeypatch.setattr(module.logger, "disabled", True)


def _answering(answer: str | Exception) -> Any:
    """Return what a model does that answers one text in another way."""

    async def during(prompt: str) -> str | None:
        await asyncio.sleep(0)
        if BAD not in prompt:
            return None
        if isinstance(answer, Exception):
            raise type(answer)(*answer.args)  # whose traceback leads to the program
        return answer

    return during


def _outcome(extractor: Any, nodes: Any) -> Any:
    try:
        return built_of(extractor(nodes))
    except Exception as error:
        return type(error), str(error)


@pytest.mark.parametrize("raises", [False, True])
@pytest.mark.parametrize(
    "answer",
    ["", "no paths at all", "((,),", '{"triplets": [7]}', ValueError("bad"), RuntimeError("down")],
    ids=repr,
)
@every_extractor
def test_one_bad_answer_does_what_it_does_upstream(
    name: str, answer: Any, raises: bool, accelerator: Accelerator
) -> None:
    def extractor() -> Any:
        return EXTRACTORS[name](model(_answering(answer)), raise_on_error=raises)

    plain = _outcome(extractor(), text_nodes())
    assert _outcome(accelerate(extractor(), accelerator=accelerator), text_nodes()) == plain
    with activate(accelerator):
        assert _outcome(extractor(), text_nodes()) == plain
    assert soon_idle(accelerator)


@pytest.mark.parametrize("given", [None, 7, "text", [1, 2]])
@every_extractor
def test_what_are_no_nodes_raise_what_they_raise_upstream(
    name: str, given: Any, accelerator: Accelerator
) -> None:
    plain = _outcome(EXTRACTORS[name](model()), given)
    fast = accelerate(EXTRACTORS[name](model()), accelerator=accelerator)
    assert _outcome(fast, given) == plain
    assert plain[0] in (TypeError, AssertionError, AttributeError)


# What stays as upstream ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", EXTRACTORS)
@pytest.mark.parametrize("workers", [1, OWN_WORKERS - 1, OWN_WORKERS])
def test_fewer_workers_than_the_class_has_are_a_limit_that_is_kept(
    name: str, workers: int, accelerator: Accelerator
) -> None:
    is_limit = workers < OWN_WORKERS
    with activate(accelerator):
        most = _most_at_once(lambda llm: EXTRACTORS[name](llm, num_workers=workers))
    assert most == (workers if is_limit else len(TEXTS))

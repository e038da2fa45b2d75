"""Bad input to extractors does what it does upstream, and order stays where it might matter."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from typing import Any

import pytest
from idle_accelerators import soon_idle
from li_building import EXTRACTORS, TEXTS, GraphLLM, built_of, model, simple, text_nodes
from li_off_loop import knowing, own_settings
from li_programs import HashEmbedding
from llama_index.core.indices.property_graph import SimpleLLMPathExtractor
from llama_index.core.indices.property_graph.transformations import schema_llm, simple_llm

from llama_index_rag_accel import accelerate, activate
from rag_accel import Accelerator

every_extractor = pytest.mark.parametrize("name", EXTRACTORS)
BAD = "Pump 2 "

#: as many as upstream's extractors have by themselves
OWN_WORKERS = inspect.signature(SimpleLLMPathExtractor.__init__).parameters["num_workers"].default


@pytest.fixture(autouse=True)
def settings() -> Iterator[None]:
    """Give what is made within a program a model."""
    with own_settings():
        yield


@pytest.fixture(autouse=True)
def nothing_is_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep no record of an error, whose traceback leads to the program."""
    for module in (simple_llm, schema_llm):
        monkeypatch.setattr(module.logger, "disabled", True)


@pytest.fixture
def accelerator() -> Iterator[Accelerator]:
    """Give an accelerator to which the fakes are thread-safe."""
    with knowing(GraphLLM, HashEmbedding) as made:
        yield made


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


# Bad input ---------------------------------------------------------------------------------------


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


class OwnExtractor(SimpleLLMPathExtractor):
    """A user's extractor, which may do anything between its calls."""


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


def test_a_model_that_is_not_known_keeps_the_number_of_workers() -> None:
    with Accelerator(strict=True) as accelerator, activate(accelerator):
        assert _most_at_once(simple) == OWN_WORKERS
        assert _most_at_once(lambda llm: simple(llm, num_workers=1)) == 1


def test_the_option_keeps_the_number_of_workers() -> None:
    with knowing(GraphLLM, parallel_calls=False) as accelerator, activate(accelerator):
        assert _most_at_once(simple) == OWN_WORKERS


def test_a_users_extractor_keeps_its_number_of_workers(accelerator: Accelerator) -> None:
    own: Any = OwnExtractor
    with activate(accelerator):
        assert _most_at_once(lambda llm: own(llm=llm)) == OWN_WORKERS


def test_a_node_given_twice_is_extracted_from_as_upstream(accelerator: Accelerator) -> None:
    def twice() -> list[Any]:
        nodes = text_nodes()
        return [*nodes, nodes[0]]

    plain = built_of(simple(model())(twice()))
    with activate(accelerator):
        assert _most_at_once(simple, twice()) == OWN_WORKERS
        assert built_of(simple(model())(twice())) == plain


@pytest.mark.parametrize("name", EXTRACTORS)
@pytest.mark.parametrize("workers", [1, OWN_WORKERS - 1, OWN_WORKERS])
def test_fewer_workers_than_the_class_has_are_a_limit_that_is_kept(
    name: str, workers: int, accelerator: Accelerator
) -> None:
    is_limit = workers < OWN_WORKERS
    with activate(accelerator):
        most = _most_at_once(lambda llm: EXTRACTORS[name](llm, num_workers=workers))
    assert most == (workers if is_limit else len(TEXTS))


class FewWorkers(SimpleLLMPathExtractor):
    """A user's extractor that has two workers by itself."""

    def __init__(self, llm: Any, num_workers: int = 2) -> None:
        super().__init__(llm=llm, num_workers=num_workers)


@pytest.mark.parametrize(("workers", "expected"), [(1, 1), (2, len(TEXTS))])
def test_the_class_that_is_made_says_which_number_is_a_limit(workers: int, expected: int) -> None:
    with knowing(GraphLLM, HashEmbedding, FewWorkers) as accelerator, activate(accelerator):
        assert _most_at_once(lambda llm: FewWorkers(llm, num_workers=workers)) == expected

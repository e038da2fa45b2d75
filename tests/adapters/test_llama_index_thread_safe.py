"""What is known to be thread-safe, and that nothing else counts as it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import MethodType, SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("llama_index.core")

from llama_index.core import MockEmbedding, Settings, VectorStoreIndex
from llama_index.core.callbacks import CallbackManager, LlamaDebugHandler
from llama_index.core.indices.query.query_transform.feedback_transform import (
    FeedbackQueryTransformation,
)
from llama_index.core.llms import MockLLM
from llama_index.core.output_parsers.selection import SelectionOutputParser
from llama_index.core.prompts import PromptTemplate
from llama_index.core.schema import TextNode
from llama_index.core.storage.kvstore import SimpleKVStore

from rag_accel.system.classes import full_name
from rag_accel.system.thread_safety import MAX_OBJECTS, ThreadSafety, prepare_nothing
from rag_accel_adapters.llama_index.thread_safe import THREAD_SAFETY

ALL = (
    THREAD_SAFETY.opaque | THREAD_SAFETY.composed | THREAD_SAFETY.looping | THREAD_SAFETY.loop_bound
)


class OwnLLM(MockLLM):
    """A model of the user's."""


def full(llm: MockLLM, length: int) -> str:
    """Return an answer as a method of the user's does."""
    return "full" * length


@pytest.fixture(autouse=True)
def own_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give what is made without a model one."""
    monkeypatch.setattr(Settings, "_llm", MockLLM(max_tokens=1))


#: the same without what all objects share
ALONE = replace(THREAD_SAFETY, shared=tuple)


def is_safe(obj: Any, *named: str) -> bool:
    return not isinstance(ALONE.check([obj], named), str)


def retriever() -> Any:
    index = VectorStoreIndex([TextNode(text="a")], embed_model=MockEmbedding(embed_dim=2))
    return index.as_retriever()


@pytest.mark.parametrize("name", sorted(one for one in ALL if one.startswith("llama_index.core.")))
def test_upstream_has_each_class_of_its_core(name: str) -> None:
    module, _, cls = name.rpartition(".")
    assert full_name(getattr(importlib.import_module(module), cls)) == name


@pytest.mark.parametrize(
    "make",
    [
        lambda: MockLLM(max_tokens=3),
        retriever,
        lambda: MockLLM(max_tokens=1)._generate_text,
        lambda: partial(MockLLM(max_tokens=1)._generate_text, 3),
        lambda: PromptTemplate("{a}", function_mappings={"a": len}),
        lambda: [{"a": (1, "b", None, 2.0)}],
    ],
    ids=["model", "retriever", "bound method", "partial", "prompt", "data"],
)
def test_upstreams_own_objects_are_safe(make: Callable[[], Any]) -> None:
    assert is_safe(make())


@pytest.mark.parametrize(
    "make",
    [
        lambda: OwnLLM(max_tokens=1),
        object,
        lambda: OwnLLM(max_tokens=1)._generate_text,
        lambda: MethodType(full, MockLLM(max_tokens=1)),
        lambda: MockLLM(max_tokens=1, callback_manager=CallbackManager([LlamaDebugHandler()])),
        lambda: MockLLM(max_tokens=1, completion_to_prompt=lambda prompt: prompt),
        lambda: PromptTemplate("{a}", function_mappings={"a": lambda **given: "b"}),
        lambda: [SimpleNamespace()],
        lambda: PromptTemplate("{a}", output_parser=SelectionOutputParser()),
        lambda: MockEmbedding(embed_dim=2, embeddings_cache=SimpleKVStore()),
        FeedbackQueryTransformation,
    ],
    ids=[
        "model",
        "object",
        "method",
        "set method",
        "handler",
        "function",
        "in a prompt",
        "in a list",
        "parser",
        "cache",
        "transform",
    ],
)
def test_what_is_not_known_is_not_safe(make: Callable[[], Any]) -> None:
    assert not is_safe(make())


def test_a_class_that_the_user_names_is_safe() -> None:
    assert is_safe([OwnLLM(max_tokens=1)], full_name(OwnLLM))
    assert not is_safe([OwnLLM(max_tokens=1)], f"{full_name(OwnLLM)}s")


def test_a_change_counts_from_the_next_look_on() -> None:
    found = retriever()
    assert is_safe(found)
    found._embed_model = OwnLLM(max_tokens=1)
    assert not is_safe(found)


def test_another_class_of_a_known_name_is_not_safe() -> None:
    made = type("MockLLM", (OwnLLM,), {"__module__": MockLLM.__module__})
    assert full_name(made) == full_name(MockLLM)
    assert sys.modules[made.__module__].MockLLM is not made
    assert not is_safe(made(max_tokens=1))


def test_what_holds_very_much_is_not_looked_through() -> None:
    assert is_safe([[number] for number in range(MAX_OBJECTS - 1)])
    assert not is_safe([[number] for number in range(MAX_OBJECTS)])


class Loop:
    """What runs coroutines in a loop of its own."""


class Bound:
    """What has connections of one loop."""


def test_connections_of_one_loop_are_not_shared_by_others() -> None:
    safety = ThreadSafety(
        frozenset(),
        frozenset(),
        (),
        looping=frozenset({full_name(Loop)}),
        loop_bound=frozenset({full_name(Bound)}),
    )
    for roots, expected in (([Loop()], True), ([Bound()], True), ([Loop(), Bound()], False)):
        found = safety.check(roots, ())
        assert (found is prepare_nothing) == expected


def test_what_all_objects_share_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Settings, "_llm", None)
    assert THREAD_SAFETY.check([], ()) is prepare_nothing
    monkeypatch.setattr(Settings, "_llm", OwnLLM(max_tokens=1))
    assert full_name(OwnLLM) in str(THREAD_SAFETY.check([], ()))

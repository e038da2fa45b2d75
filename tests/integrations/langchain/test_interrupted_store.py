"""A store whose changes are interrupted holds all of each or nothing, as LangChain's own does."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from contextvars import copy_context
from pathlib import Path
from typing import Any

import pytest
from interrupting import Interrupt, interrupted, points
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings

from langchain_rag_accel import RagAccelVectorStore
from rag_accel import Accelerator
from rag_accel.engines.retrieval import DocumentIndex, IndexKind, IndexSpec

Texts = dict[str, str]
"""What a store holds: texts by id."""


class Plain(Embeddings):
    """Embed a text as the numbers in it."""

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [self.embed_query(text) for text in texts]

    def embed_query(self, text: str) -> list[float]:
        return [float(word) for word in text.split()]


@pytest.fixture(params=list(IndexKind), ids=str)
def kind(request: pytest.FixtureRequest) -> IndexKind:
    return request.param


@pytest.fixture
def accelerator() -> Iterator[Accelerator]:
    """Give an accelerator of which it is not asked what interrupts have left in it."""
    with Accelerator() as made:
        yield made


@pytest.fixture
def make_store(accelerator: Accelerator, kind: IndexKind) -> Callable[[], RagAccelVectorStore]:
    """Return a maker of stores for vectors of three numbers; IVF ones train at 12 documents."""

    def make() -> RagAccelVectorStore:
        spec = IndexSpec(3, kind=kind, num_clusters=3, nprobe=3, train_size=12)
        index = DocumentIndex(spec)
        return RagAccelVectorStore(Plain(), index, normalize=False, accelerator=accelerator)

    return make


def _text(rng: random.Random) -> str:
    return " ".join(str(rng.randint(-3, 3)) for _ in range(3))


def _changes(
    store: RagAccelVectorStore, held: Texts, rng: random.Random, number: int
) -> tuple[Callable[[], object], Texts]:
    """Return a change and what the store holds after it."""
    present = list(held)
    kind = rng.choice(["texts", "documents", "replace", "delete"])
    if len(present) > 30 or (kind == "delete" and present):
        gone = present[3:] if len(present) > 30 else rng.sample(present, min(len(present), 3))
        return lambda: store.delete(gone), {id: t for id, t in held.items() if id not in gone}
    ids = [f"{number}-{place}" for place in range(rng.randint(1, 4))]
    if kind == "replace" and present:
        ids = [*rng.sample(present, min(len(present), 2)), *ids[:1]]
    texts = [_text(rng) for _ in ids]
    after = {**held, **dict(zip(ids, texts, strict=True))}
    if kind == "documents":
        documents = [
            Document(page_content=text, id=id) for id, text in zip(ids, texts, strict=True)
        ]
        return lambda: store.add_documents(documents), after
    return lambda: store.add_texts(texts, ids=ids), after


def _held_by(store: RagAccelVectorStore, *possible: Texts) -> Texts:
    """Return which of these a store holds; every search agrees."""
    query = [1.0, -2.0, 0.5]
    scored = store.similarity_search_with_score_by_vector(query, k=99)
    found = {document.id: document.page_content for document, _ in scored}
    matching = [one for one in possible if one == found]
    assert matching, f"neither before nor after: {found}"
    for document, score in scored:
        vector = Plain().embed_query(document.page_content)
        assert score == sum(a * b for a, b in zip(vector, query, strict=True))
    scores = [score for _, score in scored]
    assert scores == sorted(scores, reverse=True)
    got = store.get_by_ids(list({id: None for one in possible for id in one}))
    assert {document.id: document.page_content for document in got} == found
    return matching[0]


def _interrupted_apart(change: Callable[[], object], turn: int) -> Interrupt | None:
    # What an interrupt leaves in the context of a call is not to meet other tests.
    return interrupted(lambda: copy_context().run(change), turn)


def _interrupted_changes(
    make: Callable[[], RagAccelVectorStore], count: int, rng: random.Random
) -> Iterator[tuple[RagAccelVectorStore, Texts]]:
    store, number, done = make(), 0, 0
    held = {f"d{place}": _text(rng) for place in range(14)}
    store.add_texts(list(held.values()), ids=list(held))  # enough to find clusters
    errors: list[Any] = []  # kept, and with them every frame
    while done < count:
        number += 1
        change, after = _changes(store, held, rng, number)
        error = _interrupted_apart(change, rng.randint(1, 1500))
        held = _held_by(store, held, after) if error else after
        if error is not None:
            errors.append(error)
            done += 1
        yield store, held


@pytest.mark.parametrize("count", [25, pytest.param(1000, marks=pytest.mark.slow)])
def test_interrupted_changes_leave_a_store_that_answers(
    make_store: Callable[[], RagAccelVectorStore],
    accelerator: Accelerator,
    count: int,
    tmp_path: Path,
) -> None:
    rng = random.Random(count)
    for number, (store, held) in enumerate(_interrupted_changes(make_store, count, rng)):
        if held and number % 25 == 24:
            _held_by(store, held)
            store.save(tmp_path / "store")
            loaded = RagAccelVectorStore.load(
                tmp_path / "store", Plain(), normalize=False, accelerator=accelerator
            )
            _held_by(loaded, held)
            loaded.add_texts(["1 2 3"], ids=["more"])
            _held_by(loaded, {**held, "more": "1 2 3"})
    assert len(asyncio.run(store.asimilarity_search("1 2 3", k=99))) == len(held)


def test_an_interrupt_of_the_first_addition_leaves_all_or_nothing(
    accelerator: Accelerator,
) -> None:
    def make() -> RagAccelVectorStore:
        return RagAccelVectorStore(Plain(), normalize=False, accelerator=accelerator)

    documents = [Document(page_content=f"{number} 1 2", id=f"d{number}") for number in range(3)]
    after = {f"d{number}": f"{number} 1 2" for number in range(3)}
    store = make()
    for turn in range(1, points(lambda: make().add_documents(documents)), 11):
        store = make()
        error = _interrupted_apart(lambda store=store: store.add_documents(documents), turn)
        _held_by(store, {}, after)
        store.add_documents(documents)
        assert _held_by(store, after)
        del error


async def test_a_cancelled_addition_is_made_whole_or_not_at_all(
    make_store: Callable[[], RagAccelVectorStore],
) -> None:
    store, held = make_store(), Texts()
    for number in range(20):
        ids = [f"{number}-{place}" for place in range(3)]
        task = asyncio.create_task(store.aadd_texts(["1 2 3"] * 3, ids=ids))
        for _ in range(number % 7):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        found = await asyncio.to_thread(store.get_by_ids, ids)
        assert len(found) in (0, 3)
        held.update((document.id or "", document.page_content) for document in found)


def test_an_error_of_the_embeddings_changes_nothing(
    make_store: Callable[[], RagAccelVectorStore], accelerator: Accelerator
) -> None:
    store = make_store()
    store.add_texts(["1 2 3"], ids=["a"])

    class Interrupting(Plain):
        def embed_documents(self, texts: list[str]) -> list[list[float]]:
            raise Interrupt

    broken = RagAccelVectorStore(
        Interrupting(), store.index, normalize=False, accelerator=accelerator
    )
    with pytest.raises(Interrupt):
        broken.add_texts(["4 5 6"], ids=["a"])
    assert _held_by(store, {"a": "1 2 3"})

"""Recognised objects' own methods run on clients that gather the work of all callers."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import faiss
import numpy as np
import pytest
from cross_encoders import cross_encoder, passages, reranked, reranker_of
from idle_accelerators import soon_idle
from langchain_community.docstore.in_memory import InMemoryDocstore
from langchain_community.vectorstores import FAISS
from langchain_community.vectorstores.utils import DistanceStrategy
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding

from langchain_rag_accel import accelerate, activate
from langchain_rag_accel.leaf_table import EXPLANATION, PROXIED
from rag_accel import Accelerator
from rag_accel.adoption import clients
from rag_accel.adoption.clients import MIN_NUMBERS

DIMENSION = 64
COUNT = MIN_NUMBERS // DIMENSION + 1
STRATEGIES = {
    "L2": (faiss.METRIC_L2, DistanceStrategy.EUCLIDEAN_DISTANCE),
    "inner product": (faiss.METRIC_INNER_PRODUCT, DistanceStrategy.MAX_INNER_PRODUCT),
}


def store_of(index: Any, strategy: str = "L2", **settings: Any) -> FAISS:
    rows = np.random.default_rng(1).normal(size=(COUNT, DIMENSION)).astype(np.float32)
    index.train(rows)
    index.add(rows)
    documents = {
        str(number): Document(f"text {number}", id=str(number), metadata={"even": number % 2 == 0})
        for number in range(COUNT)
    }
    return FAISS(
        DeterministicFakeEmbedding(size=DIMENSION),
        index,
        InMemoryDocstore(documents),
        {number: str(number) for number in range(COUNT)},
        distance_strategy=STRATEGIES[strategy][1],
        **settings,
    )


@pytest.fixture
def never_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have each search of an index be made as if others were under way."""
    monkeypatch.setattr(clients._searches, "begin", lambda index: False)


@pytest.fixture(scope="module", params=STRATEGIES)
def store(request: pytest.FixtureRequest) -> FAISS:
    """Give a large store of each kind; tests do not change it."""
    return store_of(faiss.IndexFlat(DIMENSION, STRATEGIES[request.param][0]), request.param)


@pytest.fixture
def own_store() -> FAISS:
    return store_of(faiss.IndexFlatL2(DIMENSION))


def vectors(count: int) -> list[list[float]]:
    return np.random.default_rng(6).normal(size=(count, DIMENSION)).tolist()


Find = Callable[[FAISS, list[float]], Any]


def is_even(metadata: dict[str, Any]) -> bool:
    return bool(metadata["even"])


SYNC: dict[str, Find] = {
    "by vector": lambda store, one: store.similarity_search_by_vector(one, 3),
    "many": lambda store, one: store.similarity_search_by_vector(one, 50),
    "filter": lambda store, one: store.similarity_search_by_vector(
        one, filter={"even": True}, fetch_k=30
    ),
    "own filter": lambda store, one: store.similarity_search_by_vector(one, filter=is_even),
    "threshold": lambda store, one: store.similarity_search_with_score(
        str(one), 9, score_threshold=80.0
    ),
    "diverse by vector": lambda store, one: store.max_marginal_relevance_search_by_vector(one, 3),
    "with score": lambda store, one: store.similarity_search_with_score(str(one)),
    "relevance": lambda store, one: store.similarity_search_with_relevance_scores(str(one)),
    "diverse": lambda store, one: store.max_marginal_relevance_search(str(one)),
    "retriever": lambda store, one: store.as_retriever().invoke(str(one)),
}
ASYNC: dict[str, Find] = {
    "by vector": lambda store, one: store.asimilarity_search_by_vector(one, 3),
    "filter": lambda store, one: store.asimilarity_search_by_vector(
        one, filter={"even": True}, fetch_k=30
    ),
    "diverse by vector": lambda store, one: store.amax_marginal_relevance_search_by_vector(one, 3),
    "with score": lambda store, one: store.asimilarity_search_with_score(str(one)),
    "relevance": lambda store, one: store.asimilarity_search_with_relevance_scores(str(one)),
    "diverse": lambda store, one: store.amax_marginal_relevance_search(str(one)),
    "retriever": lambda store, one: store.as_retriever().ainvoke(str(one)),
}


def scored(found: list[Any]) -> list[tuple[Any, float]]:
    """Return documents with scores, where a search gives none with 0."""
    return [one if isinstance(one, tuple) else (one, 0.0) for one in found]


def same(found: list[list[Any]], plain: list[list[Any]]) -> bool:
    """Compare results but for the last digit of scores, which FAISS rounds by its threads."""
    pairs = [(scored(one), scored(other)) for one, other in zip(found, plain, strict=True)]
    return all(
        [document for document, _ in one] == [document for document, _ in other]
        and np.allclose([score for _, score in one], [score for _, score in other], rtol=1e-6)
        for one, other in pairs
    )


def measured(accelerator: Accelerator, name: str = "retrieval#") -> dict[str, Any]:
    """Return what was measured of the owned engines of a name."""
    assert soon_idle(accelerator)
    engines: Any = accelerator.metrics.snapshot().get("engines", {})
    return {key: engine for key, engine in engines.items() if key.startswith(name)}


pytestmark = pytest.mark.filterwarnings(
    "ignore:Relevance scores must be between 0 and 1:UserWarning"
)


def test_a_search_without_another_is_made_by_the_store_itself(
    store: FAISS, accelerator: Accelerator
) -> None:
    fast = accelerate(store, accelerator=accelerator)
    vector = store.embedding_function.embed_query("alone")  # type: ignore[union-attr]
    found = fast.similarity_search_with_score_by_vector(vector, 4)
    assert found == store.similarity_search_with_score_by_vector(vector, 4)
    engines: Any = accelerator.metrics.snapshot().get("engines", {})
    assert not any(name.startswith("retrieval#") for name in engines)


@pytest.mark.usefixtures("never_alone")
@pytest.mark.cross_product(keep=6)
@pytest.mark.parametrize("way", SYNC)
def test_every_search_finds_what_the_store_finds(
    store: FAISS, accelerator: Accelerator, way: str
) -> None:
    find = SYNC[way]
    plain = [find(store, one) for one in vectors(40)]
    with activate(accelerator), ThreadPoolExecutor(20) as pool:
        assert same(list(pool.map(lambda one: find(store, one), vectors(40))), plain)
    fast = accelerate(store, accelerator=accelerator)
    assert same([find(fast, one) for one in vectors(4)], plain[:4])
    (engine,) = measured(accelerator).values()
    assert engine["items"] == 44


@pytest.mark.usefixtures("never_alone")
@pytest.mark.cross_product(keep=4)
@pytest.mark.parametrize("way", ASYNC)
async def test_every_coroutine_finds_what_the_store_finds(
    store: FAISS, accelerator: Accelerator, way: str
) -> None:
    find = ASYNC[way]
    plain = [await find(store, one) for one in vectors(40)]
    with activate(accelerator):
        assert same(await asyncio.gather(*(find(store, one) for one in vectors(40))), plain)
    fast = accelerate(store, accelerator=accelerator)
    assert same([await find(fast, one) for one in vectors(4)], plain[:4])
    (engine,) = measured(accelerator).values()
    assert engine["items"] == 44
    assert engine["steps"] < engine["items"]


def test_what_is_added_and_deleted_beside_us_is_seen(
    own_store: FAISS, accelerator: Accelerator
) -> None:
    fast = accelerate(own_store, accelerator=accelerator)
    (one,) = vectors(1)
    own_store.add_embeddings([("near", one)], ids=["near"])
    assert fast.similarity_search_by_vector(one, 1)[0].id == "near"
    own_store.delete(["near"])
    assert fast.similarity_search_by_vector(one, 4) == own_store.similarity_search_by_vector(one, 4)
    fast.add_embeddings([("near", one)], ids=["near"])
    assert own_store.similarity_search_by_vector(one, 1)[0].id == "near"
    own_store.index = faiss.IndexFlatL2(3)
    own_store.index.add(np.ones((1, 3), dtype=np.float32))
    own_store.index_to_docstore_id = {0: "0"}
    with activate(accelerator):
        assert own_store.similarity_search_by_vector([1.0, 1.0, 1.0], 1)[0].id == "0"


@pytest.mark.cross_product(keep=4)
@pytest.mark.parametrize(
    ("one", "k"),
    [
        ([1.0], 4),
        (None, 4),
        ([float("nan")] * DIMENSION, 4),
        ([float("inf")] * DIMENSION, 4),
        ([1.0] * DIMENSION, 0),
        ([1.0] * DIMENSION, None),
        ([1.0] * DIMENSION, COUNT + 1),
    ],
    ids=str,
)
def test_what_is_no_ordinary_question_is_answered_as_the_store_does(
    store: FAISS, accelerator: Accelerator, one: Any, k: Any
) -> None:
    def outcome() -> Any:
        try:
            found = store.similarity_search_with_score_by_vector(one, k)
        except Exception as error:
            return type(error), str(error)
        return [(document.id, np.nan_to_num(score)) for document, score in found]

    plain = outcome()
    with activate(accelerator):
        assert outcome() == plain


def test_a_document_that_is_gone_is_the_stores_error(
    own_store: FAISS, accelerator: Accelerator
) -> None:
    (one,) = vectors(1)
    (first, *_) = own_store.similarity_search_by_vector(one)
    assert isinstance(own_store.docstore, InMemoryDocstore)
    del own_store.docstore._dict[str(first.id)]
    with activate(accelerator), pytest.raises(ValueError, match="Could not find document"):
        own_store.similarity_search_by_vector(one)


def test_small_and_other_indexes_are_searched_plainly(accelerator: Accelerator) -> None:
    small = FAISS.from_texts(["a", "b"], DeterministicFakeEmbedding(size=DIMENSION))
    other = store_of(faiss.IndexHNSWFlat(DIMENSION, 4))
    for one in (small, other):
        plain = one.similarity_search("a", 2)
        with activate(accelerator):
            assert one.similarity_search("a", 2) == plain
        assert "borrowed" in EXPLANATION.of(one, accelerator)
    assert measured(accelerator) == {}


def test_a_store_that_searches_otherwise_has_no_stand_in(own_store: FAISS) -> None:
    class Other(FAISS):
        def similarity_search_with_score_by_vector(self, *args: Any, **kwargs: Any) -> Any:
            return super().similarity_search_with_score_by_vector(*args, **kwargs)[::-1]

    class Same(FAISS):
        more = 1

    assert PROXIED.may_be_proxied(FAISS)
    assert PROXIED.may_be_proxied(Same)
    assert PROXIED.may_be_proxied(type(accelerate(own_store)))
    assert not PROXIED.may_be_proxied(Other)


# Cross-encoders ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return cross_encoder(tmp_path_factory.mktemp("models") / "one")


async def test_a_reranker_chooses_what_it_chose(model: Any, accelerator: Accelerator) -> None:
    reranker = reranker_of(model)
    plain = reranked(reranker, range(16))
    with activate(accelerator), ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda one: reranked(reranker, [one])[0], range(16))) == plain
    fast = accelerate(reranker, accelerator=accelerator)
    calls = [fast.acompress_documents(passages(one), f"word{one} word2") for one in range(16)]
    assert await asyncio.gather(*calls) == plain
    assert reranked(fast, range(2)) == plain[:2]
    (engine,) = measured(accelerator, "rerank#").values()
    assert engine["items"] == (16 + 16 + 2) * 12
    assert "share batches" in EXPLANATION.of(reranker, accelerator)


def test_no_documents_and_bad_ones_end_as_plainly(model: Any, accelerator: Accelerator) -> None:
    reranker = reranker_of(model)
    odd = [Document("word1"), Document("word2")]
    object.__setattr__(odd[1], "page_content", None)

    def outcome(documents: list[Document]) -> Any:
        return outcome_of(reranker, documents)

    for documents in ([], odd):
        plain = outcome(documents)
        with activate(accelerator):
            assert outcome(documents) == plain


def outcome_of(reranker: Any, documents: list[Document]) -> Any:
    """Return the documents that are kept, or the class of what is raised."""
    try:
        return reranker.compress_documents(documents, "word1")
    except Exception as error:
        return type(error)


def test_a_stand_in_leaves_the_object_as_it_was(
    store: FAISS, model: Any, accelerator: Accelerator
) -> None:
    reranker = reranker_of(model)
    before, held = copy.copy(vars(store)), copy.copy(vars(reranker))
    with activate(accelerator):
        store.similarity_search("x")
        reranked(reranker, [1])
    assert vars(store) == before
    assert vars(reranker) == held

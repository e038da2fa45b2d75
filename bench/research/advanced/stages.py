"""Do the work of each stage as a LangChain program does, and note what it took."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from langchain_core.messages import AIMessage
from langchain_core.prompts import ChatPromptTemplate

from bench.research.advanced.answers import NUM_QUERIES
from bench.research.advanced.workload import TOP_K, TOP_N, Setting
from bench.research.mixed.emulated_chat_model import EmulatedChatModel
from rag_accel.engine_api import Document
from rag_accel.workflows import Upload, prompts

CpuStage = Literal["upload", "search", "rerank"]
Asked = Literal["expand", "stuff", "passage", "combine", "refine"]

_PROMPTS: dict[Asked, str] = {
    "expand": prompts.EXPAND.replace("{count}", str(NUM_QUERIES)),
    "stuff": prompts.ANSWER,
    "passage": prompts.ANSWER_PASSAGE,
    "combine": prompts.COMBINE,
    "refine": prompts.REFINE,
}
_TEMPLATES = {
    name: ChatPromptTemplate.from_messages([("human", text)]) for name, text in _PROMPTS.items()
}


@dataclass(frozen=True, slots=True)
class Generated:
    """One generation: what asked for it, and tokens read and written."""

    asked: Asked
    prompt_tokens: int
    completion_tokens: int


@dataclass(slots=True)
class Notes:
    """What the stages of one request took.

    Args:
        cpu_s: seconds of each stage that computes here, summed up.
        generated: the generations in order.
    """

    cpu_s: dict[CpuStage, float] = field(default_factory=dict)
    generated: list[Generated] = field(default_factory=list)


class Stages:
    """The work of the stages over what all arms share.

    ``notes`` is replaced by whoever wants a request of its own; only one stage after another may
    be noted.
    """

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._chunks = Upload()
        self._model = EmulatedChatModel(device=setting.device)
        self.notes = Notes()

    def upload(self, documents: Sequence[Document]) -> None:
        """Cut documents into chunks, embed these and add them to the index."""
        with self._noted("upload"):
            chunks = self._chunks(documents)
            vectors = self._setting.embeddings.embed_documents([one.text for one in chunks])
            self._setting.index.add(chunks, vectors)

    def search(self, query: str) -> list[Document]:
        """Return what is nearest to a query."""
        with self._noted("search"):
            vector = self._setting.embeddings.embed_query(query)
            (found,) = self._setting.index.search([vector], TOP_K)
            return [one.document for one in found]

    def rerank(self, question: str, found: Sequence[Sequence[Document]]) -> list[Document]:
        """Return the best of what several searches found."""
        with self._noted("rerank"):
            distinct = list({one.id: one for several in found for one in several}.values())
            scores = self._setting.scorer([(question, one.text) for one in distinct])
            order = sorted(range(len(distinct)), key=scores.__getitem__, reverse=True)
            return [distinct[place] for place in order[:TOP_N]]

    def generate(self, asked: Asked, **values: str) -> str:
        """Ask the model and wait."""
        return self._text(asked, (_TEMPLATES[asked] | self._model).invoke(values))

    async def agenerate(self, asked: Asked, **values: str) -> str:
        """Ask the model on the running loop."""
        return self._text(asked, await (_TEMPLATES[asked] | self._model).ainvoke(values))

    def _text(self, asked: Asked, message: Any) -> str:
        assert isinstance(message, AIMessage), "a chat model answers with a message"
        used = message.usage_metadata
        assert used is not None, "the emulated model counts its tokens"
        noted = Generated(asked, used["input_tokens"], used["output_tokens"])
        self.notes.generated.append(noted)
        return str(message.content)

    @contextmanager
    def _noted(self, stage: CpuStage) -> Iterator[None]:
        started = time.perf_counter()
        yield
        spent = self.notes.cpu_s
        spent[stage] = spent.get(stage, 0.0) + time.perf_counter() - started


def queries_of(expansion: str) -> list[str]:
    """Return the queries of an expansion, one a line."""
    return [line.strip() for line in expansion.splitlines() if line.strip()][:NUM_QUERIES]


def passages(documents: Sequence[Document]) -> str:
    """Return documents as numbered passages of a prompt."""
    return "\n\n".join(f"[{place}] {one.text}" for place, one in enumerate(documents, start=1))


NamedNode = tuple[str, Callable[..., Any]]
"""A node of a program: its name and what it runs."""

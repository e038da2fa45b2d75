"""The meter of the calls of a LangChain program that pass the scheduler.

LangChain's own callbacks tell of every model and retriever call, wherever it is made; the wrappers
tell which calls waited for their turn, on an engine or for a permit, and which began at once and
were reported. The difference passed by. Calls that have no callbacks (embeddings, stores, graphs,
compressors) are known from the wrappers alone. A retriever that calls other retrievers, or a store
whose search was a leaf of its own, is no leaf and not counted. Leaves of other frameworks are
``other``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from functools import cache
from typing import Any, Final
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.documents import Document
from langchain_core.language_models import BaseLLM
from langchain_core.messages import BaseMessage
from langchain_core.tracers.context import register_configure_hook

from langchain_rag_accel.graphs import graph_program
from langchain_rag_accel.option_readers import parts_of
from langchain_rag_accel.runnables import AcceleratedRunnable
from rag_accel.accelerator import Accelerator
from rag_accel.interception.coverage import Coverage, CoverageRow, Meter, OpenMeters
from rag_accel.interception.covered_calls import CoveredCalls
from rag_accel.interception.leaf_call import NotedCall
from rag_accel.interception.program import AcceleratedProgram

__all__ = ["Coverage", "CoverageRow", "coverage"]

_NAMES = {
    "BaseChatModel": "chat model",
    "LLM": "language model",
    "BaseLLM": "language model",
    "BaseRetriever": "retriever",
    "VectorStore": "vector store",
    "Embeddings": "embeddings",
    "BaseDocumentCompressor": "compressor",
    "QueriedGraph": "knowledge graph",
}
_WITH_CALLBACKS = ("chat model", "language model", "retriever")


class LangChainMeter(Meter, BaseCallbackHandler):
    """Leaf calls by kind. An answer from LangChain's own cache is seen, never scheduled."""

    run_inline = True

    def __init__(self) -> None:
        super().__init__(_NAMES)
        self._seen: Counter[str] = Counter()
        self._parents: dict[UUID, UUID | None] = {}
        self._retrievers: dict[UUID, str] = {}  # with the class's name
        self._running: set[UUID] = set()
        #: retriever runs that asked a store whose search was scheduled by itself
        self._asking: set[UUID] = set()

    def _rows(self) -> list[CoverageRow]:
        seen = self._seen + Counter({"retriever": len(self._leaves())})
        queued, admitted = self._scheduled()
        kinds = sorted(seen | queued | admitted)
        return [CoverageRow(kind, seen[kind], queued[kind], admitted[kind]) for kind in kinds]

    def calls(self) -> tuple[CoveredCalls, ...]:
        with self._lock:
            classes = Counter(self._retrievers[run] for run in self._leaves())
            seen = {("retriever", cls): count for cls, count in classes.items()}
            return self._tally.calls({row.kind: row.passed_by for row in self._rows()}, seen)

    def _leaves(self) -> set[UUID]:
        """Return the runs of retrievers that did the work themselves."""
        return self._retrievers.keys() - self._composites() - self._asking

    def _composites(self) -> set[UUID]:
        """Return the retriever runs in which another one ran."""
        found: set[UUID] = set()
        for run in self._retrievers:
            above = self._parents.get(run)
            while above is not None:
                found.add(above)
                above = self._parents.get(above)
        return found

    def on_chat_model_start(
        self, serialized: dict[str, Any], messages: list[list[BaseMessage]], **kwargs: Any
    ) -> None:
        self._saw("chat model", _class_in(serialized, kwargs))

    def on_llm_start(self, serialized: dict[str, Any], prompts: list[str], **kwargs: Any) -> None:
        self._saw("language model", _class_in(serialized, kwargs), len(prompts))

    def on_retriever_start(self, serialized: dict[str, Any], query: str, **kwargs: Any) -> None:
        run = kwargs["run_id"]
        with self._lock:
            self._retrievers[run] = _class_in(serialized, kwargs)
            self._running.add(run)
            self._parents[run] = kwargs.get("parent_run_id")
            _around.set((*(outer for outer in _around.get() if outer in self._running), run))

    def on_retriever_end(self, documents: Sequence[Document], **kwargs: Any) -> None:
        with self._lock:
            self._running.discard(kwargs["run_id"])

    def on_retriever_error(self, error: BaseException, **kwargs: Any) -> None:
        self.on_retriever_end((), **kwargs)

    def on_chain_start(
        self, serialized: dict[str, Any], inputs: dict[str, Any], **kwargs: Any
    ) -> None:
        with self._lock:
            self._parents[kwargs["run_id"]] = kwargs.get("parent_run_id")

    def note(self, call: NotedCall) -> None:
        obj, args, way = call.obj, call.args, call.way
        kind = self._kind_of(obj)
        # A completion model takes many prompts in one call, and calls back for each.
        many = isinstance(obj, BaseLLM) and args and isinstance(args[0], list)
        number = len(args[0]) if many else 1
        with self._lock:
            self._tally.note(kind, call, number)
            if call.was_admitted:
                return
            if way is not None:
                self._counts[kind, way] += number
                if kind == "vector store":  # what is part of a retriever's leaf is not told
                    self._asking.update([run for run in _around.get() if run in self._running][-1:])
            # Where LangChain does not know of this meter, it calls nothing back.
            if kind not in _WITH_CALLBACKS or _open.current.get() is None:
                self._seen[kind] += number

    def _saw(self, kind: str, cls: str, number: int = 1) -> None:
        with self._lock:
            self._seen[kind] += number
            self._tally.see(kind, cls, number)


def _class_in(serialized: dict[str, Any] | None, kwargs: dict[str, Any]) -> str:
    """Return the name of the class that a callback tells of; empty if it does not say."""
    ids = (serialized or {}).get("id") or [kwargs.get("name") or ""]
    return str(ids[-1])


#: runs of retrievers in which this context is, the innermost last; some may have ended
_around: ContextVar[tuple[UUID, ...]] = ContextVar("rag_accel_retrievers", default=())


@cache
def _listen() -> AbstractContextManager[None]:
    """Have LangChain give its callbacks to the meter of a context, from the first block on."""
    register_configure_hook(_open.current, inheritable=True)
    return nullcontext()


def _inside(program: Any) -> tuple[Any, Accelerator | None]:
    is_binding = isinstance(program, AcceleratedRunnable)
    return (program.bound, program._accelerator) if is_binding else (program, None)


def program_of(made: Any) -> AcceleratedProgram | None:
    """Return the program that an accelerated object is; None for a single model or store."""
    return made.program if isinstance(made, AcceleratedRunnable) else graph_program(made)


def _name_of(program: Any) -> str | None:
    known = program_of(program)
    return None if known is None else known.name


_open = OpenMeters(
    "rag_accel_coverage",
    LangChainMeter,
    parts_of,
    around=_listen,
    inside=_inside,
    name_of=_name_of,
)
coverage: Final = _open.coverage

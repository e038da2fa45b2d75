"""The arms of each program: plain, by hand, accelerated, as a graph, blind, and a staged server."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from operator import attrgetter, itemgetter
from typing import Any

import langchain_rag_accel
import llama_index_rag_accel
from bench.ablation.switches import blind_to_depth
from bench.arms import bench_accelerator
from bench.workflows import by_hand, plain, staged
from bench.workflows.parts import TOP_K, Parts, Request
from rag_accel import workflows
from rag_accel.accelerator import Accelerator
from rag_accel.engine_api import Document
from rag_accel.engines import DocumentIndex, IndexSpec, SentenceTransformerEngine
from rag_accel.engines.retrieval import RetrievalEngine
from rag_accel.graph import RAGraph

PLAIN, BY_HAND, OURS, GRAPH, BLIND, STAGED = (
    *("plain", "by_hand", "accelerated"),
    *("ragraph", "blind", "staged"),
)
#: a staged server that searches coded lists, beside the one that is exact
CODED = "staged_coded"
ARMS = (PLAIN, BY_HAND, OURS, GRAPH, BLIND, STAGED)
#: What does not look at more than one call: no depths of nodes, passes or calls side by side.
BLINDED = {"use_skeleton": False, "passes": "none", "parallel_calls": False}

Ask = Callable[[Request], Any]
"""Answers a request: a text, or a coroutine of one."""
Build = Callable[[Parts], Any]


@dataclass(frozen=True, slots=True)
class Program:
    """One workflow in the framework in which its author would write it.

    Args:
        name: how rows and staged programs name it.
        framework: the framework.
        plain: makes the program.
        by_hand: makes what a careful user makes of it.
        graph: the same as a ``RAGraph``, of the function that cuts an upload.
        searches: of a request over the corpus; 0 where it searches what it uploads.
    """

    name: str
    framework: str
    plain: Build
    by_hand: Build
    graph: Callable[[Any], RAGraph]
    searches: int

    def ask(self, made: Any, is_async: bool) -> Ask:
        """Return the function, or coroutine function, that answers a request by a program."""
        call, given, read = self._call(made, is_async)
        if not is_async:
            return lambda request: read(call(given(request)))

        async def answer(request: Request) -> str:
            return read(await call(given(request)))

        return answer

    def _call(self, made: Any, is_async: bool) -> tuple[Any, Callable[[Request], Any], Any]:
        """Return what is called, with what, and what reads the answer."""
        asked = attrgetter("question") if self.searches else (lambda request: request)
        if self.framework == "LangGraph":
            call = made.ainvoke if is_async else made.invoke
            return call, asdict, itemgetter("answer")
        if self.framework == "LangChain":
            return made.ainvoke if is_async else made.invoke, asked, str
        if not self.searches:
            return made, asked, str
        return made.aquery if is_async else made.query, asked, str


def _qa(synthesis: Any) -> Callable[[Any], RAGraph]:
    return lambda cut: workflows.naive_document_qa(
        True, upload=cut, top_k=TOP_K, synthesis=synthesis, index="uploads"
    )


PROGRAMS = (
    Program(
        *("one_shot", "LangChain", plain.one_shot, by_hand.one_shot),
        *(lambda cut: workflows.one_shot(top_k=TOP_K), 1),
    ),
    Program(
        *("hyde", "LlamaIndex", plain.hyde, plain.hyde),
        *(lambda cut: workflows.hyde(top_k=TOP_K), 1),
    ),
    Program(
        *("recomp", "LangChain", plain.recomp, by_hand.recomp),
        *(lambda cut: workflows.recomp(top_k=TOP_K), 1),
    ),
    Program(
        *("multistep", "LangGraph", plain.multistep, by_hand.multistep),
        *(lambda cut: workflows.multistep(top_k=TOP_K, max_questions=plain.PARTS), plain.PARTS),
    ),
    Program(
        *("iterative", "LangGraph", plain.iterative, by_hand.iterative),
        *(lambda cut: workflows.irg(top_k=TOP_K, rounds=plain.ROUNDS), plain.ROUNDS),
    ),
    Program("stuff", "LangChain", plain.stuff, by_hand.stuff, _qa("stuff"), 0),
    Program("tree", "LangGraph", plain.tree, by_hand.tree, _qa("tree"), 0),
    Program("refine", "LlamaIndex", plain.refine, by_hand.refine, _qa("refine"), 0),
)


@contextmanager
def opened(
    parts: Parts, programs: Sequence[Program], *, is_local: bool, servers: Mapping[str, bool]
) -> Iterator[Mapping[str, Mapping[str, Ask]]]:
    """Give every arm of every program, by the program's name and the arm's.

    Args:
        parts: what all are made of.
        programs: these.
        is_local: whether the language model computes in this process.
        servers: of each staged server, by its arm, whether it searches FAISS's 8-bit lists.
    """
    with ExitStack() as stack:
        ours = stack.enter_context(bench_accelerator())
        graphs = stack.enter_context(bench_accelerator())
        with blind_to_depth():
            blind = stack.enter_context(bench_accelerator(**BLINDED))
        uploads = _own_engines(graphs, parts)
        stages = {
            name: stack.enter_context(closing(staged.Staged(parts, is_local, is_coded)))
            for name, is_coded in servers.items()
        }
        yield {
            one.name: {
                PLAIN: one.ask(made := one.plain(parts), is_async=False),
                BY_HAND: one.ask(one.by_hand(parts), is_async=True),
                OURS: accelerated(one, made, ours),
                GRAPH: _compiled(one, graphs, uploads),
                BLIND: accelerated(one, made, blind),
                **{arm: partial(staged.PROGRAMS[one.name], stages[arm]) for arm in stages},
            }
            for one in programs
        }


def accelerated(program: Program, made: Any, accelerator: Accelerator) -> Ask:
    """Return the function that answers a request by a program as the accelerator runs it."""
    if program.framework != "LlamaIndex":
        fast = langchain_rag_accel.accelerate(made, accelerator=accelerator)
        return program.ask(fast, is_async=False)
    if program.searches:
        fast = llama_index_rag_accel.accelerate(made, accelerator=accelerator)
        return program.ask(fast, is_async=False)

    def answer(request: Request) -> str:  # a function, which is no object to accelerate
        with llama_index_rag_accel.activate(accelerator):
            return made(request)

    return answer


def _own_engines(accelerator: Accelerator, parts: Parts) -> DocumentIndex:
    """Add the engines of the graphs, and return the index of what is uploaded."""
    uploads = DocumentIndex(IndexSpec(parts.corpus.vectors.shape[1]))
    embedder = parts.embedder
    if not callable(embedder) or hasattr(embedder, "encode"):
        embedder = SentenceTransformerEngine(embedder)
    accelerator.add_engine("llm", parts.engine)
    accelerator.add_engine("embedder", embedder)
    accelerator.add_engine("index", RetrievalEngine(parts.corpus.documents))
    accelerator.add_engine("uploads", RetrievalEngine(uploads))
    return uploads


def _compiled(program: Program, accelerator: Accelerator, uploads: DocumentIndex) -> Ask:
    """Return the call of a graph; what a request has uploaded is forgotten at its end."""
    llama = program.framework == "LlamaIndex"
    split = plain.SENTENCES.split_text if llama else plain.SPLITTER.split_text
    numbers, made = itertools.count(), dict[str, list[str]]()

    def cut(documents: Sequence[Document]) -> list[Document]:
        (document,) = documents
        chunks = enumerate(split(document.text))
        found = [Document(f"{document.id}#{place}", text) for place, text in chunks]
        made[document.id] = [chunk.id for chunk in found]
        return found

    compiled = accelerator.compile(program.graph(cut))
    if program.searches:
        return lambda request: compiled.run(input=request.question)

    def answer(request: Request) -> str:
        name = f"upload {next(numbers)}"
        documents = [Document(name, request.document)]
        said = compiled.run(input=request.question, documents=documents)
        uploads.delete(made.pop(name))
        return said

    return answer

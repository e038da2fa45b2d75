"""The workflows that answer in one pass: no loop, and at most one search."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from rag_accel.graph.nodes import END
from rag_accel.graph.ragraph import RAGraph
from rag_accel.workflows import prompts, steps
from rag_accel.workflows.history import AnswerWriter, started, with_history


def one_shot(
    *,
    prompt: str = prompts.ANSWER,
    system: str | None = None,
    top_k: int = 5,
    max_tokens: int | None = None,
    history: bool = False,
    llm: str = "llm",
    index: str = "index",
    embedder: str = "embedder",
) -> RAGraph:
    """Return the workflow that searches once and answers (HedraRAG section 6, One-shot).

    Args:
        prompt: of ``docs`` and ``input``.
        system: template of the system message.
        top_k: documents to find.
        max_tokens: most tokens of the answer.
        history: whether a request brings a second input, ``history``: the earlier turns of its
            conversation, see ``Conversation``. They stand before each prompt as the value
            ``conversation``, so what begins with them is computed while a search runs; a prompt
            that names this value places it itself. Without turns the prompts are those without.
        llm, index, embedder: names of engines.
    """
    graph, start = started(history)
    graph.add_retrieval("search", top_k=top_k, output="docs", engine=index, embedder=embedder)
    AnswerWriter(graph, llm, max_tokens, history).add("answer", prompt, system=system)
    return _chain(graph, start, "search", "answer")


def hyde(
    *,
    hypothesis_prompt: str = prompts.HYPOTHESIS,
    prompt: str = prompts.ANSWER,
    top_k: int = 5,
    max_tokens: int | None = None,
    history: bool = False,
    llm: str = "llm",
    writer: str | None = None,
    index: str = "index",
    embedder: str = "embedder",
) -> RAGraph:
    """Return the workflow that searches with a made-up passage (HedraRAG section 6, HyDE).

    Args:
        hypothesis_prompt: of ``input``; writes the value ``passage``.
        prompt: of ``docs`` and ``input``.
        top_k: documents to find.
        max_tokens: most tokens of the passage, and of the answer.
        history: as in ``one_shot``.
        llm, index, embedder: names of engines.
        writer: the engine that writes the passage; by default ``llm``.
    """
    graph, start = started(history)
    answers = AnswerWriter(graph, llm, max_tokens, history)
    answers.add("hypothesis", hypothesis_prompt, "passage", engine=writer)
    graph.add_retrieval(
        "search", query="passage", top_k=top_k, output="docs", engine=index, embedder=embedder
    )
    answers.add("answer", prompt)
    return _chain(graph, start, "hypothesis", "search", "answer")


def recomp(
    *,
    compress_prompt: str = prompts.COMPRESS,
    prompt: str = prompts.ANSWER_FROM_SUMMARY,
    top_k: int = 5,
    summary_tokens: int | None = None,
    max_tokens: int | None = None,
    history: bool = False,
    llm: str = "llm",
    compressor: str | None = None,
    index: str = "index",
    embedder: str = "embedder",
) -> RAGraph:
    """Return the workflow that compresses the documents it found (HedraRAG section 6, RECOMP).

    Args:
        compress_prompt: of ``docs`` and ``input``; writes the value ``summary``.
        prompt: of ``summary`` and ``input``.
        top_k: documents to find.
        summary_tokens, max_tokens: most tokens of the summary, and of the answer.
        history: as in ``one_shot``.
        llm, index, embedder: names of engines.
        compressor: the engine that compresses; by default ``llm``.
    """
    graph, start = started(history)
    graph.add_retrieval("search", top_k=top_k, output="docs", engine=index, embedder=embedder)
    graph.add_generation(
        "compress",
        prompt=with_history(compress_prompt, history),
        output="summary",
        max_tokens=summary_tokens,
        engine=compressor or llm,
    )
    AnswerWriter(graph, llm, max_tokens, history).add("answer", prompt)
    return _chain(graph, start, "search", "compress", "answer")


def search_backed(
    *,
    proxy_prompt: str = prompts.PROXY,
    judge_prompt: str = prompts.JUDGE,
    prompt: str = prompts.ANSWER,
    wants_search: Callable[[str], bool] = steps.wants_search,
    top_k: int = 4,
    max_tokens: int | None = None,
    history: bool = False,
    llm: str = "llm",
    proxy: str | None = None,
    judge: str | None = None,
    index: str = "index",
    embedder: str = "embedder",
) -> RAGraph:
    """Return search-engine-backed generation (Teola section 7, Figure 2a).

    A proxy answers first, a judge decides whether that will do, and only if not there is a search,
    of the 4 best entities as in the paper, and another answer. Both write ``answer``.

    Args:
        proxy_prompt: of ``input``; writes the value ``draft``.
        judge_prompt: of ``input`` and ``draft``; writes the value ``verdict``.
        prompt: of ``docs`` and ``input``.
        wants_search: reads the verdict; by default anything but a reply that begins with the word
            ANSWER asks for a search.
        top_k: documents to find.
        max_tokens: most tokens of the draft, and of the answer.
        history: as in ``one_shot``.
        llm, index, embedder: names of engines; the index may be any search engine.
        proxy: the engine that answers first; by default ``llm``.
        judge: the engine that judges; by default that of the proxy.
    """
    graph, start = started(history)
    answers = AnswerWriter(graph, llm, max_tokens, history)
    answers.add("proxy", proxy_prompt, "draft", engine=proxy)
    graph.add_generation(
        "judge",
        prompt=with_history(judge_prompt, history),
        output="verdict",
        engine=judge or proxy or llm,
    )
    graph.add_retrieval("search", top_k=top_k, output="docs", engine=index, embedder=embedder)
    answers.add("answer", prompt)
    # A branch that chose END would make the verdict the result.
    graph.add_function("keep", steps.as_it_is, inputs="draft", output="answer")
    graph.add_edge(start, "proxy").add_edge("proxy", "judge")
    decide = steps.Verdict("search", "keep", wants_search)
    graph.add_edge("judge", decide, targets=["search", "keep"])
    return graph.add_edge("search", "answer").add_edge("answer", END).add_edge("keep", END)


def _chain(graph: RAGraph, *names: str) -> RAGraph:
    for source, target in pairwise((*names, END)):
        graph.add_edge(source, target)
    return graph

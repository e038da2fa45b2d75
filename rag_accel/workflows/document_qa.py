"""Question answering over uploaded documents (Teola section 7, Figures 2c and 2d).

Limits of the graph, and the ways around them:

- A Retrieval waits as a whole, so the question is embedded only when the upload has ended.
- A filter of a Retrieval is part of the graph, not of a request: uploads join the index that all
  requests search.
"""

from __future__ import annotations

from rag_accel.graph.ragraph import RAGraph
from rag_accel.workflows import prompts, steps
from rag_accel.workflows.history import AnswerWriter, started, with_history
from rag_accel.workflows.synthesis import Synthesis, SynthesisMode, add_synthesis
from rag_accel.workflows.upload import Ingest, Upload


def naive_document_qa(
    ingest: Ingest | bool | None = None,
    *,
    upload: Upload | None = None,
    top_k: int = 3,
    synthesis: SynthesisMode | Synthesis = "tree",
    max_tokens: int | None = None,
    history: bool = False,
    llm: str = "llm",
    index: str = "index",
    embedder: str = "embedder",
) -> RAGraph:
    """Return document QA with naive RAG: upload, search, synthesise (Teola section 7, Figure 2c).

    With ``ingest`` a request brings a second input, ``documents``: a list of ``Document`` or text.

    Args:
        ingest: true lets ``embedder`` embed the chunks and ``index`` take them, in steps that all
            requests share; or a callable that takes them, see ``ingest_into``, for an index that is
            not ours. Without it nothing is uploaded.
        upload: how documents are cut; by default 256 words that overlap by 30.
        top_k: documents to find.
        synthesis: how the answer is made of them: ``stuff``, ``tree`` or ``refine``, or a
            ``Synthesis`` with prompts of your own.
        max_tokens: most tokens of each generation.
        history: as in ``one_shot``.
        llm, index, embedder: names of engines.
    """
    graph, _, before = _uploading(ingest, upload, history, index, embedder)
    graph.add_retrieval("search", top_k=top_k, output="docs", engine=index, embedder=embedder)
    graph.add_edge(before, "search")
    writer = AnswerWriter(graph, llm, max_tokens, history)
    return add_synthesis(writer, "search", synthesis, width=top_k)


def advanced_document_qa(
    ingest: Ingest | bool | None = None,
    *,
    upload: Upload | None = None,
    expand_prompt: str = prompts.EXPAND,
    num_queries: int = 3,
    top_k: int = 16,
    top_n: int = 3,
    synthesis: SynthesisMode | Synthesis = "refine",
    max_tokens: int | None = None,
    history: bool = False,
    llm: str = "llm",
    expander: str | None = None,
    index: str = "index",
    embedder: str = "embedder",
    reranker: str = "reranker",
) -> RAGraph:
    """Return document QA with advanced RAG (Teola section 7, Figure 2d).

    The question is expanded to several queries while the upload runs; each is searched on its own,
    the documents found are reranked together, and the answer is made of the best.

    Args:
        ingest, upload: as in ``naive_document_qa``.
        expand_prompt: of ``input``; the queries come one a line, or as a list in JSON. ``{count}``
            in it is replaced by ``num_queries``. Further queries are left out, and the question
            itself stands in for those that are missing. On an engine that gives its text piece by
            piece each query is searched as soon as it is written.
        num_queries: queries to search.
        top_k: documents to find for each query.
        top_n: documents that the reranker keeps of all.
        synthesis: how the answer is made of them, as in ``naive_document_qa``.
        max_tokens: most tokens of each generation.
        history: as in ``one_shot``.
        llm, index, embedder, reranker: names of engines.
        expander: the engine that expands the question; by default ``llm``.

    Raises:
        ConfigError: if ``num_queries`` or ``top_n`` is below 1.
    """
    steps.require_count("num_queries", num_queries)
    steps.require_count("top_n", top_n)
    graph, start, before = _uploading(ingest, upload, history, index, embedder)
    prompt = with_history(expand_prompt.replace("{count}", str(num_queries)), history)
    graph.add_generation("expand", prompt=prompt, output="expansion", engine=expander or llm)
    graph.add_function("queries", steps.Queries(num_queries), inputs=["expansion", "input"])
    graph.add_edge(start, "expand").add_edge("expand", "queries")
    searches = [f"search{number}" for number in range(1, num_queries + 1)]
    for place, search in enumerate(searches):
        query, found = f"query{place + 1}", f"found{place + 1}"
        graph.add_function(query, steps.Nth(place), inputs="queries")
        graph.add_retrieval(
            search, query=query, top_k=top_k, output=found, engine=index, embedder=embedder
        )
        graph.add_edge("queries", query).add_edge(query, search)
        if before != start:
            graph.add_edge(before, search)
    found = [f"found{number}" for number in range(1, num_queries + 1)]
    graph.add_function("merge", steps.merged, inputs=found, output="found")
    graph.add_rerank("rerank", documents="found", top_n=top_n, output="docs", engine=reranker)
    graph.add_edge(searches, "merge").add_edge("merge", "rerank")
    writer = AnswerWriter(graph, llm, max_tokens, history)
    return add_synthesis(writer, "rerank", synthesis, width=top_n)


def _uploading(
    ingest: Ingest | bool | None, upload: Upload | None, history: bool, index: str, embedder: str
) -> tuple[RAGraph, str, str]:
    """Return a graph that uploads, its first stage and that after which uploads can be found."""
    if ingest is None or ingest is False:
        graph, start = started(history)
        return graph, start, start
    graph, start = started(history, "documents")
    graph.add_function("chunk", upload or Upload(), inputs="documents", output="chunks")
    if ingest is True:
        graph.add_ingestion(
            "ingest", documents="chunks", output="ingested", engine=index, embedder=embedder
        )
    else:
        graph.add_function("ingest", ingest, inputs="chunks", output="ingested")
    graph.add_edge(start, "chunk").add_edge("chunk", "ingest")
    return graph, start, "ingest"

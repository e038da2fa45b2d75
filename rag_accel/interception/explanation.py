"""What the explanations of all frameworks say of accelerated programs."""

from __future__ import annotations

from typing import Any

from rag_accel.accelerator import Accelerator
from rag_accel.interception.twins import why_no_twin

BORROWED = "borrowed: admitted by the scheduler, runs where its caller is"
COMPONENT = "a component of this library: its own engine, requests share batches"
NOT_UNDERSTOOD = "not understood: runs plainly"
RECOGNISED_STORE = (
    "recognised store: where it is large and seldom changed, an owned engine looks for its"
    " nearest vectors, searches of all requests share steps; texts and scores are the"
    " store's own"
)
GRAPH_RETRIEVAL = (
    "graph retrieval: once its store was met unchanged, an owned engine makes its hops, those of"
    " all requests in one step; nodes, scores, texts and order are its own"
)
NO_LEAF = (
    "  no leaf is visible from outside; the models, retrievers, stores and embeddings",
    "  that this code calls when it runs are scheduled all the same",
)


def component(obj: Any, accelerator: Accelerator) -> str:
    """Return how a component of this library runs."""
    explain = getattr(type(obj), "explain_on", None)
    return COMPONENT if explain is None else explain(obj, accelerator)


def headline(obj: Any, framework: str, accelerator: Accelerator) -> list[str]:
    """Return the lines with which the explanation of an object begins.

    No saving is claimed: what a rewrite saves is shown by measurement only.
    """
    refusal = why_no_twin(type(obj))
    if refusal is not None:
        return [
            f"{type(obj).__name__} is not accelerated, accelerate() returned it as it is: its class"
            f" cannot have another subclass: {refusal}",
            f"Inside activate(), or in an accelerated program of {framework}, the leaf calls below"
            " are scheduled.",
        ]
    return [
        f"{type(obj).__name__} accelerated by interception: {framework} keeps the control flow,",
        "the leaf calls below are scheduled (batches of at most"
        f" {accelerator.options.max_batch}, {accelerator.cores} cores).",
    ]

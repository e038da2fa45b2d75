"""Write the five workflows as plain async programs over a search and a generation.

They are the programs of ``rag_accel.workflows`` step by step: equal prompts, equal order. Nothing
in a workflow of this mix can run side by side with anything else of its request, so a plain program
loses nothing by awaiting one call after the other.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from bench.research.mixed.trace import DECOMPOSE, MAX_PARTS, Workflow
from rag_accel.engine_api import Document
from rag_accel.graph.ragraph import RAGraph
from rag_accel.requests.prompts import as_text
from rag_accel.workflows import hyde, irg, multistep, one_shot, prompts, recomp
from rag_accel.workflows.steps import Questions, joined, noted

TOP_K = 5


@dataclass(frozen=True, slots=True)
class Answer:
    """What a request ended with: its text, and the ids its last search found, best first."""

    text: str
    ids: tuple[str, ...]


class Services(Protocol):
    """Searches and generations, one call at a time."""

    async def search(self, query: str) -> Sequence[Document]:
        """Return the ``TOP_K`` documents nearest to a text, best first."""
        ...

    async def generate(self, template: str, values: Mapping[str, str]) -> str:
        """Return what the model says to a filled template."""
        ...


Program = Callable[[Services, str], Awaitable[Answer]]


async def _one_shot(services: Services, question: str) -> Answer:
    return await _answer(services, prompts.ANSWER, question, await services.search(question))


async def _hyde(services: Services, question: str) -> Answer:
    passage = await services.generate(prompts.HYPOTHESIS, {"input": question})
    return await _answer(services, prompts.ANSWER, question, await services.search(passage))


async def _multistep(services: Services, question: str) -> Answer:
    plan = await services.generate(DECOMPOSE, {"input": question})
    notes: tuple[str, ...] = ()
    found: Sequence[Document] = ()
    for part in Questions(MAX_PARTS)(plan, question):
        found = await services.search(part)
        values = {"docs": as_text(found), "question": part}
        notes = noted(notes, part, await services.generate(prompts.ANSWER_STEP, values))
    values = {"notes": as_text(notes), "input": question}
    return _ended(await services.generate(prompts.ANSWER_FROM_NOTES, values), found)


async def _irg(services: Services, question: str) -> Answer:
    first = await _answer(services, prompts.ANSWER, question, await services.search(question))
    found = await services.search(joined(question, first.text))
    return await _answer(services, prompts.ANSWER, question, found)


async def _recomp(services: Services, question: str) -> Answer:
    found = await services.search(question)
    values = {"docs": as_text(found), "input": question}
    summary = await services.generate(prompts.COMPRESS, values)
    values = {"summary": summary, "input": question}
    return _ended(await services.generate(prompts.ANSWER_FROM_SUMMARY, values), found)


async def _answer(
    services: Services, template: str, question: str, found: Sequence[Document]
) -> Answer:
    values = {"docs": as_text(found), "input": question}
    return _ended(await services.generate(template, values), found)


def _ended(text: str, found: Sequence[Document]) -> Answer:
    return Answer(text, tuple(document.id for document in found))


PROGRAMS: Mapping[Workflow, Program] = {
    Workflow.ONE_SHOT: _one_shot,
    Workflow.HYDE: _hyde,
    Workflow.MULTISTEP: _multistep,
    Workflow.IRG: _irg,
    Workflow.RECOMP: _recomp,
}


def graphs() -> dict[Workflow, RAGraph]:
    """Return the same workflows as graphs."""
    return {
        Workflow.ONE_SHOT: one_shot(top_k=TOP_K),
        Workflow.HYDE: hyde(top_k=TOP_K),
        Workflow.MULTISTEP: multistep(top_k=TOP_K, max_questions=MAX_PARTS),
        Workflow.IRG: irg(top_k=TOP_K, rounds=2),
        Workflow.RECOMP: recomp(top_k=TOP_K),
    }

"""Partial prefill: the known beginning of a prompt before the rest (Teola 4.2, Pass 3).

    search.searching: SEARCHING@index(search.vector) -> docs  after search.embedding
    answer.prefilling: PREFILLING@llm(input, docs) -> answer.prefill
        after search.searching  prompt="<instructions> {input} <instructions> {docs}"

becomes, on an engine that resumes prefilled prompts,

    answer.partial_prefilling: PARTIAL_PREFILLING@llm(input) -> answer.prefix
        prompt="<instructions> {input} <instructions> "
    answer.prefilling: FULL_PREFILLING@llm(answer.prefix, input, docs) -> answer.prefill
        after search.searching, answer.partial_prefilling  prompt="<...the whole template...>"

Attention is causal, so only a beginning can be prefilled early: the prompt is cut once, at the last
value before which the beginning need not wait for all the rest. What it has to wait for is found
as for every other work of an engine, by ``prune_dependencies``: it goes ahead of no code of the
user's. The full prefilling renders the whole prompt again, exactly as it would without this pass,
and hands it over with the handle of the beginning; an engine reads what comes after their common
prefix, so a value that has changed meanwhile costs time and changes nothing.

Differs: the paper prefills each part of a prompt as it becomes ready. Here a beginning is prefilled
once, and only if it is long enough to be worth the step, see ``LEAST_TOKENS``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from rag_accel.engine_api.kinds import PrimitiveKind
from rag_accel.graph.primitives import Primitive, PrimitiveGraph, PrimitiveName
from rag_accel.graph.prompt import PromptPiece, ValueName, join_prompt, split_prompt
from rag_accel.passes.context import PassContext
from rag_accel.passes.ordering import all_earlier
from rag_accel.passes.prune_dependencies import FINDS_DOCUMENTS, prune_dependencies

LEAST_TOKENS: Final = 64
"""Shorter beginnings are not prefilled early.

Measured on an emulated device (an 8B model, modelled step times) during a search of 40 ms, 30
pairs of one request each, alternating. Saved, median and quartiles in ms: 32 tokens 0.1 (-1.9 to
3.3), 64 tokens 2.4 (0.4 to 3.4), 128 tokens 3.5 (0.1 to 5.0), 256 tokens 12 (9 to 16).
"""

CHARACTERS_PER_TOKEN: Final = 4
LONG_VALUE_TOKENS: Final = 64
"""Guessed length of documents, and of a completion unless ``max_tokens`` is less."""
SHORT_VALUE_TOKENS: Final = 8
"""Guessed length of any other value, such as a question, unless what writes it tells."""

_PARTS = frozenset({PrimitiveKind.PARTIAL_PREFILLING, PrimitiveKind.FULL_PREFILLING})


def split_prefill(graph: PrimitiveGraph, context: PassContext) -> PrimitiveGraph:
    """Cut each prompt whose beginning is long and can be prefilled while it waits for the rest.

    Returns this very graph if there is none.
    """
    wholes = [primitive for primitive in graph.primitives if _can_be_cut(primitive, context)]
    cuts = {whole.name: list(_long_beginnings(whole, graph)) for whole in wholes}
    drafts = [draft for beginnings in cuts.values() for draft in beginnings]
    if not drafts:
        return graph
    # Only to learn what each would have to wait for.
    pruned = prune_dependencies(graph.edit(put=drafts), context)
    earlier = all_earlier(pruned)
    put: list[Primitive] = []
    for whole in wholes:
        # Pure functions take too little time for a step beside them.
        waited = {
            name
            for name in earlier[whole.name].intersection(pruned.by_name)
            if pruned.by_name[name].attribute("pure") is None
        }
        ahead = [draft for draft in cuts[whole.name] if not waited <= earlier[draft.name]]
        if ahead:
            put += _cut(whole, pruned.by_name[ahead[-1].name])
    return graph.edit(put=put)


def _can_be_cut(primitive: Primitive, context: PassContext) -> bool:
    engine = context.owned(primitive)
    is_whole = primitive.kind is PrimitiveKind.PREFILLING
    return is_whole and engine is not None and engine.kinds >= _PARTS


def _cut(whole: Primitive, draft: Primitive) -> tuple[Primitive, Primitive]:
    """Return the two prefillings that take the place of one; the last keeps its name."""
    partial = replace(
        draft,
        name=PrimitiveName(f"{whole.instance}.partial_prefilling"),
        output=ValueName(f"{whole.instance}.prefix"),
    )
    assert partial.output is not None
    full = replace(
        whole,
        kind=PrimitiveKind.FULL_PREFILLING,
        inputs=(partial.output, *whole.inputs),
        after=(*whole.after, partial.name),
    )
    return partial, full


@dataclass(frozen=True, slots=True)
class Beginning:
    """A prompt up to one of its values: templates of the system prompt and of the prompt."""

    system: str | None
    prompt: str | None
    pieces: tuple[PromptPiece, ...]

    @property
    def attributes(self) -> tuple[tuple[str, Any], ...]:
        told = (("prompt", self.prompt), ("system", self.system))
        return tuple((key, value) for key, value in told if value is not None)

    @property
    def values(self) -> tuple[ValueName, ...]:
        named = (piece.value for piece in self.pieces if piece.value is not None)
        return tuple(dict.fromkeys(named))


def _long_beginnings(whole: Primitive, graph: PrimitiveGraph) -> Iterator[Primitive]:
    """Yield each beginning worth a step, short ones first, as if it waited like the whole."""
    for place, found in enumerate(beginnings(whole)):
        tokens = sum(len(piece.literal) for piece in found.pieces) // CHARACTERS_PER_TOKEN
        tokens += sum(_num_tokens(value, graph) for value in found.values)
        if tokens >= LEAST_TOKENS:
            name = f"{whole.name}.{place}"
            yield replace(
                whole,
                name=PrimitiveName(name),
                kind=PrimitiveKind.PARTIAL_PREFILLING,
                inputs=found.values,
                output=ValueName(name),
                attributes=found.attributes,
            )


def beginnings(whole: Primitive) -> Iterator[Beginning]:
    """Yield the beginnings of a prompt that end where a value begins."""
    system, prompt = whole.attribute("system"), whole.attribute("prompt")
    if not isinstance(prompt, str) or not isinstance(system, str | None):
        return
    before = () if system is None else split_prompt(system)
    for cut in _cuts(before):
        yield Beginning(join_prompt(cut), None, cut)
    for cut in _cuts(split_prompt(prompt)):
        yield Beginning(system, join_prompt(cut) or None, (*before, *cut))


def _cuts(pieces: Sequence[PromptPiece]) -> Iterator[tuple[PromptPiece, ...]]:
    for place, piece in enumerate(pieces):
        if piece.value is not None:
            yield (*pieces[:place], PromptPiece(piece.literal, None))


def _num_tokens(value: ValueName, graph: PrimitiveGraph) -> int:
    """Guess the length of a value in a prompt."""
    for writer in graph.writers(value):
        if writer.kind is PrimitiveKind.DECODING:
            limit = writer.attribute("max_tokens")
            return min(limit, LONG_VALUE_TOKENS) if isinstance(limit, int) else LONG_VALUE_TOKENS
        told = writer.attribute("tokens")
        if isinstance(told, int):
            return told
        sources = [writer]
        if writer.kind is PrimitiveKind.FUNCTION:
            sources = [source for name in writer.inputs for source in graph.writers(name)]
        if any(source.kind in FINDS_DOCUMENTS for source in sources):
            return LONG_VALUE_TOKENS
    return SHORT_VALUE_TOKENS

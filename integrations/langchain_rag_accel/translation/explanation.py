"""Say how a translated program runs, what of it is opaque, and what stays intercepted."""

from __future__ import annotations

from collections.abc import Iterator

from langchain_rag_accel.explanation import leaf_lines
from langchain_rag_accel.side_by_side import MAX_AT_ONCE, is_spread
from rag_accel.accelerator import Accelerator
from rag_accel.graph.text import format as format_graph
from rag_accel_adapters.langchain.parts import ProgramPart
from rag_accel_adapters.langchain.translate import Translation
from rag_accel_adapters.langchain.walk import leaves


def explain_translated(translation: Translation, accelerator: Accelerator) -> str:
    """Return the RAGraph of a program as text, and what is to be known about running it."""
    name = translation.program.get_name()
    lines = [
        f"{name} translated: the RAGraph below says when each part runs; LangChain's own",
        "runnables do the work, on the caller's loop or thread.",
        *_indented(format_graph(translation.graph).split("\n")),
        "run as (parts in a straight line follow each other without the scheduler):",
        *_indented(_runs(translation)),
        "opaque (your own code, and what decides itself what runs; run as it is):",
        *_indented([_named(part) for part in translation.opaque] or ["none"]),
        f"leaves (batches of at most {accelerator.options.max_batch}, {accelerator.cores} cores):",
        *leaf_lines(translation.program, accelerator),
        "notes:",
        *_indented([*_notes(translation), *_spread(translation, accelerator)]),
    ]
    return "\n".join(lines)


def _runs(translation: Translation) -> Iterator[str]:
    for stage in translation.sync_lines.stages:
        after = ", ".join(
            name for name in stage.inputs if name not in translation.sync_lines.inputs
        )
        title = getattr(getattr(stage, "fn", None), "__name__", "")
        yield f"{stage.name}: {title}" + (f"  after {after}" if after else "")


def _notes(translation: Translation) -> Iterator[str]:
    yield "stream, transform, batch_as_completed, astream_events, and calls that are part of"
    yield "  another accelerated run: intercepted"
    for method, parts in translation.own_batch.items():
        if parts:
            yield f"{method}: intercepted, since {_named(parts[0])} does it in a way of its own"
    asides = [aside.path for part in translation.root.walk() for _, aside in part.asides]
    if asides:
        yield f"{', '.join(asides)}: done before the branch beside them"
    if translation.num_branches:
        yield f"blocking calls with max_concurrency below {translation.num_branches}: intercepted,"
        yield "  since LangChain bounds branches by threads"
    if any(part.kind == "assign" for part in translation.root.walk()):
        yield "what follows an assign waits for all of its keys: LangChain ends the assign's run"
        yield "  before it starts another"
    if translation.root.kind == "sequence":
        yield "a batch that raises: inputs beside the one that failed may have got further than in"
        yield "  LangChain, which takes all of them from step to step"


def _spread(translation: Translation, accelerator: Accelerator) -> Iterator[str]:
    if accelerator.options.mode != "translate":
        return
    for found in leaves(translation.program):
        if is_spread(type(found.obj)):
            yield f"{found.path}: {type(found.obj).__name__}: in blocking calls its own calls run"
            yield f"  side by side, at most {MAX_AT_ONCE} at once"


def _named(part: ProgramPart) -> str:
    return f"{part.path}: {part.runnable.get_name()}"


def _indented(lines: Iterator[str] | list[str]) -> list[str]:
    return [f"  {line}" for line in lines]

"""A RAGraph as text, one stage per line.

    ragraph(input)
    search: Retrieval@index(input) -> docs  after START  top_k=5
    answer: Generation@llm(input, docs) -> answer  after search  prompt="Use {docs}: {input}"
    answer?: Branch(*)  after answer  condition=@is_done targets=["search", "END"]
    reduce docs with @merge

``END: after answer`` says what ends the workflow; ``optional=config`` behind the inputs, which of
them a request may leave out; ``on_loop_limit=end``, that a loop ends where it has turned as often
as it may. Callables print as ``@name``; ``References`` has
what each stands for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rag_accel.graph.frozen import FrozenRAGraph
from rag_accel.graph.lines import (
    Line,
    References,
    format_line,
    format_names,
    format_value,
    quoted,
)
from rag_accel.graph.ragraph import RAGraph
from rag_accel.graph.stages.kind import Stage, kind_of


def stage_line(stage: Stage, after: Sequence[str], names: References) -> Line:
    """Return the line of a stage that follows ``after``; ``names`` takes what JSON cannot say."""
    told = (
        (key, write(getattr(stage, key), stage, names))
        for key, write in kind_of(stage).line.items()
    )
    return Line(
        name=stage.name,
        head=type(stage).__name__,
        engine=stage.engine,
        inputs=stage.inputs,
        reads_all=stage.reads_all,
        output=stage.output,
        after=tuple(after),
        attributes=tuple((key, value) for key, value in told if value is not None),
    )


def format(graph: RAGraph | FrozenRAGraph, names: References | None = None) -> str:
    """Return the text of a graph, valid or not.

    Args:
        graph: the graph.
        names: makes the names of objects that text cannot hold.
    """
    return "\n".join(_lines(graph.freeze(), References() if names is None else names))


def _lines(graph: FrozenRAGraph, names: References) -> Iterator[str]:
    optional = f"  optional={format_names(graph.optional)}" if graph.optional else ""
    ends = "" if graph.on_loop_limit == "raise" else f"  on_loop_limit={graph.on_loop_limit}"
    yield f"ragraph({format_names(graph.inputs)}){optional}{ends}"
    told: set[str] = set()
    for stage in graph.stages:
        after = () if stage.name in told else graph.predecessors[stage.name]
        told.add(stage.name)
        yield format_line(stage_line(stage, after, names))
    for name, sources in graph.predecessors.items():
        if sources and name not in told:
            yield format_line(Line(name, after=sources))
    for output, fn in graph.reducers:
        yield f"reduce {quoted(output)} with {format_value(names.name(fn, f'{output}.reducer'))}"

"""Draw a RAGraph as a Mermaid flowchart."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rag_accel.graph.frozen import FrozenRAGraph
from rag_accel.graph.nodes import END, START, Branch, Edge, Function, Retrieval, Stage
from rag_accel.graph.ragraph import RAGraph

_ANY = "any"


def mermaid(graph: RAGraph | FrozenRAGraph) -> str:
    """Return Mermaid text: solid edges bear the value they carry, dotted ones are chosen.

    A branch without declared targets points to one node that stands for every stage and END.
    """
    return "\n".join(_lines(graph.freeze()))


def _lines(graph: FrozenRAGraph) -> Iterator[str]:
    ids: dict[str, str] = {START: START, END: END}
    ids.update((name, f"s{number}") for number, name in enumerate(graph.by_name))
    yield "flowchart TD"
    yield f"  {START}([START])"
    for name, stage in graph.by_name.items():
        yield f"  {ids[name]}{_shape(stage)}"
    open_ended = [
        stage.name
        for stage in graph.by_name.values()
        if isinstance(stage, Branch) and stage.targets is None
    ]
    if open_ended:
        yield f'  {_ANY}["any stage or END"]'
    yield f"  {END}([END])"
    for edge in graph.edges:
        if edge.source in ids and edge.target in ids:
            yield _edge(graph, edge, ids)
    for name in open_ended:
        yield f"  {ids[name]} -.-> {_ANY}"


def _shape(stage: Stage) -> str:
    if isinstance(stage, Branch):
        return f'{{"{_escaped(stage.name)}"}}'
    label = f"{_escaped(stage.name)}<br/>{type(stage).__name__}"
    if stage.engine is not None:
        label += f" at {_escaped(stage.engine)}"
    if isinstance(stage, Retrieval):
        return f'[("{label}")]'
    return f'[["{label}"]]' if isinstance(stage, Function) else f'["{label}"]'


def _edge(graph: FrozenRAGraph, edge: Edge, ids: Mapping[str, str]) -> str:
    source, target = ids[edge.source], ids[edge.target]
    if edge.kind == "condition":
        return f"  {source} -.-> {target}"
    writer = graph.by_name.get(edge.source)
    if edge.kind == "data" and writer is not None and writer.output is not None:
        return f'  {source} -->|"{_escaped(writer.output)}"| {target}'
    return f"  {source} --> {target}"


def _escaped(text: str) -> str:
    """Return text that ends neither a label nor a line."""
    for char, entity in (("#", "#35;"), ('"', "#quot;"), ("<", "#lt;"), (">", "#gt;")):
        text = text.replace(char, entity)
    return " ".join(text.split())

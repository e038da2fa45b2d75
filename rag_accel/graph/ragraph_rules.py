"""The rules of the graphs that users write.

Every rule copes with graphs that break the others, so that all offenders are found at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

from rag_accel.engine_api.kinds import HasKinds
from rag_accel.graph.frozen import FrozenRAGraph
from rag_accel.graph.nodes import DEFAULT_EMBEDDER, END, START, StageName, alternatives
from rag_accel.graph.option_inputs import named_inputs
from rag_accel.graph.order import reachable
from rag_accel.graph.stages import Branch, GraphRetrieval, Retrieval, engines_of
from rag_accel.graph.writers import clashes_in_graph

Graph = TypeVar("Graph")
Engines: TypeAlias = Mapping[str, HasKinds] | None


@dataclass(frozen=True, slots=True)
class Rule(Generic[Graph]):
    """A property of a graph; ``check`` yields a line for each thing that lacks it."""

    name: str
    check: Callable[[Graph, Engines], Iterable[str]]

    def offenders(self, graph: Graph, engines: Engines) -> list[str]:
        """Return the lines, each headed by the rule's name."""
        return [f"{self.name}: {line}" for line in self.check(graph, engines)]


def _unique_names(graph: FrozenRAGraph, engines: Engines) -> Iterator[str]:
    for name, count in Counter(stage.name for stage in graph.stages).items():
        if count > 1:
            yield f"{count} stages are named {name!r}"


def _known_nodes(graph: FrozenRAGraph, engines: Engines) -> Iterator[str]:
    for source, target in graph.links:
        edge = f"edge {source!r} -> {target!r}"
        if source not in graph.by_name and source != START:
            yield f"{edge}: no stage {source!r}; {alternatives(source, (START, *graph.by_name))}"
        if target not in graph.by_name and target != END:
            yield f"{edge}: no stage {target!r}; {alternatives(target, (*graph.by_name, END))}"


def _known_targets(graph: FrozenRAGraph, engines: Engines) -> Iterator[str]:
    valid = (*graph.by_name, END)
    for stage in graph.stages:
        for target in _declared(stage):
            if target not in valid:
                yield f"branch {stage.name!r}: no stage {target!r}; {alternatives(target, valid)}"


def _entry(graph: FrozenRAGraph, engines: Engines) -> Iterator[str]:
    if not graph.successors[START]:
        yield "no edge leaves START"


def _exit(graph: FrozenRAGraph, engines: Engines) -> Iterator[str]:
    if graph.successors[START] and END not in reachable(graph.flow, [START]):
        yield "no path leads from START to END"


def _reachable(graph: FrozenRAGraph, engines: Engines) -> Iterator[str]:
    if not graph.successors[START]:
        return
    found = set(reachable(graph.flow, [START]))
    for name in graph.by_name:
        if name not in found:
            yield f"nothing leads to stage {name!r}"


def _loop_exit(graph: FrozenRAGraph, engines: Engines) -> Iterator[str]:
    plain = _followers(graph, graph.successors)
    for loop in _loops(graph, plain):
        yield f"no condition in the loop of {', '.join(loop)}"
    follows = _followers(graph, graph.flow)
    for loop in _loops(graph, follows):
        if any(name in plain[name] for name in loop):
            continue
        targets = {
            target
            for name in loop
            if isinstance(graph.by_name[name], Branch)
            for target in graph.flow[name]
        }
        if targets.issubset(loop):
            yield f"no condition may leave the loop of {', '.join(loop)}"


def _known_values(graph: FrozenRAGraph, engines: Engines) -> Iterator[str]:
    written = [stage.output for stage in graph.stages if stage.output is not None]
    valid = tuple(dict.fromkeys((*graph.inputs, *written)))
    for stage in graph.stages:
        for value in dict.fromkeys(stage.inputs):
            if value not in valid:
                yield f"stage {stage.name!r} reads {value!r}; {alternatives(value, valid)}"
    for output, _ in graph.reducers:
        if output not in written:
            yield f"a reducer is given for {output!r}; {alternatives(output, written)}"


def _known_inputs(graph: FrozenRAGraph, engines: Engines) -> Iterator[str]:
    for stage in graph.stages:
        for option, name in named_inputs(stage):
            if name not in graph.inputs:
                yield (
                    f"{option} of stage {stage.name!r} is the input {name!r}, which a request does "
                    f"not bring along; {alternatives(name, graph.inputs)}"
                )


def _written_first(graph: FrozenRAGraph, engines: Engines) -> Iterator[str]:
    follows = _followers(graph, graph.flow)
    for stage in graph.by_name.values():
        for value in dict.fromkeys(stage.inputs):
            writers = [name for name, other in graph.by_name.items() if other.output == value]
            if value in graph.inputs or not writers or stage.name not in follows[START]:
                continue
            if not any(stage.name in follows[writer] for writer in writers):
                yield (
                    f"stage {stage.name!r} reads {value!r}, but no path leads to it from "
                    + " or ".join(repr(writer) for writer in writers)
                )


def _ordered_writers(graph: FrozenRAGraph, engines: Engines) -> Iterator[str]:
    for clash in clashes_in_graph(graph):
        yield (
            f"stages {clash.one!r} and {clash.other!r} write {clash.output!r} in no order; "
            f"add an edge or add_reducer({clash.output!r}, fn)"
        )


def _known_engines(graph: FrozenRAGraph, engines: Engines) -> Iterator[str]:
    if engines is None:
        return
    for stage in graph.stages:
        for engine in engines_of(stage):
            # What embeds by itself needs no embedder; decompose knows which one does.
            optional = isinstance(stage, Retrieval | GraphRetrieval) and engine == DEFAULT_EMBEDDER
            if engine not in engines and not optional:
                yield f"stage {stage.name!r} names engine {engine!r}; " + alternatives(
                    engine, engines
                )


RAGRAPH_RULES: tuple[Rule[FrozenRAGraph], ...] = (
    Rule("unique-names", _unique_names),
    Rule("known-nodes", _known_nodes),
    Rule("known-targets", _known_targets),
    Rule("entry", _entry),
    Rule("exit", _exit),
    Rule("reachable", _reachable),
    Rule("loop-exit", _loop_exit),
    Rule("known-values", _known_values),
    Rule("known-inputs", _known_inputs),
    Rule("written-first", _written_first),
    Rule("ordered-writers", _ordered_writers),
    Rule("known-engines", _known_engines),
)


def _declared(stage: object) -> tuple[StageName, ...]:
    return stage.targets or () if isinstance(stage, Branch) else ()


def _followers(
    graph: FrozenRAGraph, edges: Mapping[StageName, tuple[StageName, ...]]
) -> dict[StageName, set[StageName]]:
    """Return for START and each stage the nodes that at least one edge leads to from it."""
    return {name: set(reachable(edges, edges.get(name, ()))) for name in (START, *graph.by_name)}


def _loops(
    graph: FrozenRAGraph, follows: Mapping[StageName, set[StageName]]
) -> list[list[StageName]]:
    """Return the groups of stages that lead to each other, in the order they were added."""
    loops: list[list[StageName]] = []
    seen: set[StageName] = set()
    for name in graph.by_name:
        if name in follows[name] and name not in seen:
            loop = [other for other in graph.by_name if other in follows[name]]
            loop = [other for other in loop if name in follows[other]]
            seen.update(loop)
            loops.append(loop)
    return loops

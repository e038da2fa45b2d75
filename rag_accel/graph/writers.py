"""Stages that write the same output in no fixed order, so that the last to end would win."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import combinations
from typing import NamedTuple

from rag_accel.graph.frozen import FrozenRAGraph
from rag_accel.graph.nodes import END, StageName
from rag_accel.graph.order import reachable
from rag_accel.graph.prompt import ValueName
from rag_accel.graph.stages import Branch


class Clash(NamedTuple):
    """An output and two stages that write it in no fixed order."""

    output: ValueName
    one: StageName
    other: StageName


def clashes_in_graph(graph: FrozenRAGraph) -> list[Clash]:
    """Return the clashes that no answer of any condition can avoid.

    Stages that conditions choose between do not clash here: ``clashes_in_region`` looks at what
    an answer really started.
    """
    writers = _writers(graph, graph.by_name)
    if not writers:
        return []
    together = _together(graph)
    before = _before(graph)

    def unordered(one: StageName, other: StageName) -> bool:
        apart = one not in before[other] and other not in before[one]
        return apart and frozenset((one, other)) in together

    return _pairs(writers, unordered)


def clashes_in_region(
    graph: FrozenRAGraph, within: Mapping[StageName, tuple[StageName, ...]]
) -> list[Clash]:
    """Return the clashes among stages that run as one region with the edges ``within``."""

    def unordered(one: StageName, other: StageName) -> bool:
        return other not in reachable(within, [one]) and one not in reachable(within, [other])

    return _pairs(_writers(graph, within), unordered)


def _writers(graph: FrozenRAGraph, names: Iterable[StageName]) -> dict[ValueName, list[StageName]]:
    """Return the outputs that several stages write and nothing reduces."""
    reduced = {output for output, _ in graph.reducers}
    writers: dict[ValueName, list[StageName]] = {}
    for name in names:
        output = graph.by_name[name].output
        if output is not None and output not in reduced:
            writers.setdefault(output, []).append(name)
    return {output: several for output, several in writers.items() if len(several) > 1}


def _pairs(
    writers: Mapping[ValueName, list[StageName]],
    unordered: Callable[[StageName, StageName], bool],
) -> list[Clash]:
    return [
        Clash(output, one, other)
        for output, several in writers.items()
        for one, other in combinations(several, 2)
        if unordered(one, other)
    ]


def _before(graph: FrozenRAGraph) -> dict[StageName, frozenset[StageName]]:
    """Return for each stage those that have surely ended when it begins.

    It waits for all its unconditional predecessors, but for only one of the branches that may
    choose it.
    """
    sources: dict[StageName, list[StageName]] = {name: [] for name in graph.forward}
    for source, targets in graph.forward.items():
        for target in targets:
            sources[target].append(source)
    before: dict[StageName, frozenset[StageName]] = {}
    for name in graph.forward:
        ways: list[frozenset[StageName]] = []
        waited = [source for source in sources[name] if not _is_branch(graph, source)]
        if waited:
            ways.append(frozenset(waited).union(*(before[source] for source in waited)))
        ways.extend(
            before[source] | {source} for source in sources[name] if _is_branch(graph, source)
        )
        before[name] = ways[0].intersection(*ways) if ways else frozenset()
    return before


def _together(graph: FrozenRAGraph) -> set[frozenset[StageName]]:
    """Return the pairs of stages that disjoint paths from one fork lead to.

    Two tokens leave a fork. While always the one that is earlier in topological order moves, and
    never onto the other, their paths stay disjoint; once the earlier one rests for good, the other
    may go on alone.
    """
    rank = {name: index for index, name in enumerate(graph.forward)}
    forks = (
        frozenset(pair)
        for name, targets in graph.forward.items()
        if not _is_branch(graph, name)
        for pair in combinations([target for target in targets if target != END], 2)
    )
    seen = dict.fromkeys(forks)
    queue = list(seen)
    for pair in queue:
        early, late = sorted(pair, key=lambda name: rank[name])
        for target in graph.forward[early]:
            moved = frozenset((target, late))
            if target not in (late, END) and moved not in seen:
                seen[moved] = None
                queue.append(moved)
    together: set[frozenset[StageName]] = set()
    for pair in seen:
        early, late = sorted(pair, key=lambda name: rank[name])
        together.update(frozenset((early, end)) for end in reachable(graph.forward, [late]))
    return together


def _is_branch(graph: FrozenRAGraph, name: StageName) -> bool:
    return isinstance(graph.by_name.get(name), Branch)

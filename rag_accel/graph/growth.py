"""A request's stages, grown as its conditions are decided; pure bookkeeping, nothing runs here.

A *region* is what one decision sets free: the chosen stages and everything they lead to through
unconditional edges, up to and including the branches that decide what follows. A stage with
several unconditional predecessors waits for all of them that the region or the past holds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NewType, cast

from rag_accel.errors import GraphError
from rag_accel.graph.frozen import FrozenRAGraph, branch_targets
from rag_accel.graph.nodes import END, START, TURN_MARK, StageName, listed, suggestion
from rag_accel.graph.order import reachable, topological
from rag_accel.graph.ragraph import RAGraph
from rag_accel.graph.stages import Branch, Stage
from rag_accel.graph.writers import clashes_in_region

InstanceName = NewType("InstanceName", str)


@dataclass(frozen=True, slots=True)
class StageInstance:
    """One run of a stage in one request.

    Args:
        name: the stage's name on the first turn, then ``name#2``, ``name#3``, ...
        stage: what runs.
        after: instances whose end it waits for.
        depth: longest remaining path in stages, loops counted once; 0 at the end.
        turn: how often the stage has been started in this request, this time included.
        graph: the graph it was grown from.
    """

    name: InstanceName
    stage: Stage
    after: tuple[InstanceName, ...]
    depth: int
    turn: int
    graph: FrozenRAGraph = field(repr=False, compare=False)


def instance_name(stage: StageName, turn: int) -> InstanceName:
    """Return the name of a stage's run on a turn counted from 1."""
    return InstanceName(stage if turn == 1 else f"{stage}{TURN_MARK}{turn}")


def stage_of(instance: str) -> StageName:
    return StageName(instance.partition(TURN_MARK)[0])


def choose(graph: RAGraph | FrozenRAGraph, branch: Branch, answer: object) -> tuple[StageName, ...]:
    """Read a condition's answer: the stages to grow, without END.

    Raises:
        GraphError: if the answer is no name, or none that the branch may choose.
    """
    several = cast("Sequence[object]", answer) if isinstance(answer, list | tuple) else (answer,)
    valid = branch_targets(branch, graph.freeze().by_name)
    names = dict.fromkeys(_answered(branch, answer, valid) for answer in several)
    return tuple(name for name in names if name != END)


def grow(
    graph: RAGraph | FrozenRAGraph,
    entry: str | Sequence[str] = START,
    existing: Iterable[StageInstance] = (),
    max_turns: int = 64,
) -> tuple[StageInstance, ...]:
    """Return the instances that START or a condition's answer sets free, in topological order.

    Pass all names of one answer together: a stage they join in then runs once, after all of them.
    ``existing`` is everything grown for this request so far; it fixes turns and what of the past
    to wait for. END grows nothing.

    Raises:
        GraphError: if an entry is unknown, a stage would start more than ``max_turns`` times, or
            stages of the region write one output in no order and without a reducer.
    """
    template = graph.freeze()
    entries = _entries(template, [entry] if isinstance(entry, str) else entry)
    inside = _set_free(template, entries)
    within = {
        name: tuple(target for target in template.successors[name] if target in inside)
        for name in template.by_name
        if name in inside
    }
    order = topological(within)
    if len(entries) > 1:
        _check_writers(template, within)
    past = Counter(instance.stage.name for instance in existing)
    turns = {name: past[name] + 1 for name in order}
    if (name := _past_limit(turns, max_turns)) is not None:
        raise _turned_too_often(name, max_turns)
    latest = {**past, **turns}
    return tuple(_instance(template, name, latest) for name in order)


def is_past_limit(
    graph: FrozenRAGraph,
    entries: Sequence[StageName],
    existing: Iterable[StageInstance],
    max_turns: int,
) -> bool:
    """Tell whether ``grow`` would start a stage more than ``max_turns`` times."""
    past = Counter(instance.stage.name for instance in existing)
    turns = {name: past[name] + 1 for name in _set_free(graph, entries)}
    return _past_limit(turns, max_turns) is not None


def _set_free(graph: FrozenRAGraph, entries: Sequence[StageName]) -> set[StageName]:
    return {name for name in reachable(graph.successors, entries) if name in graph.by_name}


def _instance(
    graph: FrozenRAGraph, name: StageName, latest: Mapping[StageName, int]
) -> StageInstance:
    after = tuple(
        instance_name(source, latest[source])
        for source in graph.predecessors[name]
        if latest.get(source)
    )
    turn = latest[name]
    return StageInstance(
        instance_name(name, turn), graph.by_name[name], after, graph.depth[name], turn, graph
    )


def _entries(graph: FrozenRAGraph, names: Sequence[str]) -> list[StageName]:
    found: list[StageName] = []
    for name in names:
        if name == START:
            found.extend(graph.successors[START])
        elif name != END and name not in graph.by_name:
            raise GraphError(
                "unknown stage to grow from",
                found=repr(name),
                valid=listed(graph.by_name),
                hint=suggestion(name, graph.by_name),
            )
        else:
            found.append(StageName(name))
    return [name for name in dict.fromkeys(found) if name != END]


def _answered(branch: Branch, answer: object, valid: Sequence[StageName]) -> StageName:
    if isinstance(answer, str | int) and str(answer) in valid:
        return StageName(str(answer))
    raise GraphError(
        "a condition answered with a name it may not choose",
        where=f"branch {branch.name!r}",
        found=repr(answer),
        valid=listed(valid),
        hint=suggestion(str(answer), valid),
    )


def _past_limit(turns: Mapping[StageName, int], max_turns: int) -> StageName | None:
    return next((name for name, turn in turns.items() if turn > max_turns), None)


def _turned_too_often(name: StageName, max_turns: int) -> GraphError:
    return GraphError(
        "a loop turned too often",
        where=f"stage {name!r}",
        found=f"turn {max_turns + 1}",
        valid=f"at most {max_turns} turns",
        hint="let the loop's condition answer END sooner, raise the option max_loops, or end such "
        'loops with what they have: RAGraph(on_loop_limit="end")',
    )


def _check_writers(graph: FrozenRAGraph, within: Mapping[StageName, tuple[StageName, ...]]) -> None:
    """Raise if one answer starts two writers of an output, which no rule can see beforehand."""
    for clash in clashes_in_region(graph, within):
        raise GraphError(
            "a condition started two stages that write one output in no order",
            where=f"output {clash.output!r}",
            found=f"stages {clash.one!r} and {clash.other!r}",
            hint=f"add_reducer({clash.output!r}, fn), or let them write different outputs",
        )

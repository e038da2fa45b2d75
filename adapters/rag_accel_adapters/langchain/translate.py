"""The translation of a LangChain program into a RAGraph whose stages are Functions.

A stage holds the framework's own runnable and knows which child config the plain program would
give it; the graph only says what has to be there before it may run. Nothing is executed here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from langchain_core.runnables import Runnable
from langchain_core.runnables.base import RunnableBindingBase

from rag_accel.graph.frozen import FrozenRAGraph
from rag_accel.graph.nodes import END, START, TURN_MARK
from rag_accel.graph.ragraph import RAGraph
from rag_accel.graph.spec import verify
from rag_accel_adapters.langchain.parts import ProgramPart, parts_of
from rag_accel_adapters.langchain.stages import (
    Act,
    Aside,
    AsyncStage,
    Call,
    Close,
    Finish,
    Open,
    Reach,
    StageFunction,
)

INPUT = "input"


@dataclass(frozen=True, slots=True)
class TranslatedStep:
    """A stage that is not made yet: what it does, and what it waits for."""

    name: str
    title: str
    acts: tuple[Act, ...]
    after: tuple[str, ...] = ()
    joins: ProgramPart | None = None

    @property
    def called(self) -> tuple[ProgramPart, ...]:
        """Return the whole parts it invokes."""
        return _called(self.acts)


@dataclass(frozen=True, slots=True, eq=False)
class Translation:
    """A program as graphs.

    Args:
        program: what was translated, as it was then.
        root: the same taken apart; its own run is started and ended by what runs the graph.
        graph: one stage per whole part, split and join, for reading.
        entry: what to do before the first stage.
        sync_lines: what runs in a blocking call: what follows each other is one stage.
        async_lines: the same for a call on a loop.
        num_branches: the most branches of any parallel, 0 if nothing runs side by side.
        own_batch: the whole parts that do ``batch`` or ``abatch`` in a way of their own.
    """

    program: Runnable[Any, Any]
    root: ProgramPart
    graph: FrozenRAGraph
    entry: tuple[Act, ...]
    sync_lines: FrozenRAGraph
    async_lines: FrozenRAGraph
    num_branches: int
    own_batch: Mapping[str, tuple[ProgramPart, ...]]

    def __reduce__(self) -> tuple[Any, ...]:
        return (translate, (self.program,))

    @property
    def opaque(self) -> tuple[ProgramPart, ...]:
        """Return the parts that are not looked into."""
        return tuple(part for part in self.root.walk() if part.is_opaque)


def translate(program: Runnable[Any, Any]) -> Translation:
    """Return a program as graphs.

    Raises:
        TranslationError: naming the first part that is not understood, and its place.
    """
    parts = parts_of(program)
    root = parts.with_asides()
    lines, entry = _without_entry(_lines(_steps(root)))
    return Translation(
        program,
        root,
        _graph(_steps(parts), StageFunction),
        entry,
        _graph(lines, StageFunction),
        _graph(lines, AsyncStage),
        max((len(part.children) for part in root.walk() if part.splits), default=0),
        {
            method: tuple(
                part
                for part in root.walk()
                if not part.is_composite and _batches(part.runnable, method)
            )
            for method in ("batch", "abatch")
        },
    )


def _batches(runnable: Any, method: str) -> bool:
    """Tell whether a runnable does this otherwise than by invoking itself for each input."""
    while isinstance(runnable, RunnableBindingBase):
        if getattr(type(runnable), method) is not getattr(RunnableBindingBase, method):
            return True
        runnable = runnable.bound
    return getattr(type(runnable), method) is not getattr(Runnable, method)


def _steps(root: ProgramPart) -> tuple[TranslatedStep, ...]:
    """Return the steps inside a program, each behind those it waits for."""
    steps: list[TranslatedStep] = []
    after: tuple[str, ...] = ()
    if root.splits:
        _join(steps, root, after, [])
    elif root.kind == "sequence":
        for index, child in enumerate(root.children):
            after = (_add(steps, child, [Reach(index)], after),)
    else:
        _add(steps, root.children[0] if root.is_composite else root, _asides(root), after)
    return (*steps[:-1], replace(steps[-1], acts=(*steps[-1].acts, Finish())))


def _add(
    steps: list[TranslatedStep], part: ProgramPart, before: list[Act], after: tuple[str, ...]
) -> str:
    if not part.is_composite:
        acts = (*before, Call(part))
        title = " | ".join(called.runnable.get_name() for called in _called(acts))
        return _append(steps, part, part.kind, TranslatedStep("", title, acts, after))
    before = [*before, Open(part)]
    if part.splits:
        split = _append(steps, part, "split", TranslatedStep("", "split", tuple(before), after))
        return _join(steps, part, (split,), [Close(part)])
    before += _asides(part)
    for child in part.children:
        after = (_add(steps, child, before, after),)
        before = []
    steps[-1] = replace(steps[-1], acts=(*steps[-1].acts, Close(part)))
    return steps[-1].name


def _called(acts: Sequence[Act]) -> tuple[ProgramPart, ...]:
    return tuple(act.part for act in acts if isinstance(act, Aside | Call))


def _asides(part: ProgramPart) -> list[Act]:
    return [Aside(aside, key) for key, aside in part.asides]


def _join(
    steps: list[TranslatedStep], part: ProgramPart, after: tuple[str, ...], acts: list[Act]
) -> str:
    ends = tuple(_add(steps, child, [], after) for child in part.children)
    return _append(steps, part, "join", TranslatedStep("", "join", tuple(acts), ends, joins=part))


def _append(steps: list[TranslatedStep], part: ProgramPart, what: str, step: TranslatedStep) -> str:
    place = part.path.partition(".")[2].replace(TURN_MARK, "_")
    wanted = name = f"{place}.{what}" if place else what
    taken = {step.name for step in steps}
    number = 1
    while name in taken:
        number += 1
        name = f"{wanted}-{number}"
    steps.append(replace(step, name=name))
    return name


def _lines(steps: Sequence[TranslatedStep]) -> dict[str, TranslatedStep]:
    """Make one step of those that follow each other with nothing beside them, by the last's name.

    The user's code takes no decision between two steps, so a line needs no scheduler inside.
    """
    followers = Counter(name for step in steps for name in step.after)
    lines: dict[str, TranslatedStep] = {}
    for step in steps:
        if step.joins is None and step.after and followers[step.after[0]] == 1:
            line = lines.pop(step.after[0])
            title = f"{line.title} | {step.title}"
            acts = (*line.acts, *step.acts)
            lines[step.name] = replace(line, name=step.name, title=title, acts=acts)
        else:
            lines[step.name] = step
    return lines


def _without_entry(
    lines: dict[str, TranslatedStep],
) -> tuple[tuple[TranslatedStep, ...], tuple[Act, ...]]:
    """Take out a first step that calls nothing: it is done before there is a graph to run."""
    first, *others = lines.values()
    if first.called or not all(other.after for other in others):
        return (first, *others), ()
    rest = (replace(other, after=()) if other.after == (first.name,) else other for other in others)
    return tuple(rest), first.acts


def _graph(
    steps: Sequence[TranslatedStep], stage: type[StageFunction | AsyncStage]
) -> FrozenRAGraph:
    graph = RAGraph(inputs=INPUT)
    for step in steps:
        fn = stage(step.title, step.acts, step.joins)
        graph.add_function(step.name, fn, inputs=step.after or INPUT)
        graph.add_edge(step.after or START, step.name)
    graph.add_edge(steps[-1].name, END)
    frozen = graph.freeze()
    verify(frozen, "ragraph")
    return frozen

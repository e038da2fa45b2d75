"""Explanations of accelerated programs: the frame and the sentences that all frameworks share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rag_accel.accelerator import Accelerator, default_accelerator
from rag_accel.errors import TranslationError
from rag_accel.explained_text import ExplainedText
from rag_accel.graph.ragraph import RAGraph
from rag_accel.graph.text import format as format_graph
from rag_accel.interception.identity import activated
from rag_accel.interception.leaf_table import Framework, is_scheduled, leaf_class
from rag_accel.interception.option_reach import unread_lines
from rag_accel.interception.program import AcceleratedProgram
from rag_accel.interception.twins import is_twin, known_program, original, why_no_twin
from rag_accel.system.methods import plain_class

BORROWED = "borrowed: admitted by the scheduler, runs where its caller is"
COMPONENT = "a component of this library: its own engine, requests share batches"
AROUND_LEAVES = "runs plainly around its leaves"
NOT_UNDERSTOOD = "not understood: runs plainly"
_RECOGNISED_STORE = (
    "recognised store: where it is large and seldom changed, an owned engine looks for its"
    " nearest vectors, searches of all requests share steps; texts and scores are the"
    " store's own"
)
#: the most stages of a plan, and prompts, that are drawn
MOST_LINES = 12
GRAPH_RETRIEVAL = (
    "graph retrieval: once its store was met unchanged, an owned engine makes its hops, those of"
    " all requests in one step; nodes, scores, texts and order are its own"
)
NO_LEAF = (
    "  no leaf is visible from outside; the models, retrievers, stores and embeddings",
    "  that this code calls when it runs are scheduled all the same",
)


def recognised_store(obstacle: str | None) -> str:
    """Return how a recognised store runs, and why no engine searches it as it is."""
    return f"{_RECOGNISED_STORE} (not now: {obstacle})" if obstacle else _RECOGNISED_STORE


def component(obj: Any, accelerator: Accelerator) -> str:
    """Return how a component of this library runs."""
    explain = getattr(type(obj), "explain_on", None)
    return COMPONENT if explain is None else explain(obj, accelerator)


def headline(
    obj: Any, framework: str, accelerator: Accelerator, is_accelerated: bool = True
) -> list[str]:
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
    name, scheduled = type(obj).__name__, "the leaf calls below are scheduled"
    if is_accelerated:
        first = f"{name} accelerated by interception: {framework} keeps the control flow,"
    else:
        first = f"{name} is not accelerated: {framework} would keep the control flow and"
        scheduled = "accelerate(...) would schedule the leaf calls below"
    return [
        first,
        f"{scheduled} (batches of at most {accelerator.options.max_batch},"
        f" {accelerator.cores} cores).",
    ]


@dataclass(frozen=True, slots=True)
class ExplainedPart:
    """One part of a program in an explanation.

    Args:
        path: its position.
        lines: how it runs; empty if nothing is said of it.
        is_leaf: whether it does work itself.
    """

    path: str
    lines: tuple[str, ...]
    is_leaf: bool


#: Returns the explanation of an object on an accelerator of its own, or on the shared one.
Explain = Callable[[Any, Accelerator | None], str]


def explained_leaves(program: Any, accelerator: Accelerator) -> Iterator[ExplainedPart]:
    """Yield a program and the leaves that it holds, all of them run where their callers are."""
    held = leaf_class(plain_class(type(program))).framework.parts_of(program)
    for path, part in held:
        cls = plain_class(type(part))
        is_leaf = leaf_class(cls).base is not None
        if is_scheduled(cls):
            how = component(part, accelerator)
        else:
            how = BORROWED if is_leaf else NOT_UNDERSTOOD
        yield ExplainedPart(path, (f"{cls.__name__}: {how}",), is_leaf)


@dataclass(frozen=True, slots=True)
class Explanation:
    """The explanations of one framework's programs.

    Args:
        framework: theirs.
        parts: yields the parts of a program, as they run on an accelerator.
        make_graph: makes a graph of a program under a name; None where no program has one.
    """

    framework: Framework
    parts: Callable[[Any, Accelerator], Iterable[ExplainedPart]] = explained_leaves
    make_graph: Callable[[Any, str], RAGraph] | None = None

    def of(
        self,
        obj: Any,
        own: Accelerator | None = None,
        *,
        is_accelerated: bool = False,
        program: AcceleratedProgram | None = None,
    ) -> ExplainedText:
        """Return what is inside an object and how each part runs, one part a line.

        Args:
            obj: the object.
            own: the accelerator it was given; None for that of the moment.
            is_accelerated: whether it is, though its class does not tell.
            program: the program that it is, if its class does not tell, for what runs have shown.
        """
        accelerator = own or default_accelerator()
        known = is_accelerated or own is not None or is_twin(obj) or activated() is not None
        known = known or is_scheduled(type(obj))
        head = headline(obj, self.framework.name, accelerator, known)
        lines = [*head, *self.lines(obj, accelerator)]
        program = program or known_program(obj)
        if program is not None:
            drawn = accelerator.drawn_prompts(program.name)
            lines += _first_lines("prompts begun early, as runs have shown them", drawn)
        lines += _first_lines("so far, on this accelerator", [*engine_lines(accelerator)])
        return ExplainedText("\n".join(lines))

    def lines(self, obj: Any, accelerator: Accelerator) -> list[str]:
        """Return a line for each part of an object and for each option that none of them reads."""
        parts = list(self.parts(obj, accelerator))
        lines = dict.fromkeys(f"  {part.path}: {line}" for part in parts for line in part.lines)
        if not any(part.is_leaf for part in parts):
            lines.update(dict.fromkeys(NO_LEAF))
        if self.make_graph is not None and not (parts and parts[0].is_leaf):
            lines.update(dict.fromkeys(_plan_lines(obj, self.framework.name, self.make_graph)))
        return [*lines, *unread_lines(obj, self.framework, accelerator)]


def _plan_lines(
    obj: Any, framework: str, make_graph: Callable[[Any, str], RAGraph]
) -> Iterator[str]:
    """Yield the stages of a program's graph, or why it has none."""
    try:
        graph = make_graph(original(obj) if is_twin(obj) else obj, framework)
    except Exception as error:  # looking at a program may run its owner's code
        is_ours = isinstance(error, TranslationError)
        yield f"  plan: none ({f'at {error.where}: {error.found}' if is_ours else repr(error)})"
        return
    if len(graph.freeze().stages) == 1:  # the lines of its parts say the same
        return
    _, *lines = format_graph(graph).splitlines()
    yield from _first_lines("plan: plan_of(program) is a graph of these stages", lines)


def engine_lines(accelerator: Accelerator) -> Iterator[str]:
    """Yield for each engine that has run how much, how long, and what waited for it."""
    engines: Any = accelerator.metrics.snapshot().get("engines", {})
    for name, counts in engines.items():
        steps, waits = counts.get("step_s"), counts.get("queue_wait_s")
        if steps and steps["count"]:
            failed = f", {counts['failures']} failed" if counts["failures"] else ""
            waited = f", waited {_mean_ms(waits)} ms" if waits and waits["count"] else ""
            yield (
                f"{name}: {counts['items']} items in {steps['count']} steps of"
                f" {_mean_ms(steps)} ms{waited}{failed}"
            )


def _mean_ms(times: Mapping[str, Any]) -> str:
    return f"{1000 * times['sum'] / times['count']:.3g}"


def _first_lines(title: str, lines: list[str]) -> Iterator[str]:
    """Yield a title and the first lines below it; nothing where there is none."""
    if lines:
        yield f"  {title}"
    yield from (f"    {line}" for line in lines[:MOST_LINES])
    if len(lines) > MOST_LINES:
        yield f"    ... and {len(lines) - MOST_LINES} more"

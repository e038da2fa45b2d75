"""``rag-accel profile``: where a program's time goes, and what acceleration would bring it."""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext
from dataclasses import asdict, dataclass, replace
from inspect import isawaitable
from pathlib import Path
from typing import Any

from rag_accel.accelerator import Accelerator
from rag_accel.cli.automatic import imported_integrations
from rag_accel.cli.corpus import VALID_QUESTIONS, read_questions
from rag_accel.engines.http.loop_thread import LoopThread
from rag_accel.errors import ConfigError
from rag_accel.interception.integration import Integration
from rag_accel.interception.leaf_call import meters
from rag_accel.interception.leaf_table import is_scheduled
from rag_accel.interception.option_reach import program_parts
from rag_accel.interception.patches import patches
from rag_accel.interception.watching import Watch
from rag_accel.profile.prediction import Prediction, predictions
from rag_accel.profile.profile import Profile, columns, profile_events
from rag_accel.registry import automatic_registry
from rag_accel.serving.target import find_target

#: of questions of a file, unless --calls says otherwise
_MOST_QUESTIONS = 10_000
_MOST_ROWS, _MOST_LINES, _MOST_LETTERS = 20, 60, 200
_METHODS = ("invoke", "query", "chat", "retrieve", "search", "run")
#: options that only what computes in this process reads
_COMPUTING = frozenset({"embedding_runtime", "adopt_llm"})

_Asked = list[tuple[float, str]]
"""The seconds that each question took, and its error if it failed."""


def add_profile_command(commands: Any) -> None:
    profile = commands.add_parser(
        "profile", help="show where a program's time goes and what acceleration would bring it"
    )
    profile.add_argument("object", metavar="MODULE:NAME", help="the program, not accelerated")
    profile.add_argument("questions", metavar="FILE", type=Path, help=VALID_QUESTIONS)
    profile.add_argument("--calls", metavar="N", type=int, help="by default one a question")
    profile.add_argument("--users", metavar="N", type=int, default=1, help="threads that ask; 1")
    profile.add_argument("--measure", action="store_true", help="also run it accelerated")
    profile.add_argument("--json", action="store_true", help="print one JSON object")
    profile.set_defaults(run=_profile)


def _profile(arguments: argparse.Namespace) -> int:
    for name, most in (("calls", 1_000_000), ("users", 1024)):
        found, valid = getattr(arguments, name), f"from 1 to {most}"
        if found is not None and not 1 <= found <= most:
            raise ConfigError("option out of range", where=f"--{name}", found=found, valid=valid)
    questions = read_questions(arguments.questions)
    program, accelerator = find_target(arguments.object).for_tenant("")
    num_calls = arguments.calls or min(len(questions), _MOST_QUESTIONS)
    asked = [questions[place % len(questions)] for place in range(num_calls)]
    with nullcontext(accelerator) if accelerator else Accelerator() as own:
        report = profile_program(program, asked, own, arguments.users, arguments.measure)
    if num_calls < len(questions):
        left_out = f"{len(questions) - num_calls} further questions of the file were not asked"
        report = replace(report, notes=(left_out, *report.notes))
    as_json = {"program": arguments.object, **asdict(report)}
    print(json.dumps(as_json, indent=2) if arguments.json else f"{arguments.object}: {report}")
    return 0


@dataclass(frozen=True, slots=True)
class ProfiledPart:
    """The calls of one class and kind: how many a request made, and how long it waited for them.

    ``reason`` says why no engine runs them, empty where one may.
    """

    part: str
    kind: str
    calls: float
    ms: float
    share: float
    reason: str

    def cells(self) -> tuple[str, ...]:
        return self.part, self.kind, f"{self.calls:.1f}", f"{self.ms:.1f}", f"{self.share:.1%}"


@dataclass(frozen=True, slots=True)
class ProgramProfile:
    """The profile of a program that ran as it is, and what acceleration would bring it.

    Args:
        answered, failed: questions.
        mean_ms, p99_ms: of the answered ones, plain.
        parts: the leaves, by their share.
        rest_share: the share of the time in which no leaf ran: the program's own code.
        acts: how each part runs once the program is accelerated.
        measured: the plain mean time over the accelerated one; None if it was not measured.
        notes: what was left out or failed.
    """

    answered: int
    failed: int
    users: int
    mean_ms: float
    p99_ms: float
    parts: tuple[ProfiledPart, ...]
    rest_share: float
    acts: tuple[str, ...]
    predictions: tuple[Prediction, ...]
    measured: float | None
    notes: tuple[str, ...]

    def __str__(self) -> str:
        count = f"{self.answered} answered, {self.failed} failed, {self.users} at once, plain"
        rows = [("part", "kind", "calls", "ms", "share"), *(part.cells() for part in self.parts)]
        lines = [
            f"{count}; mean {self.mean_ms:.1f} ms, p99 {self.p99_ms:.1f} ms",
            "where a request's time goes:",
            *columns(rows[: _MOST_ROWS + 1], texts=2),
            f"  {self.rest_share:.1%} in no part: your code, prompts, parsers, the framework",
        ]
        if len(self.parts) > _MOST_ROWS:
            lines.append(f"  {len(self.parts) - _MOST_ROWS} further parts: --json")
        lines += ["how it runs accelerated:", *(f"  {line}" for line in self.acts)]
        lines.append("gains predicted from this run (2x is half the time):")
        for row in self.predictions:
            gain = "unknown" if row.gain is None else f"{row.gain:.2f}x"
            if row is self.predictions[0] and self.measured is not None:
                gain += f", measured {self.measured:.2f}x"
            lines.append(f"  {row.option}: {gain} ({row.reason})")
        lines.append("  early beginnings of prompts: unknown (a plain run does not show them)")
        lines.append("what no option here helps:")
        lines += [
            f"  {part.part}, {part.share:.1%}: {part.reason}"
            for part in self.parts[:_MOST_ROWS]
            if part.reason and part.share >= 0.005
        ]
        lines.append(f"  the program's own code, {self.rest_share:.1%}")
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])


def profile_program(
    program: Any,
    questions: Sequence[Any],
    accelerator: Accelerator,
    users: int = 1,
    measure: bool = False,
) -> ProgramProfile:
    """Run a program as it is, each question once, and predict what an accelerator brings it.

    The first question is asked once more before, for what a program loads with its first call.
    So many users ask at once; the questions are asked again accelerated if that is measured.

    Raises:
        ConfigError: it is no program, is accelerated already, or answers no question.
    """
    integration, fast, form = _accelerated(program, accelerator)
    parts = program_parts(integration.loaded.framework, program, accelerator.options)
    computed = frozenset(id(part.obj) for part in parts if part.options & _COMPUTING)
    watch, measured = Watch(accelerator, computed), None
    with closing(LoopThread("rag-accel profile")) as loop:
        loop.start()
        with ExitStack() as metered:
            metered.callback(patches.release, patches.acquire())
            metered.callback(meters.remove, watch.note)
            meters.append(watch.note)
            ask = _asker(program, form, loop)
            (_, error), *_ = _asked(ask, questions[:1], 1, watch.request)
            if error.startswith("TypeError") and hasattr(program, f"a{form}"):  # async only
                form = f"a{form}"
                ask = _asker(program, form, loop)
                _asked(ask, questions[:1], 1, watch.request)
            watch.events.clear()  # but not which calls it made: equal ones may be cached
            watch.left_out.clear()
            plain = _asked(ask, questions, users, watch.request)
        errors = [f"question {n} failed: {error}" for n, (_, error) in enumerate(plain, 1) if error]
        if len(errors) == len(questions):
            raise ConfigError(
                "the program answers none of the questions",
                found=errors[0],
                valid=f"questions that {type(program).__name__}.{form} takes",
                hint="give inputs of several values as JSON objects",
            )
        profile = profile_events(watch.events)
        done, acts = profile.recording.done, str(integration.explain(fast)).splitlines()
        shapes = {tuple((p.kind, p.engine) for p in request.primitives) for request in done}
        left_out = Counter(watch.left_out).items()
        notes = [*errors[:3], *(f"{number} {reason}" for reason, number in left_out)]
        if len(shapes) > max(1, len(done) // 2):
            made = f"{len(done)} requests made {len(shapes)} different sequences of calls"
            notes.append(f"{made}: predictions hold for these questions only")
        if len(acts) > _MOST_LINES:
            notes.append(f"{len(acts) - _MOST_LINES} further lines of how it runs: explain()")
        if len(errors) > 3:
            notes.append(f"{len(errors) - 3} further questions failed")
        if own := dict.fromkeys(part.cls for part in parts if is_scheduled(type(part.obj))):
            notes.append(f"of this library, also in the plain run, not timed: {', '.join(own)}")
        if measure:
            integration.prepare(fast)
            ask = _asker(fast, form, loop)
            _asked(ask, questions[:1], 1)
            pairs = list(zip(plain, _asked(ask, questions, users), strict=True))
            lost = [error for (_, failed), (_, error) in pairs if error and not failed]
            both = [(slow_s, s) for (slow_s, failed), (s, error) in pairs if not (failed or error)]
            if lost:
                notes.append(f"{len(lost)} questions failed only accelerated, first: {lost[0]}")
            if both:
                measured = sum(slow_s for slow_s, _ in both) / sum(fast_s for _, fast_s in both)
    return ProgramProfile(
        answered=len(questions) - len(errors),
        failed=len(errors),
        users=users,
        mean_ms=1000 * sum(request.makespan_s for request in done) / len(done),
        p99_ms=profile.p99_ms,
        parts=tuple(_parts(watch, profile)),
        rest_share=profile.outside_share,
        acts=tuple(line[:_MOST_LETTERS] for line in acts[:_MOST_LINES]),
        predictions=predictions(profile.recording, watch.calls),
        measured=measured,
        notes=tuple(notes),
    )


def _accelerated(program: Any, accelerator: Accelerator) -> tuple[Integration, Any, str]:
    """Return a program's integration, the program accelerated, and the method that answers."""
    names = (*_METHODS, *(f"a{name}" for name in _METHODS))
    form = next((name for name in names if callable(getattr(program, name, None))), "")
    for found in imported_integrations() if form else ():
        if is_scheduled(type(program)) or found.loaded.program_of(program) is not None:
            raise ConfigError(
                "the program is accelerated already, so that it cannot be run as it is",
                found=type(program).__name__,
                hint="name the object that accelerate() was given",
            )
        if (fast := found.loaded.made(program, accelerator)) is not None:
            return found, fast, form
    known = ", ".join(automatic_registry().names())
    raise ConfigError(
        "this is no program",
        found=f"{type(program).__module__}.{type(program).__qualname__}",
        valid=f"of {known}, with a method {', '.join(_METHODS)} or async one",
        hint="of a RAGraph, Accelerator.profile() tells where its time went",
    )


def _asker(program: Any, form: str, loop: LoopThread) -> Callable[[Any], Any]:
    method = getattr(program, form)
    if form in _METHODS[:-1]:
        return method

    async def awaited(question: Any) -> Any:
        # Workflows take their inputs by name and return what is to be awaited.
        by_name = form == "run" and isinstance(question, dict)
        answer = method(**question) if by_name else method(question)
        return await answer if isawaitable(answer) else answer

    return lambda question: loop.call(awaited(question)).result()


def _asked(
    ask: Callable[[Any], Any],
    questions: Sequence[Any],
    users: int,
    around: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> _Asked:
    def timed(question: Any) -> tuple[float, str]:
        began, error = time.monotonic(), ""
        try:
            with around():
                ask(question)
        except Exception as raised:  # of the program; the other questions go on
            error = f"{type(raised).__name__}: {raised}"[:_MOST_LETTERS]
        return time.monotonic() - began, error

    with ThreadPoolExecutor(users) as threads:
        return list(threads.map(timed, questions))


def _parts(watch: Watch, profile: Profile) -> Iterator[ProfiledPart]:
    done = profile.recording.done
    pieces = [piece for request in done for piece in request.primitives]
    begun = Counter((p.kind, p.engine) for p in pieces if not watch.calls[p.name].is_rest)
    mean_ms = 1000 * sum(request.makespan_s for request in done) / len(done)
    for stage in sorted(profile.stages, key=lambda stage: -stage.critical_share):
        name, calls = stage.engine.rpartition(".")[2], begun[stage.kind, stage.engine] / len(done)
        share, reason = stage.critical_share, watch.reasons.get(stage.engine, "")
        yield ProfiledPart(name, stage.kind.lower(), calls, mean_ms * share, share, reason)

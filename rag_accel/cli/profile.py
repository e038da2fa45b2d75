"""``rag-accel profile``: where a program's time goes, and what acceleration would bring it."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from rag_accel.accelerator import Accelerator
from rag_accel.cli.automatic import loaded_integrations
from rag_accel.cli.corpus import read_text
from rag_accel.errors import ConfigError
from rag_accel.interception.integration import Integration
from rag_accel.interception.leaf_call import meters
from rag_accel.interception.leaf_table import is_scheduled
from rag_accel.interception.option_reach import MAX_PARTS
from rag_accel.interception.patches import patches
from rag_accel.interception.watching import MOST_CALLS, MOST_CALLS_IN_ALL, Watch
from rag_accel.profile.prediction import MOST_REPLAYED, Prediction, predictions, replayable
from rag_accel.profile.profile import Profile, columns, profile_events
from rag_accel.registry import automatic_registry
from rag_accel.serving.target import find_target

MOST_QUESTIONS = 10_000
"""Lines of a file of questions that are read."""

_METHODS = ("invoke", "query", "chat", "retrieve", "search")
_MOST_USERS = 1024
_MOST_ROWS, _MOST_LINES, _MOST_LETTERS = 20, 60, 200
_HEAD = ("part", "kind", "calls", "ms", "share")
#: options that only what computes in this process reads
_COMPUTING = frozenset({"embedding_runtime", "adopt_llm"})
_VALID_FILE = "a question a line: plain text, or JSON (an object, a list or a string)"


def add_profile_command(commands: Any) -> None:
    """Add the command to a parser's commands."""
    profile = commands.add_parser(
        "profile", help="show where a program's time goes and what acceleration would bring it"
    )
    profile.add_argument("object", metavar="MODULE:NAME", help="the program, not accelerated")
    profile.add_argument("questions", metavar="FILE", type=Path, help=_VALID_FILE)
    profile.add_argument("--calls", metavar="N", type=int, help="by default one a question")
    profile.add_argument("--users", metavar="N", type=int, default=1, help="threads that ask; 1")
    profile.add_argument(
        "--measure", action="store_true", help="also run it accelerated, and compare"
    )
    profile.add_argument("--json", action="store_true", help="print one JSON object")
    profile.set_defaults(run=_profile)


def _profile(arguments: argparse.Namespace) -> int:
    for name, most in (("calls", sys.maxsize), ("users", _MOST_USERS)):
        value = getattr(arguments, name)
        if value is not None and not 1 <= value <= most:
            valid = "from 1" if most == sys.maxsize else f"from 1 to {most}"
            raise ConfigError("option out of range", where=f"--{name}", found=value, valid=valid)
    questions, notes = read_questions(arguments.questions)
    target = find_target(arguments.object)
    program, accelerator = target.for_tenant("")
    num_calls = arguments.calls or len(questions)
    asked = [questions[place % len(questions)] for place in range(num_calls)]
    with nullcontext(accelerator) if accelerator else Accelerator() as own:
        report = profile_program(
            program, asked, own, users=arguments.users, measure=arguments.measure, notes=notes
        )
    if arguments.json:
        print(json.dumps({"program": arguments.object, **asdict(report)}, indent=2))
    else:
        print(f"{arguments.object}: {report}")
    return 0


def read_questions(path: Path) -> tuple[list[Any], list[str]]:
    """Return the inputs in a file, one a line, and notes on lines that are left out.

    A line that begins with ``{``, ``[`` or ``"`` is JSON, any other one a text.

    Raises:
        ConfigError: the file cannot be read or has no question, or a line is no JSON.
    """
    lines = [line for line in enumerate(read_text(path).splitlines(), 1) if line[1].strip()]
    if not lines:
        raise ConfigError("there are no questions", where=str(path), found=0, valid=_VALID_FILE)
    notes: list[str] = []
    if len(lines) > MOST_QUESTIONS:
        notes.append(f"{len(lines) - MOST_QUESTIONS} further questions of the file were not asked")
    read = [_question(line.strip(), f"{path}, line {n}") for n, line in lines[:MOST_QUESTIONS]]
    return read, notes


def _question(line: str, where: str) -> Any:
    if line[0] not in '{["':
        return line
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            "a question cannot be read",
            where=where,
            found=f"no JSON: {error}",
            valid=_VALID_FILE,
        ) from None


@dataclass(frozen=True, slots=True)
class ProfiledPart:
    """The calls of one class and kind.

    ``calls`` and ``ms`` are of a request; ``share`` is of its time, as far as it waited for them.
    ``reason`` says why no engine runs them, empty where one may.
    """

    part: str
    kind: str
    calls: float
    ms: float
    share: float
    reason: str

    def cells(self) -> tuple[str, ...]:
        """Return the row of a table."""
        figures = (f"{self.calls:.1f}", f"{self.ms:.1f}", f"{self.share:.1%}")
        return (self.part, self.kind, *figures)


@dataclass(frozen=True, slots=True)
class ProgramProfile:
    """The profile of a program that ran as it is, and what acceleration would bring it.

    Args:
        answered, failed: questions.
        mean_ms, p99_ms: of the answered ones, plain.
        parts: the leaves, by their share.
        rest_share: the share of the time in which no leaf ran: the program's own code.
        acts: how each part runs once the program is accelerated.
        predictions: by option.
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
        shown = self.parts[:_MOST_ROWS]
        rows = [_HEAD, *(part.cells() for part in shown)]
        stays = [part for part in shown if part.reason and part.share >= 0.005]
        lines = [
            f"{count}; mean {self.mean_ms:.1f} ms, p99 {self.p99_ms:.1f} ms",
            "where a request's time goes:",
            *columns(rows, texts=2),
            f"  {self.rest_share:.1%} in no part: your code, prompts, parsers, the framework",
        ]
        if len(self.parts) > len(shown):
            lines.append(f"  {len(self.parts) - len(shown)} further parts: --json")
        lines += ["how it runs accelerated:", *(f"  {line}" for line in self.acts)]
        lines.append("gains predicted from this run (2x is half the time):")
        for row in self.predictions:
            gain = "unknown" if row.gain is None else f"{row.gain:.2f}x"
            is_default = row is self.predictions[0] and self.measured is not None
            measured = f", measured {self.measured:.2f}x" if is_default else ""
            lines.append(f"  {row.option}: {gain}{measured} ({row.reason})")
        lines.append("what no option here helps:")
        lines += [f"  {part.part}, {part.share:.1%}: {part.reason}" for part in stays]
        lines.append(f"  the program's own code, {self.rest_share:.1%}")
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])


def profile_program(
    program: Any,
    questions: Sequence[Any],
    accelerator: Accelerator,
    *,
    users: int = 1,
    measure: bool = False,
    notes: Sequence[str] = (),
) -> ProgramProfile:
    """Run a program as it is, each question once, and predict what acceleration brings.

    The first question is asked once more before, for what a program loads with its first call.

    Args:
        program: of a framework, not accelerated.
        questions: what it is asked.
        accelerator: what it would run on.
        users: how many ask at once, each in a thread.
        measure: whether the questions are asked again accelerated.
        notes: further notes of the profile.

    Raises:
        ConfigError: it is no program, is accelerated already, or answers no question.
    """
    integration, fast = accelerated(program, accelerator)
    method = method_of(program)
    found = integration.loaded.parts_of(program, accelerator.options)
    parts = list(islice(found, MAX_PARTS))
    computed = frozenset(id(part.obj) for part in parts if part.options & _COMPUTING)
    watch = Watch(accelerator, computed)
    ask: Callable[[Any], Any] = getattr(program, method)
    with _metered(watch):
        _asked(ask, questions[:1], 1, watch.request)
        watch.forget_requests()
        plain = _asked(ask, questions, users, watch.request)
    errors = [error for error in plain.errors if error]
    if len(errors) == len(questions):
        raise ConfigError(
            "the program answers none of the questions",
            where=f"question 1 of {len(questions)}",
            found=errors[0],
            valid=f"questions that {type(program).__name__}.{method} takes",
            hint="give inputs of several values as JSON objects",
        )
    profile = profile_events(watch.events)
    acts = str(integration.explain(fast)).splitlines()
    measured = None
    own = dict.fromkeys(part.cls for part in parts if is_scheduled(type(part.obj)))
    said = [*notes, *_notes(watch, profile, plain)]
    if own:
        said.append(f"of this library, also in the plain run, and not timed: {', '.join(own)}")
    if measure:
        integration.prepare(fast)
        ask_fast: Callable[[Any], Any] = getattr(fast, method)
        _asked(ask_fast, questions[:1], 1)
        measured, more = _compare(plain, _asked(ask_fast, questions, users))
        said += more
    means_ms = [1000 * request.makespan_s for request in profile.recording.done]
    return ProgramProfile(
        answered=len(questions) - len(errors),
        failed=len(errors),
        users=users,
        mean_ms=sum(means_ms) / len(means_ms),
        p99_ms=profile.p99_ms,
        parts=_parts(watch, profile),
        rest_share=profile.outside_share,
        acts=_shortened(acts),
        predictions=predictions(profile.recording, watch.calls),
        measured=measured,
        notes=tuple(said),
    )


def accelerated(program: Any, accelerator: Accelerator) -> tuple[Integration, Any]:
    """Return the integration of a program's framework, and the program accelerated.

    Raises:
        ConfigError: none knows the object, or it is accelerated already.
    """
    for found in loaded_integrations():
        if found.missing() is not None:
            continue
        if is_scheduled(type(program)) or found.loaded.program_of(program) is not None:
            raise ConfigError(
                "the program is accelerated already, so that it cannot be run as it is",
                found=type(program).__name__,
                hint="name the object that accelerate() was given",
            )
        fast = found.loaded.made(program, accelerator)
        if fast is not None:
            return found, fast
    raise ConfigError(
        "this is no program",
        found=f"{type(program).__module__}.{type(program).__qualname__}",
        valid=f"an object of {', '.join(automatic_registry().names())}",
        hint="of a RAGraph, Accelerator.profile() tells where its time went",
    )


def method_of(program: Any) -> str:
    """Return the name of the method that answers a question.

    Raises:
        ConfigError: it has none.
    """
    for name in _METHODS:
        if callable(getattr(program, name, None)):
            return name
    raise ConfigError(
        "nothing says how this object is asked",
        found=type(program).__name__,
        valid=f"an object with one of the methods {', '.join(_METHODS)}",
        hint="wrap its call in a RunnableLambda of LangChain",
    )


class _Answered(NamedTuple):
    """The seconds that each question took, and its error if it failed."""

    times_s: list[float]
    errors: list[str]


def _asked(
    ask: Callable[[Any], Any],
    questions: Sequence[Any],
    users: int,
    around: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> _Answered:
    def timed(question: Any) -> tuple[float, str]:
        began, error = time.monotonic(), ""
        try:
            with around():
                ask(question)
        except Exception as raised:  # of the program; the other questions go on
            error = f"{type(raised).__name__}: {raised}"[:_MOST_LETTERS]
        return time.monotonic() - began, error

    with ThreadPoolExecutor(users) as threads:
        found = list(threads.map(timed, questions))
    return _Answered([time_s for time_s, _ in found], [error for _, error in found])


@contextmanager
def _metered(watch: Watch) -> Iterator[None]:
    """Have a watch told of leaf calls, whose methods are patched meanwhile."""
    use = patches.acquire()
    meters.append(watch.note)
    try:
        yield
    finally:
        meters.remove(watch.note)
        patches.release(use)


def _compare(plain: _Answered, fast: _Answered) -> tuple[float | None, list[str]]:
    """Return the ratio of the mean times of what both answered, and what is to be said."""
    both = [
        pair
        for *pair, error, other in zip(
            plain.times_s, fast.times_s, plain.errors, fast.errors, strict=True
        )
        if not (error or other)
    ]
    failed = [
        error
        for error, before in zip(fast.errors, plain.errors, strict=True)
        if error and not before
    ]
    notes = (
        [f"{len(failed)} questions failed only accelerated, first: {failed[0]}"] if failed else []
    )
    if not both:
        return None, [*notes, "nothing was measured: no question was answered both ways"]
    return sum(pair[0] for pair in both) / sum(pair[1] for pair in both), notes


def _parts(watch: Watch, profile: Profile) -> tuple[ProfiledPart, ...]:
    done = profile.recording.done
    num_calls = Counter(
        (primitive.kind, primitive.engine)
        for request in done
        for primitive in request.primitives
        if not watch.calls[primitive.name].is_rest
    )
    whole_ms = 1000 * sum(request.makespan_s for request in done) / len(done)
    rows = [
        ProfiledPart(
            stage.engine.rpartition(".")[2],
            stage.kind.lower(),
            num_calls[stage.kind, stage.engine] / len(done),
            whole_ms * stage.critical_share,
            stage.critical_share,
            watch.reasons.get(stage.engine, ""),
        )
        for stage in profile.stages
    ]
    return tuple(sorted(rows, key=lambda row: -row.share))


def _notes(watch: Watch, profile: Profile, plain: _Answered) -> Iterator[str]:
    failed = [(place, error) for place, error in enumerate(plain.errors, 1) if error]
    for place, error in failed[:3]:
        yield f"question {place} failed: {error}"
    if len(failed) > 3:
        yield f"{len(failed) - 3} further questions failed"
    done = profile.recording.done
    shapes = {
        tuple((primitive.kind, primitive.engine) for primitive in request.primitives)
        for request in done
    }
    if len(shapes) > max(1, len(done) // 2):
        yield (
            f"{len(done)} requests made {len(shapes)} different sequences of calls: predictions"
            " hold for these questions only"
        )
    if watch.num_left_out:
        yield (
            f"{watch.num_left_out} calls beyond the first {MOST_CALLS} of a request count as the"
            " program's own code"
        )
    if watch.num_requests_left_out:
        yield (
            f"{watch.num_requests_left_out} requests after {MOST_CALLS_IN_ALL} calls are not in"
            " the tables"
        )
    if watch.num_untimed:
        yield (
            f"{watch.num_untimed} calls were streamed, or made in threads that carry no context:"
            " they count as the program's own code"
        )
    num_replayed = len(replayable(profile.recording).requests)
    if num_replayed < len(done):
        yield f"predicted from the first {num_replayed} requests, which make {MOST_REPLAYED} calls"


def _shortened(lines: Sequence[str]) -> tuple[str, ...]:
    shown = [line if len(line) <= _MOST_LETTERS else f"{line[:_MOST_LETTERS]}..." for line in lines]
    more = len(lines) - _MOST_LINES
    return (*shown[:_MOST_LINES], *([f"{more} further lines: explain()"] if more > 0 else []))

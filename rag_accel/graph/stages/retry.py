"""The options of a stage that fails: further attempts, and what runs in its place after the last.

    search: Retrieval@index(input) -> docs  top_k=5 retry=2 fallback="web"

The errors after which another attempt is made stand in ``engine_api.transient``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final, TypeAlias, cast

from rag_accel.engine_api.transient import is_transient, retry_after_s
from rag_accel.errors import GraphError, RemoteEngineError
from rag_accel.graph.lines import References, is_json
from rag_accel.graph.nodes import EngineName

ErrorFilter: TypeAlias = (
    type[BaseException] | tuple[type[BaseException], ...] | Callable[[BaseException], bool]
)

#: more than this many attempts are a mistake
MOST_ATTEMPTS: Final = 100
#: an hour: who waits longer for one attempt has failed
MOST_SECONDS: Final = 3600.0


@dataclass(frozen=True, slots=True)
class Retry:
    """Further attempts of a stage whose engine or code has failed.

    The k-th waits ``backoff_s * 2 ** (k - 1)`` seconds, ``max_backoff_s`` at most; of that, a
    random share of up to a half is left out, so that many do not come back at once. Where the error
    tells when to come again (``Retry-After``), no attempt begins sooner. A client of a server then
    makes no attempts of its own.

    Args:
        attempts: most further attempts, from 0.
        backoff_s: seconds before the first of them, from 0.
        max_backoff_s: longest wait in seconds, unless the error asks for more. After an error that
            asks for more than an hour no attempt is made.
        on: the errors after which to try again: an exception class, a tuple of them, or a
            predicate of the exception. By default transient errors: connections that fail,
            timeouts, the HTTP statuses 408, 409, 429 and 5xx, engines that are lost or busy.

    Raises:
        GraphError: on a value out of its range.
    """

    attempts: int = 2
    backoff_s: float = 0.5
    max_backoff_s: float = 30.0
    on: ErrorFilter | None = None

    def __post_init__(self) -> None:
        if not _is_count(self.attempts):
            valid = f"an integer from 0 to {MOST_ATTEMPTS}"
            raise _refused("attempts", self.attempts, valid)
        for name in ("backoff_s", "max_backoff_s"):
            if not _is_seconds(getattr(self, name)):
                raise _refused(name, getattr(self, name), f"seconds from 0 to {MOST_SECONDS:.0f}")
        if not _is_filter(self.on):
            valid = "exception classes, a predicate, or None for transient errors"
            raise _refused("on", self.on, valid)

    def covers(self, error: BaseException) -> bool:
        """Tell whether another attempt may follow an error. Raises what a predicate raises."""
        if not isinstance(error, Exception):
            return False
        on: Any = self.on
        if on is None:
            return is_transient(error)
        return isinstance(error, on) if isinstance(on, type | tuple) else bool(on(error))

    @property
    def replaces_own(self) -> bool:
        """Tell whether an engine needs no attempts of its own: these follow its passing errors."""
        on: Any = self.on
        is_covered = not isinstance(on, type | tuple) or issubclass(RemoteEngineError, on)
        return self.attempts > 0 and is_covered

    def backoffs_s(self, jitter: Callable[[], float]) -> tuple[float, ...]:
        """Return how long each attempt waits, in seconds; ``jitter`` draws from 0 to 1."""
        return tuple(
            min(self.max_backoff_s, self.backoff_s * 2.0**number) * (1.0 - jitter() / 2)
            for number in range(self.attempts)
        )


@dataclass(frozen=True, slots=True)
class Constant:
    """A value that takes the place of a stage's output when its last attempt has failed.

    Each request gets a deep copy of its own. Objects in it that cannot be copied, such as a client
    or a lock, are the same for all requests.
    """

    value: Any


FallbackOption: TypeAlias = EngineName | Constant


def as_retry(value: object, where: str) -> Retry | None:
    """Return the option of a stage; a number stands for that many attempts.

    Raises:
        GraphError: if it is neither.
    """
    if value is None or isinstance(value, Retry):
        return value
    if _is_count(value):
        return Retry(cast("int", value))
    valid = f"an integer from 0 to {MOST_ATTEMPTS}, or Retry(...)"
    raise _refused(f"retry of {where}", value, valid)


def as_fallback(value: object, where: str) -> FallbackOption | None:
    """Return the option of a stage: the name of an engine, or a constant.

    Raises:
        GraphError: if it is neither.
    """
    if value is None or isinstance(value, Constant):
        return value
    if isinstance(value, str) and value:
        return EngineName(value)
    raise _refused(f"fallback of {where}", value, "the name of an engine, or Constant(value)")


def check_recovery(stage: Any) -> None:
    """Settle the options of a stage, where its kind has them.

    Raises:
        GraphError: on a bad value, or on an engine where the user's code would run.
    """
    where = f"stage {stage.name!r}"
    if hasattr(stage, "retry"):
        object.__setattr__(stage, "retry", as_retry(stage.retry, where))
    if hasattr(stage, "fallback"):
        object.__setattr__(stage, "fallback", as_fallback(stage.fallback, where))


def refuse_engine(stage: Any, valid: str) -> None:
    """Raise GraphError if a stage without an engine names one to fall back on."""
    if stage.fallback is not None and not isinstance(stage.fallback, Constant):
        raise _refused(f"fallback of stage {stage.name!r}", stage.fallback, valid)


def check_edge_options(
    sources: Sequence[str], is_condition: bool, retry: object, fallback: object
) -> None:
    """Raise GraphError on an option that an edge does not have."""
    where = f"edge from {', '.join(sources)}"
    if fallback is not None:
        raise GraphError(
            "a branch has no fallback",
            where=where,
            found=repr(fallback),
            hint="let the condition catch its errors and answer with a stage",
        )
    if retry is not None and not is_condition:
        raise GraphError(
            "retry= given for an edge without a condition",
            where=where,
            found=repr(retry),
            hint="give it to the stage",
        )


def retry_of(stage: object) -> Retry | None:
    """Return the attempts of a stage, ``None`` where it has neither these nor a fallback."""
    retry: Retry | None = getattr(stage, "retry", None)
    return Retry(0) if retry is None and getattr(stage, "fallback", None) is not None else retry


def wait_s(retry: Retry, error: BaseException) -> float | None:
    """Return the least seconds to wait after an error, ``None`` if no attempt may follow it."""
    return (retry_after_s(error) or 0.0) if retry.covers(error) else None


def write_retry(value: Retry | None, stage: Any, names: References) -> Any:
    """Return the option for a line: a number, an object, or a name for what text cannot hold."""
    if value is None:
        return None
    plain = {field.name: getattr(value, field.name) for field in fields(value)}
    if plain.pop("on") is not None:
        return names.name(value, f"{stage.name}.retry")
    if value == Retry(value.attempts):
        return value.attempts
    return plain


def write_fallback(value: FallbackOption | None, stage: Any, names: References) -> Any:
    """Return the option for a line: a text, an object, or a name for what text cannot hold."""
    if not isinstance(value, Constant):
        return value
    if is_json(value.value):
        return {"constant": value.value}
    return names.name(value, f"{stage.name}.fallback")


def with_default(stage: Any, retry: Retry) -> Any:
    """Return a stage that has these attempts unless it has its own, or runs the user's code."""
    takes = getattr(stage, "engine", None) is not None and hasattr(stage, "retry")
    return replace(stage, retry=retry) if takes and stage.retry is None else stage


def _is_count(value: object) -> bool:
    if not isinstance(value, int) or isinstance(value, bool):
        return False
    return 0 <= value <= MOST_ATTEMPTS


def _is_seconds(value: object) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return 0 <= value <= MOST_SECONDS


def _is_filter(value: object) -> bool:
    if isinstance(value, tuple):
        classes = cast("tuple[object, ...]", value)
        return bool(classes) and all(map(_is_error_class, classes))
    if isinstance(value, type):
        return _is_error_class(value)
    return value is None or callable(value)


def _is_error_class(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, BaseException)


def _refused(option: str, found: object, valid: str) -> GraphError:
    return GraphError("stage option out of range", where=option, found=repr(found), valid=valid)

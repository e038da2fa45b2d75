"""Every error this package raises, so that a caller knows what to catch.

    RagAccelError
    |-- ConfigError            an option has an unknown name or a bad value
    |-- GraphError             a RAGraph breaks the rules of its stage; lists every offender
    |-- TranslationError       no graph can be made of a program
    |-- PassError              a pass left the graph in a state its stage forbids
    |-- SchedulingError
    |   |-- BusyError          too many requests live, or an embedder is late; try again later
    |   |-- DeadlineError      a request ran past its deadline (also a TimeoutError)
    |   |-- RequestCancelledError  somebody cancelled the request while a thread waited for it
    |   |-- ClosedError        the accelerator was closed before the request could end
    |   |-- ForkedError        an accelerator of the parent process was used in a forked child
    |   `-- InvalidTransitionError  the scheduler's own state machine was driven wrongly
    |-- EngineError            an engine failed on work that was valid
    |   |-- EngineOutputError  an engine returned NaN, a wrong dimension or a wrong count
    |   |-- EngineLostError    an engine stopped answering
    |   |-- RemoteEngineError  an HTTP engine got a bad answer, or none in time
    |   |   `-- MemberPausedError  all embedders of a list take nothing for a while
    |   |-- GraphLinkError     a knowledge graph cannot be searched as it was asked to be
    |   |-- GraphMergeError    a knowledge graph takes no more edits, as it cannot merge them
    |   `-- ShardsChangedError  another program changed the shards of an index first
    |-- IndexFileError         a stored index is damaged, foreign or of a newer version
    |-- GraphFileError         a stored knowledge graph is damaged, foreign or of a newer version
    |-- ChunkFileError         a kept attention state is damaged, foreign or too new
    |-- DocumentError          a document cannot be read
    `-- ServedRequestError     a client's HTTP request cannot be served as it is

Five warnings are this package's own, each a UserWarning: ``UncheckedReuseWarning``,
``UncheckedWeightsWarning``, ``ApproximateVectorsWarning``, ``LoopLimitWarning`` and
``UnreadOptionWarning``.

Every message has up to four parts: what failed, where, what was found and what would be valid,
and what to do next. Every class has a stable ``code``.
"""

from __future__ import annotations

from typing import Any, ClassVar


class RagAccelError(Exception):
    """The root of all errors of this package.

    Args:
        what: what failed, as one clause.
        where: the node, engine, option or file it failed at.
        found: what was there instead.
        valid: what would have been accepted.
        hint: what to do next.
    """

    code: ClassVar[str] = "RA000"

    def __init__(
        self,
        what: str,
        *,
        where: str | None = None,
        found: object | None = None,
        valid: str | None = None,
        hint: str | None = None,
    ) -> None:
        self.what = what
        self.where = where
        self.found = found
        self.valid = valid
        self.hint = hint
        super().__init__(what)

    def __str__(self) -> str:
        parts = [self.what]
        if self.where is not None:
            parts.append(f"at {self.where}")
        if self.found is not None:
            parts.append(f"found {self.found}")
        if self.valid is not None:
            parts.append(f"valid: {self.valid}")
        if self.hint is not None:
            parts.append(f"next: {self.hint}")
        return f"[{self.code}] " + "; ".join(parts)

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.args, self.__dict__))


def _rebuild(
    cls: type[RagAccelError], args: tuple[object, ...], state: dict[str, object]
) -> RagAccelError:
    error = cls.__new__(cls)
    error.args = args
    error.__dict__.update(state)
    return error


class ConfigError(RagAccelError, ValueError):
    """An option has an unknown name or a value outside its range."""

    code = "RA100"


class GraphError(RagAccelError, ValueError):
    """A graph breaks rules of its stage; ``offenders`` lists all of them."""

    code = "RA200"

    def __init__(self, what: str, *, offenders: tuple[str, ...] = (), **parts: Any) -> None:
        super().__init__(what, **parts)
        self.offenders = offenders

    def __str__(self) -> str:
        head = super().__str__()
        return "\n".join([head, *(f"  - {line}" for line in self.offenders)])


class TranslationError(RagAccelError):
    """A graph was asked of a program that is not fully declared."""

    code = "RA210"


class PassError(RagAccelError):
    """A pass broke a rule of its output stage; both are named."""

    code = "RA220"


class SchedulingError(RagAccelError):
    """The root of what can go wrong between submitting a request and its end."""

    code = "RA300"


class BusyError(SchedulingError):
    """The bound on live requests is reached, or an embedder would answer too late.

    ``retry_after_s`` tells after how many seconds to come again, each request behind the one that
    was refused before; ``None`` where that is not known.
    """

    code = "RA310"

    def __init__(self, what: str, *, retry_after_s: float | None = None, **parts: Any) -> None:
        super().__init__(what, **parts)
        self.retry_after_s = retry_after_s


class DeadlineError(SchedulingError, TimeoutError):
    """A request ran past its deadline."""

    code = "RA320"


class RequestCancelledError(SchedulingError):
    """The request was cancelled while its caller waited."""

    code = "RA330"


class ClosedError(SchedulingError, RuntimeError):
    """The accelerator is closed."""

    code = "RA340"


class ForkedError(SchedulingError, RuntimeError):
    """An accelerator made before ``fork()`` was used in the child."""

    code = "RA350"


class InvalidTransitionError(SchedulingError, RuntimeError):
    """The state machine met an event that its state forbids; the node's story is told."""

    code = "RA390"


class EngineError(RagAccelError):
    """An engine failed on valid work."""

    code = "RA400"


class EngineOutputError(EngineError):
    """An engine returned NaN, a wrong dimension or a wrong number of results."""

    code = "RA410"


class EngineLostError(EngineError):
    """An engine did not come back from a step."""

    code = "RA420"


class RemoteEngineError(EngineError):
    """A remote engine gave an answer that retrying does not mend, or none in time.

    ``status`` is the HTTP status of an answer that was refused, else None. ``retry_after_s`` is
    when the server wants to be asked again, in seconds, if it said so.
    """

    code = "RA430"

    def __init__(
        self,
        what: str,
        *,
        status: int | None = None,
        retry_after_s: float | None = None,
        **parts: Any,
    ) -> None:
        super().__init__(what, **parts)
        self.status = status
        self.retry_after_s = retry_after_s


class MemberPausedError(RemoteEngineError):
    """A member of an embedder on several devices wants to be asked again later.

    Others take over meanwhile; a caller gets it where all have refused for too long.
    ``retry_after_s`` is when to ask again, in seconds.
    """

    code = "RA435"

    def __init__(self, what: str, *, retry_after_s: float = 0.0, **parts: Any) -> None:
        super().__init__(what, retry_after_s=retry_after_s, **parts)


class GraphLinkError(EngineError):
    """A knowledge graph cannot be searched in this way, such as by vector without vectors."""

    code = "RA440"


class GraphMergeError(EngineError):
    """A knowledge graph in memory takes no more edits, because merging those it has fails."""

    code = "RA445"


class ShardsChangedError(EngineError):
    """An ingestion left no trace, since another program changed the shards of its index first."""

    code = "RA447"


class IndexFileError(RagAccelError):
    """A stored index is damaged, foreign or written by a newer version."""

    code = "RA500"


class GraphFileError(RagAccelError):
    """A stored knowledge graph is damaged, foreign or written by a newer version."""

    code = "RA507"


class ChunkFileError(RagAccelError):
    """A file of a text's attention state cannot be used; ``reason`` says why in one word.

    It is ``damaged``, ``truncated``, ``foreign`` (another text's, folder's or model's), ``dtype``,
    ``newer``, of a version that is not known yet, or ``older``. So are verdicts of checks.
    """

    code = "RA505"

    def __init__(self, what: str, *, reason: str = "damaged", **parts: Any) -> None:
        super().__init__(what, **parts)
        self.reason = reason


class DocumentError(RagAccelError):
    """One document cannot be read."""

    code = "RA510"


class ServedRequestError(RagAccelError, ValueError):
    """An HTTP request to a served object is refused before it reaches the object.

    ``status`` is the HTTP status of the answer.
    """

    code = "RA520"

    def __init__(self, what: str, *, status: int = 400, **parts: Any) -> None:
        super().__init__(what, **parts)
        self.status = status


class UncheckedReuseWarning(UserWarning):
    """Retrieved texts are reused on a model that no ``rag-accel check`` has passed for."""


class UncheckedWeightsWarning(UserWarning):
    """A model runs with int8 weights that no ``rag-accel check`` has passed for."""


class ApproximateVectorsWarning(UserWarning):
    """An embedding model is compiled with so few bits that searches find other texts."""


class LoopLimitWarning(UserWarning):
    """A loop of a RAGraph ended because it turned as often as ``max_loops`` lets it."""


class UnreadOptionWarning(UserWarning):
    """An option was given that no part of the accelerated object reads.

    ``option`` names it.
    """

    def __init__(self, text: str, option: str = "") -> None:
        super().__init__(text, option)
        self.option = option

    def __str__(self) -> str:
        return str(self.args[0])

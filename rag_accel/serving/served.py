"""The seam between HTTP and the object that answers; knows neither HTTP nor a framework."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

from rag_accel.accelerator import Accelerator, default_accelerator
from rag_accel.interception.leaf_table import OWN, is_scheduled

MESSAGES = "messages"
"""The input that takes the messages of a chat."""

TEXT = "input"
"""The input of a program that takes one text and names no inputs."""

EmbeddedRole = Literal["query", "document"]


@dataclass(frozen=True, slots=True)
class ServingTerms:
    """The conditions under which a factory makes an object answer for one tenant.

    Args:
        accelerator: the tenant's.
        inputs: the names that a client may set; None if the command names none.
        plain: leave the object as it is.
        preparations: what is to be done before the first request; each is given the most seconds
            that it may wait.
    """

    accelerator: Accelerator
    inputs: tuple[str, ...] | None = None
    plain: bool = False
    preparations: list[Callable[[float], object]] = field(
        default_factory=list[Callable[[float], object]]
    )

    def accelerated(
        self, obj: Any, accelerate: Callable[..., Any], prepare: Callable[..., bool]
    ) -> tuple[Any, Accelerator | None]:
        """Return an object as it answers, with the accelerator that runs it, if one does.

        Args:
            obj: of a framework; one that is accelerated already keeps its accelerator.
            accelerate: the framework's own.
            prepare: the framework's own, called before the first request.
        """
        if self.plain:
            return obj, None
        fast, accelerator = self._accelerated(obj, accelerate)
        self.preparations.append(lambda timeout_s: prepare(fast, timeout_s=timeout_s))
        return fast, accelerator

    def _accelerated(
        self, obj: Any, accelerate: Callable[..., Any]
    ) -> tuple[Any, Accelerator | None]:
        if is_scheduled(type(obj)):
            own = getattr(type(obj), OWN, None) or getattr(obj, "_accelerator", None)
            if own is not None or not hasattr(obj, "scheduled_by"):
                return obj, own or default_accelerator()
        return accelerate(obj, accelerator=self.accelerator), self.accelerator


@dataclass(frozen=True, slots=True)
class ServedUsage:
    """The tokens of one answer."""

    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class ServedAnswer:
    """An answer.

    Args:
        output: of any type that ``plain_values.as_json`` knows.
        text: the answer as a chat shows it.
        usage: its tokens; None if they are not known.
        retries: further attempts that stages had, by stage.
        fallbacks: how often the fallbacks of stages ran, by stage.
    """

    output: Any
    text: str
    usage: ServedUsage | None = None
    retries: Mapping[str, int] = field(default_factory=dict[str, int])
    fallbacks: Mapping[str, int] = field(default_factory=dict[str, int])


@dataclass(frozen=True, slots=True)
class ServedPiece:
    """A piece of an answer in the making: text, a step of the program, or the tokens of it all."""

    text: str = ""
    step: Any = None
    usage: ServedUsage | None = None


@runtime_checkable
class ServedProgram(Protocol):
    """An object that answers questions, for one tenant.

    ``inputs`` are the names of all values that ``answer`` needs. One called ``messages`` is a list
    of ``{"role": "system" | "user" | "assistant", "content": str}``, the last of the user.
    ``deadline_s`` is for a scheduler; the caller cancels what is late in any case.
    """

    @property
    def inputs(self) -> tuple[str, ...]:
        """Return the names of the inputs."""
        ...

    @property
    def accelerator(self) -> Accelerator | None:
        """Return what schedules it; None if nothing does."""
        ...

    async def answer(self, values: Mapping[str, Any], deadline_s: float | None) -> ServedAnswer:
        """Return the answer."""
        ...

    def stream(
        self, values: Mapping[str, Any], deadline_s: float | None
    ) -> AsyncIterator[ServedPiece]:
        """Yield what the program does as it does it: texts of all its parts, and its steps."""
        ...


@runtime_checkable
class AnswerStream(Protocol):
    """A served program that knows of text that it is its answer's before all of it is there.

    One without ``stream_answer`` answers a chat as a whole, streamed or not.
    """

    def stream_answer(
        self, values: Mapping[str, Any], deadline_s: float | None
    ) -> AsyncIterator[ServedPiece]:
        """Yield the answer's text as soon as it is certain: joined, it is ``answer(...).text``."""
        ...


@runtime_checkable
class ServedEmbedder(Protocol):
    """An object that embeds texts, for one tenant."""

    @property
    def accelerator(self) -> Accelerator | None:
        """Return what schedules it; None if nothing does."""
        ...

    async def embed(self, texts: Sequence[str], role: EmbeddedRole) -> Any:
        """Return ``[len(texts), dim]``, float32 or lists of floats."""
        ...


Served = ServedProgram | ServedEmbedder


def chat_input(program: ServedProgram) -> str | None:
    """Return the input that a chat's messages or its last question become; None if none does."""
    if MESSAGES in program.inputs:
        return MESSAGES if len(program.inputs) == 1 else None
    return program.inputs[0] if len(program.inputs) == 1 else None


def answer_pieces(
    program: ServedProgram, values: Mapping[str, Any], deadline_s: float | None
) -> AsyncIterator[ServedPiece]:
    """Yield a program's answer to a chat; joined, the texts are its whole answer's."""
    if isinstance(program, AnswerStream):
        return program.stream_answer(values, deadline_s)
    return whole_answer(program, values, deadline_s)


async def whole_answer(
    program: ServedProgram, values: Mapping[str, Any], deadline_s: float | None
) -> AsyncIterator[ServedPiece]:
    answer = await program.answer(values, deadline_s)
    yield ServedPiece(answer.text, usage=answer.usage)

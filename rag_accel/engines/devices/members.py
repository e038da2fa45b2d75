"""The protocol of a member of a device group, and the engine that implements it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from rag_accel.engine_api import Engine, EngineRequest, PrimitiveKind, StepBudget, TextBatch, WorkId
from rag_accel.engines.batching import BatchLimits
from rag_accel.errors import ConfigError, EngineOutputError

if TYPE_CHECKING:
    from rag_accel.engines.embedding.checked_vectors import Vector
    from rag_accel.engines.embedding.sentence_encoder import Role


ROLES: tuple[Role, ...] = ("query", "document")


def restrict(member: Member, roles: Iterable[str] | None, namespaces: Iterable[str] | None) -> None:
    """Let a member be given texts of these roles and namespaces alone; None for all.

    Raises:
        ConfigError: a name that is no role or no text, none, or one string.
    """
    given: Any = member
    given.roles = _checked(roles, member, "roles", ROLES)
    given.namespaces = _checked(namespaces, member, "namespaces", None)


def admitted_members(
    members: Iterable[Member], role: Role, namespace: str
) -> frozenset[str] | None:
    """Return the names of the members that may be given texts; None if all may."""
    members = list(members)
    names = [member.name for member in members if _admits(member, role, namespace)]
    return None if len(names) == len(members) else frozenset(names)


def no_member_admits(role: Role, namespace: str) -> ConfigError:
    """Return the error of texts that no member may be given."""
    return ConfigError(
        "no member of the device group may be given these texts",
        found=f"role {role!r}, namespace {namespace!r}",
        valid="a member whose roles and namespaces have both",
        hint="list a member without roles= and namespaces=, such as one of this machine",
    )


def _admits(member: Member, role: Role, namespace: str) -> bool:
    roles: frozenset[str] | None = getattr(member, "roles", None)
    namespaces: frozenset[str] | None = getattr(member, "namespaces", None)
    return (roles is None or role in roles) and (namespaces is None or namespace in namespaces)


def _checked(
    given: Iterable[str] | None, member: Member, option: str, known: Sequence[str] | None
) -> frozenset[str] | None:
    if given is None:
        return None
    names: list[object] = [] if isinstance(given, str) else list(given)
    if not names or any(not isinstance(n, str) or (known and n not in known) for n in names):
        raise ConfigError(
            "a member is restricted to what cannot be",
            where=f"{type(member).__name__}({option}=)",
            found=repr(given),
            valid=f"a list of {option if known is None else ' and '.join(known)}",
        )
    return frozenset(str(name) for name in names)


_CHARACTERS_PER_TOKEN = 4
_STEP_TOKENS = 4096
_OUT_OF_MEMORY = ("MemoryError", "OutOfMemoryError")


def guess_tokens(text: str) -> int:
    """Return about how many tokens a text has, where no tokenizer tells."""
    return len(text) // _CHARACTERS_PER_TOKEN + 2


@runtime_checkable
class Member(Protocol):
    """A place that computes vectors; its methods run on one thread, of its own once it has joined.

    Attributes:
        name: its name in reports, such as ``cpu`` or ``cuda:0``.
        max_threads: most threads it computes with on this machine's cores; 0 if it computes
            elsewhere.
        max_texts: most texts of one call.
        max_tokens: about the most tokens of one call.

    Optional attributes: ``roles`` and ``namespaces``, a frozenset of those whose texts it may be
    given or None for all; ``in_flight``, most calls at once, each on a thread of its own, by
    default 1; ``may_change`` for one that can become another model without notice: then probes are
    put among its texts, and their vectors compared.
    """

    name: str
    max_threads: int
    max_texts: int
    max_tokens: int

    def embed(self, texts: Sequence[str], role: Role, threads: int) -> Any:
        """Return ``vectors: [len(texts), dim], float32``; may raise.

        Args:
            texts: from 1 to ``max_texts``.
            role: what they are.
            threads: with how many threads it may compute; 0 if it computes elsewhere.

        Raises:
            EngineLostError: this member is gone, and is not called again.
            MemberPausedError: it takes nothing for a while.
            Exception: these texts have failed, here.
        """
        ...

    def estimate(self, text: str) -> int:
        """Return about how many tokens a text has, at least 1; from any thread."""
        ...

    def close(self) -> None:
        """Free everything; called once."""
        ...


@runtime_checkable
class AbortableMember(Protocol):
    """A member whose running call can be ended."""

    def abort(self) -> None:
        """Make the running call, and later ones, raise soon; from any thread, more than once."""
        ...


@runtime_checkable
class InterruptibleMember(Protocol):
    """A member elsewhere whose running calls can be given up, without an end of the member."""

    def interrupt(self) -> None:
        """Make the running calls raise soon; later ones are not concerned. From any thread."""
        ...


class MemberChangedError(EngineOutputError):
    """A member answers as another model than the one that joined; none of its vectors is used."""


class EngineMember:
    """An embedding engine of this process as a member of a group.

    Args:
        engine: an owned engine for EMBEDDING; it belongs to the member from now on.
        name: its name; by default its model's device, or its class.
        max_texts: most texts of one call, if it computes on this machine's cores.
        roles: whose texts it may be given: ``query``, ``document`` or both; by default both.
        namespaces: of which tenants it may be given texts; by default of all.

    Raises:
        ConfigError: a restriction to what is no role or no namespace.
    """

    def __init__(
        self,
        engine: Engine,
        name: str = "",
        max_texts: int = 64,
        *,
        roles: Iterable[str] | None = None,
        namespaces: Iterable[str] | None = None,
    ) -> None:
        profile = engine.profile
        restrict(self, roles, namespaces)
        self.engine = engine
        device = getattr(getattr(engine, "model", None), "device", None)
        self.name = name or str(type(engine).__name__ if device is None else device)
        self.max_threads = profile.max_threads
        self.max_texts = profile.max_batch
        if self.max_threads:
            self.max_texts = min(max_texts, profile.max_batch)
        limits = getattr(engine, "limits", None)
        self.max_tokens = limits.step if isinstance(limits, BatchLimits) else _STEP_TOKENS
        self._numbers = count(1)

    def embed(self, texts: Sequence[str], role: Role, threads: int) -> Any:
        """Step the engine until these texts have ended; raises the error of the work.

        Texts that are too many for a device's memory are embedded in halves.
        """
        try:
            return self._embedded(texts, role, threads)
        except Exception as error:
            if len(texts) < 2 or not is_out_of_memory(error):
                raise
        # Out of the handler: a traceback would keep tensors of the failed step.
        middle = len(texts) // 2
        halves = (texts[:middle], texts[middle:])
        return np.concatenate([self.embed(half, role, threads) for half in halves])

    def _embedded(self, texts: Sequence[str], role: Role, threads: int) -> Any:
        id = WorkId(f"{self.name}-{next(self._numbers)}")
        payload = TextBatch(tuple(texts), role)
        request = EngineRequest(id, id, PrimitiveKind.EMBEDDING, payload, size=len(texts))
        try:
            self.engine.submit([request])
            return self._ended(id, StepBudget(None, max(1, threads)))
        except BaseException:
            self.engine.cancel([id])
            raise

    def estimate(self, text: str) -> int:
        """Return the engine's estimate, where it has one."""
        own = getattr(self.engine, "estimate", None)
        return max(1, own(text)) if own else guess_tokens(text)

    def close(self) -> None:
        self.engine.close()

    def _ended(self, id: WorkId, budget: StepBudget) -> Any:
        while True:
            outputs = self.engine.step(budget)
            for output in outputs:
                if output.id == id and output.kind == "final":
                    return output.value
                if output.id == id and output.kind == "error":
                    raise output.error or EngineOutputError("an error without an exception")
            if not outputs and not self.engine.profile.stepped:
                raise EngineOutputError("the engine ended a step without a result", where=self.name)


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether a device had too little memory, whatever library says so."""
    name = type(error).__name__
    return name in _OUT_OF_MEMORY or (
        name == "RuntimeError" and "out of memory" in str(error).lower()
    )


_LEAST_LENGTH = 1e-12  # of a vector that is scaled, as in torch
_KNOWN = frozenset({"prompt", "truncate_dim", "normalize_embeddings"})


@dataclass(frozen=True, slots=True)
class TextForm:
    """The arguments of ``encode`` that can be honoured around the members of a group.

    Args:
        prompt: stands before each text.
        truncate_dim: components that are kept; None for all.
        normalises: whether vectors are scaled to length one.
    """

    prompt: str = ""
    truncate_dim: int | None = None
    normalises: bool = False

    def texts(self, texts: Sequence[str]) -> tuple[str, ...]:
        return tuple(self.prompt + text for text in texts) if self.prompt else tuple(texts)

    def finished(self, vectors: Vector) -> Vector:
        """Cut and scale the members' vectors; return ``[texts, dim], float32``."""
        if self.truncate_dim is not None:
            vectors = vectors[:, : self.truncate_dim]
        if self.normalises:
            lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
            vectors = vectors / np.maximum(lengths, _LEAST_LENGTH)
        return np.ascontiguousarray(vectors)


@dataclass(frozen=True, slots=True)
class FormedTexts(TextBatch):
    """Texts with the arguments that a group honours for them."""

    form: TextForm = TextForm()


def form_of(payload: TextBatch) -> TextForm | None:
    """Return the arguments to honour for texts; None if there are none."""
    return payload.form if isinstance(payload, FormedTexts) else None


def form_for(kwargs: Mapping[str, Any]) -> TextForm | None:
    """Return the form of arguments of ``encode``; None if they cannot be honoured like this."""
    if not kwargs.keys() <= _KNOWN:
        return None
    return TextForm(
        kwargs.get("prompt") or "",
        kwargs.get("truncate_dim"),
        bool(kwargs.get("normalize_embeddings")),
    )

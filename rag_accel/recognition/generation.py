"""Language models inside framework objects, whose greedy calls can be continued elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from threading import Thread
from typing import Any, Protocol

#: How the retrieved texts of a prompt were computed; None where none are ever reused.
Report = Mapping[str, Any] | None


class TokenStream(Protocol):
    """A caller's receiver of tokens as they are generated."""

    def begin(self) -> None:
        """Take the prompt."""
        ...

    def put(self, token: int) -> None:
        """Take the next token."""
        ...

    def end(self) -> None:
        """Note that there are no more."""
        ...

    def fail(self, error: Exception) -> bool:
        """Note that there are no more, because of an error; tell whether the reader raises it."""
        ...


@dataclass(frozen=True, slots=True)
class GreedyCall:
    """A call of a model that asks for nothing but the most probable tokens.

    Args:
        prompts: token ids.
        most: most tokens of each completion.
        ends: tokens that end one.
        result: returns what the call returns, given each completion's tokens with the last one.
        stream: is given the tokens of the only completion as they come; None if not asked for.
        plain: makes the call as it was asked for; a stream goes on behind the tokens it was given.
        tokenizer: made the prompts; None if nobody knows it.
        note: is told how each prompt was computed (``LocalOptions.notes``; None for those that are
            exact) where the engine has computed them, before a stream ends.
        is_thread: whether a thread does nothing but this call, so that nobody sees what it raises.
    """

    prompts: tuple[tuple[int, ...], ...]
    most: int
    ends: frozenset[int]
    result: Callable[[Sequence[Sequence[int]]], Any]
    stream: TokenStream | None
    plain: Callable[[Sequence[int]], Any]
    tokenizer: Any = None
    note: Callable[[Sequence[Report]], None] = lambda reports: None
    is_thread: bool = False


def is_called_by_thread() -> bool:
    """Tell whether a thread does nothing but call the function that asks here."""
    return sys._getframe(2).f_code is Thread.run.__code__


class AskGenerate(Protocol):
    """A function that has engines continue prompts."""

    def adopts(self, model: Any) -> bool:
        """Tell whether an engine may run greedy calls of a model."""
        ...

    def generate(self, model: Any, call: GreedyCall) -> Any:
        """Return what a call returns; ``call.plain`` where no engine may run it."""
        ...


#: Returns what a call of a model asks for; None if that is anything but greedy decoding.
ReadCall = Callable[[Any, dict[str, Any]], GreedyCall | None]


class GeneratingClient:
    """A language model whose ``generate`` shares steps with the calls of others.

    Args:
        model: computes; all but ``generate`` is its own.
        read: reads the arguments of ``generate``.
        ask: has its engine compute.
        tokenizer: makes the prompts.

    Attributes:
        reports: how each prompt was computed, in the order of the prompts so far;
            one that the model itself continued, or a call of it, has None.
        is_thread: whether a thread does nothing but call what has this as its model.
    """

    def __init__(self, model: Any, read: ReadCall, ask: AskGenerate, tokenizer: Any) -> None:
        self._model, self._read, self._ask, self._tokenizer = model, read, ask, tokenizer
        self.reports: list[Report] = []
        self.is_thread = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def is_adopted(self) -> bool:
        """Tell whether an engine may run greedy calls of the model."""
        return self._ask.adopts(self._model)

    def may_share(self, kwargs: dict[str, Any]) -> bool:
        """Tell whether an engine may run a call of ``generate`` with these arguments."""
        return self.is_adopted() and self._read(self._model, kwargs) is not None

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the model's own ``generate`` returns."""
        call = None if args else self._read(self._model, kwargs)
        if call is None:
            self.reports.append(None)
            return self._model.generate(*args, **kwargs)
        noted = len(self.reports)
        call = replace(
            call,
            tokenizer=self._tokenizer,
            note=self.reports.extend,
            is_thread=self.is_thread or is_called_by_thread(),
        )
        result = self._ask.generate(self._model, call)
        if len(self.reports) == noted:
            self.reports += [None] * len(call.prompts)
        return result

    def apart(self) -> GeneratingClient:
        """Return another client of the same model, with reports of its own."""
        return GeneratingClient(self._model, self._read, self._ask, self._tokenizer)

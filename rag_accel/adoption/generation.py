"""Language models inside framework objects, whose calls can be continued elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from threading import Thread
from typing import Any

#: How the retrieved texts of a prompt were computed; None where none are ever reused.
Report = Mapping[str, Any] | None

_SEEDS = 1 << 63


@dataclass(frozen=True, slots=True)
class TokenStream:
    """A caller's receiver of tokens as they are generated.

    Args:
        begin: takes the prompt.
        put: takes the next token.
        end: records that there are no more.
        fail: records that there are no more, because of an error; tells whether the reader raises
            it.
    """

    begin: Callable[[], None]
    put: Callable[[int], None]
    end: Callable[[], None]
    fail: Callable[[Exception], bool]


@dataclass(frozen=True, slots=True)
class GenerateCall:
    """A call of a model that asks for tokens behind prompts, the most probable or drawn ones.

    Args:
        prompts: token ids.
        most: most tokens of each completion.
        ends: tokens that end one.
        result: returns what the call returns, given each completion's tokens with the last one.
        stream: is given the tokens of the only completion as they come; None if not asked for.
        sampling: options of the choice of tokens, as ``SamplingOptions`` names them; empty for the
            most probable ones.
        plain: makes the call as it was asked for; a stream goes on behind the tokens it was given.
        tokenizer: made the prompts; None if nobody knows it.
        note: is told how each prompt was computed (``LocalOptions.notes``; None for those that are
            exact) where the engine has computed them, before a stream ends.
        is_thread: whether a thread does nothing but this call, so that nobody sees what it raises.
        seed: of the seeds of its prompts; None to draw them from torch's global generator.
    """

    prompts: tuple[tuple[int, ...], ...]
    most: int
    ends: frozenset[int]
    result: Callable[[Sequence[Sequence[int]]], Any]
    stream: TokenStream | None
    plain: Callable[[Sequence[int]], Any]
    sampling: Mapping[str, Any] = field(default_factory=dict[str, Any])
    tokenizer: Any = None
    note: Callable[[Sequence[Report]], None] = lambda reports: None
    is_thread: bool = False
    seed: int | None = None

    @property
    def is_sampled(self) -> bool:
        """Tell whether tokens are drawn by chance, so that no answer stands for another."""
        return "temperature" in self.sampling


def draw_seeds(model: Any, count: int, seed: int | None = None) -> list[int]:
    """Return seeds of 64 bits, drawn as ``generate`` draws: from the model's device's generator.

    So a program that seeds torch has the same texts again, whatever shares their steps.

    Args:
        model: of transformers.
        count: how many.
        seed: of a generator to draw from in place of torch's global one.
    """
    import torch

    generator = None if seed is None else torch.Generator().manual_seed(seed)
    device = model.device if seed is None else "cpu"
    drawn = torch.randint(-_SEEDS, _SEEDS - 1, (count,), device=device, generator=generator)
    return drawn.tolist()


def is_called_by_thread() -> bool:
    """Tell whether a thread does nothing but call the function that asks here."""
    return sys._getframe(2).f_code is Thread.run.__code__


@dataclass(frozen=True, slots=True)
class GenerateHooks:
    """The way of one object's prompts to engines in one run.

    Args:
        why_plain: returns why no engine runs a model's greedy calls, or its sampled ones where the
            second argument is true; None if one does.
        generate: returns what a call of a model returns; ``call.plain`` where no engine may run it.
    """

    why_plain: Callable[[Any, bool], str | None]
    generate: Callable[[Any, GenerateCall], Any]


#: Returns what a call of a model asks for; None if an engine cannot do that.
ReadCall = Callable[[Any, dict[str, Any]], GenerateCall | None]


class GeneratingClient:
    """A language model whose ``generate`` shares steps with the calls of others.

    Args:
        model: computes; all but ``generate`` is its own.
        read: reads the arguments of ``generate``.
        ask: has its engine compute.
        tokenizer: makes the prompts.
        seed: of its only call, see ``GenerateCall``.

    Attributes:
        reports: how each prompt was computed, in the order of the prompts so far;
            one that the model itself continued, or a call of it, has None.
        is_thread: whether a thread does nothing but call what has this as its model.
    """

    def __init__(
        self,
        model: Any,
        read: ReadCall,
        ask: GenerateHooks,
        tokenizer: Any,
        seed: int | None = None,
    ) -> None:
        self._model, self._read, self._ask, self._tokenizer = model, read, ask, tokenizer
        self._seed = seed
        self.reports: list[Report] = []
        self.is_thread = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def why_plain(self, *, is_sampled: bool = False) -> str | None:
        """Return why no engine runs greedy or sampled calls of the model; None if one does."""
        return self._ask.why_plain(self._model, is_sampled)

    def shared_call(self, kwargs: dict[str, Any]) -> GenerateCall | None:
        """Return a call of ``generate`` with these arguments; None if no engine may run it."""
        if self.why_plain() is not None:
            return None
        call = self._read(self._model, kwargs)
        is_plain = call is None or self.why_plain(is_sampled=call.is_sampled) is not None
        return None if is_plain else call

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
            seed=self._seed,
        )
        result = self._ask.generate(self._model, call)
        if len(self.reports) == noted:
            self.reports += [None] * len(call.prompts)
        return result

    def apart(self, seed: int | None = None) -> GeneratingClient:
        """Return another client of the same model, with reports of its own and a seed."""
        return GeneratingClient(self._model, self._read, self._ask, self._tokenizer, seed)

    def apart_for(self, call: GenerateCall, count: int) -> list[GeneratingClient]:
        """Return clients for calls like this one, whose seeds are drawn in their order."""
        seeds = draw_seeds(self._model, count) if call.is_sampled else [None] * count
        return [self.apart(seed) for seed in seeds]

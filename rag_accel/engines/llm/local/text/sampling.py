"""The choice of each sequence's next token from its logits."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from rag_accel.errors import ConfigError, EngineOutputError

_WHERE = "GenerationInput.options"

#: Below it, logits may overflow; of chance, nothing is left there anyway.
_LEAST_TEMPERATURE = 1e-5

#: Most probable tokens sorted at first: seldom do more have the wanted probability together.
_SORTED = 1024

#: Options that are accepted where they change nothing.
_NEUTRAL: Mapping[str, float] = {"n": 1, "frequency_penalty": 0, "presence_penalty": 0}


@dataclass(frozen=True, slots=True)
class SamplingOptions:
    """The options of the choice of tokens.

    Args:
        temperature: 0 for the most probable token; else what logits are divided by.
        top_p: the most probable tokens are kept until together they have this probability.
        top_k: so many most probable tokens are kept, and those as probable as the last of them; 0
            for all.
        min_p: of the tokens that these keep, those are left out whose probability is less than
            this share of the largest.
        seed: of the sequence's own generator; without one, each run differs.
        logprobs: whether the probability of each token is wanted; it is that of the model's own
            logits.
        repetition_penalty: what positive logits of tokens that stand in the prompt or the
            completion so far are divided by, and negative ones multiplied by, as in transformers.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    logprobs: bool = False
    repetition_penalty: float = 1.0


@dataclass(frozen=True, slots=True)
class Choice:
    """A chosen token, and the natural logarithm of its probability where it is wanted."""

    token: int
    logprob: float | None = None


def read_options(options: Mapping[str, Any]) -> SamplingOptions:
    """Read options by their OpenAI names; None counts as not given.

    Raises ConfigError that names an unknown option, or one with a value outside its range.
    """
    given = {name: value for name, value in options.items() if value is not None}
    if unknown := sorted(set(given) - set(_READERS) - set(_NEUTRAL)):
        valid = ", ".join(_READERS)
        raise ConfigError("unknown options", where=_WHERE, found=", ".join(unknown), valid=valid)
    for name, value in _NEUTRAL.items():
        if given.pop(name, value) != value:
            raise ConfigError(
                "an option that this engine does not have",
                where=f"{_WHERE}[{name!r}]",
                found=repr(options[name]),
                valid=f"{value}, which changes nothing",
            )
    return SamplingOptions(**{name: _READERS[name](name, value) for name, value in given.items()})


def own_sampling(settings: Any) -> Mapping[str, Any]:
    """Return the options of a generation configuration that affect the most probable token.

    Its temperature, top_k and top_p are left out: they ask for chance, which a request names.

    Raises ConfigError where its repetition_penalty is out of range.
    """
    name = "repetition_penalty"
    penalty = getattr(settings, name, None)
    if penalty is None:
        return {}
    try:
        return {name: _READERS[name](name, penalty)}
    except ConfigError as error:
        raise ConfigError(
            "the model's generation configuration is out of range",
            where=f"generation_config.{name}",
            found=error.found,
            valid=error.valid,
            hint="correct it in the model's generation_config.json",
        ) from error


class Sampler:
    """The choice of one sequence's tokens, with a generator of its own.

    Tokens of a seeded sequence depend on its logits and its seed, not on other sequences.

    Args:
        options: how it chooses.
        prompt: the token ids before the first choice.
    """

    def __init__(self, options: SamplingOptions, prompt: Sequence[int] = ()) -> None:
        self.options = options
        self._generator: torch.Generator | None = None
        self._seen = set(prompt) if self.is_penalising else set[int]()

    @property
    def is_greedy(self) -> bool:
        """Tell whether the most probable token is always chosen."""
        return self.options.temperature < _LEAST_TEMPERATURE

    @property
    def is_penalising(self) -> bool:
        """Tell whether logits of tokens that were there before are changed."""
        return self.options.repetition_penalty != 1

    def penalised(self, logits: torch.Tensor) -> torch.Tensor:
        """Return a copy of ``logits: [vocabulary]`` with those of earlier tokens lowered."""
        penalty = self.options.repetition_penalty
        seen = torch.tensor(sorted(self._seen), dtype=torch.long, device=logits.device)
        scores = logits[seen]
        lowered = torch.where(scores < 0, scores * penalty, scores / penalty)
        return logits.index_copy(0, seen, lowered)

    def took(self, token: int) -> None:
        """Note a token of the sequence that was chosen."""
        if self.is_penalising:
            self._seen.add(token)

    def draw(self, logits: torch.Tensor) -> int:
        """Return a random token for ``logits: [vocabulary]``, float32, none NaN or infinity."""
        kept, tokens = self.candidates(logits)
        at = self._drawn(kept)
        return at if tokens is None else int(tokens[at])

    def candidates(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return the logits ``[n]`` of the tokens to draw from, as transformers' warpers keep them.

        Args:
            logits: ``[vocabulary]``, float32, those of earlier tokens lowered already.

        Returns:
            them over the temperature, and their tokens, int64; None for all in their order.
        """
        options = self.options
        kept, tokens = logits / options.temperature, None
        if options.top_k or options.top_p < 1:
            kept, tokens = _kept(kept, options.top_k, options.top_p)
        if options.min_p:
            probabilities = kept.softmax(-1)
            likely = (probabilities >= options.min_p * probabilities.amax()).nonzero()[:, 0]
            kept, tokens = kept[likely], likely if tokens is None else tokens[likely]
        return kept, tokens

    def _drawn(self, logits: torch.Tensor) -> int:
        """Return an index as often as its probability says, by a single random number."""
        # On the CPU, so that a seed gives the same numbers wherever the model is.
        summed = logits.softmax(-1).cpu().cumsum(-1, dtype=torch.float64)
        random = torch.rand(1, dtype=torch.float64, generator=self._random())
        at = torch.searchsorted(summed, random * summed[-1], right=True)
        return min(int(at), len(logits) - 1)

    def _random(self) -> torch.Generator:
        if self._generator is None:
            self._generator = torch.Generator()
            if self.options.seed is None:
                self._generator.seed()
            else:
                self._generator.manual_seed(self.options.seed)
        return self._generator


def choose(logits: torch.Tensor, samplers: Sequence[Sampler]) -> list[Choice | EngineOutputError]:
    """Return the next token of each sequence, or the fault of its logits.

    Args:
        logits: ``[n, vocabulary]``, float32.
        samplers: n, one a row.

    A row without a largest finite number (one with NaN or infinity) is an EngineOutputError; the
    other rows are not touched by it.
    """
    if not samplers:
        return []
    largest = logits.amax(-1).tolist()
    greedy = logits.argmax(-1).tolist()
    return [
        _choice(logits[at], sampler, greedy[at])
        if math.isfinite(largest[at])
        else _fault(largest[at])
        for at, sampler in enumerate(samplers)
    ]


def _choice(row: torch.Tensor, sampler: Sampler, greedy: int) -> Choice:
    chosen_from = row
    if sampler.is_penalising:
        chosen_from = sampler.penalised(row)
        greedy = int(chosen_from.argmax())
    token = greedy if sampler.is_greedy else sampler.draw(chosen_from)
    sampler.took(token)
    if not sampler.options.logprobs:
        return Choice(token)
    return Choice(token, float(row[token] - row.logsumexp(-1)))


def _fault(largest: float) -> EngineOutputError:
    return EngineOutputError(
        "logits that no token can be chosen from",
        where="local language model",
        found=f"a largest logit of {largest}",
        valid="finite numbers",
        hint="compute in float32 or bfloat16: float16 overflows in some models",
    )


def _kept(logits: torch.Tensor, top_k: int, top_p: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the logits that both bounds keep, the largest first, and their tokens."""
    size = len(logits)
    if 0 < top_k < size:
        kept, tokens = _largest(logits, top_k)
        return _within_top_p(kept, tokens, kept.double().logsumexp(-1), top_p)
    total = logits.double().logsumexp(-1)
    kept, tokens = _largest(logits, min(_SORTED, size))
    if len(kept) < size and float((kept - total).exp().sum()) < top_p:
        kept, tokens = _largest(logits, size)
    return _within_top_p(kept, tokens, total, top_p)


def _largest(logits: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the ``count`` largest logits and all that equal the last of them, and their tokens.

    Of equal logits, common in bfloat16, the first token comes first: ``top_p`` may part them, and
    which of them torch's sort, and so transformers, keeps then is nowhere defined.
    """
    last = logits.topk(count).values[-1]
    tokens = (logits >= last).nonzero()[:, 0]
    kept, order = logits[tokens].sort(descending=True, stable=True)
    return kept, tokens[order]


def _within_top_p(
    kept: torch.Tensor, tokens: torch.Tensor, total: torch.Tensor, top_p: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Keep the fewest most probable tokens that have ``top_p`` together; at least one."""
    if top_p >= 1:
        return kept, tokens
    # Summed up from the largest, float32 would lose the last of them.
    probabilities = (kept.double() - total).exp()
    before = probabilities.cumsum(-1) - probabilities
    count = max(1, int((before < top_p).sum()))
    return kept[:count], tokens[:count]


def _number(low: float, high: float, *, above: bool = False) -> Any:
    def read(name: str, value: Any) -> float:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not low <= value <= high or (above and value == low):
            valid = f"more than {low:g}, at most {high:g}" if above else f"{low:g} to {high:g}"
            raise _bad(name, value, valid)
        return float(value)

    return read


def _whole(low: int, high: int) -> Any:
    def read(name: str, value: Any) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise _bad(name, value, f"a whole number, {low} to {high}")
        return value

    return read


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise _bad(name, value, "True or False")
    return value


def _bad(name: str, value: object, valid: str) -> ConfigError:
    return ConfigError(
        "option out of range", where=f"{_WHERE}[{name!r}]", found=repr(value), valid=valid
    )


_READERS: Mapping[str, Any] = {
    "temperature": _number(0, 100),
    "top_p": _number(0, 1, above=True),
    "top_k": _whole(0, 1 << 31),
    "min_p": _number(0, 1),
    "seed": _whole(-(1 << 63), (1 << 63) - 1),
    "logprobs": _flag,
    "repetition_penalty": _number(0, 100, above=True),
}

"""The prompts of a check, compared one after the other until its time is over."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from rag_accel.clock import Clock, MonotonicClock
from rag_accel.engines.llm.local.model.loading import LoadedModel
from rag_accel.engines.option_checks import check_least, check_share
from rag_accel.errors import ConfigError
from rag_accel.fidelity.prompts import TextPrompt, cut_texts, searched_prompts, word_search
from rag_accel.kv.segments import SegmentedPrompt
from rag_accel.kv.verdicts import default_folder
from rag_accel.sample import read_corpus

TARGET = 0.95
TOKENS = 10
COUNT = 30
LIMIT_S = 1800.0
#: Of fewer, the standard error says too little.
LEAST_PROMPTS = 8
#: Of generated prompts: tokens of the texts, room for all else, texts, and documents they are of.
_LENGTHS, _AROUND, _PASSAGES, _CHUNKS = (500, 2000, 5000), 256, 8, 500
_LIBRARIES = ("rag-accel", "transformers", "torch")
Found = TypeVar("Found")


class Tokens(Protocol):
    """A prompt that has tokens."""

    @property
    def ids(self) -> tuple[int, ...]:
        """Return the tokens of the whole prompt."""
        ...


Prompt = TypeVar("Prompt", bound=Tokens)


@dataclass(frozen=True, slots=True)
class ComparedPrompts(Generic[Found]):
    """The comparisons of a check.

    Args:
        prompts: all that were to be compared.
        found: of each of the first ones, as many as the time allowed.
        description: of the prompts that were compared.
    """

    prompts: Sequence[TextPrompt]
    found: Sequence[Found]
    description: str

    @property
    def is_complete(self) -> bool:
        return len(self.found) == len(self.prompts)


class CheckPlan:
    """The prompts and the bounds of a check, whose time begins when this is made.

    Args:
        prompts: like those of the program; None for generated ones.
        target: the share of tokens whose most probable one must be the same.
        count: how many are generated.
        tokens: most tokens of an answer.
        limit_s: after so many seconds no further prompt is begun.
        template: a chat template in place of the tokenizer's.
        progress: is told how many prompts of how many are done.
        clock: measures ``limit_s``.

    Raises:
        ConfigError: a bound is out of range, or there are too few prompts.
    """

    def __init__(
        self,
        prompts: Sequence[TextPrompt] | None,
        *,
        target: float,
        count: int,
        tokens: int,
        limit_s: float,
        template: str | None,
        progress: Callable[[int, int], None] | None,
        clock: Clock | None,
    ) -> None:
        check_share("target", target)
        check_least("tokens", tokens, 1)
        check_least("limit_s", limit_s, 0)
        given = count if prompts is None else len(prompts)
        if given < LEAST_PROMPTS:
            raise _too_few("too few prompts", given, "give more prompts")
        self.target, self.tokens, self.template = target, tokens, template
        self._prompts, self._count = prompts, count
        self._progress = progress or (lambda done, total: None)
        self._clock = clock or MonotonicClock()
        self._ends_at = self._clock.now() + limit_s

    def segmented(self, loaded: LoadedModel) -> Callable[[TextPrompt], SegmentedPrompt]:
        """Return what reads prompts of texts by a model's tokenizer."""
        return lambda prompt: prompt.segmented(loaded.tokenizer, self.template)

    def compare(
        self,
        loaded: LoadedModel,
        compare: Callable[[TextPrompt, Prompt], Found],
        read: Callable[[TextPrompt], Prompt],
    ) -> ComparedPrompts[Found]:
        """Compare one prompt after the other.

        Args:
            loaded: the model, by whose tokenizer prompts are generated.
            compare: a prompt, of which it is given what ``read`` returned, too.
            read: returns the tokens of a prompt, as the model's engine has them.

        Raises:
            ConfigError: a prompt has no text that can be told apart, or no room with its answer,
                or the time is over before 8 prompts were compared.
            EngineError: the chat template refuses one.
        """
        prompts = self._prompts or _sample_prompts(loaded, self._count)
        segmented = [read(prompt) for prompt in prompts]
        self._check_room(loaded, segmented)
        found: list[Found] = []
        for prompt, segments in zip(prompts, segmented, strict=True):
            if self._clock.now() >= self._ends_at:
                break
            found.append(compare(prompt, segments))
            self._progress(len(found), len(prompts))
        if len(found) < LEAST_PROMPTS:
            raise _too_few("the time was over", len(found), "give a larger limit_s")
        sizes = [len(segments.ids) for segments in segmented[: len(found)]]
        kind = "prompts" if self._prompts is not None else "prompts of one search each"
        said = f"{len(found)} {kind}, of {min(sizes):,} to {max(sizes):,} tokens"
        return ComparedPrompts(prompts, found, said)

    def _check_room(self, loaded: LoadedModel, segmented: Sequence[Tokens]) -> None:
        for at, segments in enumerate(segmented, 1):
            size = len(segments.ids) + self.tokens
            if not _fits(loaded, size):
                raise ConfigError(
                    "a prompt and its answer have no room",
                    where=f"prompt {at}",
                    found=f"{size} tokens",
                    valid=f"the model's context of {loaded.runner.context}, and pool_bytes",
                    hint="give fewer or shorter documents",
                )


def verdict_folder(folder: str | Path | None) -> Path:
    """Return the folder to keep a verdict in; by default one of the user's cache."""
    return default_folder() if folder is None else Path(folder).expanduser()


def library_versions() -> dict[str, str]:
    """Return the versions of the libraries that compute, by name."""
    found: dict[str, str] = {}
    for name in _LIBRARIES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:  # run from a checkout
            found[name] = "unknown"
    return found


def _fits(loaded: LoadedModel, tokens: int) -> bool:
    return tokens <= loaded.runner.context and loaded.runner.pool.fits(tokens)


def _sample_prompts(loaded: LoadedModel, count: int) -> list[TextPrompt]:
    """Return prompts of Python's documentation of the lengths that have room, in their order."""
    documents = read_corpus(_CHUNKS).documents
    lengths = [tokens for tokens in _LENGTHS if _fits(loaded, tokens + _AROUND)] or _LENGTHS[:1]
    prompts: list[TextPrompt] = []
    for at, tokens in enumerate(lengths, 1):
        texts = cut_texts(loaded.tokenizer, documents, tokens // _PASSAGES)
        number = count * at // len(lengths) - len(prompts)
        prompts += searched_prompts(documents, word_search(texts, _PASSAGES), number)
    return prompts


def _too_few(what: str, found: int, hint: str) -> ConfigError:
    valid = f"{LEAST_PROMPTS} or more, of which an error can be told"
    return ConfigError(what, where="check", found=f"{found} prompts", valid=valid, hint=hint)

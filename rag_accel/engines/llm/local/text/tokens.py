"""Prompts that are token ids already, completions as tokens, and texts that are only encoded."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from rag_accel.engine_api import GenerationInput, GenerationOutput
from rag_accel.kv.dependency.prompt import DepPrompt
from rag_accel.kv.segments import Segment, SegmentedPrompt


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenInput(GenerationInput):
    """A prompt as token ids, continued as its options choose, which only a local engine reads.

    Args:
        ids: the whole prompt; its messages are not looked at.
        ends: tokens that end the completion, in place of the engine's own.
        most: most tokens of the completion.
        segments: of the same ids, where retrieved texts are known to stand in them; or the tree of
            relation paths, whose prompt is computed in place of the ids.
    """

    messages: tuple[()] = ()
    ids: tuple[int, ...]
    ends: frozenset[int]
    most: int
    segments: SegmentedPrompt | None = None


def without_texts(payload: GenerationInput) -> GenerationInput:
    """Return the same prompt without the places of its retrieved texts."""
    if isinstance(payload, TokenInput):
        return replace(payload, segments=None)
    return replace(payload, chunk_spans=())


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodingInput(GenerationInput):
    """Texts that are encoded and kept; nothing is generated, and there is no final value.

    Args:
        prompt: one in which they stand; its messages are not looked at.
        neighbours: the texts that each is encoded behind, too, in their order.
    """

    messages: tuple[()] = ()
    prompt: SegmentedPrompt
    neighbours: tuple[Segment, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DependencyInput(GenerationInput):
    """A prompt of nodes that depend on each other; its text stands in it as it is.

    Args:
        prompt: its nodes; the messages are not looked at.
        only_encoded: whether the paths are computed and kept, and nothing is generated.
    """

    messages: tuple[()] = ()
    prompt: DepPrompt
    only_encoded: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenOutput(GenerationOutput):
    """A completion as tokens, with the one that ended it; its text is empty."""

    text: str = ""
    tokens: tuple[int, ...]


class CompletionTokens:
    """The tokens of one completion and when it ends; does as ``CompletionText``.

    Args:
        ends: tokens that end it.
        max_tokens: most tokens of it.
    """

    text = ""

    def __init__(self, ends: Collection[int], max_tokens: int) -> None:
        self._ends = ends
        self._max_tokens = max_tokens
        self.num_tokens = 0
        self.finish_reason: str | None = None

    def add(self, token: int) -> str:
        """Take a token and return its number with a space, which pieces can be joined by."""
        self.num_tokens += 1
        if token in self._ends:
            self.finish_reason = "stop"
        elif self.num_tokens >= self._max_tokens:
            self.finish_reason = "length"
        return f"{token} "

"""Whole prompts that a program is foretold to ask for, answered before it does.

Where user code makes calls one after the other, such as one for each document that a search has
found, the prompts of all are known with the first of them. They are computed together with it, as
long as their request is alone. A call gets such an answer only if it asks for exactly that; any
other computes its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from rag_accel.engine_api import (
    EngineOutput,
    EngineRequest,
    GenerationInput,
    GenerationOutput,
    Message,
)
from rag_accel.scheduler.driver import KeptLeaf
from rag_accel.scheduler.messages import EngineName, NodeKey

MOST_AHEAD: Final = 8
"""Prompts behind the present one that are answered at most."""

Remake: TypeAlias = Callable[[tuple[Message, ...]], "GenerationInput | None"]
"""Returns the same call of another prompt; None if it cannot be made, or not now."""


@dataclass(frozen=True, slots=True)
class AskedPrompt:
    """A program's call of a language model, as it is recorded.

    Args:
        engine: computes it.
        messages: the prompt.
        payload: the whole call.
        remake: what answers other prompts early; None where that changes answers, such as where
            they are drawn by chance, or brings nothing, such as where they are streamed.
        has_beginnings: whether beginnings of such prompts can be prefilled.
    """

    engine: EngineName
    messages: Sequence[Message]
    payload: GenerationInput
    remake: Remake | None
    has_beginnings: bool = True


class EarlyAnswer(KeptLeaf):
    """The answer to a call that a program has not made yet.

    Args:
        payload: the call.
        build: builds the work.
        key, engine: of its leaf.
    """

    __slots__ = ("_num_pieces", "engine", "has_begun", "key", "payload")

    def __init__(
        self,
        payload: GenerationInput,
        build: Callable[[NodeKey], EngineRequest],
        key: NodeKey,
        engine: EngineName,
    ) -> None:
        super().__init__(build)
        self.payload, self.key, self.engine = payload, key, engine
        self.has_begun = False
        self._num_pieces = 0

    def request(self, node: NodeKey) -> EngineRequest:
        self.has_begun = True
        return super().request(node)

    def partial(self, node: NodeKey, output: EngineOutput) -> None:
        """Count the increments, which nobody reads before the end."""
        self._num_pieces += 1

    @property
    def found(self) -> Any:
        """Return the engine's value once it has ended well; None else."""
        is_done = self.outcome == "done" and self.result is not None
        return self.result.value if is_done and self.result is not None else None

    @property
    def num_tokens(self) -> int:
        """Return how many tokens were computed for it: of the prompt only once it has ended."""
        found = self.found
        if not isinstance(found, GenerationOutput):
            return self._num_pieces
        computed = found.prompt_tokens if found.use is None else found.use.computed
        return computed + found.completion_tokens

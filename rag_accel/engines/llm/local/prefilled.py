"""Prompts that were computed ahead, by their handles."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass

from rag_accel.engine_api import Handle
from rag_accel.engines.llm.local.batching.prefix import PrefixCache
from rag_accel.engines.llm.local.batching.sequence import Lane, TokenSequence


@dataclass(slots=True)
class _PrefilledPrompt:
    namespace: str
    lane: Lane | None
    #: places that were computed for the work that resumes from it first
    early: range = range(0)


class PrefilledPrompts:
    """The prefilled prompts of an engine; each pins the lane that holds it until its release.

    Args:
        prefixes: the lanes.
    """

    def __init__(self, prefixes: PrefixCache) -> None:
        self._prefixes = prefixes
        self._prompts: dict[Handle, _PrefilledPrompt] = {}
        self._numbers = itertools.count(1)

    def __len__(self) -> int:
        """Return the number of handles that were not released."""
        return len(self._prompts)

    def add(self, namespace: str, sequence: TokenSequence | None = None) -> Handle:
        """Return the handle of a computed prompt; without a sequence, of one with nothing in it."""
        prefilled = _PrefilledPrompt(namespace, None)
        if sequence is not None and sequence.lane is not None:
            self._prefixes.pin(sequence.lane)
            early = range(sequence.from_prefix, len(sequence.prompt))
            prefilled = _PrefilledPrompt(namespace, sequence.lane, early)
        handle = Handle(f"prefill-{next(self._numbers)}")
        self._prompts[handle] = prefilled
        return handle

    def has(self, handle: Handle, namespace: str) -> bool:
        """Tell whether a handle of a namespace has not been released."""
        prefilled = self._prompts.get(handle)
        return prefilled is not None and prefilled.namespace == namespace

    def take_early(self, handle: Handle) -> range:
        """Return the places computed for the first work that resumes from a prompt, once."""
        prefilled = self._prompts[handle]
        early, prefilled.early = prefilled.early, range(0)
        return early

    def release(self, handles: Iterable[Handle]) -> None:
        """Forget prompts and unpin their lanes; unknown handles are ignored."""
        for handle in handles:
            prefilled = self._prompts.pop(handle, None)
            if prefilled is not None and prefilled.lane is not None:
                self._prefixes.unpin(prefilled.lane)

    def clear(self) -> None:
        """Release all handles."""
        self.release(list(self._prompts))
